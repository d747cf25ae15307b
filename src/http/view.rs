//! Jobs, runs, tasks and executors of the state, as the wire shows them. Read-only: nothing goes back.

use tenure_api::ids::{Epoch, Revision, RunId, SessionId};
use tenure_api::protocol::{TaskKey, TriggerKind};
use tenure_api::{Timestamp, executors, jobs, runs};
use tenure_machine as machine;
use tenure_machine::{Stamp, State};

use super::convert::{capability, instance_id, job_name, labels, to_wire};
use super::failure::Failure;

/// What a run's tasks come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskTally {
    /// Queued or orphaned.
    pub queued: u32,
    /// Assigned or running.
    pub running: u32,
    /// Succeeded.
    pub succeeded: u32,
    /// Ended in any other way.
    pub failed: u32,
    /// When the first handler was started, on the calendar clock.
    pub started_at_ms: Option<u64>,
    /// What the first of those that ended badly said, cut to `MAX_REASON_CHARS`.
    pub failure: Option<String>,
}

/// The most that a list shows of a failure's message. The task has all of it.
const MAX_REASON_CHARS: usize = 300;

impl TaskTally {
    /// Counts tasks. A run that has none yet has them all before it.
    pub fn of<'a>(run: &machine::Run, tasks: impl Iterator<Item = &'a machine::Task>) -> Self {
        let mut tally = Self::default();
        let mut seen = 0;
        for task in tasks {
            seen += 1;
            let group = match task.state {
                machine::TaskState::Queued | machine::TaskState::Orphaned => &mut tally.queued,
                machine::TaskState::Assigned | machine::TaskState::Running => &mut tally.running,
                machine::TaskState::Succeeded => &mut tally.succeeded,
                machine::TaskState::Failed
                | machine::TaskState::Cancelled
                | machine::TaskState::TimedOut
                | machine::TaskState::Unknown => &mut tally.failed,
            };
            *group += 1;
            if tally.failure.is_none() && ended_badly(task.state) {
                tally.failure = task.message.as_deref().map(|said| {
                    let said: String = said.chars().take(MAX_REASON_CHARS).collect();
                    match run.spec.shards {
                        1 => said,
                        _ => format!("shard {}: {said}", task.shard),
                    }
                });
            }
            tally.started_at_ms = match (tally.started_at_ms, task.started_at_ms) {
                (Some(first), Some(other)) => Some(first.min(other)),
                (first, other) => first.or(other),
            };
        }
        if seen == 0 && !run.state.is_final() {
            tally.queued = run.spec.shards;
        }
        tally
    }
}

/// Whether a task ended by itself, and not well.
pub(crate) fn ended_badly(state: machine::TaskState) -> bool {
    match state {
        machine::TaskState::Failed | machine::TaskState::TimedOut | machine::TaskState::Unknown => {
            true
        }
        machine::TaskState::Queued
        | machine::TaskState::Assigned
        | machine::TaskState::Running
        | machine::TaskState::Orphaned
        | machine::TaskState::Succeeded
        | machine::TaskState::Cancelled => false,
    }
}

/// Why a run is in its state: what it was cancelled for, or what its tasks failed with.
fn reason(run: &machine::Run, tally: &TaskTally) -> Option<String> {
    match run.state {
        machine::RunState::Failed | machine::RunState::TimedOut | machine::RunState::Unknown => {
            tally.failure.clone().or_else(|| run.cancelled.clone())
        }
        machine::RunState::Waiting
        | machine::RunState::Active
        | machine::RunState::Succeeded
        | machine::RunState::Cancelled => run.cancelled.clone(),
    }
}

/// An instant for people. Absent stays absent.
fn at(ms: Option<u64>) -> Option<Timestamp> {
    ms.map(Timestamp::from_unsigned_ms)
}

