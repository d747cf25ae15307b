//! What was done stays done.

use std::collections::BTreeMap;

use tenure_machine::{Command, Reply};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The offset last committed for each task.
#[derive(Default)]
pub(super) struct CheckpointsNeverGoBack(BTreeMap<(u64, u32), u64>);

impl Invariant for CheckpointsNeverGoBack {
    fn sentence(&self) -> &'static str {
        "a checkpoint is committed by the present epoch only, never goes back, and is where the next owner starts"
    }

    fn reason(&self) -> &'static str {
        "a handler repeats what lies after the checkpoint and skips what lies before it"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let reply = entry
            .outcome
            .and_then(|outcome| outcome.reply.as_ref().ok());
        match (entry.proposal.map(|p| &p.command), reply) {
            (Some(Command::Checkpoint { task, .. }), Some(Reply::Checkpointed { offset })) => {
                let before = self.0.insert((task.run, task.shard), *offset);
                if before.is_some_and(|before| before > *offset) {
                    findings.add(format!("{task:?}: {offset} after {before:?}"));
                }
                let epoch = entry
                    .before
                    .task(task.run, task.shard)
                    .map(|task| task.epoch);
                if epoch != Some(task.epoch) {
                    findings.add(format!("{task:?} commits, the epoch is {epoch:?}"));
                }
            }
            (Some(Command::StartTask { task, .. }), Some(Reply::Started { checkpoint, .. })) => {
                let committed = self.0.get(&(task.run, task.shard)).copied();
                let given = checkpoint.as_ref().map(|checkpoint| checkpoint.offset);
                if committed.is_some() && given != committed {
                    findings.add(format!(
                        "{task:?} starts at {given:?}, not at {committed:?}"
                    ));
                }
            }
            _ => {}
        }
    }
}
