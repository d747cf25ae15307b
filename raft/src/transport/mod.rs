//! How a node reaches its peers.
//!
//! Above this module a peer is called with bytes and answers with bytes, within a deadline. Below
//! it there is [`tcp`] in production and a simulated network in tests; both implement
//! [`PeerTransport`] and hand what arrives to a [`PeerService`].
//!
//! Invariants:
//! - Every call ends by its deadline.
//! - Calls to one peer on one lane arrive in the order in which they were made, as long as the
//!   connection lives. (Raft is safe without that, pipelined replication is only fast with it.)
//! - Heartbeats and snapshots have lanes of their own, so neither waits behind a large batch.
//! - A failure says whether the peer *refused* (its port is closed: the process is gone) or was
//!   *silent* (the network or the peer may be slow); see [`CallError`].
//! - Nothing a peer says is read before it has proved that it knows the cluster secret
//!   ([`auth`]).
//!
//! Absent on purpose: encryption (comes with TLS), retries (openraft and callers decide).

pub mod auth;
mod frame;
mod link;
mod listener;
pub mod strangers;
pub mod tcp;

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::types::NodeId;

pub use auth::{ClusterSecret, Identity};
pub use tcp::{TcpTransport, TransportLimits, TransportStats};

/// A connection of its own for each kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lane {
    /// Entries, votes, leadership transfer.
    Raft = 1,
    /// Heartbeats.
    Heartbeat = 2,
    /// Snapshots.
    Snapshot = 3,
    /// Requests that a follower forwards for its clients.
    Forward = 4,
}

impl Lane {
    /// The lane with this number on the wire.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Raft),
            2 => Some(Self::Heartbeat),
            3 => Some(Self::Snapshot),
            4 => Some(Self::Forward),
            _ => None,
        }
    }
}

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer's port is closed: nothing was sent.
    #[error("connection refused")]
    Refused,
    /// No answer by the deadline, or no connection by then. The request may have been served.
    #[error("no answer within {waited_ms} ms")]
    Silent {
        /// How long the call waited.
        waited_ms: u64,
    },
    /// The connection broke while the call waited. The request may have been served.
    #[error("connection lost")]
    Lost,
    /// The address could not be reached for another reason: nothing was sent.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The two nodes do not share the cluster secret, id and protocol: nothing was sent.
    #[error("peer failed to authenticate: {0}")]
    NotAuthenticated(String),
    /// Too many calls wait on this lane already: nothing was sent.
    #[error("too many calls in flight")]
    Overloaded,
    /// The request is larger than a frame may be: nothing was sent.
    #[error("request of {bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge {
        /// Size of the request.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The transport is shut down: nothing was sent.
    #[error("transport is closed")]
    Closed,
}

impl CallError {
    /// The peer may have served the request although no answer came.
    pub fn may_have_been_served(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::Lost)
    }
}

/// Calls peers.
pub trait PeerTransport: Send + Sync + 'static {
    /// Sends `request` to node `to` at `address` and waits for its answer until `timeout` is over.
    ///
    /// The request takes its place in the lane when this method is called, not when the future is
    /// first polled. Dropping the future gives up waiting; the peer may still serve the request.
    fn call(
        &self,
        to: NodeId,
        address: &str,
        lane: Lane,
        request: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, CallError>>;

    /// Opens a new connection to node `to` at `address`, now, and closes it without a word. What is known
    /// of it from earlier calls says nothing about now. The answer says that *something* listens there.
    fn probe(
        &self,
        to: NodeId,
        address: &str,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<(), CallError>>;
}

/// Serves what peers send.
pub trait PeerService: Send + Sync + 'static {
    /// Answers a request of node `from`.
    ///
    /// On one lane the futures are created, and polled for the first time, in the order in which
    /// the requests arrived.
    fn serve(&self, from: NodeId, lane: Lane, request: Bytes) -> BoxFuture<'static, Bytes>;

    /// A connection that node `from` had opened has ended, and not because it opened another one in its
    /// place. What came over it has been handed over before.
    fn hung_up(&self, from: NodeId) {
        let _ = from;
    }
}
