//! Nobody works on after the cluster took the lease away.

use std::collections::BTreeMap;

use tenure_machine::Command;

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The grants that ended because their lease ran out, with the place at which they did.
#[derive(Default)]
pub(super) struct LeaseOutlastsItsHolder(BTreeMap<(u64, u32, u64), u64>);

impl Invariant for LeaseOutlastsItsHolder {
    fn sentence(&self) -> &'static str {
        "a lease is not expired before its holder has stopped by its own clock"
    }

    fn reason(&self) -> &'static str {
        "the next owner is granted the shard from then on"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                if entry.outcome.is_none_or(|outcome| outcome.reply.is_err()) {
                    return;
                }
                let index = entry.at.index;
                match entry.proposal.map(|proposal| &proposal.command) {
                    Some(Command::ExpireSession { session, .. }) => {
                        for task in entry.before.held_by(*session) {
                            self.0.insert((task.run, task.shard, task.epoch), index);
                        }
                    }
                    Some(Command::ExpireTask { task, .. }) => {
                        self.0.insert((task.run, task.shard, task.epoch), index);
                    }
                    _ => {}
                }
            }
            Seen::Worked {
                process,
                run,
                shard,
                epoch,
                ..
            } => {
                if let Some(index) = self.0.get(&(*run, *shard, *epoch)) {
                    findings.add(format!(
                        "x{process} works on run {run} shard {shard} epoch {epoch}, whose lease was expired at {index}"
                    ));
                }
            }
            _ => {}
        }
    }
}
