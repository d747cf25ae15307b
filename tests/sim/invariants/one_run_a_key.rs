//! A run's key is used once.

use std::collections::BTreeMap;

use tenure_machine::{Event, RunKey};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The run of each key.
#[derive(Default)]
pub(super) struct OneRunAKey(BTreeMap<RunKey, u64>);

impl Invariant for OneRunAKey {
    fn sentence(&self) -> &'static str {
        "an instant, and an idempotency key, makes at most one run, and with it all of its tasks or none"
    }

    fn reason(&self) -> &'static str {
        "a request that timed out happened wholly or not at all, and whoever repeats it gets the same run"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let events = entry.outcome.map_or(&[][..], |outcome| &outcome.events);
        for event in events {
            match event {
                Event::RunCreated(run) => {
                    if let Some(first) = self.0.insert(run.key.clone(), run.id) {
                        findings.add(format!("{:?} made run {first} and {}", run.key, run.id));
                    }
                }
                Event::TasksQueued { run } => {
                    let tasks = entry.after.tasks_of(*run).count();
                    let shards = entry.after.run(*run).map_or(0, |run| run.spec.shards);
                    if tasks != shards as usize {
                        findings.add(format!("run {run} has {tasks} of {shards} tasks"));
                    }
                }
                _ => {}
            }
        }
    }
}
