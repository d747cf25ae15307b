//! An election at once where the leader's process is certainly dead.
//!
//! The timers wait for the longest election timeout and more, because a silent leader may only be slow. But a
//! process that has ended says so: its connections break, and its port *refuses* new ones. A follower that sees
//! both gives itself the request with which a leader hands over its lead. openraft then forgets the loyalty to
//! the old leader and stands for election, with vote requests that other followers do not refuse for that
//! loyalty either.
//!
//! ```text
//! a connection of the leader breaks → wait for the turn → probe its port → refused → stand for election
//!                                                             └ anything else: try again, a few times
//! ```
//!
//! Followers take turns, in the order of their numbers from the leader's on, so that they do not stand against
//! each other. Whoever hears of the first one's election does nothing more.
//!
//! Invariants:
//! - Nothing happens unless this node follows that very leader in that very term, has a vote, has heard nothing
//!   from it since the connection broke, and its port refused a connection after that.
//! - At most one election of a term is started against its leader, and at most [`PROBES`] probes are made for
//!   a broken connection.
//!
//! It only begins an election that the timers would begin later. What an election may decide, who may vote and
//! how a read is confirmed does not change, so a wrong verdict costs an election and nothing else. That holds
//! because reads are confirmed by a majority; reads that trust the leader's lease would not survive this.
//!
//! Absent: a verdict out of silence. A host that is off, a cut and a suspended process are left to the timers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::raft::TransferLeaderRequest;
use openraft::{Raft, ServerState};
use openraft_rt::Instant as _;
use openraft_rt::watch::WatchReceiver;
use tokio::sync::Notify;

use crate::config::RaftConfig;
use crate::service::Heard;
use crate::standing::{LeadershipWatch, Role};
use crate::state_machine::StateMachine;
use crate::transport::{CallError, PeerTransport};
use crate::types::{AsyncRuntime, NodeId, Types, Vote};

/// Most probes after a broken connection. The first may meet a port that is just being closed.
const PROBES: u32 = 5;

/// Watches over the leader's process for one node.
pub(crate) struct FastFailover<R: AsyncRuntime> {
    me: NodeId,
    /// How long the next in turn leaves to the one before it; also how long a probe may take.
    turn: Duration,
    raft: Raft<Types<R>, StateMachine<R>>,
    transport: Arc<dyn PeerTransport>,
    heard: Heard<R>,
    suspicion: Mutex<Option<Suspicion<R>>>,
    news: Notify,
    /// The last term against whose leader an election was started.
    last_term: AtomicU64,
    elections: AtomicU64,
}

/// The present leader's connection broke.
struct Suspicion<R: AsyncRuntime> {
    leader: Vote,
    broke_at: R::Instant,
}

/// A suspicion that still holds.
struct Case {
    leader: NodeId,
    address: String,
    /// How many other followers have their turn before this node.
    before_me: u32,
}

impl<R: AsyncRuntime> FastFailover<R> {
    /// Starts the watch; it ends with the node. Nothing is watched where the configuration says so.
    pub(crate) fn start(
        me: NodeId,
        config: &RaftConfig,
        raft: &Raft<Types<R>, StateMachine<R>>,
        transport: &Arc<dyn PeerTransport>,
        heard: &Heard<R>,
        leadership: &LeadershipWatch<R>,
    ) -> Option<Arc<Self>> {
        if !config.fast_failover {
            return None;
        }
        let watch = Arc::new(Self {
            me,
            turn: config.failover_turn(),
            raft: raft.clone(),
            transport: transport.clone(),
            heard: heard.clone(),
            suspicion: Mutex::default(),
            news: Notify::new(),
            last_term: AtomicU64::new(0),
            elections: AtomicU64::new(0),
        });
        let (watching, mut leadership) = (watch.clone(), leadership.clone());
        drop(R::spawn(async move {
            let stopped = async { drop(leadership.until(|l| l.role == Role::Stopped).await) };
            R::select2(stopped, watching.watch()).await;
        }));
        Some(watch)
    }

    /// How many elections this node has started.
    pub(crate) fn elections(&self) -> u64 {
        self.elections.load(Ordering::Relaxed)
    }

