//! A run that succeeded has had all its effects.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{CheckpointScope, Event, RunState};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// What the sink accepted for each task, and how much there was to do.
#[derive(Default)]
pub(super) struct DoneMeansDone {
    stored: BTreeMap<(u64, u32), BTreeSet<u64>>,
    total: BTreeMap<(u64, u32), u64>,
}

impl Invariant for DoneMeansDone {
    fn sentence(&self) -> &'static str {
        "a run that succeeded has stored each of its records, through all crashes and takeovers"
    }

    fn reason(&self) -> &'static str {
        "a checkpoint that runs ahead of the work, or a result of a lost attempt, would skip records"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Worked {
                run, shard, total, ..
            } => {
                self.total.insert((*run, *shard), *total);
            }
            Seen::Stored {
                run,
                shard,
                record,
                accepted: true,
                ..
            } => {
                self.stored
                    .entry((*run, *shard))
                    .or_default()
                    .insert(*record);
            }
            Seen::Committed(entry) => {
                let events = entry.outcome.map_or(&[][..], |outcome| &outcome.events);
                for event in events {
                    if let Event::RunFinished { run, tasks } = event {
                        let whole = run.spec.checkpoints == CheckpointScope::PerRun;
                        if run.state == RunState::Succeeded && whole {
                            let shards = tasks.iter().map(|task| task.shard);
                            shards.for_each(|shard| self.finished((run.id, shard), findings));
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

impl DoneMeansDone {
    fn finished(&mut self, task: (u64, u32), findings: &mut Findings) {
        let total = self.total.remove(&task).unwrap_or(0);
        let stored = self.stored.remove(&task).unwrap_or_default();
        let missing: Vec<u64> = (0..total).filter(|at| !stored.contains(at)).collect();
        if !missing.is_empty() || total == 0 {
            findings.add(format!(
                "{task:?} succeeded without records {missing:?} of {total}"
            ));
        }
    }
}
