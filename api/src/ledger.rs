//! The fire ledger: for every job and every instant it was due, what was decided and why.

use crate::ids::{JobName, Revision, RunId, Term};
use crate::protocol::TriggerKind;
use crate::runs::{Consistency, RunState, states};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

states! {
    /// What was decided for an instant.
    Decision {
        /// A run was made.
        Run = "run",
        /// A run was made that waits behind another.
        RunWaiting = "run_waiting",
        /// A run was made in place of the one that was running.
        RunReplacing = "run_replacing",
        /// No run: an earlier one still runs and the job forbids overlap.
        SkippedOverlap = "skipped_overlap",
        /// No run: the instant was found too late, by the job's misfire policy.
        SkippedMisfire = "skipped_misfire",
        /// No run: as many runs wait as the job allows.
        SkippedBacklogFull = "skipped_backlog_full",
        /// No run: the job was paused.
        SkippedPaused = "skipped_paused",
        /// No run: the job's trigger changed while this instant and later ones were due.
        SkippedChanged = "skipped_changed",
        /// No run: the job was deleted before the instant was decided.
        SkippedDeleted = "skipped_deleted",
        /// No run: the job or cluster only observes.
        SkippedObserveOnly = "skipped_observe_only",
    }
}

impl Decision {
    /// Whether a run was made.
    pub const fn made_run(self) -> bool {
        match self {
            Self::Run | Self::RunWaiting | Self::RunReplacing => true,
            Self::SkippedOverlap
            | Self::SkippedMisfire
            | Self::SkippedBacklogFull
            | Self::SkippedPaused
            | Self::SkippedChanged
            | Self::SkippedDeleted
            | Self::SkippedObserveOnly => false,
        }
    }
}

/// One decision.
///
/// A skip may cover many instants at once, for example a second-by-second job after a day without
/// a leader: then `scheduled_at` is the first of them, `through` the last and `instants` how many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fire {
    /// The job.
    pub job: JobName,
    /// The instant it was due.
    pub scheduled_at: Timestamp,
    /// The last instant covered, when there is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Timestamp>,
    /// How many instants are covered.
    pub instants: u64,
    /// What made it due.
    pub trigger: TriggerKind,
    /// What was decided.
    pub decision: Decision,
    /// Why, in one sentence.
    pub reason: String,
    /// The run that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// What that run is doing, while it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_state: Option<RunState>,
    /// The job's revision that was in force.
    pub revision: Revision,
    /// When it was decided.
    pub decided_at: Timestamp,
    /// The term of the leader that proposed it.
    pub term: Term,
}

/// Span and page of a job's ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct FiresQuery {
    /// Only instants at or after this.
    pub from: Option<Timestamp>,
    /// Only instants before this.
    pub to: Option<Timestamp>,
    /// The most items of the page.
    pub limit: Option<u32>,
    /// Where the page starts.
    pub cursor: Option<String>,
    /// Where the answer comes from.
    pub consistency: Option<Consistency>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_have_one_name_everywhere() {
        for decision in Decision::ALL {
            let json = serde_json::to_string(decision).unwrap();
            assert_eq!(json, format!("\"{decision}\""));
            assert_eq!(decision.made_run(), decision.as_str().starts_with("run"));
        }
    }
}
