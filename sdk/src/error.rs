//! What can go wrong, by what the caller should do next.

use crate::transport::TransportError;
use std::fmt;
use tenure_api::{ErrorCode, Problem};

/// Why a call gave no result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The cluster answered with an error. Decide by its code.
    Refused(Box<Problem>),
    /// No node could be made to answer before the deadline, and it is certain that nothing was
    /// changed. Try again later.
    Unavailable {
        /// What the last attempt ran into.
        last: String,
    },
    /// The request may or may not have been done. Read the state, or repeat the request with the
    /// same idempotency key.
    OutcomeUnknown {
        /// What the last attempt ran into.
        last: String,
    },
    /// A node answered with something that is not this interface.
    Protocol(String),
}

impl Error {
    /// The code, where the cluster gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            Self::Unavailable { .. } | Self::OutcomeUnknown { .. } | Self::Protocol(_) => None,
        }
    }

    /// The cluster's answer, where there is one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Unavailable { .. } | Self::OutcomeUnknown { .. } | Self::Protocol(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(problem) => problem.fmt(f),
            Self::Unavailable { last } => write!(f, "no node answered in time: {last}"),
            Self::OutcomeUnknown { last } => {
                write!(
                    f,
                    "the outcome is unknown, the request may have been done: {last}"
                )
            }
            Self::Protocol(what) => write!(f, "unexpected answer: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::Refused(Box::new(problem))
    }
}

/// Why one attempt gave no result, for the last words of an error.
#[derive(Clone, Debug)]
pub(crate) enum Attempt {
    Transport(TransportError),
    Answered(Box<Problem>),
    Status(u16),
    StaleTerm { seen: u64, got: u64 },
}

impl Attempt {
    /// Whether the node may have done what it was asked for.
    pub(crate) fn maybe_done(&self) -> bool {
        match self {
            Self::Transport(why) => !why.had_no_side_effect(),
            Self::Answered(problem) => !problem.code.had_no_side_effect(),
            Self::Status(_) | Self::StaleTerm { .. } => true,
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transport(why) => why.fmt(f),
            Self::Answered(problem) => problem.fmt(f),
            Self::Status(status) => write!(f, "status {status}"),
            Self::StaleTerm { seen, got } => {
                write!(
                    f,
                    "the answer is of term {got}, but term {seen} was seen before"
                )
            }
        }
    }
}

/// Why a client or executor could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// Which setting.
    pub setting: &'static str,
    /// What is wrong with it.
    pub message: String,
}

impl BuildError {
    pub(crate) fn new(setting: &'static str, message: impl Into<String>) -> Self {
        Self {
            setting,
            message: message.into(),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}

impl std::error::Error for BuildError {}
