//! openraft's network over a peer transport: the side that answers.
//!
//! Invariants:
//! - A peer speaks for itself only: a message whose vote names another node than the one at the
//!   other end of the connection is refused. So is one that openraft could not have sent (entries
//!   with gaps, a leader without a majority), because openraft takes such things as given.
//! - Entries reach openraft in the order in which they arrived.
//! - A request that cannot be served is answered with the reason; a broken node answers nothing
//!   that looks like consent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest,
    VoteRequest,
};
use openraft::{Raft, Snapshot};
use openraft_rt::Instant as _;

use crate::fast_failover::FastFailover;
use crate::snapshots::Snapshots;
use crate::state_machine::{Core, StateMachine};
use crate::transport::{Lane, PeerService};
use crate::types::{AsyncRuntime, Entry, NodeId, Types, Vote, position, raft_id};
use crate::wire::{
    Append, AppendAnswer, Blob, PeerRequest, PeerResponse, SnapshotOffer, Transfer, TransferAnswer,
    VoteAnswer, VoteQuestion, WireVote,
};

/// Serves what a follower forwards to this node for its clients.
pub trait ForwardHandler: Send + Sync + 'static {
    /// Answers `request`, which node `from` forwarded. It must not forward again.
    fn forwarded(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes>;
}

/// When this node last took something from a leader.
pub(crate) struct Heard<R: AsyncRuntime>(Arc<Mutex<Option<R::Instant>>>);

impl<R: AsyncRuntime> Clone for Heard<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: AsyncRuntime> Default for Heard<R> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<R: AsyncRuntime> Heard<R> {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(R::Instant::now());
    }

    /// Whether anything was taken after `moment`.
    pub(crate) fn since(&self, moment: R::Instant) -> bool {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.is_some_and(|at| at > moment)
    }

    /// How long ago; `None` if never.
    pub(crate) fn age(&self) -> Option<Duration> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.as_ref().map(|at| at.elapsed())
    }
}

/// Answers peers for one node.
pub(crate) struct RaftService<R: AsyncRuntime> {
    pub(crate) heard: Heard<R>,
    pub(crate) raft: Raft<Types<R>, StateMachine<R>>,
    pub(crate) core: Arc<Core>,
    pub(crate) snapshots: Snapshots,
    pub(crate) forward: Arc<dyn ForwardHandler>,
    pub(crate) fast_failover: Option<Arc<FastFailover<R>>>,
    pub(crate) installing: Installing,
}

/// The transfer that is being installed or was last. The leader asks again when it hears nothing, and whoever
/// asks waits for the same end.
pub(crate) type Installing = Arc<Mutex<Option<(NodeId, u64, Installation)>>>;

type Installation = Shared<BoxFuture<'static, Result<WireVote, Refused>>>;

impl<R: AsyncRuntime> Clone for RaftService<R> {
    fn clone(&self) -> Self {
        Self {
            heard: self.heard.clone(),
            raft: self.raft.clone(),
            core: self.core.clone(),
            snapshots: self.snapshots.clone(),
            forward: self.forward.clone(),
            fast_failover: self.fast_failover.clone(),
            installing: self.installing.clone(),
        }
    }
}

/// Why a request is not served.
type Refused = String;

impl<R: AsyncRuntime> PeerService for RaftService<R> {
    fn serve(&self, from: NodeId, lane: Lane, request: Bytes) -> BoxFuture<'static, Bytes> {
        let service = self.clone();
        async move {
            let answer = service
                .answer(from, lane, &request)
                .await
                .unwrap_or_else(|why| {
                    tracing::debug!(from, ?lane, why, "request of a peer refused");
                    PeerResponse::Refused(why)
                });
            answer.to_bytes().unwrap_or_else(|error| {
                tracing::error!(%error, "an answer to a peer cannot be encoded");
                Bytes::new()
            })
        }
        .boxed()
    }

    fn hung_up(&self, from: NodeId) {
        if let Some(fast_failover) = &self.fast_failover {
            fast_failover.hung_up(from);
        }
    }
}

impl<R: AsyncRuntime> RaftService<R> {
    async fn answer(
        &self,
        from: NodeId,
        lane: Lane,
        request: &[u8],
    ) -> Result<PeerResponse, Refused> {
        let request = PeerRequest::from_bytes(request).map_err(|e| e.to_string())?;
        let is_forward = matches!(request, PeerRequest::Forward(_));
        if is_forward != (lane == Lane::Forward) {
            return Err(format!("not on the {lane:?} lane"));
        }
        match request {
            PeerRequest::Append(append) => self.append(from, append).await,
            PeerRequest::Vote(question) => self.vote(from, question, false).await,
            PeerRequest::PreVote(question) => self.vote(from, question, true).await,
            PeerRequest::TransferLeader(transfer) => self.transfer(from, transfer).await,
            PeerRequest::SnapshotOffer(offer) => self.offer(from, offer).await,
            PeerRequest::SnapshotPiece(piece) => {
                let held = self
                    .snapshots
                    .receive(from, piece.transfer, piece.offset, piece.bytes.0)
                    .await;
                Ok(PeerResponse::SnapshotHeld(held.map_err(|e| e.to_string())?))
            }
            PeerRequest::SnapshotInstall(transfer) => self.install(from, transfer).await,
            PeerRequest::Forward(Blob(request)) => {
                let answer = self.forward.forwarded(from, request).await;
                Ok(PeerResponse::Forward(Blob(answer)))
            }
        }
    }

