//! Runs and their tasks, as people and programs read them.

use crate::ids::{Epoch, InstanceId, JobName, Revision, RunId, SessionId};
use crate::protocol::TriggerKind;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Makes an enum whose values have one name on the wire, in paths and for people.
macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize,
        )]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::runs::UnknownValue;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|value| value.as_str() == text);
                found.ok_or($crate::runs::UnknownValue)
            }
        }
    };
}
pub(crate) use states;

/// The text is none of the listed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownValue;

impl std::fmt::Display for UnknownValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("is not one of the allowed values")
    }
}

impl std::error::Error for UnknownValue {}

states! {
    /// What a run is doing.
    RunState {
        /// Behind another run of the same job, by its overlap policy.
        Waiting = "waiting",
        /// None of its tasks has started.
        Queued = "queued",
        /// At least one of its tasks has started, and not all have ended.
        Running = "running",
        /// Every task succeeded.
        Succeeded = "succeeded",
        /// A task failed for good.
        Failed = "failed",
        /// It was cancelled, or replaced by a newer run.
        Cancelled = "cancelled",
        /// A task's last attempt took longer than it may.
        TimedOut = "timed_out",
        /// An owner was lost and the job does not allow another attempt. A person decides.
        Unknown = "unknown",
    }
}

impl RunState {
    /// Whether the run has ended.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Waiting | Self::Queued | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut | Self::Unknown => {
                true
            }
        }
    }
}

states! {
    /// What a task is doing.
    TaskState {
        /// Waits for an executor.
        Queued = "queued",
        /// Granted to an executor, not started.
        Assigned = "assigned",
        /// Its handler runs.
        Running = "running",
        /// Its owner was lost; it waits for the next grant.
        Orphaned = "orphaned",
        /// Done.
        Succeeded = "succeeded",
        /// Failed for good.
        Failed = "failed",
        /// Stopped because the run was cancelled.
        Cancelled = "cancelled",
        /// Its last attempt took longer than it may.
        TimedOut = "timed_out",
        /// Its owner was lost and the job does not allow another attempt.
        Unknown = "unknown",
    }
}

impl TaskState {
    /// Whether the task has ended.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::Assigned | Self::Running | Self::Orphaned => false,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut | Self::Unknown => {
                true
            }
        }
    }
}

/// One execution of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    /// Its number.
    pub id: RunId,
    /// The job.
    pub job: JobName,
    /// The job's revision when the run was made.
    pub revision: Revision,
    /// The instant it was due, or the instant it was triggered.
    pub scheduled_at: Timestamp,
    /// What made it.
    pub trigger: TriggerKind,
    /// The key of the trigger call, for manual runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// What it is doing.
    pub state: RunState,
    /// Why it is in that state, where there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its first task started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// How many shards it has.
    pub shard_count: u32,
    /// How many tasks are in which group of states.
    pub counts: TaskCounts,
    /// Whether someone asked to cancel it.
    #[serde(default)]
    pub cancel_requested: bool,
    /// Its tasks, by shard. Left out in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Task>,
}

/// How many of a run's tasks are in which group of states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskCounts {
    /// Queued or orphaned.
    pub queued: u32,
    /// Assigned or running.
    pub running: u32,
    /// Succeeded.
    pub succeeded: u32,
    /// Ended in any other way.
    pub failed: u32,
}

/// One shard of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    /// The shard's index, from zero.
    pub shard: u32,
    /// What it is doing.
    pub state: TaskState,
    /// The current or last attempt, from one. Zero before the first.
    pub attempt: u32,
    /// The shard's epoch of the current or last grant.
    pub epoch: Epoch,
    /// The executor that holds or held it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<InstanceId>,
    /// That executor's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// When it was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_at: Option<Timestamp>,
    /// When its handler started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// The next attempt does not start before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// How far the handler said it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// The last committed checkpoint, without its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSummary>,
    /// Why it failed or was given back, last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the handler gave back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// A committed checkpoint, without its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckpointSummary {
    /// How far the work is durable.
    pub offset: u64,
    /// How large the handler's state is, in bytes.
    pub state_bytes: u64,
    /// The epoch that committed it.
    pub epoch: Epoch,
}

