//! What an executor and the leader say to each other. All requests are POST with JSON bodies,
//! below `/v1/executor`.
//!
//! The life of a task, as the executor sees it:
//! 1. A poll brings an [`Assignment`]. It is delivered again on each poll until it is started.
//! 2. [`StartRequest`] must be acknowledged before the handler runs; the answer says where to
//!    resume.
//! 3. Heartbeats renew the lease of everything the session holds and bring verdicts.
//! 4. Checkpoints are committed in growing offset order.
//! 5. The result is repeated until it is acknowledged or refused. A repeated result for the same
//!    (run, shard, epoch) is acknowledged as the same.
//!
//! Invariant: every call names the session, and every call about a task its epoch. The cluster
//! refuses numbers of the past, so a late call of an old owner has no effect.

use crate::bytes::Bytes;
use crate::ids::{Capability, Epoch, Generation, InstanceId, JobName, Revision, RunId, SessionId};
use crate::token::FencingToken;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Lease of a session that asks for none, in milliseconds.
pub const DEFAULT_LEASE_TTL_MS: u64 = 35_000;
/// Heartbeat interval that goes with the default lease, in milliseconds.
pub const DEFAULT_HEARTBEAT_INTERVAL_MS: u64 = 10_000;
/// The most assignments one poll may ask for.
pub const MAX_POLL_ASSIGNMENTS: u32 = 256;
/// The longest a poll may wait on the server, in milliseconds.
pub const MAX_POLL_WAIT_MS: u64 = 30_000;
/// The most opaque state one checkpoint may carry, in bytes before base64.
pub const MAX_CHECKPOINT_BYTES: usize = 64 * 1024;
/// The most text one output call may carry, in bytes.
pub const MAX_OUTPUT_CALL_BYTES: usize = 16 * 1024;
/// The most output the cluster keeps for one task, in bytes.
pub const MAX_OUTPUT_TASK_BYTES: usize = 256 * 1024;
/// The most output text that may come with a result, in bytes.
pub const MAX_OUTPUT_TAIL_BYTES: usize = 16 * 1024;
/// The largest value a result may carry, in bytes of JSON.
pub const MAX_RESULT_VALUE_BYTES: usize = 64 * 1024;
/// The longest failure message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// The most capabilities one executor may offer.
pub const MAX_CAPABILITIES: usize = 64;
/// The most labels one executor may carry.
pub const MAX_LABELS: usize = 64;
/// The longest label key or value, in bytes.
pub const MAX_LABEL_BYTES: usize = 128;
/// The most slots one executor may offer.
pub const MAX_CAPACITY: u32 = 10_000;
/// How much of a lease an executor uses before it stops by itself, in thousandths. The rest is
/// for clocks that run at different speeds.
pub const LEASE_USE_PER_MILLE: u64 = 900;

/// Names one tenure of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskKey {
    /// The run.
    pub run: RunId,
    /// The shard's index, from zero.
    pub shard: u32,
    /// The epoch it was granted under.
    pub epoch: Epoch,
}

/// Registers an executor process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    /// The lasting identity. A later registration under the same id replaces this one.
    pub instance_id: InstanceId,
    /// The executor's version (semantic versioning), matched by jobs that ask for one.
    pub version: String,
    /// What it can do.
    pub capabilities: Vec<Capability>,
    /// Labels that jobs select by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How many tasks it runs at once.
    pub capacity: u32,
    /// The lease it would like, in milliseconds. The cluster may grant another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<u64>,
}

/// The session that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterAnswer {
    /// The session, to be named in every later call.
    pub session: SessionId,
    /// How long the lease lasts from each renewal, in milliseconds.
    pub lease_ttl_ms: u64,
    /// How often to renew it, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// The cluster's generation.
    pub generation: Generation,
}

/// Renews the lease of a session and of every task it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// How many slots are in use now.
    pub slots_used: u32,
    /// What the executor's own probe says. No work is assigned while false.
    pub healthy: bool,
    /// The tasks whose handlers run.
    #[serde(default)]
    pub tasks: Vec<HeldTask>,
}

