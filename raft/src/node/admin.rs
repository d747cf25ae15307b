//! Administration of the cluster through one of its nodes: the lead, snapshots, members.

use std::collections::BTreeSet;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::errors::{ClientWriteError, RaftError};

use super::{Node, WriteError, hint};
use crate::propose::AdminError;
use crate::types::{AsyncRuntime, Member, NodeId};

impl<R: AsyncRuntime> Node<R> {
    /// Hands the lead to a voter and waits until it has it, at most `timeout`.
    pub async fn transfer_leadership(
        &self,
        to: NodeId,
        timeout: Duration,
    ) -> Result<(), AdminError> {
        if self.leading_term().is_none() {
            return Err(self.admin_not_leader());
        }
        let mut leadership = self.leadership();
        if !leadership.current().voters.contains(&to) {
            return Err(AdminError::Refused(format!("node {to} is not a voter")));
        }
        let asked = self.shared.raft.trigger().transfer_leader(to).await;
        asked.map_err(|_| AdminError::Stopped)?;
        let arrived = leadership.until(|l| l.leader.as_ref().is_some_and(|leader| leader.id == to));
        match R::timeout(timeout, arrived).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(AdminError::Stopped),
            Err(_) => Err(AdminError::Timeout),
        }
    }

    /// Asks for a snapshot now; it is written in the background.
    pub async fn trigger_snapshot(&self) -> Result<(), AdminError> {
        let asked = self.shared.raft.trigger().snapshot().await;
        asked.map_err(|_| AdminError::Stopped)
    }

    /// Adds a node without a vote and waits, at most `timeout`, until it has nearly caught up.
    pub async fn add_learner(
        &self,
        id: NodeId,
        member: Member,
        timeout: Duration,
    ) -> Result<(), AdminError> {
        let added = self.shared.raft.add_learner(id, member, true);
        self.admin(R::timeout(timeout, added).await)
    }

    /// Makes exactly these nodes the voters. All must be members already. Nodes that lose their
    /// vote leave the cluster.
    pub async fn change_membership(
        &self,
        voters: BTreeSet<NodeId>,
        timeout: Duration,
    ) -> Result<(), AdminError> {
        let change = ChangeMembers::ReplaceAllVoters(voters);
        let changed = self.shared.raft.change_membership(change, false);
        self.admin(R::timeout(timeout, changed).await)
    }

    fn admin<T, E>(&self, result: Result<Result<T, WriteError<R>>, E>) -> Result<(), AdminError> {
        match result {
            Err(_) => Err(AdminError::Timeout),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::Fatal(_))) => Err(AdminError::Stopped),
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward)))) => {
                Err(AdminError::NotLeader {
                    leader: hint(forward),
                })
            }
            Ok(Err(RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)))) => {
                Err(AdminError::Timeout)
            }
            Ok(Err(RaftError::APIError(
                error @ (ClientWriteError::ChangeMembershipError(_)
                | ClientWriteError::PreconditionFailed(_)),
            ))) => Err(AdminError::Refused(error.to_string())),
        }
    }

    fn admin_not_leader(&self) -> AdminError {
        AdminError::NotLeader {
            leader: self.leader_hint(),
        }
    }
}
