//! Why a run is where it is, for people.

use crate::state::{Run, RunState, Task, TaskState};
use crate::{Name, State};

/// Why a run is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The run's state in a sentence.
    pub summary: String,
    /// The run it waits for.
    pub waits_for: Option<u64>,
    /// Its tasks that are not over, at most [`MAX_EXPLAINED`].
    pub tasks: Vec<TaskExplanation>,
    /// Checkpoints that the job keeps but that this run does not start from, because they were committed
    /// under another number of shards. At most [`MAX_EXPLAINED`].
    pub kept_checkpoints: Vec<KeptCheckpoint>,
}

/// A checkpoint of a job that cut its work into another number of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptCheckpoint {
    /// Its shard.
    pub shard: u32,
    /// Of how many.
    pub shards: u32,
    /// Its offset.
    pub offset: u64,
    /// The epoch that committed it.
    pub epoch: u64,
}

/// Why a task is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskExplanation {
    /// Its shard.
    pub shard: u32,
    /// Where it stands.
    pub state: TaskState,
    /// In a sentence.
    pub summary: String,
    /// For a waiting task: what each executor lacks. At most [`MAX_EXPLAINED`].
    pub obstacles: Vec<Obstacle>,
}

/// Why an executor does not get a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The executor.
    pub instance: Name,
    /// What it fails.
    pub why: &'static str,
}

/// Most tasks, and most executors, that one explanation names.
pub const MAX_EXPLAINED: usize = 100;

/// Explains a live run.
pub fn explain(state: &State, run: &Run) -> Explanation {
    let waits_for = (run.state == RunState::Waiting)
        .then(|| {
            state
                .job(run.key.job())
                .and_then(|job| job.active.first().copied())
        })
        .flatten();
    let tasks: Vec<_> = state
        .tasks_of(run.id)
        .filter(|task| !task.state.is_final())
        .take(MAX_EXPLAINED)
        .map(|task| explain_task(state, run, task))
        .collect();
    Explanation {
        summary: summary(run, waits_for),
        waits_for,
        tasks,
        kept_checkpoints: kept_checkpoints(state, run),
    }
}

fn kept_checkpoints(state: &State, run: &Run) -> Vec<KeptCheckpoint> {
    state
        .shards_of(run.key.job())
        .filter(|shard| shard.checkpoint_shards != run.spec.shards)
        .filter_map(|shard| {
            let checkpoint = shard.checkpoint.as_ref()?;
            Some(KeptCheckpoint {
                shard: shard.index,
                shards: shard.checkpoint_shards,
                offset: checkpoint.offset,
                epoch: checkpoint.epoch,
            })
        })
        .take(MAX_EXPLAINED)
        .collect()
}

fn summary(run: &Run, waits_for: Option<u64>) -> String {
    match (run.state, waits_for) {
        (RunState::Waiting, Some(other)) => {
            format!("It waits until run {other} of the same job is over.")
        }
        (RunState::Waiting, None) => "It waits for its turn.".into(),
        (RunState::Active, _) => match &run.cancelled {
            Some(reason) => format!(
                "It was asked to stop ({reason}); {} tasks are not over yet.",
                run.open_tasks
            ),
            None => format!(
                "{} of {} tasks are not over yet.",
                run.open_tasks, run.spec.shards
            ),
        },
        (RunState::Succeeded, _) => "All its tasks succeeded.".into(),
        (RunState::Failed, _) => "At least one task failed for good.".into(),
        (RunState::TimedOut, _) => "At least one task took too long for good.".into(),
        (RunState::Unknown, _) => {
            "The executor of at least one task was lost while it ran, and the job does not allow \
             another attempt: a person has to look."
                .into()
        }
        (RunState::Cancelled, _) => match &run.cancelled {
            Some(reason) => format!("It was cancelled: {reason}."),
            None => "It was cancelled.".into(),
        },
    }
}

fn explain_task(state: &State, run: &Run, task: &Task) -> TaskExplanation {
    let now_ms = state.clock().lease_ms;
    let wait_ms = task.not_before_lease_ms.saturating_sub(now_ms);
    let mut obstacles = Vec::new();
    let summary = match (&task.owner, task.state) {
        (Some(owner), _) => {
            let instance = task
                .last_instance
                .as_ref()
                .map_or("?", |name| name.as_str());
            let doing = if task.state == TaskState::Running {
                "runs on"
            } else {
                "is granted to"
            };
            format!(
                "It {doing} {instance} (session {}) under epoch {}; the lease lasts {} ms more.",
                owner.session,
                task.epoch,
                state
                    .effective_deadline(owner.deadline_lease_ms)
                    .saturating_sub(now_ms)
            )
        }
        (None, _) if wait_ms > 0 => match &task.message {
            Some(message) => {
                format!("It waits {wait_ms} ms before the next attempt; the last one: {message}")
            }
            None => format!("It waits {wait_ms} ms before it may be granted again."),
        },
        (None, _) => {
            obstacles = state
                .sessions_after(None)
                .filter_map(|session| {
                    let why = state.fits(session, run).err()?;
                    Some(Obstacle {
                        instance: session.instance.clone(),
                        why,
                    })
                })
                .take(MAX_EXPLAINED)
                .collect();
            if state.session_count() == 0 {
                "It waits for an executor: none has a live session.".into()
            } else if obstacles.len() >= state.session_count().min(MAX_EXPLAINED) {
                "It waits for an executor: none of those that live can take it.".into()
            } else {
                "It is about to be granted.".into()
            }
        }
    };
    TaskExplanation {
        shard: task.shard,
        state: task.state,
        summary,
        obstacles,
    }
}
