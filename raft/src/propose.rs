//! Proposals and what becomes of them.
//!
//! A caller must be able to tell "it did not happen" from "nobody knows". Every error says which:
//! see [`ProposeError::did_not_happen`].

use tenure_machine::{Actor, Command, LogPosition, Proposal, Refusal, Reply, RequestKey, Stamp};

use crate::types::{Member, NodeId};

/// Something to be proposed. Its stamp is made by the leader at the last moment.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The term of the leader loop that asks: the entry is appended in that term or not at all,
    /// and `apply` checks it again. `None` for a client.
    pub term: Option<u64>,
    /// Who asks.
    pub actor: Actor,
    /// The caller's idempotency key, if any.
    pub request: Option<RequestKey>,
    /// What is to be done.
    pub command: Command,
}

impl Draft {
    pub(crate) fn stamped(self, stamp: Stamp) -> Proposal {
        Proposal {
            stamp,
            term: self.term,
            actor: self.actor,
            request: self.request,
            command: self.command,
        }
    }
}

/// Makes the stamps of this node's proposals (design §4).
pub trait Stamper: Send + Sync + 'static {
    /// The two clocks now. Called right before an entry is handed to the log, by a node that
    /// leads `term` as far as it knows; several callers at once.
    fn stamp(&self, term: u64) -> Stamp;
}

/// A proposal that was committed and applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Where it stands in the log.
    pub at: LogPosition,
    /// What `apply` answered.
    pub reply: Result<Reply, Refusal>,
}

/// A node that leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderHint {
    /// Its number.
    pub id: NodeId,
    /// Where it is reached, if this node knows.
    pub member: Option<Member>,
}

/// Why a proposal brought no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This node does not lead. It did not happen.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, as far as this node knows.
        leader: Option<LeaderHint>,
    },
    /// The term of the leader loop is over, whoever leads now. It did not happen.
    #[error("term {asked} is over, the present one is {present}")]
    StaleTerm {
        /// The term the caller acts in.
        asked: u64,
        /// The highest term this node knows.
        present: u64,
    },
    /// Too many proposals are under way. It did not happen.
    #[error("too many proposals are under way")]
    Overloaded,
    /// The command is too large. It did not happen.
    #[error("a command of {bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge {
        /// Its size when encoded.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The command cannot be encoded. It did not happen.
    #[error("the command cannot be encoded: {0}")]
    Malformed(String),
    /// The node is stopping. It did not happen.
    #[error("the node is stopping")]
    Stopped,
    /// It may have happened or not.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(Unknown),
}

/// Why an outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// No answer by the deadline.
    #[error("no answer in time")]
    Timeout,
    /// The lead was lost after the entry was appended.
    #[error("the lead was lost before the entry was committed")]
    LeadLost,
    /// The node stopped after the entry was appended.
    #[error("the node stopped")]
    Stopped,
}

impl ProposeError {
    /// Certainly nothing happened, and repeating it elsewhere or later is safe without a key.
    pub fn did_not_happen(&self) -> bool {
        !matches!(self, Self::OutcomeUnknown(_))
    }
}

/// Why a linearizable read failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// This node does not lead.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, as far as this node knows.
        leader: Option<LeaderHint>,
    },
    /// No majority confirmed the lead.
    #[error("no majority confirmed the lead")]
    NoQuorum,
    /// Not by the deadline.
    #[error("not confirmed in time")]
    Timeout,
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopped,
}

/// Why a request could not be passed on to the leader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// Nobody leads, as far as this node knows. Nothing was sent.
    #[error("no leader is known")]
    NoLeader,
    /// This node leads itself. Nothing was sent.
    #[error("this node leads")]
    IsLeader,
    /// The call failed; its error says whether the leader may have served it.
    #[error("the leader was not reached: {0}")]
    Call(crate::transport::CallError),
    /// The leader refused the request.
    #[error("the leader refused: {0}")]
    Refused(String),
}

/// Why an administrative step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// This node does not lead.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, as far as this node knows.
        leader: Option<LeaderHint>,
    },
    /// The cluster was initialised before.
    #[error("the cluster is initialised already")]
    AlreadyInitialized,
    /// The step contradicts the present membership; says why.
    #[error("{0}")]
    Refused(String),
    /// Not done by the deadline; it may still come to pass.
    #[error("not done in time")]
    Timeout,
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopped,
}
