//! Each due instant is decided once, and none is passed over.

use std::collections::BTreeMap;

use tenure_machine::plan::schedule::Schedules;
use tenure_machine::{Command, Event, FireDecision, Job, Name, Reply, SkipReason, Trigger};

use super::Invariant;
use crate::judge::{Entry, Findings, Seen};

/// Where the next decision about each job must begin, worked out from the definitions alone.
#[derive(Default)]
pub(super) struct OneDecisionAnInstant {
    expected: BTreeMap<Name, Expected>,
    /// The last instant that was decided for a name, whatever jobs had it.
    decided: BTreeMap<Name, u64>,
    schedules: Schedules,
}

#[derive(Clone)]
struct Expected {
    trigger: Trigger,
    anchor_ms: u64,
    /// Instants of the trigger before this are not due: it came then.
    since_ms: u64,
    next_ms: Option<u64>,
}

impl Invariant for OneDecisionAnInstant {
    fn sentence(&self) -> &'static str {
        "for each job and instant there is exactly one decision, in order, across revisions, leaders and jumps of clocks"
    }

    fn reason(&self) -> &'static str {
        "a second decision is a double run, a missing one a run that nobody ever learns of"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let events = entry.outcome.map_or(&[][..], |outcome| &outcome.events);
        for event in events {
            if let Event::Decided(decision) = event {
                self.decided(decision, findings);
            }
        }
        let reply = entry
            .outcome
            .and_then(|outcome| outcome.reply.as_ref().ok());
        let command = entry.proposal.map(|proposal| &proposal.command);
        // A request that is repeated late gets its earlier answer again, whatever came after that.
        match (command, reply) {
            (Some(Command::PutJob { name, .. }), Some(Reply::Job { revision, .. }))
                if *revision == entry.at.index =>
            {
                self.put(name, entry, findings);
            }
            (Some(Command::DeleteJob { name, .. }), Some(_)) if entry.after.job(name).is_none() => {
                self.deleted(name, entry, findings);
            }
            _ => {}
        }
        for event in events {
            if let Event::Decided(decision) = event {
                self.stands(&decision.job, entry, findings);
            }
        }
    }
}

impl OneDecisionAnInstant {
    /// A decision begins where the last one ended, covers every instant up to its end, and no others.
    fn decided(&mut self, decision: &FireDecision, findings: &mut Findings) {
        let FireDecision {
            job,
            first_ms,
            last_ms,
            count,
            ..
        } = decision;
        let before = self.decided.insert(job.clone(), *last_ms);
        if let Some(before) = before.filter(|before| first_ms <= before) {
            findings.add(format!("{before} was decided before: {decision:?}"));
        }
        let Some(expected) = self.expected.get_mut(job) else {
            findings.add(format!("{job} does not exist: {decision:?}"));
            return;
        };
        if expected.next_ms != Some(*first_ms) {
            let next = expected.next_ms;
            findings.add(format!("{next:?} comes first: {decision:?}"));
        }
        let (covered, last) = expected.count(&mut self.schedules, *first_ms, *last_ms);
        if (covered + 1, last.unwrap_or(*first_ms)) != (*count, *last_ms) {
            let found = covered + 1;
            findings.add(format!("{found} instants up to {last:?}: {decision:?}"));
        }
        expected.next_ms = expected.after(&mut self.schedules, *last_ms);
    }

    /// After a decision the cursor stands at the next instant: nothing else makes that one due.
    fn stands(&self, name: &Name, entry: &Entry<'_>, findings: &mut Findings) {
        let (Some(expected), Some(job)) = (self.expected.get(name), entry.after.job(name)) else {
            return;
        };
        if job.next_fire_ms != expected.next_ms {
            findings.add(format!(
                "{name} is decided up to {:?}; its cursor stands at {:?}, not at {:?}",
                self.decided.get(name),
                job.next_fire_ms,
                expected.next_ms
            ));
        }
    }