/// A task that an executor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldTask {
    /// Which task, under which epoch.
    #[serde(flatten)]
    pub key: TaskKey,
    /// How far the handler says it is. Never committed; only tells how much may be replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
}

/// The renewed lease and what to do with each task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatAnswer {
    /// How long the lease lasts, counted from when this renewal was sent, in milliseconds.
    pub lease_ttl_ms: u64,
    /// One verdict for each task that was named.
    #[serde(default)]
    pub tasks: Vec<TaskVerdict>,
    /// Whether an operator asked the executor to drain.
    #[serde(default)]
    pub draining: bool,
    /// How long the drain may still take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline_in_ms: Option<u64>,
}

/// What to do with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Go on.
    Keep,
    /// Stop it and report it as cancelled.
    Cancel,
    /// It belongs to another owner or has ended. Stop it and report nothing.
    Lost,
}

/// The verdict on one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskVerdict {
    /// Which task, under which epoch.
    #[serde(flatten)]
    pub key: TaskKey,
    /// What to do with it.
    pub verdict: Verdict,
    /// Why, for cancel and lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Asks for work, and waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PollRequest {
    /// The most assignments to return, at most [`MAX_POLL_ASSIGNMENTS`].
    pub max: u32,
    /// How long to wait when there is nothing, in milliseconds, at most [`MAX_POLL_WAIT_MS`].
    pub wait_ms: u64,
    /// Assignments that arrived before and are being started; they are not delivered again now.
    #[serde(default)]
    pub known: Vec<TaskKey>,
}

/// Work, and work to stop.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PollAnswer {
    /// Assignments that are granted and not started.
    #[serde(default)]
    pub assignments: Vec<Assignment>,
    /// Tasks to stop.
    #[serde(default)]
    pub cancels: Vec<CancelNotice>,
    /// Whether an operator asked the executor to drain.
    #[serde(default)]
    pub draining: bool,
}

/// A task to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelNotice {
    /// Which task, under which epoch.
    #[serde(flatten)]
    pub key: TaskKey,
    /// Why.
    pub reason: String,
}

/// What made a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TriggerKind {
    /// The job's trigger: cron, every or at.
    Scheduled,
    /// A person or program, by the trigger call.
    Manual,
}

/// A task granted to this session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Assignment {
    /// Which task, under which epoch.
    #[serde(flatten)]
    pub key: TaskKey,
    /// How many shards the run has.
    pub shard_count: u32,
    /// Which attempt this is, from one.
    pub attempt: u32,
    /// The job.
    pub job: JobName,
    /// The job's revision when the run was made.
    pub revision: Revision,
    /// The instant the run was due, in milliseconds since the Unix epoch.
    pub scheduled_at_ms: i64,
    /// Which handler is to run.
    pub capability: Capability,
    /// Parameters for the handler: a JSON object.
    pub params: Value,
    /// How long the attempt may take, in milliseconds. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// What downstream systems check.
    pub fencing_token: FencingToken,
    /// What the token is compared within.
    pub fencing_scope: String,
    /// The cluster's generation.
    pub generation: Generation,
    /// The last committed checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// What made the run.
    pub trigger: TriggerKind,
    /// How long the session's lease still lasts, in milliseconds.
    pub deadline_in_ms: u64,
}

/// A committed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Checkpoint {
    /// How far the work is durable.
    pub offset: u64,
    /// The handler's own state.
    #[serde(default)]
    pub state: Bytes,
    /// The epoch that committed it.
    pub epoch: Epoch,
}

/// Asks to run a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// The run.
    pub run: RunId,
    /// The shard's index, from zero.
    pub shard: u32,
    /// The epoch it was granted under.
    pub epoch: Epoch,
}

/// The handler may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StartAnswer {
    /// Which attempt this is, from one.
    pub attempt: u32,
    /// Where to go on.
    #[serde(default)]
    pub resume: Resume,
}

/// Where a task goes on, and what its last owner had reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resume {
    /// The last committed checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// The furthest progress the last owner reported. What lies between the checkpoint and this
    /// may have been done already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress: Option<u64>,
    /// The epoch of the last owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_epoch: Option<Epoch>,
}

