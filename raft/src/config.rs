//! Timers and limits of consensus, read from the node's configuration file.
//!
//! The defaults are for machines in one site: a silent leader is replaced in about half a second, one whose
//! process has ended in some tens of milliseconds.
//! [`RaftConfig::wan`] is for sites far apart. Every field is checked by [`RaftConfig::validate`],
//! and an error names the field.
//!
//! What cannot be configured, on purpose: pre-vote is always on (a node that was cut off does not
//! depose a healthy leader when it returns), a restarted leader never takes up its old leadership
//! without an election, and reads are confirmed by a majority, not by a lease.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of consensus. Times are in milliseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RaftConfig {
    /// Whether a follower stands for election at once when the leader's process is gone: its connection
    /// broke and its port refuses a new one.
    pub fast_failover: bool,
    /// Pause between two heartbeats of a leader.
    pub heartbeat_interval_ms: u64,
    /// Shortest time without a leader after which a node stands for election.
    pub election_timeout_min_ms: u64,
    /// Longest such time; also how long a follower stays loyal to a silent leader.
    pub election_timeout_max_ms: u64,
    /// A leader that no majority answers for so long stops taking requests and tries again at
    /// this pace. At least twice the longest election timeout.
    pub quorum_loss_probe_interval_ms: u64,
    /// How long a follower may take to answer one batch of entries (its disk included) before the
    /// batch is sent again.
    pub append_timeout_ms: u64,
    /// How long a follower may take to answer one piece of a snapshot.
    pub snapshot_chunk_timeout_ms: u64,
    /// How long a follower may take to verify and install a snapshot it has received.
    pub snapshot_install_timeout_ms: u64,
    /// Bytes of one piece of a snapshot on the wire.
    pub snapshot_chunk_bytes: u32,
    /// Most entries in one replication message.
    pub append_batch_entries: u64,
    /// Most bytes of entries in one replication message (one entry always fits).
    pub append_batch_bytes: u64,
    /// Most replication messages to one follower that wait for an answer.
    pub append_inflight: u32,
    /// Most proposals of this node that wait for their outcome; the next one is refused as
    /// overloaded.
    pub max_inflight_proposals: u32,
    /// Most bytes one encoded command may have.
    pub max_command_bytes: u32,
    /// A snapshot is taken when the log has grown by the size of the last snapshot, but not
    /// before it has grown by so many bytes.
    pub snapshot_floor_bytes: u64,
    /// Entries kept in the log behind a snapshot, so that a follower that was away for a moment
    /// catches up from the log.
    pub keep_log_entries: u64,
    /// Bytes of decoded entries kept in memory for replication and apply.
    pub entry_cache_bytes: u64,
    /// Threads of the runtime that consensus has for itself.
    pub worker_threads: u16,
}

impl Default for RaftConfig {
    fn default() -> Self {
        Self {
            fast_failover: true,
            heartbeat_interval_ms: 50,
            election_timeout_min_ms: 150,
            election_timeout_max_ms: 300,
            quorum_loss_probe_interval_ms: 600,
            append_timeout_ms: 1_000,
            snapshot_chunk_timeout_ms: 5_000,
            snapshot_install_timeout_ms: 60_000,
            snapshot_chunk_bytes: 1 << 20,
            append_batch_entries: 1_024,
            append_batch_bytes: 1 << 20,
            append_inflight: 16,
            max_inflight_proposals: 8_192,
            max_command_bytes: 1 << 20,
            snapshot_floor_bytes: 16 << 20,
            keep_log_entries: 10_000,
            entry_cache_bytes: 32 << 20,
            worker_threads: 2,
        }
    }
}

/// A setting that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("raft.{field}: {problem}")]
pub struct ConfigError {
    /// Name of the setting.
    pub field: &'static str,
    /// What is wrong with it, with the allowed values.
    pub problem: String,
}

impl RaftConfig {
    /// Values for members in different sites, with round trips up to about 100 ms.
    pub fn wan() -> Self {
        Self {
            heartbeat_interval_ms: 250,
            election_timeout_min_ms: 1_000,
            election_timeout_max_ms: 2_000,
            quorum_loss_probe_interval_ms: 4_000,
            append_timeout_ms: 4_000,
            snapshot_chunk_timeout_ms: 20_000,
            append_inflight: 64,
            ..Self::default()
        }
    }

