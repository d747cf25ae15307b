//! What was made can be found, whether it still runs or is over.

use std::collections::BTreeMap;

use tenure_machine::{Event, Name};

use super::Invariant;
use crate::judge::{Ack, Call, Findings, Seen};

/// All runs that were ever made, by their numbers.
#[derive(Default)]
pub(super) struct RunsAreFound {
    runs: BTreeMap<u64, Made>,
    /// Where in the log those that are over ended, and how.
    ended: BTreeMap<u64, (u64, String)>,
    lists: u64,
    lists_of_one_node: u64,
}

struct Made {
    job: Name,
    /// Where in the log.
    index: u64,
    /// So many finished runs of the job are kept.
    keep: u32,
}

impl Invariant for RunsAreFound {
    fn sentence(&self) -> &'static str {
        "a run that was made is found by its number, as it is, and in its place in every list, for as long as it is kept"
    }

    fn reason(&self) -> &'static str {
        "a run leaves the state when it is over; who looks in between must not be told that it never was"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                let events = entry.outcome.map_or(&[][..], |outcome| &outcome.events);
                for event in events {
                    if let Event::RunFinished { run, .. } = event {
                        let how = format!("{:?}", run.state).to_lowercase();
                        self.ended.insert(run.id, (entry.at.index, how));
                    }
                    if let Event::RunCreated(run) = event {
                        let made = Made {
                            job: run.key.job().clone(),
                            index: entry.at.index,
                            keep: run.spec.history.keep,
                        };
                        self.runs.insert(run.id, made);
                    }
                }
            }
            Seen::Acknowledged(Call { committed, ack }) => match ack {
                Ack::Missing { run } if self.kept_from(*run, None).contains(run) => {
                    findings.add(format!("run {run} is not found"));
                }
                Ack::Run { run, ended } => {
                    let over = self.ended.get(run);
                    let so = match ended {
                        // People are shown words, `timed_out` for `TimedOut`.
                        Some(how) => over.is_some_and(|(_, known)| *known == how.replace('_', "")),
                        None => over.is_none_or(|(index, _)| index >= committed),
                    };
                    if !so {
                        findings.add(format!("run {run} is shown as {ended:?}, it is {over:?}"));
                    }
                }
                Ack::Listed {
                    job,
                    runs,
                    whole,
                    current,
                } => {
                    self.lists += 1;
                    self.lists_of_one_node += u64::from(!current);
                    let lowest = if *whole {
                        Some(0)
                    } else {
                        runs.last().copied()
                    };
                    // What is as a node has it may end anywhere, but has no holes.
                    let highest = runs.first().copied();
                    let owed = |id: &u64| match current {
                        true => self.runs[id].index < *committed,
                        false => Some(*id) <= highest,
                    };
                    let job = job.as_deref();
                    let kept = lowest.map(|lowest| self.kept_from(lowest, job));
                    let mut owed = kept.unwrap_or_default().into_iter().filter(owed);
                    if let Some(lost) = owed.find(|id| !runs.contains(id)) {
                        findings.add(format!("a list lacks run {lost}: {runs:?}"));
                    }
                    if !runs.is_sorted_by(|a, b| a > b) {
                        findings.add(format!("a list is out of order: {runs:?}"));
                    }
                    let belongs = |id: &u64| {
                        let made = self.runs.get(id);
                        made.is_some_and(|made| job.is_none_or(|job| made.job.as_str() == job))
                    };
                    if let Some(other) = runs.iter().find(|id| !belongs(id)) {
                        findings.add(format!(
                            "a list has run {other}, which does not belong there"
                        ));
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("lists of runs", self.lists),
            ("lists of runs as a node has them", self.lists_of_one_node),
        ]
    }
}

impl RunsAreFound {
    /// The runs of a job, or of all, from this number on that have not been followed by as many as their job keeps.
    fn kept_from(&self, lowest: u64, job: Option<&str>) -> Vec<u64> {
        let mut newer: BTreeMap<&Name, u32> = BTreeMap::new();
        let mut kept = Vec::new();
        let made = self.runs.range(lowest..).rev();
        for (id, made) in made.filter(|(_, made)| job.is_none_or(|job| made.job.as_str() == job)) {
            let newer = newer.entry(&made.job).or_default();
            if *newer < made.keep {
                kept.push(*id);
            }
            *newer += 1;
        }
        kept
    }
}
