//! How a tenure ends other than by a good result: failure, release, loss of the owner, overdue, and what
//! becomes of the task then.
//!
//! Invariant: each of these takes the owner away in its own entry.

use super::tasks::stale_epoch;
use super::{Applied, Entry};
use crate::state::{Counter, Replay, Run, Task, TaskState};
use crate::{
    Event, Execution, MAX_TAKEOVERS, Recovery, Refusal, RefusalCode, Reply, Retry, State, TaskRef,
};

/// Why an owner is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Its session ended.
    SessionEnded,
    /// Its session lives but did not renew the grant.
    LeaseExpired,
}

impl State {
    /// An attempt failed or timed out: another one, or the end. Says whether there is another one.
    pub(super) fn fail_attempt(
        &mut self,
        entry: &mut Entry<'_>,
        run: &Run,
        key: (u64, u32),
        end: TaskState,
        message: Option<String>,
        retryable: bool,
    ) -> bool {
        let failures = self
            .edit_task(key, |task| {
                task.failures = task.failures.saturating_add(1);
                task.failures
            })
            .unwrap_or(u32::MAX);
        let again = retryable
            && failures < run.spec.retry.max_attempts
            && run.spec.execution == Execution::AtLeastOnce;
        if !again {
            self.end_task(key, end, message);
            return false;
        }
        let wait_ms = backoff_ms(&run.spec.retry, failures, key);
        let not_before_ms = self.meta.clock.lease_ms.saturating_add(wait_ms);
        self.count(Counter::Retries, 1);
        self.edit_task(key, |task| {
            leave_owner(task);
            task.state = TaskState::Queued;
            task.takeovers = 0;
            task.returns = 0;
            task.not_before_lease_ms = not_before_ms;
            task.message = message;
        });
        entry.events.push(Event::TasksQueued { run: key.0 });
        true
    }

    pub(super) fn release_task(
        &mut self,
        entry: &mut Entry<'_>,
        session: u64,
        grant: TaskRef,
    ) -> Applied {
        let (run, _) = self.require_holder(session, grant)?;
        self.give_back(entry, &run, (grant.run, grant.shard));
        self.finish_if_over(entry, grant.run);
        Ok(Reply::Done)
    }

    /// A holder gives its task back: it has stopped working on it, or never began, so nobody needs to wait
    /// for its lease. Says whether the task is granted again.
    pub(super) fn give_back(&mut self, entry: &mut Entry<'_>, run: &Run, key: (u64, u32)) -> bool {
        let Some(task) = self.tasks.get(&key).cloned() else {
            return false;
        };
        let begun = task.state == TaskState::Running;
        if task.cancel_limit_lease_ms.is_some() {
            self.end_task(key, TaskState::Cancelled, None);
            return false;
        }
        if begun && run.spec.execution == Execution::AtMostOnce {
            let why = "its executor gave it back after the handler had begun".to_owned();
            self.end_task(key, TaskState::Unknown, Some(why));
            return false;
        }
        if !begun {
            self.count(Counter::DispatchRefused, 1);
        }
        self.requeue_returned(entry, key, TaskState::Queued);
        true
    }

    /// Queues a task that came back without a fault of its own: at once the first time, later the longer
    /// the more often it came back in a row, so that an executor that refuses is not asked without end.
    fn requeue_returned(&mut self, entry: &mut Entry<'_>, key: (u64, u32), state: TaskState) {
        let now_ms = self.meta.clock.lease_ms;
        self.edit_task(key, |task| {
            leave_owner(task);
            task.state = state;
            task.returns = task.returns.saturating_add(1);
            task.not_before_lease_ms = now_ms.saturating_add(loss_wait_ms(task.returns));
        });
        entry.events.push(Event::TasksQueued { run: key.0 });
    }

    pub(super) fn expire_task(
        &mut self,
        entry: &mut Entry<'_>,
        grant: TaskRef,
        deadline_ms: u64,
    ) -> Applied {
        let (_, task) = self.require_task(grant)?;
        let Some(owner) = task.owner.as_ref().filter(|_| task.epoch == grant.epoch) else {
            return Err(stale_epoch(grant, &task));
        };
        if owner.deadline_lease_ms != deadline_ms
            || self.effective_deadline(deadline_ms) > self.meta.clock.lease_ms
        {
            return Err(Refusal::new(
                RefusalCode::NotExpired,
                format!("the grant holds until {}", owner.deadline_lease_ms),
            ));
        }
        self.count(Counter::LeasesExpired, 1);
        self.lose_owner(entry, (grant.run, grant.shard), Loss::LeaseExpired);
        Ok(Reply::Done)
    }

    pub(super) fn end_overdue_task(
        &mut self,
        entry: &mut Entry<'_>,
        grant: TaskRef,
        limit_ms: u64,
    ) -> Applied {
        let (run, task) = self.require_task(grant)?;
        if task.epoch != grant.epoch || task.owner.is_none() {
            return Err(stale_epoch(grant, &task));
        }
        let limit = crate::state::task_limit(&run, &task);
        if limit != Some(limit_ms) || limit_ms > self.meta.clock.lease_ms {
            return Err(Refusal::new(
                RefusalCode::NotExpired,
                match limit {
                    Some(limit) => format!("the task may go on until {limit}"),
                    None => "the task has no limit".to_owned(),
                },
            ));
        }
        let key = (grant.run, grant.shard);
        if task.cancel_limit_lease_ms.is_some() {
            let message = Some("its executor did not stop it in time".to_owned());
            self.end_task(key, TaskState::Cancelled, message);
        } else {
            let message = Some("the attempt timed out and its executor did not say so".to_owned());
            self.fail_attempt(entry, &run, key, TaskState::TimedOut, message, true);
        }
        self.finish_if_over(entry, grant.run);
        Ok(Reply::Done)
    }

