//! What nodes say to each other, and how an entry lies in the log.
//!
//! These are this crate's own types, not openraft's: a new version of openraft must not change
//! what is on the wire or on disk. Every message is one value of [`PeerRequest`] or
//! [`PeerResponse`] inside the versioned envelope of the machine's codec.
//!
//! Invariants:
//! - The enums are append-only; their ordinals are their positions, pinned by golden bytes.
//! - A command travels as the bytes its leader encoded; nobody encodes it a second time.
//! - Nothing that arrives is trusted: a message that does not decode, or that could not have been
//!   sent by an honest peer of this version, is an error and never a panic.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use tenure_machine::LogPosition;
use tenure_machine::codec::{self, CodecError, Kind};

use crate::types::{
    EncodedEntry, Entry, Member, Membership, NodeId, Payload, SnapshotMeta, StoredMembers, Vote,
    position, raft_id,
};

/// Bytes that are written as one run instead of one by one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Bytes);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Run;
        impl<'de> Visitor<'de> for Run {
            type Value = Blob;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a run of bytes")
            }
            fn visit_bytes<E>(self, run: &[u8]) -> Result<Blob, E> {
                Ok(Blob(Bytes::copy_from_slice(run)))
            }
            fn visit_byte_buf<E>(self, run: Vec<u8>) -> Result<Blob, E> {
                Ok(Blob(Bytes::from(run)))
            }
        }
        from.deserialize_byte_buf(Run)
    }
}

/// Who a node supports as leader of which term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireVote {
    /// The term.
    pub term: u64,
    /// The candidate or leader.
    pub node: NodeId,
    /// A majority supports it: it leads.
    pub committed: bool,
}

/// What an entry carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WirePayload {
    /// Nothing: the first entry of a leader.
    Blank,
    /// An encoded command, envelope included.
    Command(Blob),
    /// A new membership.
    Membership(WireMembership),
}

/// The voters (two sets while they change) and everybody's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireMembership {
    /// One set of voters, or the old and the new one.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// Voters and learners with their addresses.
    pub nodes: BTreeMap<NodeId, Member>,
}

/// One entry with its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireEntry {
    /// Its place in the log.
    pub at: LogPosition,
    /// What it carries.
    pub payload: WirePayload,
}

/// Entries for a follower; none at all is a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    /// The leader's vote.
    pub vote: WireVote,
    /// The entry before the first one sent.
    pub previous: Option<LogPosition>,
    /// Entries, without gaps.
    pub entries: Vec<WireEntry>,
    /// How far the leader knows the log to be committed.
    pub committed: Option<LogPosition>,
}

/// A candidate's question, for a pre-vote as for a vote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteQuestion {
    /// The candidate's vote for itself.
    pub vote: WireVote,
    /// The end of its log.
    pub last_log: Option<LogPosition>,
    /// The leader itself asked for this election, so loyalty to it does not stand against it.
    pub leadership_transfer: bool,
}

/// The answer to a candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteAnswer {
    /// The vote of the node that answers.
    pub vote: WireVote,
    /// The candidate has this node's support.
    pub granted: bool,
    /// The end of the log of the node that answers.
    pub last_log: Option<LogPosition>,
}

/// How a follower took entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendAnswer {
    /// All of them are on its disk.
    Stored,
    /// They are on its disk up to here.
    StoredUpTo(Option<LogPosition>),
    /// Its log does not hold the previous entry.
    Conflict,
    /// It supports a later leader.
    HigherVote(WireVote),
}

/// A leader's order to stand for election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The leader that steps aside.
    pub from: WireVote,
    /// The node that shall lead.
    pub to: NodeId,
    /// The least its log must hold.
    pub last_log: Option<LogPosition>,
}

/// Why a leadership transfer was not followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferAnswer {
    /// The node stands for election.
    Accepted,
    /// The node supports somebody else by now.
    VoteChanged(WireVote),
    /// Its log is not far enough.
    LogBehind(Option<LogPosition>),
}

/// What a snapshot covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCover {
    /// The last entry in it.
    pub last_log: Option<LogPosition>,
    /// Where its membership came from.
    pub membership_log: Option<LogPosition>,
    /// The membership.
    pub membership: WireMembership,
}

/// The start of a snapshot transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOffer {
    /// The leader's vote.
    pub vote: WireVote,
    /// What it covers.
    pub cover: SnapshotCover,
    /// Its length.
    pub total_bytes: u64,
}

/// One piece of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPiece {
    /// Number given by the receiver of the offer.
    pub transfer: u64,
    /// Where the piece begins.
    pub offset: u64,
    /// The piece.
    pub bytes: Blob,
}