/// Commits a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// The run.
    pub run: RunId,
    /// The shard's index, from zero.
    pub shard: u32,
    /// The epoch it was granted under.
    pub epoch: Epoch,
    /// How far the work is durable. Never below the committed one.
    pub offset: u64,
    /// The handler's own state, at most [`MAX_CHECKPOINT_BYTES`].
    #[serde(default)]
    pub state: Bytes,
}

/// The checkpoint is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckpointAnswer {
    /// The committed offset.
    pub offset: u64,
}

/// Appends to a task's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OutputRequest {
    /// The run.
    pub run: RunId,
    /// The shard's index, from zero.
    pub shard: u32,
    /// The epoch it was granted under.
    pub epoch: Epoch,
    /// Counts the calls of this tenure from zero. A repeated number is acknowledged, not stored.
    pub seq: u64,
    /// The text, at most [`MAX_OUTPUT_CALL_BYTES`].
    pub text: String,
}

/// What was kept of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutputAnswer {
    /// Bytes of this call that were kept.
    pub accepted_bytes: u64,
    /// Whether the task's output has reached its limit. Further calls keep nothing.
    pub truncated: bool,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Outcome {
    /// The handler did its work.
    Succeeded {
        /// What it gave back, at most [`MAX_RESULT_VALUE_BYTES`] of JSON.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
    },
    /// The handler failed.
    Failed {
        /// Why, at most [`MAX_MESSAGE_BYTES`].
        message: String,
        /// Whether another attempt may help.
        retryable: bool,
    },
    /// The handler stopped because it was asked to.
    Cancelled,
    /// The attempt took longer than it may.
    TimedOut,
}

/// Reports how an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResultRequest {
    /// Which task, under which epoch.
    #[serde(flatten)]
    pub key: TaskKey,
    /// How it ended.
    pub outcome: Outcome,
    /// How far the handler was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<u64>,
    /// The end of the output, for executors that send none while running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tail: Option<String>,
}

/// The result is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResultAnswer {
    /// What the task is now: final, or queued for another attempt.
    pub state: crate::runs::TaskState,
}

/// Gives a shard back without using up an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The run.
    pub run: RunId,
    /// The shard's index, from zero.
    pub shard: u32,
    /// The epoch it was granted under.
    pub epoch: Epoch,
    /// Why, at most [`MAX_MESSAGE_BYTES`].
    pub reason: String,
}

/// Says that the executor takes no more work and will leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// How long running work may still take, in milliseconds.
    pub deadline_ms: u64,
}

/// An answer that says nothing but that the request was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Done {}

/// Makes the conversions between a task key and the requests that spell it out. They are spelled
/// out because serde cannot refuse unknown fields in a struct with a flattened part.
macro_rules! keyed {
    ($($request:ident),*) => {$(
        impl $request {
            /// Which task, under which epoch.
            pub fn key(&self) -> TaskKey {
                TaskKey { run: self.run, shard: self.shard, epoch: self.epoch }
            }
        }
    )*};
}

keyed!(
    StartRequest,
    CheckpointRequest,
    OutputRequest,
    ReleaseRequest
);

impl From<TaskKey> for StartRequest {
    fn from(key: TaskKey) -> Self {
        Self {
            run: key.run,
            shard: key.shard,
            epoch: key.epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_result_is_flat_and_tagged() {
        let request = ResultRequest {
            key: TaskKey {
                run: RunId(9),
                shard: 2,
                epoch: Epoch(19),
            },
            outcome: Outcome::Failed {
                message: "disk full".into(),
                retryable: true,
            },
            progress: Some(1200),
            output_tail: None,
        };
        let json = serde_json::to_value(&request).unwrap();
        assert_eq!(
            json,
            json!({
                "run": 9, "shard": 2, "epoch": 19, "progress": 1200,
                "outcome": {"status": "failed", "message": "disk full", "retryable": true},
            })
        );
        assert_eq!(
            serde_json::from_value::<ResultRequest>(json).unwrap(),
            request
        );
    }

    #[test]
    fn requests_refuse_unknown_fields() {
        let json = json!({"run": 1, "shard": 0, "epoch": 1, "hurry": true});
        assert!(serde_json::from_value::<StartRequest>(json).is_err());
    }
}
