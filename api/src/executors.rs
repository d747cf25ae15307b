//! Executors, as people and programs read them.

use crate::ids::{Capability, InstanceId, JobName, SessionId};
use crate::protocol::TaskKey;
use crate::runs::{Consistency, TaskState, states};
use crate::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

states! {
    /// Whether an executor can get work.
    ExecutorState {
        /// Its lease is valid.
        Online = "online",
        /// Its lease is valid; it finishes what it has and takes no more.
        Draining = "draining",
        /// Its lease ran out.
        Expired = "expired",
        /// It said that it leaves.
        Left = "left",
    }
}

/// One executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Executor {
    /// Its lasting identity.
    pub instance_id: InstanceId,
    /// Its current or last session.
    pub session: SessionId,
    /// Whether it can get work.
    pub state: ExecutorState,
    /// Its version.
    pub version: String,
    /// What it can do.
    pub capabilities: Vec<Capability>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// How many tasks it runs at once.
    pub capacity: u32,
    /// How many slots it said are in use.
    pub slots_used: u32,
    /// What its own probe says.
    pub healthy: bool,
    /// When the session was made.
    pub registered_at: Timestamp,
    /// When its last renewal was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_at: Option<Timestamp>,
    /// How long its lease still lasts, in milliseconds of the lease clock.
    pub lease_remaining_ms: u64,
    /// When its drain must be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_deadline_at: Option<Timestamp>,
    /// How many tasks it holds.
    pub tasks_held: u32,
    /// The tasks it holds. Left out in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<ExecutorTask>,
}

/// A task that an executor holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExecutorTask {
    /// Which task, under which epoch.
    #[serde(flatten)]
    pub key: TaskKey,
    /// The job.
    pub job: JobName,
    /// Assigned or running.
    pub state: TaskState,
}

/// Page of a list of executors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct ExecutorsQuery {
    /// The most items of the page.
    pub limit: Option<u32>,
    /// Where the page starts.
    pub cursor: Option<String>,
    /// Where the answer comes from.
    pub consistency: Option<Consistency>,
}

/// Asks an executor to finish what it has and leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DrainExecutorRequest {
    /// How long running work may still take.
    pub deadline: Millis,
}
