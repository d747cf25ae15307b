//! What the state holds, one type a thing.
//!
//! `*_ms` is milliseconds; a field that ends in `_lease_ms` is a reading of the lease clock, one that ends
//! in `_at_ms` a reading of the calendar clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{JobSpec, Name, RunKey};

/// A job and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its name.
    pub name: Name,
    /// The log index of its last change: unique and growing, over deletion and re-creation too.
    pub revision: u64,
    /// The present definition.
    pub spec: Arc<JobSpec>,
    /// The log index at which it was created. Runs with a lower id belong to an earlier job of the name.
    pub created_index: u64,
    /// When it was created. `every` counts from here.
    pub created_at_ms: u64,
    /// When it was last changed.
    pub updated_at_ms: u64,
    /// Since when its trigger is what it is. Apart from `next_fire_ms`, no earlier instant is due.
    pub trigger_since_ms: u64,
    /// Since when it is paused.
    pub paused_at_ms: Option<u64>,
    /// The last instant that was decided.
    pub last_fire_ms: Option<u64>,
    /// The next instant to be decided.
    pub next_fire_ms: Option<u64>,
    /// Its active runs by id.
    pub active: Vec<u64>,
    /// Its waiting runs, the next one first.
    pub waiting: VecDeque<u64>,
}

/// One execution of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The log index at which it was created.
    pub id: u64,
    /// What makes it unique.
    pub key: RunKey,
    /// The job's revision when it was created.
    pub revision: u64,
    /// The job's definition at that revision. The run keeps to it.
    pub spec: Arc<JobSpec>,
    /// Parameters given by a trigger, in place of the definition's.
    pub params: Option<String>,
    /// When it was created.
    pub created_at_ms: u64,
    /// When its tasks were queued.
    pub activated_at_ms: Option<u64>,
    /// When it ended.
    pub finished_at_ms: Option<u64>,
    /// When it ended, on the lease clock; for the sweep.
    pub finished_lease_ms: Option<u64>,
    /// The log index at which it ended.
    pub finished_index: Option<u64>,
    /// Where it stands.
    pub state: RunState,
    /// Why it was asked to stop.
    pub cancelled: Option<String>,
    /// How many of its tasks are not over.
    pub open_tasks: u32,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RunState {
    /// Behind an earlier run of the same job.
    Waiting,
    /// Its tasks are queued or under way.
    Active,
    /// All its tasks succeeded.
    Succeeded,
    /// A task failed for good.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// A task took too long for good.
    TimedOut,
    /// The fate of a task is not known.
    Unknown,
}

impl RunState {
    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Waiting | Self::Active)
    }
}

/// One shard's part of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The run.
    pub run: u64,
    /// The shard of the run's job.
    pub shard: u32,
    /// Where it stands.
    pub state: TaskState,
    /// The epoch of its last grant; 0 before the first.
    pub epoch: u64,
    /// Who holds it.
    pub owner: Option<Owner>,
    /// How often a handler was started.
    pub attempt: u32,
    /// How many attempts ended in failure or time-out.
    pub failures: u32,
    /// How often in a row a running owner was lost without a new checkpoint.
    pub takeovers: u32,
    /// How often in a row it came back unstarted, or was given back, without a new checkpoint.
    pub returns: u32,
    /// It may not be granted before.
    pub not_before_lease_ms: u64,
    /// The last committed checkpoint.
    pub checkpoint: Option<Arc<Checkpoint>>,
    /// How far the present owner says it has come.
    pub progress: Option<u64>,
    /// How far any earlier owner said it had come.
    pub last_progress: Option<u64>,
    /// The epoch of the earlier owner.
    pub previous_epoch: Option<u64>,
    /// How far replay after a takeover has been counted, and to where it goes.
    pub replay: Option<Replay>,
    /// When it is ended by force, because it was asked to stop.
    pub cancel_limit_lease_ms: Option<u64>,
    /// The grant whose result was taken, so that a repeat is recognised.
    pub resulted: Option<(u64, u64)>,
    /// How many pieces of output the present grant sent.
    pub output_seq: u32,
    /// How much output is kept, in bytes.
    pub output_bytes: u64,
    /// Whether output was dropped.
    pub output_truncated: bool,
    /// What the handler returned, or why the last attempt failed.
    pub message: Option<String>,
    /// The instance that held it last.
    pub last_instance: Option<Name>,
    /// When a handler was first started.
    pub started_at_ms: Option<u64>,
    /// When it ended.
    pub finished_at_ms: Option<u64>,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskState {
    /// It waits for its first grant, or for the next attempt.
    Queued,
    /// It is granted; no handler was started under this epoch.
    Assigned,
    /// A handler was started under this epoch.
    Running,
    /// Its owner was lost; it waits for the next grant.
    Orphaned,
    /// Done.
    Succeeded,
    /// Not done.
    Failed,
    /// Stopped.
    Cancelled,
    /// Took too long.
    TimedOut,
    /// Nobody knows.
    Unknown,
}

