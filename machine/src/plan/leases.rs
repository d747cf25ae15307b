//! Which leases ran out, what is overdue, and what may leave the live state.

use std::collections::BTreeSet;

use crate::{Command, REQUEST_RETENTION_MS, State, TaskRef};

pub(super) fn plan(state: &State, now_ms: u64, budget: usize, commands: &mut Vec<Command>) {
    let end = commands.len() + budget;
    let mut ending = Ending::default();
    for (deadline_ms, session) in state.index().session_deadlines.iter() {
        if state.effective_deadline(*deadline_ms) > now_ms || commands.len() >= end {
            break;
        }
        ending.sessions.insert(*session);
        commands.push(Command::ExpireSession {
            session: *session,
            deadline_ms: *deadline_ms,
        });
    }
    for (deadline_ms, run, shard) in state.index().task_deadlines.iter() {
        if state.effective_deadline(*deadline_ms) > now_ms || commands.len() >= end {
            break;
        }
        if let Some(task) = ending.take(state, *run, *shard) {
            commands.push(Command::ExpireTask {
                task,
                deadline_ms: *deadline_ms,
            });
        }
    }
    for (limit_ms, run, shard) in state.index().task_limits.iter() {
        if *limit_ms > now_ms || commands.len() >= end {
            break;
        }
        if let Some(task) = ending.take(state, *run, *shard) {
            commands.push(Command::EndOverdueTask {
                task,
                limit_ms: *limit_ms,
            });
        }
    }
}

/// What the commands of one plan end. Nothing is ended twice: the second command would be refused.
#[derive(Default)]
struct Ending {
    sessions: BTreeSet<u64>,
    tasks: BTreeSet<(u64, u32)>,
}

impl Ending {
    /// The present grant of a task, unless an earlier command of the plan ends it, alone or with its session.
    fn take(&mut self, state: &State, run: u64, shard: u32) -> Option<TaskRef> {
        let task = state.task(run, shard)?;
        let session = task.owner.as_ref()?.session;
        let fresh = !self.sessions.contains(&session) && self.tasks.insert((run, shard));
        fresh.then_some(TaskRef {
            run,
            shard,
            epoch: task.epoch,
        })
    }
}

pub(super) fn plan_sweep(state: &State, now_ms: u64, commands: &mut Vec<Command>) {
    let old_request = state.index().requests.get_min().is_some_and(|(_, key)| {
        state
            .requests
            .get(key)
            .is_some_and(|record| record.at_lease_ms.saturating_add(REQUEST_RETENTION_MS) <= now_ms)
    });
    if old_request || state.oldest_finished_over(now_ms).is_some() {
        commands.push(Command::Sweep);
    }
}
