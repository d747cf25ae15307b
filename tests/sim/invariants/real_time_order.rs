//! Every acknowledged call is linearizable, with the log as the witness.
//!
//! The log is an order of all changes. It is a linearization if each call takes effect at a place that was
//! filled between the moment it was made and the moment it was acknowledged: then a call that was made after
//! another one was acknowledged stands behind it. So nothing has to be searched for; two bounds a call are all.
//! A read, and a change that found nothing to change, must show what was true at some place between.

use std::collections::BTreeMap;

use tenure_machine::{Command, Event, Reply, State};

use super::Invariant;
use crate::clock;
use crate::judge::{Ack, Call, Face, Findings, Seen};

/// Where everything that a client can be told of stands in the log.
#[derive(Default)]
pub(super) struct RealTimeOrder {
    /// How each job was, with the place from which on; none where it was deleted.
    jobs: BTreeMap<String, Vec<(u64, Option<Face>)>>,
    runs: BTreeMap<u64, u64>,
    checkpoints: BTreeMap<(u64, u32, u64, u64), u64>,
    state: State,
    term: u64,
    began_us: u64,
    reads: u64,
    soon: u64,
}

/// So long after a term's first entry the leader before it may not know yet.
const SOON_US: u64 = 500_000;

impl Invariant for RealTimeOrder {
    fn sentence(&self) -> &'static str {
        "an acknowledged call took effect between the moment it was made and the moment it was acknowledged"
    }

    fn reason(&self) -> &'static str {
        "with it the order of the log is an order in which each client could have seen everything: linearizability"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                self.state = entry.after.clone();
                let index = entry.at.index;
                if entry.at.term != self.term {
                    (self.term, self.began_us) = (entry.at.term, clock::true_us());
                }
                let Some(outcome) = entry.outcome else {
                    return;
                };
                for event in &outcome.events {
                    match event {
                        Event::JobChanged { job } => {
                            let face = entry.after.job(job).map(|job| Face::from(&**job));
                            let faces = self.jobs.entry(job.to_string()).or_default();
                            if faces.last().is_none_or(|(_, last)| *last != face) {
                                faces.push((index, face));
                            }
                        }
                        Event::RunCreated(run) => {
                            self.runs.insert(run.id, index);
                        }
                        _ => {}
                    }
                }
                let command = entry.proposal.map(|proposal| &proposal.command);
                if let Some(Command::Checkpoint { task, .. }) = command
                    && let Ok(Reply::Checkpointed { offset }) = outcome.reply
                {
                    let key = (task.run, task.shard, task.epoch, offset);
                    self.checkpoints.entry(key).or_insert(index);
                }
            }
            Seen::Acknowledged(Call { committed, ack }) => {
                if matches!(ack, Ack::Read { .. }) {
                    self.reads += 1;
                    self.soon += u64::from(clock::true_us() - self.began_us < SOON_US);
                }
                if self.holds(*committed, ack) {
                    return;
                }
                findings.add(format!(
                    "{ack:?}, with {committed} entries committed when it was asked for"
                ));
            }
            _ => {}
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("reads", self.reads),
            ("reads within 0.5 s of a new term", self.soon),
        ]
    }
}

impl RealTimeOrder {
    fn holds(&self, committed: u64, ack: &Ack) -> bool {
        let within = |index: Option<&u64>| index.is_some_and(|index| *index >= committed);
        match ack {
            Ack::Job {
                name,
                revision,
                description,
                changed,
            } => {
                let put = |face: Option<&Face>| {
                    face.is_some_and(|f| f.revision == *revision && f.description == *description)
                };
                self.became(name, committed, &put) || (!changed && self.was(name, committed, &put))
            }
            Ack::Paused { name, paused } => {
                let so = |face: Option<&Face>| face.is_some_and(|face| face.paused == *paused);
                self.was(name, committed, &so) || self.became(name, committed, &so)
            }
            Ack::Read { name, face } => {
                let so = |at: Option<&Face>| at == Some(face);
                self.was(name, committed, &so) || self.became(name, committed, &so)
            }
            Ack::Deleted { name } => self.became(name, committed, &|face| face.is_none()),
            Ack::NoJob { name } => {
                let none = |face: Option<&Face>| face.is_none();
                self.was(name, committed, &none) || self.became(name, committed, &none)
            }
            // `no_means_no` looks at the first, `runs_are_found` and `ledger_is_whole` at those of runs and decisions,
            // `acknowledged_survives` at the others.
            Ack::Nothing { .. }
            | Ack::Missing { .. }
            | Ack::Listed { .. }
            | Ack::Run { .. }
            | Ack::Ledger { .. }
            | Ack::Registered(_)
            | Ack::Renewed(_)
            | Ack::Started(_)
            | Ack::Ended(_) => true,
            Ack::Trigger { run, .. } => within(self.runs.get(run)),
            Ack::Cancelled { run } => {
                let run = self.state.run(*run);
                run.is_none_or(|run| run.cancelled.is_some() || run.state.is_final())
            }
            Ack::Checkpoint {
                run,
                shard,
                epoch,
                offset,
            } => within(self.checkpoints.get(&(*run, *shard, *epoch, *offset))),
        }
    }

    /// Whether a job was so when so many entries were committed.
    fn was(&self, name: &str, committed: u64, so: &dyn Fn(Option<&Face>) -> bool) -> bool {
        let faces = self.jobs.get(name).map_or(&[][..], Vec::as_slice);
        let since = faces.partition_point(|(index, _)| *index < committed);
        so(since.checked_sub(1).and_then(|at| faces[at].1.as_ref()))
    }

    /// Whether a job became so after so many entries were committed.
    fn became(&self, name: &str, committed: u64, so: &dyn Fn(Option<&Face>) -> bool) -> bool {
        let faces = self.jobs.get(name).map_or(&[][..], Vec::as_slice);
        let mut since = faces.iter().filter(|(index, _)| *index >= committed);
        since.any(|(_, at)| so(at.as_ref()))
    }
}
