//! A node, put together: files, archive, consensus, leader's loop, HTTP.
//!
//! The order of a start: lock, identity, secrets, archive, consensus, HTTP. Whatever is wrong is found
//! before the node says a word to anybody. The order of a stop is the other way round, and begins with
//! handing over the lead.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure_raft::node::StartError;
use tenure_raft::tcp_node::{TcpNode, TcpNodeSetup};
use tenure_raft::transport::{ClusterSecret, TransportLimits};
use tenure_raft::types::TokioRuntime;
use tenure_sdk::{Client, RetryPolicy};
use tenure_storage::archive::{Archive, ArchiveError};
use tenure_storage::disk::RealDisk;
use tenure_storage::identity::{self, Folder, FolderLock, Identity, IdentityError};
use tenure_storage::wal::{WalOptions, spawn_threads};
use tokio::task::JoinHandle;

use crate::assembly::{Assembly, Frame, OnFatal, Settings, Surroundings};
use crate::blocking::Blocking;
use crate::clock::SystemClock;
use crate::config::{ConfigError, NodeConfig};
use crate::consensus::{Consensus, RaftConsensus};
use crate::history::{Feed, FeedError, open_or_rebuild};
use crate::http::{self, Limits};
use crate::listener::{self, Listening};
use crate::security::{OsEntropy, Tokens, load_cluster_secret};