    fn put(&mut self, name: &Name, entry: &Entry<'_>, findings: &mut Findings) {
        let now_ms = entry.after.clock().calendar_ms;
        let Some(job) = entry.after.job(name) else {
            findings.add(format!("{name} was put and is not there"));
            return;
        };
        let known = match (self.expected.get(name), entry.before.job(name)) {
            (Some(known), Some(_)) => known.clone(),
            _ => return self.begin(name, job, 0, findings),
        };
        if known.trigger == job.spec.trigger {
            return;
        }
        match known.next_ms.filter(|next| *next <= now_ms) {
            // The latest due instant of the old trigger keeps its place; those before it are decided by now.
            Some(first_ms) => {
                let (_, last) = known.count(&mut self.schedules, first_ms, now_ms);
                let kept = last.unwrap_or(first_ms);
                if first_ms != kept {
                    findings.add(format!(
                        "{name} gets another trigger; {first_ms} was due before {kept} and has no decision"
                    ));
                }
                if job.next_fire_ms != Some(kept) {
                    findings.add(format!(
                        "{name} gets another trigger; {kept} was due, the cursor stands at {:?}",
                        job.next_fire_ms
                    ));
                }
                let after = Expected {
                    next_ms: Some(kept),
                    ..Expected::of(job)
                };
                self.expected.insert(name.clone(), after);
            }
            None => self.begin(name, job, job.last_fire_ms.unwrap_or(0), findings),
        }
    }

    /// A trigger begins: its first instant is the first one behind its coming, or behind what was decided.
    fn begin(&mut self, name: &Name, job: &Job, decided_ms: u64, findings: &mut Findings) {
        let expected = Expected::of(job);
        let from_ms = expected.since_ms.max(decided_ms);
        let floor_ms = self.decided.get(name).copied().unwrap_or(0).max(from_ms);
        if job.next_fire_ms.is_none() && expected.after(&mut self.schedules, floor_ms).is_some() {
            findings.add(format!("{name} begins without a cursor"));
        }
        if let Some(next_ms) = job.next_fire_ms {
            let (skipped, _) = expected.count(&mut self.schedules, floor_ms, next_ms - 1);
            if skipped > 0 {
                findings.add(format!(
                    "{name} begins at {next_ms} and passes over {skipped}"
                ));
            }
        }
        self.expected.insert(name.clone(), expected);
    }

    /// A job that goes leaves no due instant undecided.
    fn deleted(&mut self, name: &Name, entry: &Entry<'_>, findings: &mut Findings) {
        let now_ms = entry.after.clock().calendar_ms;
        let left = self.expected.remove(name).and_then(|job| job.next_ms);
        if let Some(next_ms) = left.filter(|next| *next <= now_ms) {
            let reason = SkipReason::Deleted;
            findings.add(format!(
                "{name} goes; {next_ms} has no decision ({reason:?})"
            ));
        }
    }
}

impl Expected {
    fn of(job: &Job) -> Self {
        Self {
            trigger: job.spec.trigger.clone(),
            anchor_ms: job.created_at_ms,
            since_ms: job.trigger_since_ms,
            next_ms: job.next_fire_ms,
        }
    }

    /// How many instants there are after `after_ms` up to `until_ms`, and the last of them.
    fn count(&self, schedules: &mut Schedules, after_ms: u64, until_ms: u64) -> (u64, Option<u64>) {
        let after_ms = after_ms.max(self.since_ms);
        let counted = schedules.count(&self.trigger, self.anchor_ms, after_ms, until_ms);
        let counted = counted.expect("the triggers of a plan can be read");
        counted.map_or((0, None), |counted| (counted.count, Some(counted.last_ms)))
    }

    fn after(&self, schedules: &mut Schedules, instant_ms: u64) -> Option<u64> {
        let after_ms = instant_ms.max(self.since_ms);
        let next = schedules.next_after(&self.trigger, self.anchor_ms, after_ms);
        next.expect("the triggers of a plan can be read")
    }
}
