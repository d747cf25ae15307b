//! Peers over TCP: connections that are kept open, one for each peer and lane.
//!
//! The dialling half ([`TcpTransport`]) is in `link`, the accepting half in
//! `listener`. Both prove the cluster secret before anything else is read.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::link::{self, Link};
use super::listener;
use super::{CallError, Identity, Lane, PeerService, PeerTransport};
use crate::types::NodeId;

/// Bounds on what peers may cost. Times are in milliseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportLimits {
    /// Largest message, in either direction.
    pub frame_bytes: usize,
    /// Most calls of one lane to one peer that wait for an answer, and most requests of one
    /// connection that are served at once.
    pub calls_in_flight: usize,
    /// Most accepted connections that have proved themselves.
    pub connections: usize,
    /// Most accepted connections that have not.
    pub strangers: usize,
    /// A connection must be open and proven within this time.
    pub handshake_timeout_ms: u64,
    /// First pause after a failed connection; doubles up to [`Self::reconnect_max_ms`]. Calls
    /// made during the pause fail at once.
    pub reconnect_min_ms: u64,
    /// Longest such pause.
    pub reconnect_max_ms: u64,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            frame_bytes: 16 << 20,
            calls_in_flight: 512,
            connections: 256,
            strangers: 64,
            handshake_timeout_ms: 2_000,
            reconnect_min_ms: 10,
            reconnect_max_ms: 200,
        }
    }
}

/// Counters for the metrics page.
#[derive(Debug, Default)]
pub struct TransportStats {
    pub(super) rejected_handshakes: AtomicU64,
    pub(super) rejected_frames: AtomicU64,
    pub(super) refused_connections: AtomicU64,
    pub(super) replaced_connections: AtomicU64,
    pub(super) accepted: AtomicU64,
}

impl TransportStats {
    /// Connections that failed to prove themselves to this node.
    pub fn rejected_handshakes(&self) -> u64 {
        self.rejected_handshakes.load(Ordering::Relaxed)
    }

    /// Connections that were cut because of a frame over the limits.
    pub fn rejected_frames(&self) -> u64 {
        self.rejected_frames.load(Ordering::Relaxed)
    }

    /// Connections turned away because there were too many, of strangers or of peers.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections.load(Ordering::Relaxed)
    }

    /// Connections of a peer that a newer one of the same peer and lane took the place of.
    pub fn replaced_connections(&self) -> u64 {
        self.replaced_connections.load(Ordering::Relaxed)
    }

    /// Connections that proved themselves.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// Dials peers and, once told to, listens for them.
pub struct TcpTransport {
    me: Arc<Identity>,
    limits: Arc<TransportLimits>,
    stats: Arc<TransportStats>,
    /// Where the tasks of connections run.
    runtime: tokio::runtime::Handle,
    links: Mutex<HashMap<(NodeId, Lane), Arc<Link>>>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl TcpTransport {
    /// A transport whose tasks run on `runtime`.
    pub fn new(
        me: Identity,
        limits: TransportLimits,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            me: Arc::new(me),
            limits: Arc::new(limits),
            stats: Arc::default(),
            runtime,
            links: Mutex::default(),
            listening: Mutex::default(),
        })
    }

    /// Listens on `address` and hands what arrives to `service`, until the transport is dropped
    /// or [closed](Self::close). Returns the address, with the port if 0 was asked for.
    pub async fn listen(
        &self,
        address: &str,
        service: Arc<dyn PeerService>,
    ) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        self.listen_on(listener, service)
    }

    /// As [`listen`](Self::listen), on a socket that is bound already.
    pub fn listen_on(
        &self,
        listener: TcpListener,
        service: Arc<dyn PeerService>,
    ) -> std::io::Result<SocketAddr> {
        let address = listener.local_addr()?;
        let task = self.runtime.spawn(listener::run(
            listener,
            self.me.clone(),
            self.limits.clone(),
            self.stats.clone(),
            service,
        ));
        let mut listening = self
            .listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = listening.replace(task) {
            old.abort();
        }
        Ok(address)
    }

    /// What has happened so far.
    pub fn stats(&self) -> &Arc<TransportStats> {
        &self.stats
    }

    /// Stops listening and hangs up on everybody.
    pub fn close(&self) {
        if let Some(task) = self
            .listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            task.abort();
        }
        self.links
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn link(&self, to: NodeId, address: &str, lane: Lane) -> Arc<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        match links.get(&(to, lane)) {
            Some(link) if link.address() == address => link.clone(),
            // A member that moved: the old link ends when its calls have ended.
            _ => {
                let link = Link::start(
                    &self.runtime,
                    self.me.clone(),
                    self.limits.clone(),
                    to,
                    address.to_owned(),
                    lane,
                );
                links.insert((to, lane), link.clone());
                link
            }
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}

impl PeerTransport for TcpTransport {
    fn call(
        &self,
        to: NodeId,
        address: &str,
        lane: Lane,
        request: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, CallError>> {
        if request.len() > self.limits.frame_bytes {
            let error = CallError::TooLarge {
                bytes: request.len(),
                limit_bytes: self.limits.frame_bytes,
            };
            return futures::future::ready(Err(error)).boxed();
        }
        match self.link(to, address, lane).submit(request, timeout) {
            Ok(answer) => answer.boxed(),
            Err(error) => futures::future::ready(Err(error)).boxed(),
        }
    }

    fn probe(
        &self,
        _to: NodeId,
        address: &str,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<(), CallError>> {
        let address = address.to_owned();
        async move {
            match tokio::time::timeout(timeout, link::open(&address)).await {
                Ok(opened) => opened.map(drop),
                Err(_) => Err(CallError::Silent {
                    waited_ms: timeout.as_millis() as u64,
                }),
            }
        }
        .boxed()
    }
}