/// Filters and page of a list of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct RunsQuery {
    /// Only runs of this job.
    pub job: Option<JobName>,
    /// Only runs in this state.
    pub state: Option<RunState>,
    /// The most items of the page.
    pub limit: Option<u32>,
    /// Where the page starts.
    pub cursor: Option<String>,
    /// Where the answer comes from.
    pub consistency: Option<Consistency>,
}

states! {
    /// Where a read is answered from.
    Consistency {
        /// The leader, after it has made sure that it still leads. The default.
        Linearizable = "linearizable",
        /// The asked node's own state, which may be behind.
        Stale = "stale",
    }
}

/// Which shard's output to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct OutputQuery {
    /// The shard's index. The default is zero.
    pub shard: Option<u32>,
    /// Where the answer comes from.
    pub consistency: Option<Consistency>,
}

/// What a task wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunOutput {
    /// The run.
    pub run: RunId,
    /// The shard's index.
    pub shard: u32,
    /// The pieces, in the order they were written.
    pub pieces: Vec<OutputPiece>,
    /// Whether the limit was reached and the rest dropped.
    pub truncated: bool,
}

/// One piece of a task's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutputPiece {
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// Its place among the pieces of that epoch.
    pub seq: u64,
    /// The text.
    pub text: String,
}

/// Why a run is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// The run.
    pub run: RunId,
    /// What it is doing.
    pub state: RunState,
    /// The reason in one sentence.
    pub summary: String,
    /// The reason for each shard that has one of its own.
    pub shards: Vec<ShardExplanation>,
    /// For a run that waits for an executor: each executor and which conditions it fails.
    pub executors: Vec<ExecutorVerdict>,
}

/// Why a shard is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardExplanation {
    /// The shard's index.
    pub shard: u32,
    /// What it is doing.
    pub state: TaskState,
    /// The reason in one sentence.
    pub summary: String,
}

/// Whether an executor could take the run's tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecutorVerdict {
    /// The executor.
    pub instance_id: InstanceId,
    /// Whether it fits.
    pub eligible: bool,
    /// The conditions it fails.
    pub fails: Vec<FailedCondition>,
}

/// A condition that an executor fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedCondition {
    /// Which condition.
    pub condition: Condition,
    /// What the job wants and the executor has.
    pub detail: String,
}

states! {
    /// What an executor must satisfy to get a task.
    Condition {
        /// Its lease is valid.
        Online = "online",
        /// It is not draining.
        NotDraining = "not_draining",
        /// Its own probe says that it is well.
        Healthy = "healthy",
        /// It offers the capability.
        Capability = "capability",
        /// Its version satisfies the job's requirement.
        Version = "version",
        /// Its labels match the job's selector.
        Selector = "selector",
        /// It has a free slot.
        FreeSlot = "free_slot",
        /// The shard does not avoid it after failures there.
        NotAvoided = "not_avoided",
    }
}

/// Starts a run by hand. The call carries an `Idempotency-Key`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TriggerRequest {
    /// Parameters that replace the job's own for this run: a JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
}

/// What became of a trigger call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TriggerAnswer {
    /// Whether a run was made, or why not.
    pub decision: crate::ledger::Decision,
    /// The run, if one was made now or by an earlier call with the same key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// Why, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Cancels a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Why, for the record and for the handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_one_name_everywhere() {
        for state in TaskState::ALL {
            let json = serde_json::to_string(state).unwrap();
            assert_eq!(json, format!("\"{state}\""));
            assert_eq!(state.as_str().parse(), Ok(*state));
        }
        for state in RunState::ALL {
            let json = serde_json::to_string(state).unwrap();
            assert_eq!(json, format!("\"{state}\""));
        }
        for condition in Condition::ALL {
            let json = serde_json::to_string(condition).unwrap();
            assert_eq!(json, format!("\"{condition}\""));
        }
        assert_eq!("asleep".parse::<RunState>(), Err(UnknownValue));
    }
}
