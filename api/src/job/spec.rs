//! The job's own types, in their canonical form.

use crate::error::{ErrorCode, FieldError, Problem};
use crate::ids::{Capability, JobName};
use crate::runs::states;
use crate::time::{Millis, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// The largest job file, in bytes.
pub const MAX_FILE_BYTES: usize = 256 * 1024;
/// The most documents one file may hold.
pub const MAX_FILE_DOCUMENTS: usize = 1_000;
/// The deepest a document may nest.
pub const MAX_DEPTH: usize = 32;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION_BYTES: usize = 1_024;
/// The largest `task.params`, in bytes of JSON.
pub const MAX_PARAMS_BYTES: usize = 64 * 1024;
/// The most entries of `task.selector`.
pub const MAX_SELECTOR_ENTRIES: usize = 32;
/// Most shards of a job.
pub const MAX_SHARDS: u32 = 1_024;
/// Most waiting runs of a job.
pub const MAX_QUEUE_LIMIT: u32 = 1_000;
/// The longest cron expression, in bytes.
pub const MAX_CRON_BYTES: usize = 256;
/// The longest version requirement, in bytes.
pub const MAX_VERSION_BYTES: usize = 128;
/// The most faults that are reported for one document.
pub const MAX_REPORTED_ERRORS: usize = 64;

/// What a job is. Every default is filled in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSpec {
    /// The job's name.
    pub name: JobName,
    /// What it is for, at most 1 KiB.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// When it is due.
    pub trigger: Trigger,
    /// What happens when it is due while an earlier run has not ended.
    pub overlap: Overlap,
    /// Waiting runs that are kept (overlap `queue`), or live runs at once (overlap `allow`).
    pub queue_limit: u32,
    /// What happens to instants that were found late.
    pub misfire: Misfire,
    /// What happens when an attempt fails.
    pub retry: Retry,
    /// How long an attempt may take. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// How many shards each run has, 1 to 1,024.
    pub shards: u32,
    /// Whether work may run again after its owner was lost.
    pub execution: Execution,
    /// When a lost owner's shard is given to another.
    pub recovery: Recovery,
    /// Where a new run starts.
    pub checkpoints: CheckpointPolicy,
    /// What runs.
    pub task: TaskSpec,
    /// How long finished runs are kept.
    pub history: History,
    /// Whether it is paused: due instants are decided as skipped.
    pub paused: bool,
}

impl<'de> serde::Deserialize<'de> for JobSpec {
    /// Reads the same schema as a job file, as strictly. All faults are in the message.
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let document = super::document::Document::deserialize(from)?;
        super::decode::decode(&document.0).map_err(serde::de::Error::custom)
    }
}

/// When a job is due. Exactly one of `cron`, `every`, `at` and `manual` in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Trigger {
    /// At the instants of a cron expression.
    Cron {
        /// Five fields, or six with seconds first.
        cron: String,
        /// The time zone the expression is read in, by its IANA name.
        timezone: String,
    },
    /// Again and again, counted from the job's creation.
    Every {
        /// The interval, at least one second.
        every: Millis,
    },
    /// Once.
    At {
        /// When.
        at: Timestamp,
    },
    /// Only by hand.
    #[serde(serialize_with = "manual")]
    Manual,
}

/// Writes the manual trigger as `manual: true`.
fn manual<S: serde::Serializer>(to: S) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap as _;
    let mut map = to.serialize_map(Some(1))?;
    map.serialize_entry("manual", &true)?;
    map.end()
}

#[cfg(feature = "openapi")]
mod trigger_schema {
    //! The trigger's schema. The unit variant has no derived one that fits.

    use super::{Millis, Timestamp, Trigger};

    #[derive(utoipa::ToSchema)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Shape {
        /// At the instants of a cron expression.
        Cron {
            /// Five fields, or six with seconds first.
            cron: String,
            /// The time zone the expression is read in, by its IANA name. The default is UTC.
            timezone: Option<String>,
        },
        /// Again and again, counted from the job's creation.
        Every {
            /// The interval, at least one second.
            #[schema(value_type = String)]
            every: Millis,
        },
        /// Once.
        At {
            /// When.
            #[schema(value_type = String, format = DateTime)]
            at: Timestamp,
        },
        /// Only by hand.
        Manual {
            /// Always true.
            manual: bool,
        },
    }

    impl utoipa::PartialSchema for Trigger {
        fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
            <Shape as utoipa::PartialSchema>::schema()
        }
    }

    impl utoipa::ToSchema for Trigger {}
}

states! {
    /// What happens when a job is due while an earlier run has not ended.
    Overlap {
        /// Runs run beside each other.
        Allow = "allow",
        /// The instant is skipped. The default.
        Forbid = "forbid",
        /// The earlier run is cancelled.
        Replace = "replace",
        /// The new run waits.
        Queue = "queue",
    }
}

