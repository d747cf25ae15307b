//! What can go wrong on the way to an answer, and what the caller is told.
//!
//! Invariant: each refusal of the machine and each failure of consensus has one code of the interface. There
//! is no wildcard here, so a new one does not compile until somebody has thought about it.

use tenure_api::{ErrorCode, Problem};
use tenure_machine::{Refusal, RefusalCode};

use super::history::HistoryError;
use crate::consensus::ConsensusError;

/// Why a handler has no answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The caller is told this.
    Problem(Box<Problem>),
    /// This node does not lead. Nothing happened, so the request may go to the node that does.
    NotLeader,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Problem::new(code, detail).into()
    }

    /// A fault of the request at a field or parameter.
    pub(crate) fn invalid(path: &str, detail: impl Into<String>) -> Self {
        Problem::new(ErrorCode::InvalidRequest, detail)
            .at(path)
            .into()
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, detail)
    }

    /// A reply that does not belong to the command: a fault in Tenure.
    pub(crate) fn odd_reply(reply: &tenure_machine::Reply) -> Self {
        tracing::error!(?reply, "a command was answered with the reply of another");
        Self::new(
            ErrorCode::Internal,
            "the command was answered with the reply of another",
        )
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(code_of(refusal.code), refusal.detail)
    }
}

impl From<HistoryError> for Failure {
    fn from(error: HistoryError) -> Self {
        let code = match error {
            HistoryError::Incomplete => ErrorCode::ArchiveIncomplete,
            HistoryError::Unreadable(_) => {
                tracing::error!(%error, "archive");
                ErrorCode::Internal
            }
        };
        Self::new(code, error.to_string())
    }
}

impl From<ConsensusError> for Failure {
    fn from(error: ConsensusError) -> Self {
        match error {
            ConsensusError::NotLeader { .. } => Self::NotLeader,
            ConsensusError::Overloaded => Self::new(ErrorCode::Overloaded, error.to_string()),
            ConsensusError::OutcomeUnknown(_) => {
                Self::new(ErrorCode::OutcomeUnknown, error.to_string())
            }
            ConsensusError::Rejected(_) => Self::new(ErrorCode::PayloadTooLarge, error.to_string()),
            // Another node is asked; nothing happened here.
            ConsensusError::Stopping => Self::new(ErrorCode::NoLeader, error.to_string()),
        }
    }
}

/// The interface's code for a refusal of the machine.
pub(crate) fn code_of(code: RefusalCode) -> ErrorCode {
    match code {
        RefusalCode::Bootstrap => ErrorCode::NotInitialized,
        RefusalCode::StaleTerm => ErrorCode::StaleTerm,
        RefusalCode::StaleSession | RefusalCode::SessionClosed => ErrorCode::StaleSession,
        RefusalCode::SessionReplaced => ErrorCode::SessionReplaced,
        RefusalCode::SessionExpired => ErrorCode::SessionExpired,
        RefusalCode::StaleEpoch | RefusalCode::FutureEpoch => ErrorCode::StaleEpoch,
        RefusalCode::UnknownJob | RefusalCode::UnknownRun | RefusalCode::UnknownExecutor => {
            ErrorCode::NotFound
        }
        RefusalCode::UnknownTask => ErrorCode::UnknownTask,
        RefusalCode::RevisionMismatch => ErrorCode::PreconditionFailed,
        RefusalCode::Paused => ErrorCode::Paused,
        RefusalCode::BacklogFull => ErrorCode::BacklogFull,
        RefusalCode::Overlap => ErrorCode::Overlap,
        RefusalCode::CheckpointRegressed => ErrorCode::CheckpointRegressed,
        RefusalCode::CheckpointTooLarge => ErrorCode::CheckpointTooLarge,
        RefusalCode::TooLarge => ErrorCode::PayloadTooLarge,
        RefusalCode::Invalid => ErrorCode::InvalidRequest,
        RefusalCode::LimitExceeded => ErrorCode::LimitExceeded,
        RefusalCode::IdempotencyConflict => ErrorCode::IdempotencyConflict,
        RefusalCode::AlreadyFinal => ErrorCode::AlreadyFinal,
        RefusalCode::NotStarted => ErrorCode::NotStarted,
        // Whoever wants the instance id may have it, only not so soon.
        RefusalCode::InstanceConflict => ErrorCode::RateLimited,
        RefusalCode::NotOwner => ErrorCode::Forbidden,
        // What a plan was refused for. A request that carries one (put, resume) plans again; these are left
        // when the job changed faster than that, and nothing was done.
        RefusalCode::CursorMismatch
        | RefusalCode::StaleRevision
        | RefusalCode::DuplicateFire
        | RefusalCode::NotDue
        | RefusalCode::NotPaused
        | RefusalCode::NotGrantable
        | RefusalCode::NotEligible
        | RefusalCode::NotExpired => ErrorCode::PreconditionFailed,
    }
}

/// Whether a refused plan may be made again from a newer state.
pub(crate) fn plan_again(code: RefusalCode) -> bool {
    matches!(
        code,
        RefusalCode::CursorMismatch | RefusalCode::DuplicateFire | RefusalCode::NotDue
    )
}
