//! The cluster, as people and programs read it.

use crate::ids::{Generation, NodeId, Term};
use crate::runs::states;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

states! {
    /// What a token allows. Each of admin, operator and viewer allows what the next one allows;
    /// executor stands apart.
    Role {
        /// Everything, the executor protocol too.
        Admin = "admin",
        /// Changing jobs, runs and executors.
        Operator = "operator",
        /// Reading.
        Viewer = "viewer",
        /// The executor protocol only.
        Executor = "executor",
    }
}

impl Role {
    /// Whether a token of this role may do what needs `needed`.
    pub const fn allows(self, needed: Role) -> bool {
        match (self, needed) {
            (Self::Admin, _) => true,
            (Self::Operator, Self::Operator | Self::Viewer) => true,
            (Self::Viewer, Self::Viewer) => true,
            (Self::Executor, Self::Executor) => true,
            (Self::Operator | Self::Viewer | Self::Executor, _) => false,
        }
    }
}

states! {
    /// What a node does in the cluster.
    MemberState {
        /// Leads.
        Leader = "leader",
        /// Follows.
        Follower = "follower",
        /// Asks for votes.
        Candidate = "candidate",
        /// Receives the log, has no vote.
        Learner = "learner",
        /// Is not reached by the leader.
        Unreachable = "unreachable",
        /// The asked node cannot tell.
        Unknown = "unknown",
    }
}

/// The cluster as one node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterStatus {
    /// The cluster's name for itself. Absent before it is initialized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// Whether the cluster has been initialized.
    pub initialized: bool,
    /// How often it was restored from a backup.
    pub generation: Generation,
    /// What every node of it can do.
    pub feature_level: u32,
    /// The node that answers.
    pub node: NodeId,
    /// That node's program version.
    pub version: String,
    /// The leader, if the node knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<NodeId>,
    /// Where the leader's API is, if the node knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_url: Option<String>,
    /// The highest term the node has seen.
    pub term: Term,
    /// Whether a majority follows the leader, as far as the node knows.
    pub has_quorum: bool,
    /// The last log index known to be committed.
    pub committed_index: u64,
    /// The last log index applied on this node.
    pub applied_index: u64,
    /// The calendar clock in the state.
    pub clock_at: Timestamp,
    /// The lease clock in the state, in milliseconds.
    pub lease_clock_ms: u64,
    /// The members.
    pub members: Vec<Member>,
    /// How much there is.
    pub counts: ClusterCounts,
}

/// One member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Member {
    /// Its number.
    pub id: NodeId,
    /// Where its peers reach it, `host:port`.
    pub peer_address: String,
    /// Where its API is, `http://host:port`.
    pub api_url: String,
    /// Whether it has a vote.
    pub voter: bool,
    /// What it does.
    pub state: MemberState,
    /// The last log index it has, as far as the leader knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched_index: Option<u64>,
    /// How many entries it is behind the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_entries: Option<u64>,
    /// How long ago the leader last heard from it, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_contact_ms: Option<u64>,
}

/// How much there is in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterCounts {
    /// Jobs.
    pub jobs: u64,
    /// Jobs that are paused.
    pub jobs_paused: u64,
    /// Runs that have not ended.
    pub runs_live: u64,
    /// Tasks that wait for an executor.
    pub tasks_queued: u64,
    /// Tasks whose owner was lost.
    pub tasks_orphaned: u64,
    /// Tasks that are assigned or running.
    pub tasks_running: u64,
    /// Executors whose lease is valid.
    pub executors_online: u64,
}

/// Makes a cluster out of empty nodes, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InitializeRequest {
    /// The first members, all with a vote.
    pub members: Vec<NewMember>,
}

/// A member of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// Its number.
    pub id: NodeId,
    /// Where its peers reach it, `host:port`.
    pub peer_address: String,
    /// Where its API is, `http://host:port`.
    pub api_url: String,
}

/// The cluster was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InitializeAnswer {
    /// The cluster's name for itself.
    pub cluster_id: String,
}

/// Whether a node lives. The only answer that needs no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Health {
    /// The process answers.
    pub live: bool,
    /// The node knows a leader and can serve.
    pub ready: bool,
    /// The node belongs to a cluster that was made.
    #[serde(default)]
    pub initialized: bool,
}

#[cfg(test)]
mod tests {
    use super::Role;

    #[test]
    fn roles_are_denied_by_default() {
        for role in Role::ALL {
            assert!(role.allows(*role));
            assert!(Role::Admin.allows(*role));
            assert_eq!(role.allows(Role::Admin), *role == Role::Admin);
        }
        assert!(Role::Operator.allows(Role::Viewer));
        assert!(!Role::Operator.allows(Role::Executor));
        assert!(!Role::Executor.allows(Role::Viewer));
        assert!(!Role::Viewer.allows(Role::Operator));
    }
}
