//! Consensus over the Raft adapter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tenure_machine::{Command, Stamp};
use tenure_raft::node::Node;
use tenure_raft::propose::{self, AdminError, ForwardError, LeaderHint, ProposeError, ReadError};
use tenure_raft::standing::{Role, Standing as RaftStanding};
use tenure_raft::state_machine::Replica;
use tenure_raft::types::{AsyncRuntime, Member};
use tokio::time::Instant;

use super::{
    Committed, Consensus, ConsensusError, Draft, MemberStanding, NewMember, NodeHint, Standing,
};
use crate::clock::Stamper;
use crate::watch;

/// How long this node waits for consensus.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a command to be committed and applied.
    pub propose: Duration,
    /// For a majority to confirm a read.
    pub read: Duration,
    /// For the leader to answer what was forwarded. Longer than the longest long poll.
    pub forward: Duration,
    /// For another member to answer with a part of its archive. What is applied meanwhile waits.
    pub archive: Duration,
    /// How often indexes in the standing are brought up to date.
    pub refresh: Duration,
    /// A leader whose majority was silent for longer does not let the lease clock run.
    pub quorum: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            propose: Duration::from_secs(10),
            read: Duration::from_secs(5),
            forward: Duration::from_secs(50),
            archive: Duration::from_secs(3),
            refresh: Duration::from_millis(50),
            quorum: Duration::from_millis(1_000),
        }
    }
}

/// Consensus over the Raft adapter, on whatever runtime that is.
pub struct RaftConsensus<R: AsyncRuntime> {
    node: Node<R>,
    stamper: Arc<Stamper>,
    timeouts: Timeouts,
    standing: watch::Sender<Standing>,
    stale_terms: AtomicU64,
}

impl<R: AsyncRuntime> RaftConsensus<R> {
    /// Wraps a node. [`watch`](Self::watch) must run beside it.
    pub fn new(node: Node<R>, stamper: Arc<Stamper>, timeouts: Timeouts) -> Arc<Self> {
        let standing = watch::channel(translate(&node.standing())).0;
        Arc::new(Self {
            node,
            stamper,
            timeouts,
            standing,
            stale_terms: AtomicU64::new(0),
        })
    }

    /// Keeps the standing and the lease clock up to date, until the node has stopped.
    pub async fn watch(self: Arc<Self>) {
        let mut leadership = self.node.leadership();
        let mut leaderless = Leaderless::default();
        loop {
            let mut standing = translate(&self.node.standing());
            standing.stale_term_rejections = self.stale_terms.load(Ordering::Relaxed);
            standing.leaderless_ms = leaderless.count(!standing.has_leader());
            let limit_ms = u64::try_from(self.timeouts.quorum.as_millis()).unwrap_or(u64::MAX);
            let majority = standing.quorum_age_ms.is_some_and(|age| age <= limit_ms);
            self.stamper.run(standing.leads && majority);
            standing.wall_clock_jumps = self.stamper.jumps().count;
            self.standing.send_if_modified(|present| {
                let changed = *present != standing;
                *present = standing;
                changed
            });
            let changed = tokio::time::timeout(self.timeouts.refresh, leadership.changed()).await;
            if matches!(changed, Ok(None)) {
                return;
            }
        }
    }

    /// The node itself.
    pub fn node(&self) -> &Node<R> {
        &self.node
    }
}

fn link_answer(answer: Result<bytes::Bytes, ForwardError>) -> Result<Vec<u8>, ConsensusError> {
    answer
        .map(|answer| answer.to_vec())
        .map_err(|error| match error {
            ForwardError::NoLeader | ForwardError::IsLeader => {
                ConsensusError::NotLeader { leader: None }
            }
            ForwardError::Call(call) if !call.may_have_been_served() => {
                ConsensusError::NotLeader { leader: None }
            }
            ForwardError::Call(_) | ForwardError::Refused(_) => {
                ConsensusError::OutcomeUnknown(error.to_string())
            }
        })
}