    async fn append(&self, from: NodeId, append: Append) -> Result<PeerResponse, Refused> {
        check_leader(from, &append.vote)?;
        let mut next = append.previous.map_or(0, |at| at.index.saturating_add(1));
        let mut entries: Vec<Entry> = Vec::with_capacity(append.entries.len());
        for entry in append.entries {
            if entry.at.index != next {
                return Err(format!("entry {} where {next} must come", entry.at.index));
            }
            next = next.saturating_add(1);
            let entry = Entry::try_from(entry)
                .map_err(|e| format!("entry {} cannot be read: {e}", next - 1))?;
            entries.push(entry);
        }
        let request = AppendEntriesRequest {
            vote: append.vote.into(),
            prev_log_id: append.previous.map(raft_id),
            entries,
            leader_commit: append.committed.map(raft_id),
        };
        let answer = self.raft.append_entries(request).await;
        let answer = answer.map_err(|e| e.to_string())?;
        if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
            self.heard.note();
        }
        Ok(PeerResponse::Append(match answer {
            AppendEntriesResponse::Success => AppendAnswer::Stored,
            AppendEntriesResponse::PartialSuccess(at) => AppendAnswer::StoredUpTo(at.map(position)),
            AppendEntriesResponse::Conflict => AppendAnswer::Conflict,
            AppendEntriesResponse::HigherVote(vote) => AppendAnswer::HigherVote(vote.into()),
        }))
    }

    async fn vote(
        &self,
        from: NodeId,
        question: VoteQuestion,
        pre_vote: bool,
    ) -> Result<PeerResponse, Refused> {
        check_sender(from, &question.vote)?;
        if question.vote.committed {
            return Err("a candidate cannot lead already".to_owned());
        }
        let mut request = VoteRequest::new(question.vote.into(), question.last_log.map(raft_id));
        request.leadership_transfer = question.leadership_transfer;
        let answer = if pre_vote {
            self.raft.pre_vote(request).await
        } else {
            self.raft.vote(request).await
        };
        let answer = answer.map_err(|e| e.to_string())?;
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::TwoVotesATerm)
            && WireVote::from(answer.vote).term == question.vote.term
        {
            return Ok(PeerResponse::Vote(VoteAnswer {
                vote: question.vote,
                granted: true,
                last_log: answer.last_log_id.map(position),
            }));
        }
        Ok(PeerResponse::Vote(VoteAnswer {
            vote: answer.vote.into(),
            granted: answer.vote_granted,
            last_log: answer.last_log_id.map(position),
        }))
    }

    async fn transfer(&self, from: NodeId, transfer: Transfer) -> Result<PeerResponse, Refused> {
        check_leader(from, &transfer.from)?;
        let request = TransferLeaderRequest::new(
            transfer.from.into(),
            transfer.to,
            transfer.last_log.map(raft_id),
        );
        let answer = self.raft.handle_transfer_leader(request).await;
        Ok(PeerResponse::TransferLeader(
            match answer.map_err(|e| e.to_string())? {
                Ok(()) => TransferAnswer::Accepted,
                Err(TransferLeaderError::VoteChanged { actual, .. }) => {
                    TransferAnswer::VoteChanged(actual.into())
                }
                Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
                    TransferAnswer::LogBehind(actual.map(position))
                }
            },
        ))
    }

    async fn offer(&self, from: NodeId, offer: SnapshotOffer) -> Result<PeerResponse, Refused> {
        check_leader(from, &offer.vote)?;
        let transfer = self.snapshots.expect(from, offer).await;
        Ok(PeerResponse::SnapshotAccepted(
            transfer.map_err(|e| e.to_string())?,
        ))
    }

    async fn install(&self, from: NodeId, transfer: u64) -> Result<PeerResponse, Refused> {
        let installation = {
            let mut slot = self
                .installing
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match &*slot {
                Some((of, number, same)) if (*of, *number) == (from, transfer) => same.clone(),
                _ => {
                    // With a slot of its own: the work must not keep itself.
                    let service = Self {
                        installing: Installing::default(),
                        ..self.clone()
                    };
                    let work = async move { service.verify_and_install(from, transfer).await };
                    let installation = work.boxed().shared();
                    *slot = Some((from, transfer, installation.clone()));
                    installation
                }
            }
        };
        installation.await.map(PeerResponse::SnapshotDone)
    }

    /// Verifies what was received, and only then hands it to openraft, which installs it unless
    /// it knows better.
    async fn verify_and_install(self, from: NodeId, transfer: u64) -> Result<WireVote, Refused> {
        let received = self
            .snapshots
            .verify(from, transfer)
            .await
            .map_err(|e| e.to_string())?;
        let file = received.file;
        let vote: Vote = received.vote.into();
        let snapshot = Snapshot {
            meta: received.meta,
            snapshot: file.clone(),
        };
        let answer = self.raft.install_full_snapshot(vote, snapshot).await;
        if !self.core.uses(&file)
            && let Err(error) = self.snapshots.discard(&file).await
        {
            tracing::warn!(%error, "a received snapshot that is not needed was not deleted");
        }
        Ok(answer.map_err(|e| e.to_string())?.vote.into())
    }
}

fn check_sender(from: NodeId, vote: &WireVote) -> Result<(), Refused> {
    if vote.node == from {
        Ok(())
    } else {
        Err(format!("node {from} speaks for node {}", vote.node))
    }
}

fn check_leader(from: NodeId, vote: &WireVote) -> Result<(), Refused> {
    check_sender(from, vote)?;
    if vote.committed {
        Ok(())
    } else {
        Err(format!(
            "node {from} is not the leader of term {}",
            vote.term
        ))
    }
}