    /// A connection that `peer` had opened has broken.
    pub(crate) fn hung_up(&self, peer: NodeId) {
        let leader = self.raft.metrics().borrow_watched().vote;
        if peer == self.me || !leader.committed || leader.leader_id.voted_for != peer {
            return;
        }
        let suspicion = Suspicion {
            leader,
            broke_at: R::Instant::now(),
        };
        *self.slot() = Some(suspicion);
        self.news.notify_one();
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Suspicion<R>>> {
        self.suspicion
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(&self) {
        loop {
            self.news.notified().await;
            let suspicion = self.slot().take();
            if let Some(suspicion) = suspicion {
                self.examine(&suspicion).await;
            }
        }
    }

    async fn examine(&self, suspicion: &Suspicion<R>) {
        let Some(case) = self.case(suspicion) else {
            return;
        };
        if case.before_me > 0 {
            R::sleep(self.turn * case.before_me).await;
        }
        for _ in 0..PROBES {
            let Some(case) = self.case(suspicion) else {
                return;
            };
            let probe = self
                .transport
                .probe(case.leader, &case.address, self.turn)
                .await;
            #[cfg(feature = "planted-bugs")]
            let probe = match tenure_planted::is(tenure_planted::Bug::ElectionOnABrokenConnection) {
                true => Err(CallError::Refused),
                false => probe,
            };
            if probe == Err(CallError::Refused) {
                return self.stand(suspicion).await;
            }
            R::sleep(self.turn / 3).await;
        }
    }

    /// What there is to do about a suspicion; `None` if nothing, because it does not hold any more or this
    /// node has no part in it.
    fn case(&self, suspicion: &Suspicion<R>) -> Option<Case> {
        let term = suspicion.leader.leader_id.term;
        let leader = suspicion.leader.leader_id.voted_for;
        if self.last_term.load(Ordering::Relaxed) >= term || self.heard.since(suspicion.broke_at) {
            return None;
        }
        let metrics = self.raft.metrics();
        let m = metrics.borrow_watched();
        if m.vote != suspicion.leader || m.state != ServerState::Follower {
            return None;
        }
        let membership = m.membership_config.membership();
        Some(Case {
            leader,
            address: membership.get_node(&leader)?.peer_address.clone(),
            before_me: before(self.me, leader, membership.voter_ids())?,
        })
    }

    /// openraft checks once more, where it cannot change any more, that the vote is still that of the leader.
    async fn stand(&self, suspicion: &Suspicion<R>) {
        let Some(case) = self.case(suspicion) else {
            return;
        };
        let term = suspicion.leader.leader_id.term;
        self.last_term.store(term, Ordering::Relaxed);
        let request = TransferLeaderRequest::new(suspicion.leader, self.me, None);
        match self.raft.handle_transfer_leader(request).await {
            Ok(Ok(())) => {
                self.elections.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    leader = case.leader,
                    term,
                    "the leader's process is gone: this node stands for election"
                );
            }
            Ok(Err(why)) => tracing::debug!(%why, "no election before its time"),
            Err(error) => tracing::debug!(%error, "no election before its time"),
        }
    }
}

/// How many of the voters have their turn before `me` after the end of `leader`; `None` if `me` has no vote.
fn before(me: NodeId, leader: NodeId, voters: impl Iterator<Item = NodeId>) -> Option<u32> {
    // From the leader's number on, and then from the lowest.
    let place = |id: NodeId| (id < leader, id);
    let (mut votes, mut before) = (false, 0);
    for voter in voters {
        votes |= voter == me;
        before += u32::from(voter != leader && place(voter) < place(me));
    }
    (votes && me != leader).then_some(before)
}

#[cfg(test)]
mod tests {
    use super::before;

    #[test]
    fn followers_take_turns_from_the_leaders_number_on() {
        let turns =
            |leader| [1, 2, 3, 5, 9].map(|me| before(me, leader, [1, 2, 3, 5, 9].into_iter()));
        assert_eq!(turns(1), [None, Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(turns(3), [Some(2), Some(3), None, Some(0), Some(1)]);
        assert_eq!(turns(9), [Some(0), Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn a_node_without_a_vote_has_no_turn() {
        assert_eq!(before(4, 1, [1, 2, 3].into_iter()), None);
        assert_eq!(before(4, 1, [].into_iter()), None);
    }

    #[test]
    fn a_leader_that_has_left_the_voters_takes_no_turn() {
        assert_eq!(before(3, 2, [1, 3].into_iter()), Some(0));
        assert_eq!(before(1, 2, [1, 3].into_iter()), Some(1));
    }
}
