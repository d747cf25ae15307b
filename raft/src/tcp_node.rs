//! A node as it runs in production: on threads of its own, with real files, reached over TCP.
//!
//! Consensus has its own runtime, so that whatever the rest of the process does cannot starve
//! heartbeats and elections. The handle may be used from any other runtime.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tenure_storage::disk::RealDisk;
use tenure_storage::wal::{Spawn, WalOptions, WalReport, spawn_threads};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::config::RaftConfig;
use crate::node::{Hooks, Node, NodeSetup, StartError};
use crate::transport::{ClusterSecret, Identity, TcpTransport, TransportLimits};
use crate::types::{NodeId, TokioRuntime};

/// What a node over TCP is started with.
pub struct TcpNodeSetup {
    /// Its number.
    pub id: NodeId,
    /// The id of its cluster; peers of another cluster are turned away.
    pub cluster: String,
    /// What it and its peers prove each other.
    pub secret: ClusterSecret,
    /// `host:port` on which it accepts peers.
    pub listen: String,
    /// Timers and limits.
    pub config: RaftConfig,
    /// Bounds on what peers may cost.
    pub limits: TransportLimits,
    /// The folder for `log` and `snapshots`. The caller holds its lock.
    pub dir: PathBuf,
    /// Sizes of the log.
    pub wal: WalOptions,
    /// The layers above.
    pub hooks: Hooks,
}

/// A running node. Dropping it is like the death of the process: nobody is told.
pub struct TcpNode {
    node: Node<TokioRuntime>,
    transport: Arc<TcpTransport>,
    address: SocketAddr,
    report: WalReport,
    runtime: OwnedRuntime,
}

/// Ends without waiting, so that it may be dropped inside another runtime.
struct OwnedRuntime(Option<Runtime>);

impl Drop for OwnedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl TcpNode {
    /// Starts the threads, opens the files, and listens.
    pub async fn start(setup: TcpNodeSetup) -> Result<Self, StartError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(setup.config.worker_threads.into())
            .thread_name("tenure-raft")
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let runtime = OwnedRuntime(Some(runtime));
        let starting = handle.spawn(Self::start_there(setup, handle.clone()));
        let (node, transport, address, report) = starting
            .await
            .map_err(|e| StartError::Raft(e.to_string()))??;
        Ok(Self {
            node,
            transport,
            address,
            report,
            runtime,
        })
    }

    async fn start_there(
        setup: TcpNodeSetup,
        handle: tokio::runtime::Handle,
    ) -> Result<(Node<TokioRuntime>, Arc<TcpTransport>, SocketAddr, WalReport), StartError> {
        // Taken first, so that a port in use is found before anything is touched.
        let listener = TcpListener::bind(&setup.listen).await?;
        let identity = Identity {
            node: setup.id,
            cluster: setup.cluster.clone(),
            secret: setup.secret,
        };
        let transport = TcpTransport::new(identity, setup.limits, handle);
        let spawn: Spawn = spawn_threads();
        let (node, report) = Node::start(NodeSetup {
            id: setup.id,
            cluster: setup.cluster,
            config: setup.config,
            disk: RealDisk,
            dir: setup.dir,
            wal: setup.wal,
            spawn,
            transport: transport.clone(),
            hooks: setup.hooks,
        })
        .await?;
        let address = transport.listen_on(listener, node.service())?;
        Ok((node, transport, address, report))
    }

    /// The node.
    pub fn node(&self) -> &Node<TokioRuntime> {
        &self.node
    }

    /// Where it accepts peers.
    pub fn peer_address(&self) -> SocketAddr {
        self.address
    }

    /// What opening the log found.
    pub fn wal_report(&self) -> &WalReport {
        &self.report
    }

    /// The connections to peers, for their counters.
    pub fn transport(&self) -> &Arc<TcpTransport> {
        &self.transport
    }

    /// Stops in good order.
    pub async fn shutdown(self) {
        self.transport.close();
        self.node.shutdown().await;
        drop(self.runtime);
    }

    /// Stops at once, without telling anybody, and waits until nothing touches the files any more.
    pub async fn halt(self) {
        self.transport.close();
        drop(self.runtime);
        self.node.close_log().await;
    }
}
