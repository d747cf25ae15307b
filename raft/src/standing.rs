//! What a node knows of the cluster and of its own place in it.

use std::collections::BTreeMap;
use std::time::Duration;

use openraft::ServerState;
use openraft_rt::watch::WatchReceiver;
use tenure_machine::LogPosition;

use crate::contacts::Contact;
use crate::propose::LeaderHint;
use crate::types::{AsyncRuntime, Member, NodeId};

/// What a node does in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Takes the log and has no vote.
    #[default]
    Learner,
    /// Follows, and votes.
    Follower,
    /// Stands for election.
    Candidate,
    /// Leads: a majority elected it in this term.
    Leader,
    /// Is stopping, or has failed.
    Stopped,
}

impl From<ServerState> for Role {
    fn from(state: ServerState) -> Self {
        match state {
            ServerState::Learner => Self::Learner,
            ServerState::Follower => Self::Follower,
            ServerState::Candidate => Self::Candidate,
            ServerState::Leader => Self::Leader,
            ServerState::Shutdown => Self::Stopped,
        }
    }
}

/// Who leads, as one node sees it. Changes seldom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leadership {
    /// This node's part.
    pub role: Role,
    /// The highest term this node knows.
    pub term: u64,
    /// Who leads that term, if known.
    pub leader: Option<LeaderHint>,
    /// Voters and learners with their addresses.
    pub members: BTreeMap<NodeId, Member>,
    /// The voters; of the old and the new set while they change.
    pub voters: Vec<NodeId>,
}

impl Leadership {
    /// The term this node leads, if it leads.
    pub fn leads(&self) -> Option<u64> {
        (self.role == Role::Leader).then_some(self.term)
    }
}

/// Everything a node knows, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// This node.
    pub node: NodeId,
    /// Who leads, and who belongs to the cluster.
    pub leadership: Leadership,
    /// Index of the last entry in this node's log.
    pub last_log: Option<u64>,
    /// The last entry this node knows to be committed.
    pub committed: Option<LogPosition>,
    /// The last entry in this node's state.
    pub applied: Option<LogPosition>,
    /// The last entry in its newest snapshot.
    pub snapshot: Option<LogPosition>,
    /// The last entry purged from its log.
    pub purged: Option<LogPosition>,
    /// Time since a majority last answered this leader; `None` unless this node leads and one did.
    pub quorum_age: Option<Duration>,
    /// Time since this node last took something from the leader of its term; `None` if it never did since
    /// it started, or leads.
    pub leader_age: Option<Duration>,
    /// The last entry each member is known to hold. Empty unless this node leads.
    pub matched: BTreeMap<NodeId, Option<LogPosition>>,
    /// How the last call to each peer ended.
    pub contacts: BTreeMap<NodeId, Contact>,
    /// How many elections this node has started since its start because the leader's process was gone.
    pub fast_failovers: u64,
}

impl Standing {
    /// How many entries of this leader's log a member does not hold, as far as is known.
    pub fn lag(&self, member: NodeId) -> Option<u64> {
        let matched = self.matched.get(&member)?;
        let held = matched.map_or(0, |at| at.index + 1);
        let all = self.last_log.map_or(0, |index| index + 1);
        Some(all.saturating_sub(held))
    }
}

/// Follows a node's [`Leadership`]. Clones follow independently.
pub struct LeadershipWatch<R: AsyncRuntime> {
    pub(crate) receiver: <R::Watch as openraft_rt::watch::Watch>::Receiver<Leadership>,
}

impl<R: AsyncRuntime> Clone for LeadershipWatch<R> {
    fn clone(&self) -> Self {
        Self {
            receiver: self.receiver.clone(),
        }
    }
}

impl<R: AsyncRuntime> LeadershipWatch<R> {
    /// The present one; also marks it as seen.
    pub fn current(&mut self) -> Leadership {
        self.receiver.borrow_and_update().clone()
    }

    /// Waits for one that was not seen yet; `None` once the node has stopped.
    pub async fn changed(&mut self) -> Option<Leadership> {
        self.receiver.changed().await.ok()?;
        Some(self.current())
    }

    /// Waits until `condition` holds; `None` once the node has stopped.
    pub async fn until(&mut self, condition: impl Fn(&Leadership) -> bool) -> Option<Leadership> {
        loop {
            let current = self.current();
            if condition(&current) {
                return Some(current);
            }
            self.receiver.changed().await.ok()?;
        }
    }
}