/// The calendar's reading when the lease clock reads, or read, `lease_ms`.
fn calendar_of(now: Stamp, lease_ms: u64) -> Timestamp {
    let ms = if lease_ms >= now.lease_ms {
        now.calendar_ms.saturating_add(lease_ms - now.lease_ms)
    } else {
        now.calendar_ms.saturating_sub(now.lease_ms - lease_ms)
    };
    Timestamp::from_unsigned_ms(ms)
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A job.
pub(crate) fn job(job: &machine::Job) -> Result<jobs::Job, Failure> {
    Ok(jobs::Job {
        spec: to_wire(&job.name, &job.spec, job.paused_at_ms.is_some())?,
        revision: Revision(job.revision),
        created_at: Timestamp::from_unsigned_ms(job.created_at_ms),
        updated_at: Timestamp::from_unsigned_ms(job.updated_at_ms),
        next_fire_at: at(job.next_fire_ms),
        last_fire_at: at(job.last_fire_ms),
        live_runs: count(job.active.len()),
        waiting_runs: count(job.waiting.len()),
    })
}

/// A run's state, which depends on whether one of its tasks has begun.
pub(crate) fn run_state(run: &machine::Run, tally: &TaskTally) -> runs::RunState {
    match run.state {
        machine::RunState::Waiting => runs::RunState::Waiting,
        machine::RunState::Active if tally.started_at_ms.is_some() => runs::RunState::Running,
        machine::RunState::Active => runs::RunState::Queued,
        machine::RunState::Succeeded => runs::RunState::Succeeded,
        machine::RunState::Failed => runs::RunState::Failed,
        machine::RunState::Cancelled => runs::RunState::Cancelled,
        machine::RunState::TimedOut => runs::RunState::TimedOut,
        machine::RunState::Unknown => runs::RunState::Unknown,
    }
}

/// A task's state.
pub(crate) fn task_state(state: machine::TaskState) -> runs::TaskState {
    match state {
        machine::TaskState::Queued => runs::TaskState::Queued,
        machine::TaskState::Assigned => runs::TaskState::Assigned,
        machine::TaskState::Running => runs::TaskState::Running,
        machine::TaskState::Orphaned => runs::TaskState::Orphaned,
        machine::TaskState::Succeeded => runs::TaskState::Succeeded,
        machine::TaskState::Failed => runs::TaskState::Failed,
        machine::TaskState::Cancelled => runs::TaskState::Cancelled,
        machine::TaskState::TimedOut => runs::TaskState::TimedOut,
        machine::TaskState::Unknown => runs::TaskState::Unknown,
    }
}

/// What made a run, and the instant it stands for.
pub(crate) fn origin(run: &machine::Run) -> (TriggerKind, u64) {
    match &run.key {
        machine::RunKey::Scheduled(_, instant_ms) => (TriggerKind::Scheduled, *instant_ms),
        machine::RunKey::Keyed(..) => (TriggerKind::Manual, run.created_at_ms),
    }
}

/// A run without its tasks, as lists show it.
pub(crate) fn run(run: &machine::Run, tally: &TaskTally) -> Result<runs::Run, Failure> {
    let (trigger, scheduled_at_ms) = origin(run);
    Ok(runs::Run {
        id: RunId(run.id),
        job: job_name(run.key.job())?,
        revision: Revision(run.revision),
        scheduled_at: Timestamp::from_unsigned_ms(scheduled_at_ms),
        trigger,
        idempotency_key: caller_key(&run.key),
        state: run_state(run, tally),
        reason: reason(run, tally),
        created_at: Timestamp::from_unsigned_ms(run.created_at_ms),
        started_at: at(tally.started_at_ms),
        finished_at: at(run.finished_at_ms),
        shard_count: run.spec.shards,
        counts: runs::TaskCounts {
            queued: tally.queued,
            running: tally.running,
            succeeded: tally.succeeded,
            failed: tally.failed,
        },
        cancel_requested: run.cancelled.is_some(),
        tasks: Vec::new(),
    })
}

/// A run with its tasks.
pub(crate) fn run_with_tasks<'a>(
    run: &machine::Run,
    tasks: impl Iterator<Item = &'a machine::Task> + Clone,
    now: Stamp,
) -> Result<runs::Run, Failure> {
    let tally = TaskTally::of(run, tasks.clone());
    let mut shown = self::run(run, &tally)?;
    shown.tasks = tasks
        .map(|task| self::task(task, now))
        .collect::<Result<_, _>>()?;
    Ok(shown)
}

