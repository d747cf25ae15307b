//! One kept-open connection to one peer on one lane: the dialling half.
//!
//! A task owns the connection. Calls queue up in front of it in order; it writes as many as are
//! there at once, and a second task reads the answers and finds their callers by call number.
//!
//! Invariants:
//! - The queue and the table of waiting calls together hold at most `calls_in_flight` calls.
//! - When the connection fails, every waiting call fails with it. Nothing is sent twice.
//! - After a failed attempt to connect there is a pause, doubling up to a bound, in which calls
//!   fail at once with the reason of that failure.
//! - A connection on which nothing has arrived since a call that timed out was made is given up:
//!   the peer may have vanished without saying so.

use std::collections::HashMap;
use std::future::Future;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};

use super::frame::{self, FrameReader};
use super::{CallError, Identity, Lane, TransportLimits, auth};
use crate::types::NodeId;

type Answer = Result<Bytes, CallError>;

/// Writes stop growing at this size and go out.
const WRITE_BATCH_BYTES: usize = 256 << 10;

struct Outgoing {
    call: u64,
    payload: Bytes,
}

/// Calls that wait for their answer, and what else the callers and the tasks share.
struct Shared {
    started: Instant,
    next_call: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    /// Milliseconds after `started` at which something last arrived.
    heard_ms: AtomicU64,
    give_up: Notify,
    limit: usize,
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn enter(&self) -> Option<(u64, oneshot::Receiver<Answer>)> {
        let (tx, rx) = oneshot::channel();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= self.limit {
            return None;
        }
        let call = self.next_call.fetch_add(1, Ordering::Relaxed);
        waiting.insert(call, tx);
        Some((call, rx))
    }

    fn leave(&self, call: u64) -> Option<oneshot::Sender<Answer>> {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&call)
    }

    fn is_waiting(&self, call: u64) -> bool {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&call)
    }

    fn fail_all(&self, error: &CallError) {
        let all = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for (_, caller) in all {
            let _ = caller.send(Err(error.clone()));
        }
    }
}

/// Takes a call out of the table when its caller stops waiting.
struct Waiting {
    shared: Arc<Shared>,
    call: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.leave(self.call);
    }
}

/// The caller's side of a connection.
pub(super) struct Link {
    address: String,
    shared: Arc<Shared>,
    queue: mpsc::Sender<Outgoing>,
}

