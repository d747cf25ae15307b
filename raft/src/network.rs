//! openraft's network over a [`PeerTransport`]: the side that asks.
//!
//! Invariants:
//! - Replication is pipelined: several batches are under way, and answers are given to openraft in
//!   the order of the requests.
//! - A session of replication owns all it has under way. When openraft drops the session, nothing
//!   of it goes on, so the next session misses nothing. A session whose requests have all been
//!   answered ends without an error.
//! - A dead peer is `Unreachable`, which makes openraft pause before it asks again; a slow one is
//!   a timeout. What is known of each peer is kept in [`PeerContacts`].

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{BoxStream, FuturesOrdered};
use futures::{FutureExt, Stream, StreamExt};
use openraft::errors::{
    NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable,
};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError,
    StreamAppendResult, TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::{LogIdOptionExt, OptionalSend};
use openraft_rt::Instant as _;

use crate::config::RaftConfig;
use crate::contacts::PeerContacts;
use crate::snapshots::{SnapshotFile, Snapshots};
use crate::transport::{CallError, Lane, PeerTransport};
use crate::types::{
    AsyncRuntime, LogId, Member, NodeId, SnapshotMeta, Types, Vote, position, raft_id,
};
use crate::wire::{
    Append, AppendAnswer, Blob, PeerRequest, PeerResponse, SnapshotOffer, SnapshotPiece, Transfer,
    TransferAnswer, VoteQuestion, WireEntry,
};

/// Makes one [`Peer`] for each node and kind of traffic.
pub(crate) struct Network<R: AsyncRuntime> {
    pub(crate) me: NodeId,
    pub(crate) config: Arc<RaftConfig>,
    pub(crate) transport: Arc<dyn PeerTransport>,
    pub(crate) snapshots: Snapshots,
    pub(crate) contacts: PeerContacts<R>,
    pub(crate) runtime: PhantomData<fn() -> R>,
}

impl<R: AsyncRuntime> Network<R> {
    fn peer(&self, to: NodeId, member: &Member, lane: Lane) -> Peer<R> {
        Peer {
            me: self.me,
            to,
            address: member.peer_address.clone(),
            lane,
            config: self.config.clone(),
            transport: self.transport.clone(),
            snapshots: self.snapshots.clone(),
            contacts: self.contacts.clone(),
            runtime: PhantomData,
        }
    }
}

impl<R: AsyncRuntime> RaftNetworkFactory<Types<R>> for Network<R> {
    type Network = Peer<R>;

    async fn new_client(&mut self, target: NodeId, member: &Member) -> Peer<R> {
        self.peer(target, member, Lane::Raft)
    }

    async fn new_heartbeat_client(&mut self, target: NodeId, member: &Member) -> Peer<R> {
        self.peer(target, member, Lane::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: NodeId, member: &Member) -> Peer<R> {
        self.peer(target, member, Lane::Snapshot)
    }
}

/// One peer on one lane.
pub(crate) struct Peer<R: AsyncRuntime> {
    me: NodeId,
    to: NodeId,
    address: String,
    lane: Lane,
    config: Arc<RaftConfig>,
    transport: Arc<dyn PeerTransport>,
    snapshots: Snapshots,
    contacts: PeerContacts<R>,
    runtime: PhantomData<fn() -> R>,
}

type RpcResult<R, T> = Result<T, RPCError<Types<R>>>;

/// An answer that does not fit its question.
#[derive(Debug)]
struct Unexpected(String);

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unexpected {}

fn broken<R: AsyncRuntime>(what: impl fmt::Display) -> RPCError<Types<R>> {
    RPCError::Network(NetworkError::from_string(what))
}

impl<R: AsyncRuntime> Peer<R> {
    /// Takes the request's place in the lane now; the future waits for the answer.
    fn ask(
        &self,
        action: RPCTypes,
        request: &PeerRequest,
        timeout: Duration,
    ) -> impl Future<Output = RpcResult<R, PeerResponse>> + Send + use<R> {
        let call = request.to_bytes().map(|bytes| self.call(bytes, timeout));
        let (id, target, contacts) = (self.me, self.to, self.contacts.clone());
        async move {
            let answer = call.map_err(|e| broken(e))?.await;
            contacts.note(target, &answer);
            let answer = answer.map_err(|error| match error {
                CallError::Silent { .. } => RPCError::Timeout(Timeout {
                    action,
                    id,
                    target,
                    timeout,
                }),
                CallError::Lost | CallError::Overloaded | CallError::TooLarge { .. } => {
                    broken(error)
                }
                CallError::Refused
                | CallError::Unreachable(_)
                | CallError::NotAuthenticated(_)
                | CallError::Closed => RPCError::Unreachable(Unreachable::new(&error)),
            })?;
            match PeerResponse::from_bytes(&answer) {
                // A peer that cannot serve is as good as away: openraft pauses before it asks again.
                Ok(PeerResponse::Refused(why)) => Err(RPCError::Unreachable(Unreachable::new(
                    &Unexpected(format!("peer refused: {why}")),
                ))),
                Ok(answer) => Ok(answer),
                Err(error) => Err(broken(error)),
            }
        }
    }