    /// Checks that the values fit together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least = |field, value: u64, min: u64| {
            if value < min {
                let problem = format!("is {value}, must be at least {min}");
                return Err(ConfigError { field, problem });
            }
            Ok(())
        };
        let at_most = |field, value: u64, max: u64| {
            if value > max {
                let problem = format!("is {value}, must be at most {max}");
                return Err(ConfigError { field, problem });
            }
            Ok(())
        };
        at_least("heartbeat_interval_ms", self.heartbeat_interval_ms, 5)?;
        at_most("heartbeat_interval_ms", self.heartbeat_interval_ms, 60_000)?;
        at_least(
            "election_timeout_min_ms",
            self.election_timeout_min_ms,
            self.heartbeat_interval_ms.saturating_mul(2),
        )?;
        at_least(
            "election_timeout_max_ms",
            self.election_timeout_max_ms,
            self.election_timeout_min_ms.saturating_add(1),
        )?;
        at_most(
            "election_timeout_max_ms",
            self.election_timeout_max_ms,
            600_000,
        )?;
        at_least(
            "quorum_loss_probe_interval_ms",
            self.quorum_loss_probe_interval_ms,
            self.election_timeout_max_ms.saturating_mul(2),
        )?;
        at_least(
            "append_timeout_ms",
            self.append_timeout_ms,
            self.heartbeat_interval_ms,
        )?;
        at_least(
            "snapshot_chunk_timeout_ms",
            self.snapshot_chunk_timeout_ms,
            100,
        )?;
        at_least(
            "snapshot_install_timeout_ms",
            self.snapshot_install_timeout_ms,
            1_000,
        )?;
        at_least(
            "snapshot_chunk_bytes",
            self.snapshot_chunk_bytes.into(),
            4 << 10,
        )?;
        at_most(
            "snapshot_chunk_bytes",
            self.snapshot_chunk_bytes.into(),
            8 << 20,
        )?;
        at_least("append_batch_entries", self.append_batch_entries, 1)?;
        at_most("append_batch_entries", self.append_batch_entries, 65_536)?;
        at_least("append_batch_bytes", self.append_batch_bytes, 4 << 10)?;
        at_most("append_batch_bytes", self.append_batch_bytes, 8 << 20)?;
        at_least("append_inflight", self.append_inflight.into(), 1)?;
        at_most("append_inflight", self.append_inflight.into(), 256)?;
        at_least(
            "max_inflight_proposals",
            self.max_inflight_proposals.into(),
            1,
        )?;
        at_most(
            "max_inflight_proposals",
            self.max_inflight_proposals.into(),
            65_536,
        )?;
        at_least("max_command_bytes", self.max_command_bytes.into(), 4 << 10)?;
        at_most("max_command_bytes", self.max_command_bytes.into(), 4 << 20)?;
        at_least("snapshot_floor_bytes", self.snapshot_floor_bytes, 4 << 10)?;
        at_least("entry_cache_bytes", self.entry_cache_bytes, 64 << 10)?;
        at_least("worker_threads", self.worker_threads.into(), 1)?;
        at_most("worker_threads", self.worker_threads.into(), 64)
    }

    /// The deadline of one batch of entries.
    pub(crate) fn append_timeout(&self) -> Duration {
        Duration::from_millis(self.append_timeout_ms)
    }

    /// What a follower leaves to the one before it in turn after the end of a leader: an election with its
    /// round trip and its write of the vote, 30 ms in one site, 150 ms between sites.
    pub(crate) fn failover_turn(&self) -> Duration {
        Duration::from_millis(self.heartbeat_interval_ms * 3 / 5)
    }

    /// openraft's own configuration for these values.
    pub(crate) fn for_openraft(&self, cluster: &str) -> Result<openraft::Config, ConfigError> {
        self.validate()?;
        let beat = self.heartbeat_interval_ms;
        openraft::Config {
            cluster_name: cluster.to_owned(),
            heartbeat_interval: beat,
            election_timeout_min: self.election_timeout_min_ms,
            election_timeout_max: self.election_timeout_max_ms,
            quorum_loss_probe_interval: Some(self.quorum_loss_probe_interval_ms),
            install_snapshot_timeout: self.snapshot_install_timeout_ms,
            snapshot_max_chunk_size: self.snapshot_chunk_bytes.into(),
            max_payload_entries: self.append_batch_entries,
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: self.keep_log_entries,
            purge_batch_size: 1,
            api_channel_size: Some(u64::from(self.max_inflight_proposals).max(1_024)),
            enable_pre_vote: Some(true),
            enable_leader_restore: Some(false),
            // A dead peer is asked again soon: its heartbeats go out at this pace anyway.
            backoff: format!("{beat}ms {}ms ...{}ms", beat * 2, beat * 8),
            ..openraft::Config::default()
        }
        .validate()
        .map_err(|e| ConfigError {
            field: "*",
            problem: e.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut RaftConfig)) -> &'static str {
        let mut config = RaftConfig::default();
        change(&mut config);
        config.validate().expect_err("must be refused").field
    }

    #[test]
    fn both_profiles_are_accepted_by_us_and_by_openraft() {
        for config in [RaftConfig::default(), RaftConfig::wan()] {
            let inner = config.for_openraft("c").expect("valid");
            assert_eq!(inner.enable_pre_vote, Some(true));
            assert_eq!(inner.enable_leader_restore, Some(false));
            let probe = inner.quorum_loss_probe_interval.expect("set");
            assert!(probe >= 2 * inner.election_timeout_max);
        }
    }

    #[test]
    fn an_error_names_the_field() {
        assert_eq!(
            refused(|c| c.heartbeat_interval_ms = 0),
            "heartbeat_interval_ms"
        );
        assert_eq!(
            refused(|c| c.election_timeout_min_ms = 60),
            "election_timeout_min_ms"
        );
        assert_eq!(
            refused(|c| c.election_timeout_max_ms = 150),
            "election_timeout_max_ms"
        );
        assert_eq!(
            refused(|c| c.quorum_loss_probe_interval_ms = 599),
            "quorum_loss_probe_interval_ms"
        );
        assert_eq!(refused(|c| c.append_inflight = 0), "append_inflight");
        assert_eq!(
            refused(|c| c.max_inflight_proposals = 0),
            "max_inflight_proposals"
        );
    }

    #[test]
    fn unknown_settings_are_refused() {
        let text = r#"{"heartbeat_interval_ms": 40, "hartbeat": 1}"#;
        let error = serde_json::from_str::<RaftConfig>(text).expect_err("unknown field");
        assert!(error.to_string().contains("hartbeat"), "{error}");
    }
}