/// The key as the caller gave it: without its principal in front. A run that was triggered without a key has
/// one of its own, which is nobody's business.
fn caller_key(key: &machine::RunKey) -> Option<String> {
    match key {
        machine::RunKey::Scheduled(..) => None,
        machine::RunKey::Keyed(_, key) => {
            let (_, key) = key.as_str().split_once(':')?;
            Some(key.to_owned())
        }
    }
}

fn task(task: &machine::Task, now: Stamp) -> Result<runs::Task, Failure> {
    let done = task.state == machine::TaskState::Succeeded;
    let waits = task.state.is_waiting() && task.not_before_lease_ms > now.lease_ms;
    // What a handler gave back is kept as JSON text where a failure's message would be.
    let value = task.message.as_deref().filter(|_| done);
    Ok(runs::Task {
        shard: task.shard,
        state: task_state(task.state),
        attempt: task.attempt,
        epoch: Epoch(task.epoch),
        executor: task.last_instance.as_ref().map(instance_id).transpose()?,
        session: task.owner.as_ref().map(|owner| SessionId(owner.session)),
        assigned_at: task
            .owner
            .as_ref()
            .map(|owner| calendar_of(now, owner.granted_lease_ms)),
        started_at: at(task.started_at_ms),
        finished_at: at(task.finished_at_ms),
        not_before: waits.then(|| calendar_of(now, task.not_before_lease_ms)),
        progress: task.progress.or(task.last_progress),
        checkpoint: task
            .checkpoint
            .as_ref()
            .map(|checkpoint| runs::CheckpointSummary {
                offset: checkpoint.offset,
                state_bytes: checkpoint.state.len() as u64,
                epoch: Epoch(checkpoint.epoch),
            }),
        message: task.message.clone().filter(|_| !done),
        value: value.and_then(|text| serde_json::from_str(text).ok()),
    })
}

/// An executor without its tasks, as lists show it.
pub(crate) fn executor(
    state: &State,
    session: &machine::Session,
    now: Stamp,
) -> Result<executors::Executor, Failure> {
    let deadline_ms = state.effective_deadline(session.deadline_lease_ms);
    let held = state.held_count(session.id);
    let standing = if deadline_ms <= now.lease_ms {
        executors::ExecutorState::Expired
    } else if session.drain_limit_lease_ms.is_some() {
        executors::ExecutorState::Draining
    } else {
        executors::ExecutorState::Online
    };
    Ok(executors::Executor {
        instance_id: instance_id(&session.instance)?,
        session: SessionId(session.id),
        state: standing,
        version: session.version.clone(),
        capabilities: session
            .capabilities
            .iter()
            .map(capability)
            .collect::<Result<_, _>>()?,
        labels: labels(&session.labels),
        capacity: session.capacity,
        slots_used: held.saturating_add(session.slots_taken),
        healthy: session.healthy,
        registered_at: Timestamp::from_unsigned_ms(session.registered_at_ms),
        last_heartbeat_at: Some(Timestamp::from_unsigned_ms(session.heard_at_ms)),
        lease_remaining_ms: deadline_ms.saturating_sub(now.lease_ms),
        drain_deadline_at: session
            .drain_limit_lease_ms
            .map(|limit| calendar_of(now, limit)),
        tasks_held: held,
        tasks: Vec::new(),
    })
}

/// An executor with the tasks it holds.
pub(crate) fn executor_with_tasks(
    state: &State,
    session: &machine::Session,
    now: Stamp,
) -> Result<executors::Executor, Failure> {
    let mut shown = executor(state, session, now)?;
    for task in state.held_by(session.id) {
        let Some(run) = state.run(task.run) else {
            continue;
        };
        shown.tasks.push(executors::ExecutorTask {
            key: task_key(task),
            job: job_name(run.key.job())?,
            state: task_state(task.state),
        });
    }
    Ok(shown)
}

/// Names the present grant of a task.
pub(crate) fn task_key(task: &machine::Task) -> TaskKey {
    TaskKey {
        run: RunId(task.run),
        shard: task.shard,
        epoch: Epoch(task.epoch),
    }
}
