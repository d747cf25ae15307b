//! What was done stays done.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{CheckpointScope, Command, Event, Name, Reply, Run, TaskRef};

use super::Invariant;
use crate::judge::{Entry, Findings, Seen};

/// The offsets that were last committed.
#[derive(Default)]
pub(super) struct CheckpointsNeverGoBack {
    /// By task.
    tasks: BTreeMap<(u64, u32), u64>,
    /// By job and shard, for those whose runs go on from each other; with the number of shards.
    carried: BTreeMap<(Name, u32), (u64, u32)>,
    /// The runs that have begun.
    begun: BTreeSet<u64>,
    carried_over: u64,
}

impl Invariant for CheckpointsNeverGoBack {
    fn sentence(&self) -> &'static str {
        "a checkpoint is committed by the present epoch only, never goes back, and is where the next owner starts, or the next run where it is carried over"
    }

    fn reason(&self) -> &'static str {
        "a handler repeats what lies after the checkpoint and skips what lies before it"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        for event in entry.outcome.map_or(&[][..], |outcome| &outcome.events) {
            match event {
                Event::JobChanged { job } if entry.after.job(job).is_none() => {
                    self.carried.retain(|(name, _), _| name != job);
                }
                Event::TasksQueued { run } if self.begun.insert(*run) => {
                    if let Some(run) = entry.after.run(*run) {
                        self.begin(run);
                    }
                }
                _ => {}
            }
        }
        let reply = entry
            .outcome
            .and_then(|outcome| outcome.reply.as_ref().ok());
        match (entry.proposal.map(|p| &p.command), reply) {
            (Some(Command::Checkpoint { task, .. }), Some(Reply::Checkpointed { offset })) => {
                let before = self.tasks.insert((task.run, task.shard), *offset);
                if let Some(run) = carries(entry, task) {
                    let key = (run.key.job().clone(), task.shard);
                    self.carried.insert(key, (*offset, run.spec.shards));
                }
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
                let committed = self.tasks.get(&(task.run, task.shard)).copied();
                let given = checkpoint.as_ref().map(|checkpoint| checkpoint.offset);
                if given != committed {
                    findings.add(format!(
                        "{task:?} starts at {given:?}, not at {committed:?}"
                    ));
                }
            }
            _ => {}
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("checkpoints carried over", self.carried_over)]
    }
}

impl CheckpointsNeverGoBack {
    /// A run begins where the runs before it have come to, or with nothing.
    fn begin(&mut self, run: &Run) {
        if run.spec.checkpoints != CheckpointScope::CarryOver {
            return;
        }
        for shard in 0..run.spec.shards {
            let carried = self.carried.get(&(run.key.job().clone(), shard));
            if let Some((offset, _)) = carried.filter(|(_, shards)| *shards == run.spec.shards) {
                self.tasks.insert((run.id, shard), *offset);
                self.carried_over += 1;
            }
        }
    }
}

/// The run of a task, if its job is still the one that made it and its runs go on from each other.
fn carries<'a>(entry: &'a Entry<'_>, task: &TaskRef) -> Option<&'a Run> {
    let run = entry.before.run(task.run)?;
    let job = entry.before.job(run.key.job())?;
    let own = run.id > job.created_index && run.spec.checkpoints == CheckpointScope::CarryOver;
    own.then_some(run)
}
