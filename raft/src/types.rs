//! The types Raft is instantiated with, and every name this crate takes from openraft.
//!
//! This is the one file that spells openraft's generic parameters. Everything else in the crate
//! uses the aliases below, and nothing of openraft leaves the crate except the [`AsyncRuntime`]
//! bound, which is how a deterministic runtime is put under the very same code.
//!
//! Invariants:
//! - The leader id is the *standard* one: a term has at most one leader. openraft's default allows
//!   several leaders in one term, and then a term would not fence anything.
//! - A log entry, a vote and a log id do not depend on the runtime, so what is on disk and on the
//!   wire is the same under every runtime.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use openraft::impls::leader_id_std;
use openraft::{EntryPayload, RaftTypeConfig, StoredMembership};
use serde::{Deserialize, Serialize};

use tenure_machine::codec::{self, CodecError, Kind};
use tenure_machine::{LogPosition, Proposal, Refusal, Reply};

pub use openraft_rt::AsyncRuntime;
pub use openraft_rt_tokio::TokioRuntime;

/// The number of a node, unique in its cluster and never reused.
pub type NodeId = u64;

/// Where a member of the cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Member {
    /// `host:port` on which it accepts peer connections.
    pub peer_address: String,
    /// `host:port` or base URL of its HTTP API, for clients that must be sent to it.
    pub http_address: String,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (http {})", self.peer_address, self.http_address)
    }
}

/// A log entry together with the bytes it is stored and sent as.
///
/// It is encoded once, by the leader that proposes it; the log of every node and every message
/// carry those very bytes, and a follower decodes them once. Cloning is cheap.
#[derive(Clone)]
pub struct EncodedEntry(Arc<Inner>);

struct Inner {
    proposal: Proposal,
    bytes: Bytes,
}

impl EncodedEntry {
    /// Encodes `proposal`.
    pub fn encode(proposal: Proposal) -> Result<Self, CodecError> {
        let bytes = Bytes::from(codec::encode(Kind::LogEntry, &proposal)?);
        Ok(Self(Arc::new(Inner { proposal, bytes })))
    }

    /// Decodes and checks `bytes`, and keeps them.
    pub fn decode(bytes: Bytes) -> Result<Self, CodecError> {
        let proposal = codec::decode(Kind::LogEntry, &bytes)?;
        Ok(Self(Arc::new(Inner { proposal, bytes })))
    }

    /// What is proposed.
    pub fn proposal(&self) -> &Proposal {
        &self.0.proposal
    }

    /// Its bytes, envelope included.
    pub fn bytes(&self) -> &Bytes {
        &self.0.bytes
    }
}

impl PartialEq for EncodedEntry {
    fn eq(&self, other: &Self) -> bool {
        self.0.bytes == other.0.bytes
    }
}

impl Eq for EncodedEntry {}

impl fmt::Debug for EncodedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EncodedEntry")
            .field(&self.0.proposal)
            .finish()
    }
}

impl fmt::Display for EncodedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.bytes.len())
    }
}

/// The outcome of applying one entry: `None` for entries that carry no command (a new leader's
/// blank entry, a membership change).
pub type ApplyReply = Option<Result<Reply, Refusal>>;

/// The parameters of Raft over the runtime `R`.
pub struct Types<R>(PhantomData<fn() -> R>);

impl<R> fmt::Debug for Types<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Types")
    }
}

impl<R> Clone for Types<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Types<R> {}

impl<R> Default for Types<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<R> PartialEq for Types<R> {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl<R> Eq for Types<R> {}

impl<R> PartialOrd for Types<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R> Ord for Types<R> {
    fn cmp(&self, _other: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl<R: AsyncRuntime> RaftTypeConfig for Types<R> {
    type D = EncodedEntry;
    type R = ApplyReply;
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, NodeId>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = EntryPayload<EncodedEntry, NodeId, Member>;
    type Entry = openraft::Entry<CommittedLeader, Self::Payload>;
    type AsyncRuntime = R;
    type Responder<T>
        = openraft::impls::ProgressResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// A leader that a majority has granted; with the standard leader id that is its term alone.
pub(crate) type CommittedLeader = openraft::vote::leader_id_std::CommittedLeaderId<u64>;
pub(crate) type Vote = openraft::Vote<leader_id_std::LeaderId<u64, NodeId>>;
pub(crate) type LogId = openraft::LogId<CommittedLeader>;
pub(crate) type Payload = EntryPayload<EncodedEntry, NodeId, Member>;
pub(crate) type Entry = openraft::Entry<CommittedLeader, Payload>;
pub(crate) type Membership = openraft::Membership<NodeId, Member>;
pub(crate) type StoredMembers = StoredMembership<CommittedLeader, NodeId, Member>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<CommittedLeader, NodeId, Member>;

/// Makes a log id from its two numbers.
pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId {
        leader_id: CommittedLeader::new(term),
        index,
    }
}

/// The term of a log id.
pub(crate) fn term_of(id: &LogId) -> u64 {
    id.leader_id.term
}

/// The place of an entry in the log, in the machine's words.
pub(crate) fn position(id: LogId) -> LogPosition {
    LogPosition {
        term: term_of(&id),
        index: id.index,
    }
}

/// The place of an entry in the log, in openraft's words.
pub(crate) fn raft_id(at: LogPosition) -> LogId {
    log_id(at.term, at.index)
}
