//! The node's configuration file (TOML). Unknown settings are refused; every error names the setting.
//!
//! ```toml
//! cluster_id = "c-5b1f0e"
//! node_id = 1
//! data_dir = "/var/lib/tenure"
//! tokens_file = "/etc/tenure/tokens.toml"
//! cluster_secret_file = "/etc/tenure/cluster.secret"
//!
//! [listen]
//! http = "127.0.0.1:7411"
//! peer = "127.0.0.1:7421"
//!
//! [[members]]
//! id = 1
//! http = "http://127.0.0.1:7411"
//! peer = "127.0.0.1:7421"
//! ```

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tenure_raft::config::RaftConfig;

use crate::clock::MAX_STEP_MS;
use crate::leader::LeaderConfig;

/// What a segment of the log may have: room for two of the largest batches at least.
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 20 << 20..=1 << 30;
const PAGE_BYTES: u64 = 4096;

/// Everything a node is told when it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The cluster this node belongs to. Made once, the same on all nodes.
    pub cluster_id: String,
    /// This node's number, unique in the cluster and never used again for another data folder.
    pub node_id: u64,
    /// Where everything is kept.
    pub data_dir: PathBuf,
    /// Who may use the HTTP interface: names, roles and hashes of tokens.
    pub tokens_file: PathBuf,
    /// What nodes prove to each other that they know.
    pub cluster_secret_file: PathBuf,
    /// Where this node listens.
    pub listen: Listen,
    /// The nodes the cluster begins with.
    pub members: Vec<MemberConfig>,
    /// Timers and limits of consensus.
    #[serde(default)]
    pub raft: RaftSettings,
    /// The leader's loop.
    #[serde(default)]
    pub leader: LeaderConfig,
    /// The write-ahead log.
    #[serde(default)]
    pub log: LogSettings,
    /// Limits of the HTTP interface.
    #[serde(default)]
    pub http: HttpSettings,
}

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// The HTTP interface.
    pub http: SocketAddr,
    /// The other nodes.
    pub peer: SocketAddr,
}

/// A node the cluster begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberConfig {
    /// Its number.
    pub id: u64,
    /// The base URL of its HTTP interface.
    pub http: String,
    /// `host:port` where its peers reach it.
    pub peer: String,
}

/// A profile of timers, and what differs from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RaftSettings {
    /// Which timers to begin with.
    pub profile: Profile,
    /// What differs.
    #[serde(flatten)]
    pub overrides: toml::Table,
}

/// Timers for a kind of network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// One site: a dead leader is replaced in about half a second.
    #[default]
    Lan,
    /// Sites far apart.
    Wan,
}

/// Settings of the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// Bytes of one segment file.
    pub segment_bytes: u64,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
        }
    }
}

/// Limits of the HTTP interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// Most connections that are open at once.
    pub connections: usize,
    /// Most administration requests under way at once.
    pub admin_requests: usize,
    /// Most executor calls under way at once, long polls not counted.
    pub executor_requests: usize,
    /// Most long polls under way at once.
    pub polls: usize,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            connections: 30_000,
            admin_requests: 256,
            executor_requests: 4_096,
            polls: 24_000,
        }
    }
}

/// A setting that cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or has unknown or missing settings.
    #[error("{path}: {detail}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What and where.
        detail: String,
    },
    /// A setting cannot work.
    #[error("{field}: {problem}")]
    Setting {
        /// Its path.
        field: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
}