impl Link {
    /// Starts the task; it connects when the first call comes, and ends when the link is dropped.
    pub(super) fn start(
        runtime: &tokio::runtime::Handle,
        me: Arc<Identity>,
        limits: Arc<TransportLimits>,
        to: NodeId,
        address: String,
        lane: Lane,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            next_call: AtomicU64::new(1),
            waiting: Mutex::default(),
            heard_ms: AtomicU64::new(0),
            give_up: Notify::new(),
            limit: limits.calls_in_flight,
        });
        let (queue, outgoing) = mpsc::channel(limits.calls_in_flight);
        let task = LinkTask {
            me,
            limits,
            to,
            address: address.clone(),
            lane,
            shared: shared.clone(),
            outgoing,
        };
        runtime.spawn(task.run());
        Arc::new(Self {
            address,
            shared,
            queue,
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Queues a call; the future waits for its answer.
    pub(super) fn submit(
        self: Arc<Self>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<impl Future<Output = Answer> + Send + 'static, CallError> {
        let (call, answer) = self.shared.enter().ok_or(CallError::Overloaded)?;
        let waiting = Waiting {
            shared: self.shared.clone(),
            call,
        };
        let began_ms = self.shared.now_ms();
        self.queue
            .try_send(Outgoing { call, payload })
            .map_err(|e| match e {
                mpsc::error::TrySendError::Full(_) => CallError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => CallError::Closed,
            })?;
        Ok(async move {
            // The link lives as long as somebody waits on it.
            let link = self;
            let waiting = waiting;
            match tokio::time::timeout(timeout, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(CallError::Lost),
                Err(_) => {
                    if waiting.shared.heard_ms.load(Ordering::Relaxed) <= began_ms {
                        link.shared.give_up.notify_one();
                    }
                    Err(CallError::Silent {
                        waited_ms: timeout.as_millis() as u64,
                    })
                }
            }
        })
    }
}

struct LinkTask {
    me: Arc<Identity>,
    limits: Arc<TransportLimits>,
    to: NodeId,
    address: String,
    lane: Lane,
    shared: Arc<Shared>,
    outgoing: mpsc::Receiver<Outgoing>,
}

impl LinkTask {
    async fn run(mut self) {
        let mut pause_ms = self.limits.reconnect_min_ms;
        while let Some(first) = self.outgoing.recv().await {
            match self.connect().await {
                Ok(stream) => {
                    pause_ms = self.limits.reconnect_min_ms;
                    self.serve(stream, first).await;
                    self.shared.fail_all(&CallError::Lost);
                    self.discard_queued();
                }
                Err(error) => {
                    tracing::debug!(to = self.to, address = self.address, lane = ?self.lane, %error, "peer not reached");
                    self.shared.fail_all(&error);
                    if !self.pause(&error, Duration::from_millis(pause_ms)).await {
                        break;
                    }
                    pause_ms = (pause_ms * 2).min(self.limits.reconnect_max_ms);
                }
            }
        }
        self.shared.fail_all(&CallError::Closed);
    }

    /// What is queued belongs to calls that have been failed already.
    fn discard_queued(&mut self) {
        while let Ok(queued) = self.outgoing.try_recv() {
            if let Some(caller) = self.shared.leave(queued.call) {
                let _ = caller.send(Err(CallError::Lost));
            }
        }
    }

    /// Fails calls at once until the pause is over; `false` if the link was dropped.
    async fn pause(&mut self, error: &CallError, pause: Duration) -> bool {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return true,
                queued = self.outgoing.recv() => {
                    let Some(queued) = queued else { return false };
                    if let Some(caller) = self.shared.leave(queued.call) {
                        let _ = caller.send(Err(error.clone()));
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<TcpStream, CallError> {
        let limit = Duration::from_millis(self.limits.handshake_timeout_ms);
        let attempt = async {
            let mut stream = open(&self.address).await?;
            stream
                .set_nodelay(true)
                .map_err(|e| CallError::Unreachable(e.to_string()))?;
            auth::dial(&mut stream, &self.me, self.to, self.lane)
                .await
                .map_err(|e| match e {
                    auth::AuthError::Io(e) => CallError::Unreachable(e.to_string()),
                    other => CallError::NotAuthenticated(other.to_string()),
                })?;
            Ok(stream)
        };
        match tokio::time::timeout(limit, attempt).await {
            Ok(done) => done,
            Err(_) => Err(CallError::Silent {
                waited_ms: self.limits.handshake_timeout_ms,
            }),
        }
    }

    /// Writes calls and reads answers until the connection fails, is given up or is not needed.
    async fn serve(&mut self, stream: TcpStream, first: Outgoing) {
        self.shared
            .heard_ms
            .store(self.shared.now_ms(), Ordering::Relaxed);
        let (from, to) = tokio::io::split(stream);
        let reading = read_answers(from, self.shared.clone(), self.limits.frame_bytes);
        let shared = self.shared.clone();
        let writing = write_calls(to, &mut self.outgoing, &shared, first);
        tokio::select! {
            () = reading => {}
            () = writing => {}
            () = shared.give_up.notified() => {
                tracing::debug!(to = self.to, lane = ?self.lane, "connection given up: nothing heard");
            }
        }
    }
}

/// A connection on which nothing was said yet.
pub(super) async fn open(address: &str) -> Result<TcpStream, CallError> {
    TcpStream::connect(address)
        .await
        .map_err(|e| match e.kind() {
            ErrorKind::ConnectionRefused => CallError::Refused,
            _ => CallError::Unreachable(e.to_string()),
        })
}

async fn write_calls(
    mut to: WriteHalf<TcpStream>,
    outgoing: &mut mpsc::Receiver<Outgoing>,
    shared: &Shared,
    first: Outgoing,
) {
    let mut buffer = BytesMut::new();
    let mut next = Some(first);
    while let Some(call) = next {
        put_call(&mut buffer, shared, &call);
        while buffer.len() < WRITE_BATCH_BYTES {
            let Ok(call) = outgoing.try_recv() else { break };
            put_call(&mut buffer, shared, &call);
        }
        if to.write_all(&buffer).await.is_err() {
            return;
        }
        buffer.clear();
        next = outgoing.recv().await;
    }
}

/// Calls that nobody waits for any more are not sent.
fn put_call(buffer: &mut BytesMut, shared: &Shared, call: &Outgoing) {
    if shared.is_waiting(call.call) {
        frame::put(buffer, call.call, &call.payload);
    }
}

async fn read_answers(from: ReadHalf<TcpStream>, shared: Arc<Shared>, limit_bytes: usize) {
    let mut frames = FrameReader::new(from, limit_bytes);
    loop {
        match frames.next().await {
            Ok(frame) => {
                shared.heard_ms.store(shared.now_ms(), Ordering::Relaxed);
                if let Some(caller) = shared.leave(frame.call) {
                    let _ = caller.send(Ok(frame.payload));
                }
            }
            Err(error) => {
                tracing::debug!(%error, "peer connection ended");
                return;
            }
        }
    }
}
