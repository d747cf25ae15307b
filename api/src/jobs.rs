//! Jobs, as people and programs read them.

use crate::ids::{Capability, JobName, Revision};
use crate::job::JobSpec;
use crate::runs::{Consistency, states};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The most fires that can be asked for at once.
pub const MAX_NEXT_FIRES: u32 = 1_000;

/// How many fires are shown when the client does not say.
pub const DEFAULT_NEXT_FIRES: u32 = 10;

/// A job and where it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// What it is, with every default filled in. Its `paused` is what holds now.
    pub spec: JobSpec,
    /// Its current revision, also in the `ETag` header.
    pub revision: Revision,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub updated_at: Timestamp,
    /// The next instant it is due. Absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_fire_at: Option<Timestamp>,
    /// The last instant that was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fire_at: Option<Timestamp>,
    /// Runs that are queued or running.
    pub live_runs: u32,
    /// Runs that wait behind another.
    pub waiting_runs: u32,
}

states! {
    /// What a put did.
    JobChange {
        /// The job is new.
        Created = "created",
        /// The job has a new revision.
        Updated = "updated",
        /// The job was the same already.
        Unchanged = "unchanged",
    }
}

/// What a put did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutJobAnswer {
    /// What changed.
    pub change: JobChange,
    /// The job as it was put, under the revision of this put.
    pub job: Job,
}

/// Filters and page of a list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct JobsQuery {
    /// Only names that start with this.
    pub prefix: Option<String>,
    /// Only jobs that are, or are not, paused.
    pub paused: Option<bool>,
    /// Only jobs that ask for this capability.
    pub capability: Option<Capability>,
    /// The most items of the page.
    pub limit: Option<u32>,
    /// Where the page starts.
    pub cursor: Option<String>,
    /// Where the answer comes from.
    pub consistency: Option<Consistency>,
}

/// How many fires to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct NextQuery {
    /// How many, at most [`MAX_NEXT_FIRES`].
    pub count: Option<u32>,
}

/// The next instants a job is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NextFires {
    /// The job.
    pub job: JobName,
    /// The time zone of the local times.
    pub timezone: String,
    /// The instants, in order. Fewer than asked for when there are no more.
    pub fires: Vec<NextFire>,
}

/// One instant a job is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NextFire {
    /// The instant.
    pub at: Timestamp,
    /// The same in the job's time zone, RFC 3339 with its offset.
    pub local: String,
}

/// What a job file would do, without storing it. The request's body is the job file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Preview {
    /// The job with every default filled in.
    pub spec: JobSpec,
    /// What a put would do now.
    pub change: JobChange,
    /// The instants it would be due.
    pub next: NextFires,
}