states! {
    /// What happens to instants that were found late.
    MisfirePolicy {
        /// One run for all of them, the last one. The default.
        FireOnce = "fire_once",
        /// None of them.
        Skip = "skip",
        /// Each of them, at most `limit`.
        CatchUp = "catch_up",
    }
}

states! {
    /// Whether work may run again after its owner was lost.
    Execution {
        /// Again from the last checkpoint. The default.
        AtLeastOnce = "at_least_once",
        /// Not by itself: the run ends `unknown` and a person decides.
        AtMostOnce = "at_most_once",
    }
}

states! {
    /// When a lost owner's shard is given to another.
    Recovery {
        /// At once when the session was replaced.
        Immediate = "immediate",
        /// Not before the old lease would have run out. The default.
        AfterLease = "after_lease",
        /// Never: the run ends `unknown`.
        Never = "never",
    }
}

states! {
    /// Where a new run starts.
    CheckpointPolicy {
        /// From nothing. The default.
        PerRun = "per_run",
        /// From the last checkpoint of the run before.
        CarryOver = "carry_over",
    }
}

/// What happens to instants that were found late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Misfire {
    /// Which of them run.
    pub policy: MisfirePolicy,
    /// How late an instant may be found and still count as on time.
    pub grace: Millis,
    /// The most that are caught up. Present for `catch_up` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl Default for Misfire {
    fn default() -> Self {
        Self {
            policy: MisfirePolicy::FireOnce,
            grace: Millis::from_secs(30),
            limit: None,
        }
    }
}

/// What happens when an attempt fails.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Retry {
    /// How many attempts there are in all, 1 to 1,000.
    pub max_attempts: u32,
    /// The pause before the second attempt.
    pub initial_backoff: Millis,
    /// The longest pause.
    pub max_backoff: Millis,
    /// By how much each pause is longer than the one before, 1 to 100.
    pub multiplier: f64,
    /// By how much of itself a pause varies, 0 to 1.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            initial_backoff: Millis::from_secs(1),
            max_backoff: Millis::from_secs(300),
            multiplier: 2.0,
            jitter: 0.2,
        }
    }
}

/// What runs, and where.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskSpec {
    /// The handler's name.
    pub capability: Capability,
    /// A semantic version requirement on the executor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Labels the executor must have, with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub selector: BTreeMap<String, String>,
    /// What the handler is given, at most 64 KiB of JSON.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub params: Map<String, Value>,
}

/// How long finished runs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct History {
    /// The most finished runs, 0 to 100,000.
    pub keep: u32,
    /// The oldest finished run.
    pub max_age: Millis,
}

impl Default for History {
    fn default() -> Self {
        Self {
            keep: 100,
            max_age: Millis::from_secs(7 * 86_400),
        }
    }
}

/// Waiting runs that are kept when the file does not say.
pub const DEFAULT_QUEUE_LIMIT: u32 = 16;

/// Every fault of a job file, at least one and at most [`MAX_REPORTED_ERRORS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobErrors {
    errors: Vec<FieldError>,
    unlisted: usize,
}

impl JobErrors {
    /// The faults, in the order of the document.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// How many faults there were beyond those listed.
    pub fn unlisted(&self) -> usize {
        self.unlisted
    }

    /// As the body of an answer.
    pub fn into_problem(self) -> Problem {
        Problem::of_fields(ErrorCode::InvalidJob, self.errors)
    }

    /// A single fault.
    pub(crate) fn one(path: impl Into<String>, message: impl Into<String>) -> Self {
        let mut errors = Self {
            errors: Vec::new(),
            unlisted: 0,
        };
        errors.push(path.into(), message.into(), Vec::new());
        errors
    }

    /// No fault yet. Only for the reader, which never hands out an empty one.
    pub(crate) fn none() -> Self {
        Self {
            errors: Vec::new(),
            unlisted: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Takes over the faults of one document of several, with its number in front of each path.
    #[cfg(feature = "job-files")]
    pub(crate) fn absorb(&mut self, document: Option<usize>, faults: JobErrors) {
        for fault in faults.errors {
            let path = match document {
                None => fault.path,
                Some(index) if fault.path == super::decode::ROOT => format!("[{index}]"),
                Some(index) => format!("[{index}].{}", fault.path),
            };
            self.push(path, fault.message, fault.allowed);
        }
        self.unlisted += faults.unlisted;
    }

    pub(crate) fn push(&mut self, path: String, message: String, allowed: Vec<String>) {
        if self.errors.len() < MAX_REPORTED_ERRORS {
            self.errors.push(FieldError {
                code: ErrorCode::InvalidJob,
                path,
                message,
                allowed,
            });
        } else {
            self.unlisted += 1;
        }
    }
}

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        if self.unlisted > 0 {
            write!(f, "\n… and {} more", self.unlisted)?;
        }
        Ok(())
    }
}

impl std::error::Error for JobErrors {}