    /// The owner of a task is lost: what becomes of the task (seed scenarios EX-2, EX-11, SH-1).
    pub(super) fn lose_owner(&mut self, entry: &mut Entry<'_>, key: (u64, u32), loss: Loss) {
        let task = self.tasks.get(&key).cloned();
        let run = self.runs.get(&key.0).cloned();
        let (Some(task), Some(run)) = (task, run) else {
            return;
        };
        let Some(owner) = task.owner.clone() else {
            return;
        };
        entry.events.push(Event::Orphaned {
            run: key.0,
            shard: key.1,
            epoch: task.epoch,
        });
        if task.cancel_limit_lease_ms.is_some() {
            self.end_task(key, TaskState::Cancelled, None);
            return self.finish_if_over(entry, key.0);
        }
        if task.state == TaskState::Assigned {
            // No handler ran under this epoch and none will: its start would be refused.
            let counter = match loss {
                Loss::SessionEnded => Counter::DispatchSessionLost,
                Loss::LeaseExpired => Counter::DispatchExpired,
            };
            self.count(counter, 1);
            let state = match task.attempt {
                0 => TaskState::Queued,
                _ => TaskState::Orphaned,
            };
            return self.requeue_returned(entry, key, state);
        }
        let now_ms = self.meta.clock.lease_ms;
        let takeovers = task.takeovers.saturating_add(1);
        let unknown =
            run.spec.execution == Execution::AtMostOnce || run.spec.recovery == Recovery::Never;
        if unknown || takeovers > MAX_TAKEOVERS {
            let (end, why) = if unknown {
                (TaskState::Unknown, "its executor was lost while it ran")
            } else {
                (TaskState::Failed, "its executors were lost again and again")
            };
            self.end_task(key, end, Some(why.to_owned()));
            return self.finish_if_over(entry, key.0);
        }
        let earliest_ms = match run.spec.recovery {
            Recovery::AfterLease => now_ms.max(self.effective_deadline(owner.deadline_lease_ms)),
            Recovery::Immediate | Recovery::Never => now_ms,
        };
        let not_before_ms = earliest_ms.saturating_add(loss_wait_ms(takeovers));
        self.edit_task(key, |task| {
            leave_owner(task);
            task.state = TaskState::Orphaned;
            task.takeovers = takeovers;
            task.not_before_lease_ms = not_before_ms;
        });
        entry.events.push(Event::TasksQueued { run: key.0 });
    }

    /// A task is over.
    pub(super) fn end_task(&mut self, key: (u64, u32), state: TaskState, message: Option<String>) {
        let now_ms = self.meta.clock.calendar_ms;
        let ended = self.edit_task(key, |task| {
            if task.state.is_final() {
                return false;
            }
            task.owner = None;
            task.state = state;
            task.cancel_limit_lease_ms = None;
            task.finished_at_ms = Some(now_ms);
            if message.is_some() {
                task.message = message;
            }
            true
        });
        if ended == Some(true) {
            self.edit_run(key.0, |run| {
                run.open_tasks = run.open_tasks.saturating_sub(1)
            });
        }
    }
}

/// Takes the holder away and keeps what the next one needs to know.
fn leave_owner(task: &mut Task) {
    let Some(owner) = task.owner.take() else {
        return;
    };
    #[cfg(feature = "planted-bugs")]
    if tenure_planted::is(tenure_planted::Bug::OwnerKeptAtLoss) {
        task.owner = Some(owner.clone());
    }
    if owner.started_lease_ms.is_none() {
        return;
    }
    let committed = task
        .checkpoint
        .as_ref()
        .map_or(0, |checkpoint| checkpoint.offset);
    let until = task
        .progress
        .unwrap_or(0)
        .max(task.replay.map_or(0, |replay| replay.until));
    task.replay = (until > committed).then_some(Replay {
        counted: committed,
        until,
    });
    task.last_progress = task.progress.max(task.last_progress);
    task.progress = None;
    task.previous_epoch = Some(task.epoch);
}

/// The wait before the attempt that follows `failures` failed ones: exponential, capped, with a part of it
/// drawn from a hash of the task so that every replica draws the same.
fn backoff_ms(retry: &Retry, failures: u32, key: (u64, u32)) -> u64 {
    let mut wait_ms = u128::from(retry.initial_backoff_ms);
    let cap_ms = u128::from(retry.max_backoff_ms.max(retry.initial_backoff_ms));
    for _ in 1..failures.min(64) {
        wait_ms = (wait_ms * u128::from(retry.multiplier_milli) / 1000).min(cap_ms);
    }
    let wait_ms = u64::try_from(wait_ms).unwrap_or(u64::MAX);
    let spread_ms =
        u64::try_from(u128::from(wait_ms) * u128::from(retry.jitter_permille) / 1000).unwrap_or(0);
    let draw = mix(key.0 ^ (u64::from(key.1) << 40) ^ (u64::from(failures) << 56));
    let minus_ms =
        u64::try_from(u128::from(spread_ms) * u128::from(draw) / u128::from(u64::MAX)).unwrap_or(0);
    wait_ms - minus_ms
}

/// The wait before a task that was lost, or came back, so often in a row is granted again: none the first
/// time, then 1 s, doubled each time up to 5 min.
fn loss_wait_ms(times: u32) -> u64 {
    match times {
        0 | 1 => 0,
        n => (1000 << (n - 2).min(16)).min(300_000),
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