impl<R: AsyncRuntime> Consensus for RaftConsensus<R> {
    fn propose(&self, draft: Draft) -> BoxFuture<'_, Result<Committed, ConsensusError>> {
        Box::pin(async move {
            let Draft {
                term,
                actor,
                request,
                command,
            } = draft;
            let draft = propose::Draft {
                term,
                actor,
                request,
                command,
            };
            outcome(self.node.propose(draft, self.timeouts.propose).await)
        })
    }

    fn propose_all(
        &self,
        term: u64,
        commands: Vec<Command>,
    ) -> BoxFuture<'_, Vec<Result<Committed, ConsensusError>>> {
        Box::pin(async move {
            let results = self
                .node
                .propose_all(term, commands, self.timeouts.propose)
                .await;
            let stale = results
                .iter()
                .filter(|result| matches!(result, Err(ProposeError::StaleTerm { .. })));
            self.stale_terms
                .fetch_add(stale.count() as u64, Ordering::Relaxed);
            results.into_iter().map(outcome).collect()
        })
    }

    fn read(&self) -> BoxFuture<'_, Result<Replica, ConsensusError>> {
        Box::pin(async move {
            match self.node.read(self.timeouts.read).await {
                Ok(replica) => Ok(replica),
                Err(ReadError::NotLeader { leader }) => Err(ConsensusError::NotLeader {
                    leader: leader.and_then(hint),
                }),
                // A read has no effect: whoever waited can ask again, here or elsewhere.
                Err(ReadError::NoQuorum | ReadError::Timeout) => {
                    Err(ConsensusError::NotLeader { leader: None })
                }
                Err(ReadError::Stopped) => Err(ConsensusError::Stopping),
            }
        })
    }

    fn stale(&self) -> Replica {
        self.node.stale()
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    fn now(&self) -> Stamp {
        self.stamper.now(self.node.state().clock())
    }

    fn forward(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
        Box::pin(async move {
            let message = LinkMessage::Http.wrap(&request);
            let limit = self.timeouts.forward;
            link_answer(self.node.forward(message.into(), limit).await)
        })
    }

    fn ask_archive(
        &self,
        member: u64,
        question: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
        Box::pin(async move {
            let message = LinkMessage::Archive.wrap(&question);
            let limit = self.timeouts.archive;
            link_answer(self.node.ask(member, message.into(), limit).await)
        })
    }

    fn initialize(&self, members: Vec<NewMember>) -> BoxFuture<'_, Result<(), ConsensusError>> {
        Box::pin(async move {
            let members: BTreeMap<_, _> = members
                .into_iter()
                .map(|member| {
                    let NewMember {
                        id,
                        peer_address,
                        http_url,
                    } = member;
                    (
                        id,
                        Member {
                            peer_address,
                            http_address: http_url,
                        },
                    )
                })
                .collect();
            match self.node.initialize(members).await {
                // Another call came first: what was asked for is the case.
                Ok(()) | Err(AdminError::AlreadyInitialized) => Ok(()),
                Err(AdminError::NotLeader { leader }) => Err(ConsensusError::NotLeader {
                    leader: leader.and_then(hint),
                }),
                Err(AdminError::Stopped) => Err(ConsensusError::Stopping),
                Err(error @ (AdminError::Refused(_) | AdminError::Timeout)) => {
                    Err(ConsensusError::OutcomeUnknown(error.to_string()))
                }
            }
        })
    }
}

fn outcome(result: Result<propose::Committed, ProposeError>) -> Result<Committed, ConsensusError> {
    match result {
        Ok(propose::Committed { at, reply }) => Ok(Committed { at, reply }),
        Err(ProposeError::NotLeader { leader }) => Err(ConsensusError::NotLeader {
            leader: leader.and_then(hint),
        }),
        Err(ProposeError::StaleTerm { .. }) => Err(ConsensusError::NotLeader { leader: None }),
        Err(ProposeError::Overloaded) => Err(ConsensusError::Overloaded),
        Err(ProposeError::Stopped) => Err(ConsensusError::Stopping),
        Err(error @ (ProposeError::TooLarge { .. } | ProposeError::Malformed(_))) => {
            Err(ConsensusError::Rejected(error.to_string()))
        }
        Err(ProposeError::OutcomeUnknown(why)) => {
            Err(ConsensusError::OutcomeUnknown(why.to_string()))
        }
    }
}

fn hint(leader: LeaderHint) -> Option<NodeHint> {
    let member = leader.member?;
    Some(NodeHint {
        id: leader.id,
        http_url: member.http_address,
    })
}

/// Counts the time without a known leader.
#[derive(Default)]
struct Leaderless {
    total: Duration,
    since: Option<Instant>,
}

impl Leaderless {
    /// Milliseconds so far, the present stretch included.
    fn count(&mut self, leaderless: bool) -> u64 {
        let now = Instant::now();
        let open = self.since.map_or(Duration::ZERO, |since| now - since);
        let total = self.total + open;
        if leaderless {
            self.since.get_or_insert(now);
        } else {
            self.since = None;
            self.total = total;
        }
        u64::try_from(total.as_millis()).unwrap_or(u64::MAX)
    }
}

/// What travels to the leader on the link for forwarding. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMessage {
    /// An HTTP request.
    Http = 0,
    /// A question about the archive.
    Archive = 1,
}

impl LinkMessage {
    fn wrap(self, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(body.len() + 1);
        message.push(self as u8);
        message.extend_from_slice(body);
        message
    }

    /// What a message is, and its body.
    pub fn unwrap(message: &[u8]) -> Option<(Self, &[u8])> {
        let (tag, body) = message.split_first()?;
        let kind = [Self::Http, Self::Archive]
            .into_iter()
            .find(|kind| *kind as u8 == *tag)?;
        Some((kind, body))
    }
}

fn translate(standing: &RaftStanding) -> Standing {
    let leadership = &standing.leadership;
    let index = |at: Option<tenure_machine::LogPosition>| at.map_or(0, |at| at.index);
    let members = leadership
        .members
        .iter()
        .map(|(id, member)| MemberStanding {
            id: *id,
            peer_address: member.peer_address.clone(),
            http_url: member.http_address.clone(),
            voter: leadership.voters.contains(id),
            matched: standing.matched.get(id).map(|at| index(*at)),
        })
        .collect();
    Standing {
        node: standing.node,
        term: leadership.term,
        leads: leadership.role == Role::Leader,
        leader: leadership.leader.clone().and_then(hint),
        last_log: standing.last_log.unwrap_or(0),
        applied: index(standing.applied),
        committed: index(standing.committed),
        snapshot: index(standing.snapshot),
        purged: index(standing.purged),
        members,
        leaderless_ms: 0,
        wall_clock_jumps: 0,
        stale_term_rejections: 0,
        quorum_age_ms: standing.quorum_age.map(millis),
        leader_age_ms: standing.leader_age.map(millis),
        fast_failovers: standing.fast_failovers,
    }
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

impl tenure_raft::propose::Stamper for Stamper {
    fn stamp(&self, _term: u64) -> Stamp {
        // `apply` keeps the higher one of this and what it has.
        self.now(Stamp::default())
    }
}
