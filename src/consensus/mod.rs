//! What the node process asks of consensus, and nothing more.
//!
//! Handlers and loops work against this trait: on a node it is the Raft adapter, in a simulation the same
//! adapter on a simulated runtime, in a handler's test a single replica in memory ([`Solo`]).

mod raft;
mod solo;

use futures::future::BoxFuture;
use tenure_machine::{Actor, Command, LogPosition, Proposal, Refusal, Reply, RequestKey, Stamp};
use tenure_raft::state_machine::Replica;

use crate::watch;

pub use raft::{LinkMessage, RaftConsensus, Timeouts};
pub use solo::Solo;

/// Something to be proposed. Its stamp is made by the leader at the last moment.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The term of the leader loop that asks, which must still be the leader's; `None` for a client.
    pub term: Option<u64>,
    /// Who asks.
    pub actor: Actor,
    /// The caller's idempotency key, if any.
    pub request: Option<RequestKey>,
    /// What is to be done.
    pub command: Command,
}

impl Draft {
    /// The proposal with its stamp.
    pub fn stamped(self, stamp: Stamp) -> Proposal {
        let Self {
            term,
            actor,
            request,
            command,
        } = self;
        Proposal {
            stamp,
            term,
            actor,
            request,
            command,
        }
    }
}

/// A proposal that was committed and applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Where it stands in the log.
    pub at: LogPosition,
    /// What `apply` answered.
    pub reply: Result<Reply, Refusal>,
}

/// Why there is no answer from consensus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConsensusError {
    /// This node does not lead (any more). Nothing happened.
    #[error("this node does not lead")]
    NotLeader {
        /// Who does, as far as this node knows.
        leader: Option<NodeHint>,
    },
    /// Too much is under way. Nothing happened.
    #[error("too many proposals are under way")]
    Overloaded,
    /// It may have happened or not. Repeating it under the same idempotency key is safe.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// The command cannot be put into the log, now or later. Nothing happened.
    #[error("rejected: {0}")]
    Rejected(String),
    /// The node is going down. Nothing happened.
    #[error("the node is stopping")]
    Stopping,
}

/// Where a node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHint {
    /// Its number.
    pub id: u64,
    /// The base URL of its HTTP interface.
    pub http_url: String,
}

/// A leader or a majority that was silent for longer counts as lost, in what the node says of itself.
const MAX_SILENCE_MS: u64 = 5_000;

/// What a node knows about the cluster. A watch: it changes at once when the lead does; the indexes are
/// brought up to date a few times a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// This node.
    pub node: u64,
    /// Raft's present term on this node.
    pub term: u64,
    /// Whether this node leads, as far as it knows.
    pub leads: bool,
    /// Who leads, as far as this node knows.
    pub leader: Option<NodeHint>,
    /// Last log index on this node.
    pub last_log: u64,
    /// Last applied index on this node.
    pub applied: u64,
    /// Last index known to be committed.
    pub committed: u64,
    /// Index of the newest snapshot on this node.
    pub snapshot: u64,
    /// Up to where the log was purged on this node.
    pub purged: u64,
    /// The members, by number.
    pub members: Vec<MemberStanding>,
    /// For how many milliseconds this node has known no leader that can decide ([`has_leader`](Self::has_leader)).
    pub leaderless_ms: u64,
    /// How often this machine's wall clock has jumped.
    pub wall_clock_jumps: u64,
    /// How many proposals of leader loops this node refused before the log, because their term was over.
    pub stale_term_rejections: u64,
    /// Milliseconds since a majority last answered this leader; `None` where this node does not lead.
    pub quorum_age_ms: Option<u64>,
    /// Milliseconds since this node last heard its leader; `None` where it leads, or never heard one.
    pub leader_age_ms: Option<u64>,
    /// How many elections this node has started since its start because the leader's process was gone.
    pub fast_failovers: u64,
}

impl Standing {
    /// Whether a leader is known that can decide: one that a majority answered lately, or that this node
    /// heard lately. A leader that is merely remembered is none.
    pub fn has_leader(&self) -> bool {
        if self.leads {
            // A leader of one is its own majority.
            return self.quorum_age_ms.is_none_or(|age| age <= MAX_SILENCE_MS);
        }
        let heard = self.leader_age_ms.is_some_and(|age| age <= MAX_SILENCE_MS);
        self.leader.is_some() && heard
    }
}

/// What is known about one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStanding {
    /// Its number.
    pub id: u64,
    /// Where its peers reach it.
    pub peer_address: String,
    /// The base URL of its HTTP interface.
    pub http_url: String,
    /// Whether it votes.
    pub voter: bool,
    /// The last index it is known to have. Only a leader knows.
    pub matched: Option<u64>,
}

/// A member as it is named when a cluster is initialised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Its number.
    pub id: u64,
    /// Where its peers reach it.
    pub peer_address: String,
    /// The base URL of its HTTP interface.
    pub http_url: String,
}

/// Consensus as the node process sees it. Safe to call from any runtime.
pub trait Consensus: Send + Sync + 'static {
    /// Commits and applies one command, and waits for that.
    fn propose(&self, draft: Draft) -> BoxFuture<'_, Result<Committed, ConsensusError>>;

    /// Commits many commands in this order, as the leader of `term`. One result each, in order.
    fn propose_all(
        &self,
        term: u64,
        commands: Vec<Command>,
    ) -> BoxFuture<'_, Vec<Result<Committed, ConsensusError>>>;

    /// A state that holds everything that was acknowledged before this call (ReadIndex, Raft thesis §6.4).
    fn read(&self) -> BoxFuture<'_, Result<Replica, ConsensusError>>;

    /// This node's state as it is, which may be behind.
    fn stale(&self) -> Replica;

    /// What this node knows about the cluster.
    fn standing(&self) -> watch::Receiver<Standing>;

    /// The two clocks as this node would stamp a proposal now. The lease clock is only sound on a leader.
    fn now(&self) -> Stamp;

    /// Sends an HTTP request to the leader over the authenticated link between nodes.
    fn forward(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>>;

    /// Asks another member for a part of its archive over the same link.
    fn ask_archive(
        &self,
        member: u64,
        question: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>>;

    /// Makes the cluster, once, on one of its nodes.
    fn initialize(&self, members: Vec<NewMember>) -> BoxFuture<'_, Result<(), ConsensusError>>;
}
