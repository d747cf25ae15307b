//! Every grant has a higher epoch than all before it.

use std::collections::BTreeMap;

use tenure_machine::{Command, Name};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The highest epoch of each shard, for ever.
#[derive(Default)]
pub(super) struct EpochsGrow(BTreeMap<(Name, u32), u64>);

impl Invariant for EpochsGrow {
    fn sentence(&self) -> &'static str {
        "each grant of a shard has a higher epoch than every grant before it, also of a job of the same name that is gone"
    }

    fn reason(&self) -> &'static str {
        "a sink tells the present owner from a late one by nothing else"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        if entry.outcome.is_none_or(|outcome| outcome.reply.is_err()) {
            return;
        }
        let Some(Command::Assign { task, .. }) = entry.proposal.map(|p| &p.command) else {
            return;
        };
        let Some(run) = entry.before.run(task.run) else {
            findings.add(format!("a grant of an unknown run: {task:?}"));
            return;
        };
        let key = (run.key.job().clone(), task.shard);
        let last = self.0.insert(key, task.epoch);
        if last.is_some_and(|last| last >= task.epoch) {
            findings.add(format!("{task:?} after epoch {last:?}"));
        }
    }
}