/// Bytes of the archive that are kept in memory.
const ARCHIVE_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// How long a stop waits for another node to take the lead.
const HANDOVER: Duration = Duration::from_secs(3);
/// How long another member may take to say whether its cluster was made.
const ASK_MEMBER: Duration = Duration::from_secs(2);
/// How long a stop waits for requests that are under way.
const DRAIN: Duration = Duration::from_secs(5);

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration cannot work.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The data folder is not this node's, or is in use.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// A secret cannot be read.
    #[error("{0}")]
    Secret(String),
    /// The archive cannot be opened.
    #[error("{0}")]
    Archive(#[from] ArchiveError),
    /// The archive cannot be fed.
    #[error("{0}")]
    Feed(#[from] FeedError),
    /// Consensus did not start.
    #[error("{0}")]
    Raft(#[from] StartError),
    /// A socket cannot be had.
    #[error("{what}: {source}")]
    Socket {
        /// Which.
        what: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Gives an empty data folder its identity. To be done once for each node, before its first start.
///
/// # Errors
/// The folder is not empty, or cannot be written.
pub async fn initialize_folder(config: &NodeConfig) -> Result<(), NodeError> {
    let _lock = FolderLock::acquire(&config.data_dir)?;
    let disk = RealDisk;
    let identity = Identity {
        cluster_id: config.cluster_id.clone(),
        node_id: config.node_id,
        created: "by tenure node init".into(),
        ready: false,
    };
    Ok(identity::create(&disk, &config.data_dir, &identity).await?)
}

/// Asks the other members whether their cluster was made already; gives one that says so. Then this node may
/// have been part of it: with an empty folder it would have forgotten its vote and what it acknowledged. Members
/// that do not answer say nothing, so this finds a mistake and is no proof.
///
/// # Errors
/// A member's URL cannot be used.
pub async fn made_cluster(config: &NodeConfig) -> Result<Option<String>, NodeError> {
    let mut questions = Vec::new();
    for member in config.members.iter().filter(|m| m.id != config.node_id) {
        let client = Client::builder()
            .node(&member.http)
            // The health check is open; a client has to bring something.
            .token("none")
            .retry(RetryPolicy {
                overall_timeout: ASK_MEMBER,
                attempt_timeout: ASK_MEMBER,
                ..RetryPolicy::default()
            })
            .build()
            .map_err(|fault| NodeError::Secret(format!("{}: {fault}", member.http)))?;
        questions.push(async move {
            let health = client.health().await.ok()?;
            health.initialized.then(|| member.http.clone())
        });
    }
    let answers = futures::future::join_all(questions).await;
    Ok(answers.into_iter().flatten().next())
}

/// Whether the data folder has an identity.
///
/// # Errors
/// The folder cannot be read, or holds something else.
pub async fn folder_is_fresh(config: &NodeConfig) -> Result<bool, NodeError> {
    let folder = identity::read(&RealDisk, &config.data_dir).await?;
    Ok(folder == Folder::Fresh)
}

/// A node that runs.
pub struct RunningNode {
    raft: TcpNode,
    consensus: Arc<RaftConsensus<TokioRuntime>>,
    feed: Arc<Feed>,
    listening: Listening,
    loops: Vec<JoinHandle<()>>,
    _lock: FolderLock,
}

/// Starts a node. `on_fatal` is told when it cannot go on, and must end the process.
///
/// # Errors
/// Says what is wrong and what to do; nothing was changed then but perhaps an empty log was made.
pub async fn start(
    config: NodeConfig,
    on_fatal: impl Fn(String) + Send + Sync + 'static,
) -> Result<RunningNode, NodeError> {
    let on_fatal: OnFatal = Arc::new(on_fatal);
    let disk = RealDisk;
    let lock = FolderLock::acquire(&config.data_dir)?;
    let identity =
        identity::expect(&disk, &config.data_dir, &config.cluster_id, config.node_id).await?;
    let tokens =
        Tokens::load(&config.tokens_file).map_err(|error| NodeError::Secret(error.to_string()))?;
    let secret = load_cluster_secret(&config.cluster_secret_file)
        .map_err(|error| NodeError::Secret(error.to_string()))?;
    let secret = ClusterSecret::new(secret.expose()).map_err(|error| {
        NodeError::Secret(format!("{}: {error}", config.cluster_secret_file.display()))
    })?;
    let http_socket =
        std::net::TcpListener::bind(config.listen.http).map_err(|source| NodeError::Socket {
            what: format!("listen.http {}", config.listen.http),
            source,
        })?;

    let archive: Arc<dyn Archive> = Arc::new(open_archive(config.data_dir.join("archive")).await?);
    let frame = Frame::new(Surroundings {
        clock: SystemClock::new(),
        entropy: Arc::new(OsEntropy),
        archive,
        spawn: spawn_threads(),
        blocking: Blocking::Threads,
        on_fatal,
    })?;
    let raft_config = config.raft_config()?;
    let election_timeout_max_ms = raft_config.election_timeout_max_ms;
    let raft = TcpNode::start(TcpNodeSetup {
        id: config.node_id,
        cluster: config.cluster_id.clone(),
        secret,
        listen: config.listen.peer.to_string(),
        config: raft_config,
        limits: TransportLimits::default(),
        dir: config.data_dir.clone(),
        wal: WalOptions {
            segment_bytes: config.log.segment_bytes,
            salt: salt(&config),
            create: !identity.ready,
            ..WalOptions::default()
        },
        hooks: frame.hooks(),
    })
    .await?;
    if !identity.ready {
        identity::mark_ready(&disk, &config.data_dir, &identity).await?;
    }

    let settings = Settings {
        cluster_id: config.cluster_id.clone(),
        tokens: Arc::new(tokens),
        limits: Limits {
            admin_requests: config.http.admin_requests,
            executor_requests: config.http.executor_requests,
            polls: config.http.polls,
            ..Limits::default()
        },
        leader: config.leader.clone(),
        election_timeout_max_ms,
    };
    let Assembly {
        consensus,
        feed,
        gateway,
        loops,
    } = frame
        .complete(raft.node().clone(), settings)
        .map_err(|error| NodeError::Secret(error.to_string()))?;
    let connections = listener::room_for_clients(config.http.connections);
    let listening =
        listener::serve(http_socket, http::router(gateway), connections).map_err(|source| {
            NodeError::Socket {
                what: "the HTTP interface".into(),
                source,
            }
        })?;
    let loops = loops.into_iter().map(tokio::spawn).collect();
    tracing::info!(node = config.node_id, http = %listening.address(), "the node runs");
    Ok(RunningNode {
        raft,
        consensus,
        feed,
        listening,
        loops,
        _lock: lock,
    })
}

impl RunningNode {
    /// Where the HTTP interface listens.
    pub fn http_address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Consensus, for tests.
    pub fn consensus(&self) -> Arc<dyn Consensus> {
        self.consensus.clone()
    }

    /// Hands over the lead, finishes what is under way, and stops.
    pub async fn stop(self) {
        self.hand_over().await;
        self.listening.stop(DRAIN).await;
        for task in &self.loops {
            task.abort();
        }
        self.feed.flush().await;
        self.raft.shutdown().await;
    }

    /// Gives the lead to the voter that has most of the log, if this node leads.
    async fn hand_over(&self) {
        let standing = self.consensus.standing().borrow().clone();
        if !standing.leads {
            return;
        }
        let heir = standing
            .members
            .iter()
            .filter(|member| member.voter && member.id != standing.node)
            .max_by_key(|member| member.matched);
        if let Some(heir) = heir {
            match self
                .raft
                .node()
                .transfer_leadership(heir.id, HANDOVER)
                .await
            {
                Ok(()) => tracing::info!(to = heir.id, "handed over the lead"),
                Err(error) => tracing::warn!(%error, "could not hand over the lead"),
            }
        }
    }
}

async fn open_archive(dir: PathBuf) -> Result<tenure_storage::archive::SledArchive, NodeError> {
    let opened = tokio::task::spawn_blocking(move || open_or_rebuild(&dir, ARCHIVE_CACHE_BYTES));
    match opened.await {
        Ok(opened) => Ok(opened?),
        Err(error) => Err(NodeError::Secret(format!(
            "opening the archive failed: {error}"
        ))),
    }
}

/// A number that is the node's own, from its identity (FNV-1a).
fn salt(config: &NodeConfig) -> u64 {
    let node = config.node_id.to_le_bytes();
    config
        .cluster_id
        .bytes()
        .chain(node)
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
