//! The accepting half: proves who dialled, then serves requests in order.
//!
//! Invariants:
//! - Connections that have not proved themselves have a small pool of their own ([`strangers`]), and
//!   the handshake deadline in which to do so. However many there are, a peer gets in.
//! - There are at most `connections` proven connections, and one for each peer and lane: a peer that
//!   dials anew has given up the old one, which may be half open and would never end.
//! - What a stranger can cause as often as it likes is counted, and told in the log at most once a
//!   minute.
//!
//! [`strangers`]: super::strangers
//!
//! - A connection has at most `calls_in_flight` requests being served; no more is read meanwhile.
//! - A frame over the limit ends the connection before it is read.
//! - Requests are handed over in the order in which they arrived, and polled first in that order.
//!   On the forward lane they are spread over the runtime's threads instead: there the order does
//!   not matter, and one slow request must not hold up the others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::auth::Proven;
use super::frame::{self, Frame, FrameError, FrameReader};
use super::strangers::{Stranger, Strangers};
use super::tcp::TransportStats;
use super::{Identity, Lane, PeerService, TransportLimits, auth};
use crate::sparing::Sparing;
use crate::types::NodeId;

/// A pause when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections for ever; aborting the task ends them all.
pub(super) async fn run(
    listener: TcpListener,
    me: Arc<Identity>,
    limits: Arc<TransportLimits>,
    stats: Arc<TransportStats>,
    service: Arc<dyn PeerService>,
) {
    let strangers = Strangers::new(limits.strangers);
    let hall = Arc::new(Hall {
        places: Mutex::default(),
        limit: limits.connections,
        rejected: Sparing::default(),
    });
    let not_accepted = Sparing::default();
    let mut connections = JoinSet::new();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(held_back) = not_accepted.pass() {
                    tracing::warn!(%error, held_back, "cannot accept peer connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let stranger = strangers.enter(from.ip());
        let connection = Connection {
            me: me.clone(),
            limits: limits.clone(),
            stats: stats.clone(),
            service: service.clone(),
            hall: hall.clone(),
        };
        connections.spawn(async move { connection.serve(stream, from, stranger).await });
    }
}

/// Where the proven connections have their places.
struct Hall {
    places: Mutex<BTreeMap<(NodeId, Lane), Arc<Notify>>>,
    limit: usize,
    rejected: Sparing,
}

impl Hall {
    /// A place for a connection; `None` where all are taken. The one that the same peer had for the same
    /// lane has to go, and that is told too.
    fn enter(self: &Arc<Self>, proven: Proven) -> Option<(Place, bool)> {
        let key = (proven.peer, proven.lane);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if !places.contains_key(&key) && places.len() >= self.limit {
            return None;
        }
        let must_go = Arc::new(Notify::new());
        let former = places.insert(key, must_go.clone());
        if let Some(former) = &former {
            former.notify_one();
        }
        let place = Place {
            hall: self.clone(),
            key,
            must_go,
        };
        Some((place, former.is_some()))
    }
}

struct Place {
    hall: Arc<Hall>,
    key: (NodeId, Lane),
    must_go: Arc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self
            .hall
            .places
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // It may be the place of a newer connection by now.
        if places
            .get(&self.key)
            .is_some_and(|present| Arc::ptr_eq(present, &self.must_go))
        {
            places.remove(&self.key);
        }
    }
}

struct Connection {
    me: Arc<Identity>,
    limits: Arc<TransportLimits>,
    stats: Arc<TransportStats>,
    service: Arc<dyn PeerService>,
    hall: Arc<Hall>,
}

type Served = (u64, Option<Bytes>);

