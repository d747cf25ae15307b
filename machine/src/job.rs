//! What a job is: its trigger, its policies and the work it asks for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Name;

/// The definition of a job, as one revision of it. Durations are milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Free text for people.
    pub description: String,
    /// When it is due.
    pub trigger: Trigger,
    /// What happens when it is due while an earlier run is live.
    pub overlap: Overlap,
    /// How many runs may wait (`queue`) or be live at once (`allow`).
    pub queue_limit: u32,
    /// What happens to instants that could not be decided in time.
    pub misfire: Misfire,
    /// When and how often a failed attempt is repeated.
    pub retry: Retry,
    /// How long one attempt may take.
    pub timeout_ms: Option<u64>,
    /// Into how many tasks a run is cut.
    pub shards: u32,
    /// Whether an attempt whose fate is unknown may be repeated.
    pub execution: Execution,
    /// When a task whose owner was lost may be granted again.
    pub recovery: Recovery,
    /// How far a checkpoint reaches.
    pub checkpoints: CheckpointScope,
    /// What is to be done, and by whom.
    pub task: TaskTemplate,
    /// How much of its past is kept in the archive.
    pub history: History,
}

/// When a job is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trigger {
    /// A cron expression with five or six fields (seconds first) in an IANA time zone.
    Cron {
        /// The expression.
        expression: String,
        /// The zone's IANA name.
        timezone: String,
    },
    /// A fixed interval, counted from the job's creation.
    Every {
        /// The interval.
        interval_ms: u64,
    },
    /// Once.
    At {
        /// The instant on the calendar clock.
        instant_ms: u64,
    },
    /// Only when someone asks.
    Manual,
}

/// What happens when a job is due while an earlier run of it is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overlap {
    /// Both run.
    Allow,
    /// The new one does not run.
    Forbid,
    /// The old one is cancelled; the new one starts when the old one has ended.
    Replace,
    /// The new one waits.
    Queue,
}

/// What happens to instants that could not be decided in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misfire {
    /// The policy.
    pub policy: MisfirePolicy,
    /// An instant that is decided no later than this still fires as usual.
    pub grace_ms: u64,
    /// How many late instants `CatchUp` fires: the latest ones.
    pub limit: u32,
}

/// The choices for late instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MisfirePolicy {
    /// The latest of the late instants fires, the others do not.
    FireOnce,
    /// None of the late instants fires.
    Skip,
    /// The latest `limit` of the late instants fire, each of them.
    CatchUp,
}

/// When and how often a failed attempt is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// How often an attempt may end in failure or time-out, the first one counted. At least 1.
    pub max_attempts: u32,
    /// The wait before the second attempt.
    pub initial_backoff_ms: u64,
    /// The longest wait.
    pub max_backoff_ms: u64,
    /// By how much each wait is longer than the one before, in thousandths.
    pub multiplier_milli: u32,
    /// How much of a wait is chance, in thousandths of it.
    pub jitter_permille: u32,
}

/// Whether an attempt whose fate is unknown may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Execution {
    /// It is repeated: the work may be done more than once.
    AtLeastOnce,
    /// It is not: the task ends as `unknown`, the work may not have been done.
    AtMostOnce,
}

/// When a task whose owner was lost may be granted again (seed scenario EX-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recovery {
    /// At once.
    Immediate,
    /// When the lost owner's lease would have run out.
    AfterLease,
    /// Never: the task ends as `unknown` and waits for a person.
    Never,
}

/// How far a checkpoint reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointScope {
    /// A new run starts from nothing.
    PerRun,
    /// A new run starts from the last checkpoint of the shard.
    CarryOver,
}

/// What is to be done, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTemplate {
    /// The capability an executor must have.
    pub capability: Name,
    /// A semantic-version requirement on the executor.
    pub version: Option<String>,
    /// Labels the executor must carry.
    pub selector: BTreeMap<Name, Name>,
    /// A JSON object for the handler, as text.
    pub params: String,
}

/// How much of a job's past is kept in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// At most so many finished runs.
    pub keep: u32,
    /// None older than this.
    pub max_age_ms: u64,
}