impl TaskState {
    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut | Self::Unknown
        )
    }

    /// Whether it waits for a grant.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::Queued | Self::Orphaned)
    }
}

/// Who holds a task, and until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The session.
    pub session: u64,
    /// When the grant was made.
    pub granted_lease_ms: u64,
    /// When it ends without a renewal.
    pub deadline_lease_ms: u64,
    /// When the handler was started.
    pub started_lease_ms: Option<u64>,
}

/// How far replay after a takeover has been counted, and to where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// Records up to here were counted.
    pub counted: u64,
    /// The earlier owner had come to here.
    pub until: u64,
}

/// A committed point to go on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The handler's own count.
    pub offset: u64,
    /// Whatever the handler needs to go on.
    pub state: Arc<[u8]>,
    /// The epoch that committed it.
    pub epoch: u64,
}

/// What outlives the runs of one shard of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The job.
    pub job: Name,
    /// Which.
    pub index: u32,
    /// The epoch of the last grant.
    pub epoch: u64,
    /// The last checkpoint, where the job carries it over.
    pub checkpoint: Option<Arc<Checkpoint>>,
    /// How many shards the run had that committed it. A run with another number cuts the work in another
    /// way, so the checkpoint means nothing to it; it is kept for people and for a return to this number.
    pub checkpoint_shards: u32,
}

/// One executor process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The log index of its registration.
    pub id: u64,
    /// Stable over restarts of the process.
    pub instance: Name,
    /// The principal that registered it.
    pub principal: Option<Name>,
    /// Its version.
    pub version: String,
    /// What it can do, sorted.
    pub capabilities: Vec<Name>,
    /// What it is.
    pub labels: BTreeMap<Name, Name>,
    /// How many tasks it takes at once.
    pub capacity: u32,
    /// How long its lease lasts without a renewal.
    pub lease_ttl_ms: u64,
    /// When its lease ends.
    pub deadline_lease_ms: u64,
    /// When it registered.
    pub registered_at_ms: u64,
    /// The same moment on the lease clock.
    pub registered_lease_ms: u64,
    /// How often in a row the instance changed hands shortly after the time before: a sign of two
    /// processes with one instance id.
    pub conflicts: u32,
    /// When it was last heard.
    pub heard_at_ms: u64,
    /// How many of its slots are taken by something the cluster did not give it.
    pub slots_taken: u32,
    /// What its own probe says.
    pub healthy: bool,
    /// It takes no new work, and should be gone then.
    pub drain_limit_lease_ms: Option<u64>,
}

/// A session that is over, remembered so that a late caller learns why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedSession {
    /// Its number.
    pub id: u64,
    /// Its instance.
    pub instance: Name,
    /// Why it ended.
    pub why: SessionEnd,
    /// The log index at which it ended.
    pub ended_index: u64,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Another process registered under the same instance id.
    Replaced,
    /// Its lease ran out.
    Expired,
    /// It said goodbye.
    Closed,
}

/// What a request with an idempotency key was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The key, unique to its principal.
    pub key: Name,
    /// A digest of the request.
    pub fingerprint: [u8; 16],
    /// The answer.
    pub reply: Result<crate::Reply, crate::Refusal>,
    /// The log index.
    pub index: u64,
    /// When, on the lease clock.
    pub at_lease_ms: u64,
}

/// When a term began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermRecord {
    /// The term.
    pub term: u64,
    /// The log index of its `TermStarted`.
    pub index: u64,
    /// When, on the calendar clock.
    pub at_ms: u64,
}

/// What is counted. Append-only: the order is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Counter {
    /// Terms that began.
    Elections,
    /// Instants decided as a run.
    Fires,
    /// Instants decided as "not run".
    FiresSkipped,
    /// Decisions refused because the instant was decided already.
    DuplicateFiresRefused,
    /// Commands of leader loops refused because their term was over.
    StaleTermRejections,
    /// Calls of ended sessions refused.
    StaleSessionRejections,
    /// Calls under old epochs refused.
    StaleEpochRejections,
    /// Sessions ended by their deadline.
    SessionsExpired,
    /// Sessions ended by another process of the same instance.
    SessionsReplaced,
    /// Grants ended by a deadline.
    LeasesExpired,
    /// Grants after the loss of an owner.
    Takeovers,
    /// Records worked through again after takeovers.
    ReplayedRecords,
    /// Runs that succeeded.
    RunsSucceeded,
    /// Runs that ended in another way.
    RunsNotSucceeded,
    /// Attempts that failed and are repeated.
    Retries,
    /// Grants that were never started because their session ended.
    DispatchSessionLost,
    /// Grants that were never started within their lease.
    DispatchExpired,
    /// Grants that their executor gave back unstarted.
    DispatchRefused,
    /// Registrations slowed down because processes take one instance id from each other.
    InstanceConflicts,
}