    fn call(
        &self,
        request: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, CallError>> {
        self.transport
            .call(self.to, &self.address, self.lane, request, timeout)
    }

    fn send_append(
        &self,
        request: AppendEntriesRequest<Types<R>>,
        timeout: Duration,
    ) -> BoxFuture<'static, RpcResult<R, Sent>> {
        let previous = request.prev_log_id;
        let last = request.entries.last().map(|e| e.log_id).or(previous);
        let message = PeerRequest::Append(Append {
            vote: request.vote.into(),
            previous: previous.map(position),
            entries: request.entries.iter().map(WireEntry::from).collect(),
            committed: request.leader_commit.map(position),
        });
        let answer = self.ask(RPCTypes::AppendEntries, &message, timeout);
        async move {
            match answer.await? {
                PeerResponse::Append(answer) => Ok(Sent {
                    previous,
                    last,
                    answer,
                }),
                other => Err(unexpected(other)),
            }
        }
        .boxed()
    }

    async fn ask_for_vote(
        &self,
        request: VoteRequest<Types<R>>,
        pre_vote: bool,
        option: &RPCOption,
    ) -> RpcResult<R, VoteResponse<Types<R>>> {
        let question = VoteQuestion {
            vote: request.vote.into(),
            last_log: request.last_log_id.map(position),
            leadership_transfer: request.leadership_transfer,
        };
        let message = if pre_vote {
            PeerRequest::PreVote(question)
        } else {
            PeerRequest::Vote(question)
        };
        match self
            .ask(RPCTypes::Vote, &message, option.soft_ttl())
            .await?
        {
            PeerResponse::Vote(answer) => Ok(VoteResponse {
                vote: answer.vote.into(),
                vote_granted: answer.granted,
                last_log_id: answer.last_log.map(raft_id),
            }),
            other => Err(unexpected(other)),
        }
    }

