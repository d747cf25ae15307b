//! A shard has one owner at a time.

use tenure_machine::{Command, Overlap};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// Looks at each grant.
#[derive(Default)]
pub(super) struct OneOwnerAScope;

impl Invariant for OneOwnerAScope {
    fn sentence(&self) -> &'static str {
        "a fencing scope has at most one owner with a live lease, at every place of the log, and only an entry ends that"
    }

    fn reason(&self) -> &'static str {
        "that is what a lease is"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let Some(Command::Assign { task, .. }) = entry.proposal.map(|p| &p.command) else {
            return;
        };
        if entry.outcome.is_none_or(|outcome| outcome.reply.is_err()) {
            return;
        }
        let owner = entry.before.task(task.run, task.shard);
        if let Some(owner) = owner.and_then(|task| task.owner.as_ref()) {
            findings.add(format!(
                "{task:?} is granted while {owner:?} holds it: no entry has ended that"
            ));
        }
        let Some(run) = entry.after.run(task.run) else {
            return;
        };
        let alone = run.spec.overlap != Overlap::Allow;
        let owned = entry.after.runs_before(None).filter(|other| {
            let same = other.key.job() == run.key.job();
            let scope = if alone { same } else { other.id == run.id };
            let held = entry.after.task(other.id, task.shard);
            scope && held.is_some_and(|held| held.owner.is_some())
        });
        let owned: Vec<u64> = owned.map(|run| run.id).collect();
        if owned.len() > 1 {
            findings.add(format!(
                "{task:?} is granted while runs {owned:?} own the shard"
            ));
        }
    }
}