impl Connection {
    async fn serve(&self, mut stream: TcpStream, from: SocketAddr, stranger: Stranger) {
        let _ = stream.set_nodelay(true);
        let limit = Duration::from_millis(self.limits.handshake_timeout_ms);
        let shaking = tokio::time::timeout(limit, auth::accept(&mut stream, &self.me));
        let shaken = tokio::select! {
            shaken = shaking => shaken,
            () = stranger.turned_out() => {
                self.refused();
                return;
            }
        };
        let proven = match shaken {
            Ok(Ok(proven)) => proven,
            // A probe is no attempt to get in.
            Ok(Err(auth::AuthError::SaidNothing)) => return,
            Ok(Err(error)) => return self.rejected(from, &error.to_string()),
            Err(_) => return self.rejected(from, "the handshake took too long"),
        };
        drop(stranger);
        let Some((place, replaced)) = self.hall.enter(proven) else {
            self.refused();
            return;
        };
        if replaced {
            self.stats
                .replaced_connections
                .fetch_add(1, Ordering::Relaxed);
        }
        self.stats.accepted.fetch_add(1, Ordering::Relaxed);
        let served = tokio::select! {
            served = self.serve_proven(stream, proven) => served,
            () = place.must_go.notified() => Ok(()),
        };
        drop(place);
        if served.is_err() {
            self.service.hung_up(proven.peer);
        }
        match served {
            Err(error @ (FrameError::TooLarge { .. } | FrameError::TooShort { .. })) => {
                self.stats.rejected_frames.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, peer = proven.peer, lane = ?proven.lane, "peer connection cut");
            }
            Err(error) => {
                tracing::debug!(%error, peer = proven.peer, lane = ?proven.lane, "peer connection ended")
            }
            Ok(()) => {}
        }
    }

    fn refused(&self) {
        self.stats
            .refused_connections
            .fetch_add(1, Ordering::Relaxed);
    }

    fn rejected(&self, from: SocketAddr, why: &str) {
        self.stats
            .rejected_handshakes
            .fetch_add(1, Ordering::Relaxed);
        if let Some(held_back) = self.hall.rejected.pass() {
            tracing::warn!(%from, why, held_back, "peer connection rejected");
        }
    }

    async fn serve_proven(&self, stream: TcpStream, proven: Proven) -> Result<(), FrameError> {
        let (from, mut to) = tokio::io::split(stream);
        let mut frames = FrameReader::new(from, self.limits.frame_bytes);
        let mut serving: FuturesUnordered<BoxFuture<'static, Served>> = FuturesUnordered::new();
        let mut buffer = BytesMut::new();
        loop {
            let may_read = serving.len() < self.limits.calls_in_flight;
            tokio::select! {
                biased;
                Some(done) = serving.next(), if !serving.is_empty() => {
                    self.put_answer(&mut buffer, done);
                    // Whatever else is done goes out with it.
                    while let Some(Some(done)) = futures::FutureExt::now_or_never(serving.next()) {
                        self.put_answer(&mut buffer, done);
                    }
                    write(&mut to, &mut buffer).await?;
                }
                frame = frames.next(), if may_read => serving.push(self.start(proven, frame?)),
            }
        }
    }

    fn start(&self, proven: Proven, frame: Frame) -> BoxFuture<'static, Served> {
        let call = frame.call;
        let answer = self.service.serve(proven.peer, proven.lane, frame.payload);
        if proven.lane == Lane::Forward {
            let task = tokio::spawn(answer);
            Box::pin(async move { (call, task.await.ok()) })
        } else {
            Box::pin(async move { (call, Some(answer.await)) })
        }
    }

    /// An answer that is too large, or a request whose handler died, stays unanswered: the caller
    /// runs into its deadline.
    fn put_answer(&self, buffer: &mut BytesMut, (call, answer): Served) {
        match answer {
            Some(answer) if answer.len() <= self.limits.frame_bytes => {
                frame::put(buffer, call, &answer)
            }
            Some(answer) => tracing::error!(
                bytes = answer.len(),
                "answer to a peer is over the frame limit"
            ),
            None => tracing::error!("a request of a peer ended without an answer"),
        }
    }
}

async fn write(to: &mut WriteHalf<TcpStream>, buffer: &mut BytesMut) -> Result<(), FrameError> {
    to.write_all(buffer).await?;
    buffer.clear();
    Ok(())
}