/// A request to a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerRequest {
    /// Replicate, or heartbeat.
    Append(Append),
    /// Support me.
    Vote(VoteQuestion),
    /// Would you support me?
    PreVote(VoteQuestion),
    /// Take over from me.
    TransferLeader(Transfer),
    /// I have a snapshot for you.
    SnapshotOffer(SnapshotOffer),
    /// A piece of it.
    SnapshotPiece(SnapshotPiece),
    /// That was all (the number of the transfer): verify and install it.
    SnapshotInstall(u64),
    /// Anything of the layers above, opaque here.
    Forward(Blob),
}

/// The answer of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerResponse {
    /// To `Append`.
    Append(AppendAnswer),
    /// To `Vote` and `PreVote`.
    Vote(VoteAnswer),
    /// To `TransferLeader`.
    TransferLeader(TransferAnswer),
    /// To `SnapshotOffer`: the number of the transfer.
    SnapshotAccepted(u64),
    /// To `SnapshotPiece`: where the next piece begins.
    SnapshotHeld(u64),
    /// To `SnapshotInstall`: the vote of the node that installed it (or that follows somebody else).
    SnapshotDone(WireVote),
    /// To `Forward`.
    Forward(Blob),
    /// The request could not be served; says why.
    Refused(String),
}

impl PeerRequest {
    /// Encodes it in its envelope.
    pub fn to_bytes(&self) -> Result<Bytes, CodecError> {
        codec::encode(Kind::PeerMessage, self).map(Bytes::from)
    }

    /// Decodes and checks it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(Kind::PeerMessage, bytes)
    }
}

impl PeerResponse {
    /// Encodes it in its envelope.
    pub fn to_bytes(&self) -> Result<Bytes, CodecError> {
        codec::encode(Kind::PeerMessage, self).map(Bytes::from)
    }

    /// Decodes and checks it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode(Kind::PeerMessage, bytes)
    }
}

impl From<Vote> for WireVote {
    fn from(vote: Vote) -> Self {
        Self {
            term: vote.leader_id.term,
            node: vote.leader_id.voted_for,
            committed: vote.committed,
        }
    }
}

impl From<WireVote> for Vote {
    fn from(vote: WireVote) -> Self {
        if vote.committed {
            Vote::new_committed(vote.term, vote.node)
        } else {
            Vote::new(vote.term, vote.node)
        }
    }
}

impl From<&Membership> for WireMembership {
    fn from(membership: &Membership) -> Self {
        Self {
            voters: membership.get_joint_config().clone(),
            nodes: membership
                .nodes()
                .map(|(id, node)| (*id, node.clone()))
                .collect(),
        }
    }
}

impl TryFrom<WireMembership> for Membership {
    type Error = CodecError;

    fn try_from(wire: WireMembership) -> Result<Self, CodecError> {
        if wire.voters.is_empty() && wire.nodes.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(wire.voters, wire.nodes)
            .map_err(|e| CodecError::Malformed(format!("membership: {e}")))
    }
}

impl From<&Entry> for WireEntry {
    fn from(entry: &Entry) -> Self {
        let payload = match &entry.payload {
            Payload::Blank => WirePayload::Blank,
            Payload::Normal(command) => WirePayload::Command(Blob(command.bytes().clone())),
            Payload::Membership(membership) => WirePayload::Membership(membership.into()),
        };
        Self {
            at: position(entry.log_id),
            payload,
        }
    }
}

impl TryFrom<WireEntry> for Entry {
    type Error = CodecError;

    fn try_from(wire: WireEntry) -> Result<Self, CodecError> {
        let payload = match wire.payload {
            WirePayload::Blank => Payload::Blank,
            WirePayload::Command(blob) => Payload::Normal(EncodedEntry::decode(blob.0)?),
            WirePayload::Membership(membership) => Payload::Membership(membership.try_into()?),
        };
        Ok(Entry {
            log_id: raft_id(wire.at),
            payload,
        })
    }
}

impl From<&SnapshotMeta> for SnapshotCover {
    fn from(meta: &SnapshotMeta) -> Self {
        Self {
            last_log: meta.last_log_id.map(position),
            membership_log: meta.last_membership.log_id().map(position),
            membership: meta.last_membership.membership().into(),
        }
    }
}

impl TryFrom<SnapshotCover> for SnapshotMeta {
    type Error = CodecError;

    fn try_from(cover: SnapshotCover) -> Result<Self, CodecError> {
        Ok(SnapshotMeta {
            last_log_id: cover.last_log.map(raft_id),
            last_membership: StoredMembers::new(
                cover.membership_log.map(raft_id),
                cover.membership.try_into()?,
            ),
        })
    }
}