    async fn send_snapshot(
        &self,
        vote: Vote,
        meta: SnapshotMeta,
        file: SnapshotFile,
    ) -> Result<SnapshotResponse<Types<R>>, StreamingError<Types<R>>> {
        let piece_timeout = Duration::from_millis(self.config.snapshot_chunk_timeout_ms);
        let install_timeout = Duration::from_millis(self.config.snapshot_install_timeout_ms);
        let action = RPCTypes::InstallSnapshot;
        let offer = PeerRequest::SnapshotOffer(SnapshotOffer {
            vote: vote.into(),
            cover: (&meta).into(),
            total_bytes: file.total_bytes(),
        });
        let transfer = match self.ask(action, &offer, piece_timeout).await? {
            PeerResponse::SnapshotAccepted(transfer) => transfer,
            PeerResponse::SnapshotDone(vote) => return Ok(SnapshotResponse::new(vote.into())),
            other => return Err(unexpected::<R>(other).into()),
        };
        let outgoing = self
            .snapshots
            .open_to_send(file.clone())
            .await
            .map_err(|e| StreamingError::Network(NetworkError::new(&e)))?;
        let mut offset = 0;
        while offset < file.total_bytes() {
            let bytes = outgoing
                .piece(offset, self.config.snapshot_chunk_bytes)
                .await
                .map_err(|e| StreamingError::Network(NetworkError::new(&e)))?;
            let next = offset + bytes.len() as u64;
            let piece = PeerRequest::SnapshotPiece(SnapshotPiece {
                transfer,
                offset,
                bytes: Blob(bytes),
            });
            match self.ask(action, &piece, piece_timeout).await? {
                PeerResponse::SnapshotHeld(held) if held == next => offset = next,
                other => return Err(unexpected::<R>(other).into()),
            }
        }
        // To install may take long, and an answer may be lost: it is asked for again until it comes.
        let install = PeerRequest::SnapshotInstall(transfer);
        let began = R::Instant::now();
        loop {
            match self.ask(action, &install, piece_timeout).await {
                Ok(PeerResponse::SnapshotDone(vote)) => {
                    return Ok(SnapshotResponse::new(vote.into()));
                }
                Err(RPCError::Timeout(_)) if began.elapsed() < install_timeout => {}
                Ok(other) => return Err(unexpected::<R>(other).into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn unexpected<R: AsyncRuntime>(answer: PeerResponse) -> RPCError<Types<R>> {
    broken(format!("the answer does not fit the request: {answer:?}"))
}

/// An answered batch.
struct Sent {
    previous: Option<LogId>,
    last: Option<LogId>,
    answer: AppendAnswer,
}

impl Sent {
    /// openraft's form of the answer, and whether the session may go on.
    fn outcome<R: AsyncRuntime>(self) -> (RpcResult<R, StreamAppendResult<Types<R>>>, bool) {
        match self.answer {
            AppendAnswer::Stored => (Ok(Ok(self.last)), true),
            AppendAnswer::StoredUpTo(at) => {
                let at = at.map(raft_id);
                if at.next_index() > self.last.next_index() {
                    return (Err(broken("stored more than was sent")), false);
                }
                (Ok(Ok(at)), at == self.last)
            }
            AppendAnswer::Conflict => match self.previous {
                Some(previous) => (Ok(Err(StreamAppendError::Conflict(previous))), false),
                None => (Err(broken("conflict with the start of the log")), false),
            },
            AppendAnswer::HigherVote(vote) => {
                (Ok(Err(StreamAppendError::HigherVote(vote.into()))), false)
            }
        }
    }
}

impl<R: AsyncRuntime> RaftNetworkV2<Types<R>> for Peer<R> {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types<R>>,
        option: RPCOption,
    ) -> RpcResult<R, AppendEntriesResponse<Types<R>>> {
        Ok(
            match self.send_append(request, option.soft_ttl()).await?.answer {
                AppendAnswer::Stored => AppendEntriesResponse::Success,
                AppendAnswer::StoredUpTo(at) => {
                    AppendEntriesResponse::PartialSuccess(at.map(raft_id))
                }
                AppendAnswer::Conflict => AppendEntriesResponse::Conflict,
                AppendAnswer::HigherVote(vote) => AppendEntriesResponse::HigherVote(vote.into()),
            },
        )
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, RpcResult<R, BoxStream<'s, RpcResult<R, StreamAppendResult<Types<R>>>>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types<R>>> + OptionalSend + Unpin + 'static,
    {
        // A follower answers a batch when it is on its disk, which may take longer than a
        // heartbeat; a heartbeat has to be quick.
        let timeout = match self.lane {
            Lane::Heartbeat => option.hard_ttl(),
            Lane::Raft | Lane::Snapshot | Lane::Forward => self.config.append_timeout(),
        };
        let session = AppendSession {
            window: self.config.append_inflight as usize,
            peer: &*self,
            input,
            input_ended: false,
            timeout,
            under_way: FuturesOrdered::new(),
            ended: false,
        };
        futures::future::ready(Ok(session.boxed())).boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types<R>>,
        option: RPCOption,
    ) -> RpcResult<R, VoteResponse<Types<R>>> {
        self.ask_for_vote(request, false, &option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types<R>>,
        option: RPCOption,
    ) -> RpcResult<R, VoteResponse<Types<R>>> {
        self.ask_for_vote(request, true, &option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::alias::SnapshotOf<Types<R>, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types<R>>, StreamingError<Types<R>>> {
        let sending = std::pin::pin!(self.send_snapshot(vote, snapshot.meta, snapshot.snapshot));
        match select(std::pin::pin!(cancel), sending).await {
            Either::Left((closed, _)) => Err(StreamingError::Closed(closed)),
            Either::Right((result, _)) => result,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types<R>>,
        option: RPCOption,
    ) -> RpcResult<R, TransferLeaderResponse<Types<R>>> {
        let message = PeerRequest::TransferLeader(Transfer {
            from: (*request.from_leader()).into(),
            to: *request.to_node_id(),
            last_log: request.last_log_id().copied().map(position),
        });
        let answer = self.ask(RPCTypes::TransferLeader, &message, option.soft_ttl());
        match answer.await? {
            PeerResponse::TransferLeader(TransferAnswer::Accepted) => Ok(Ok(())),
            PeerResponse::TransferLeader(TransferAnswer::VoteChanged(vote)) => {
                Ok(Err(TransferLeaderError::VoteChanged {
                    expected: *request.from_leader(),
                    actual: vote.into(),
                }))
            }
            PeerResponse::TransferLeader(TransferAnswer::LogBehind(at)) => {
                Ok(Err(TransferLeaderError::LogNotFlushed {
                    expected: request.last_log_id().copied(),
                    actual: at.map(raft_id),
                }))
            }
            other => Err(unexpected(other)),
        }
    }
}

/// A run of pipelined batches. It is one stream without a task: what it has under way ends with it.
struct AppendSession<'s, R: AsyncRuntime, S> {
    peer: &'s Peer<R>,
    input: S,
    input_ended: bool,
    timeout: Duration,
    window: usize,
    under_way: FuturesOrdered<BoxFuture<'static, RpcResult<R, Sent>>>,
    ended: bool,
}

impl<R, S> Stream for AppendSession<'_, R, S>
where
    R: AsyncRuntime,
    S: Stream<Item = AppendEntriesRequest<Types<R>>> + Unpin,
{
    type Item = RpcResult<R, StreamAppendResult<Types<R>>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        while !this.input_ended && this.under_way.len() < this.window {
            match this.input.poll_next_unpin(cx) {
                Poll::Ready(Some(request)) => {
                    let sent = this.peer.send_append(request, this.timeout);
                    this.under_way.push_back(sent);
                }
                Poll::Ready(None) => this.input_ended = true,
                Poll::Pending => break,
            }
        }
        match this.under_way.poll_next_unpin(cx) {
            Poll::Ready(Some(Ok(sent))) => {
                let (outcome, goes_on) = sent.outcome();
                this.ended = !goes_on;
                Poll::Ready(Some(outcome))
            }
            Poll::Ready(Some(Err(error))) => {
                this.ended = true;
                Poll::Ready(Some(Err(error)))
            }
            Poll::Ready(None) if this.input_ended => {
                this.ended = true;
                Poll::Ready(None)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