impl NodeConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Names the file or the setting, and what would be right.
    pub fn load(path: &Path, insecure_network: bool) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let config: Self = toml::from_str(&text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            detail: error.to_string(),
        })?;
        config.validate(insecure_network)?;
        Ok(config)
    }

    /// Checks that the settings fit together. `insecure_network` allows to listen beyond loopback, where
    /// everything is readable to whoever sees the packets.
    ///
    /// # Errors
    /// Names the setting, and what would be right.
    pub fn validate(&self, insecure_network: bool) -> Result<(), ConfigError> {
        let fail = |field: &str, problem: String| {
            Err(ConfigError::Setting {
                field: field.to_owned(),
                problem,
            })
        };
        if self.cluster_id.is_empty() || self.cluster_id.len() > 128 {
            return fail("cluster_id", "must have 1 to 128 characters".into());
        }
        if self.node_id == 0 {
            return fail("node_id", "must be at least 1".into());
        }
        let ids: BTreeSet<u64> = self.members.iter().map(|member| member.id).collect();
        if ids.len() != self.members.len() {
            return fail("members", "two members have the same id".into());
        }
        if !ids.contains(&self.node_id) {
            return fail(
                "members",
                format!("does not name this node, {}", self.node_id),
            );
        }
        if !matches!(ids.len(), 1 | 3 | 5) {
            return fail(
                "members",
                format!("has {} nodes, must have 3 or 5 (1 to try)", ids.len()),
            );
        }
        for (index, member) in self.members.iter().enumerate() {
            if !member.http.starts_with("http://") {
                return fail(
                    &format!("members[{index}].http"),
                    format!(
                        "is {:?}, must be a URL such as http://10.0.0.1:7411",
                        member.http
                    ),
                );
            }
            let port = member
                .peer
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none() {
                return fail(
                    &format!("members[{index}].peer"),
                    format!("is {:?}, must be host:port", member.peer),
                );
            }
        }
        for (field, address) in [
            ("listen.http", self.listen.http),
            ("listen.peer", self.listen.peer),
        ] {
            if !insecure_network && !address.ip().is_loopback() {
                return fail(
                    field,
                    format!(
                        "{address} is not a loopback address and nothing is encrypted yet: put the node \
                         behind a private network or tunnel and start it with --insecure-network"
                    ),
                );
            }
        }
        // The lease clock is read at least once a tick; beyond a step it would lose time.
        if self.leader.tick_ms == 0 || self.leader.tick_ms > MAX_STEP_MS / 2 {
            let why = format!("must be 1 to {}", MAX_STEP_MS / 2);
            return fail("leader.tick_ms", why);
        }
        let segment_bytes = self.log.segment_bytes;
        if !SEGMENT_BYTES.contains(&segment_bytes) || !segment_bytes.is_multiple_of(PAGE_BYTES) {
            return fail(
                "log.segment_bytes",
                format!(
                    "is {segment_bytes}, must be {} (20 MiB) to {} (1 GiB) and a multiple of {PAGE_BYTES}",
                    SEGMENT_BYTES.start(),
                    SEGMENT_BYTES.end()
                ),
            );
        }
        self.raft_config().map(|_| ())
    }

    /// The timers and limits of consensus.
    ///
    /// # Errors
    /// Names the setting, and what would be right.
    pub fn raft_config(&self) -> Result<RaftConfig, ConfigError> {
        let base = match self.raft.profile {
            Profile::Lan => RaftConfig::default(),
            Profile::Wan => RaftConfig::wan(),
        };
        let setting = |problem: String| ConfigError::Setting {
            field: "raft".into(),
            problem,
        };
        let mut table = toml::Table::try_from(&base).map_err(|error| setting(error.to_string()))?;
        table.extend(self.raft.overrides.clone());
        let config: RaftConfig = table
            .try_into()
            .map_err(|error| setting(error.to_string()))?;
        config.validate().map_err(|error| ConfigError::Setting {
            field: format!("raft.{}", error.field),
            problem: error.problem.clone(),
        })?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(replace: &[(&str, &str)]) -> String {
        let mut text = String::from(
            r#"
cluster_id = "c1"
node_id = 1
data_dir = "/tmp/x"
tokens_file = "t"
cluster_secret_file = "s"
[listen]
http = "127.0.0.1:7411"
peer = "127.0.0.1:7421"
[[members]]
id = 1
http = "http://127.0.0.1:7411"
peer = "127.0.0.1:7421"
[raft]
profile = "lan"
heartbeat_interval_ms = 40
[log]
segment_bytes = 20971520
"#,
        );
        for (from, to) in replace {
            text = text.replace(from, to);
        }
        text
    }

    fn problem(replace: &[(&str, &str)]) -> String {
        let config: Result<NodeConfig, _> = toml::from_str(&text(replace));
        match config {
            Err(error) => error.to_string(),
            Ok(config) => config
                .validate(false)
                .map_or_else(|error| error.to_string(), |()| String::new()),
        }
    }

    #[test]
    fn a_good_file_is_taken_and_overrides_count() {
        assert_eq!(problem(&[]), "");
        let config: NodeConfig = toml::from_str(&text(&[])).unwrap();
        let raft = config.raft_config().unwrap();
        assert_eq!(raft.heartbeat_interval_ms, 40);
        assert_eq!(
            raft.election_timeout_max_ms,
            RaftConfig::default().election_timeout_max_ms
        );
    }

    #[test]
    fn each_error_names_its_setting() {
        for (replace, needle) in [
            (("node_id = 1", "node_id = 0"), "node_id"),
            (("node_id = 1", "node_id = 2"), "members"),
            (("[listen]", "[listne]"), "listne"),
            (
                ("\"127.0.0.1:7411\"\npeer", "\"0.0.0.0:7411\"\npeer"),
                "listen.http",
            ),
            (
                ("heartbeat_interval_ms = 40", "heartbeat_interval_ms = 400"),
                "raft.",
            ),
            (
                ("heartbeat_interval_ms = 40", "heartbeet = 400"),
                "heartbeet",
            ),
            (("20971520", "1048576"), "log.segment_bytes"),
            (("20971520", "20971521"), "log.segment_bytes"),
            (
                (
                    "peer = \"127.0.0.1:7421\"\n[raft]",
                    "peer = \"127.0.0.1\"\n[raft]",
                ),
                "members[0].peer",
            ),
        ] {
            let problem = problem(&[replace]);
            assert!(problem.contains(needle), "{replace:?}: {problem}");
        }
    }
}
