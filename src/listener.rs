//! The HTTP socket: bounded connections, slow clients cut off, a stop that lets requests finish.
//!
//! A client is a stranger until a request of its connection has carried a token that this node knows. Strangers
//! have a small part of the places, and a newcomer always gets one ([`strangers`]): so however many idle
//! connections somebody opens, an executor gets in with its renewal, and one that is in stays.
//!
//! [`strangers`]: tenure_raft::transport::strangers
//!
//! A client is slow in three ways: its head does not arrive (cut off here), its body does not arrive (cut off
//! by the handler), or it does not take its answer (cut off here). None of them keeps a place for ever.

use std::future::Future as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tenure_raft::transport::strangers::{Stranger, Strangers};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take no byte of an answer that waits for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of the head of a request.
const HEADER_BYTES: usize = 64 * 1024;

/// File handles that clients may not take: the log, the archive, snapshots and the peers need them, and a
/// node that cannot open its next file ends.
const RESERVED_HANDLES: u64 = 512;

/// How many clients may be connected at once: as many as `wanted`, where the process has file handles for
/// them. Raises the process's soft limit to the hard one, which is its own to do.
pub fn room_for_clients(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let handles = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let room = room_within(wanted, handles);
    if room < wanted {
        tracing::warn!(
            wanted,
            room,
            "the limit of open files leaves room for fewer clients than http.connections"
        );
    }
    room
}

/// `handles`: how many files the process may have open; `None`: any number.
fn room_within(wanted: usize, handles: Option<u64>) -> usize {
    let Some(handles) = handles else {
        return wanted;
    };
    let left = handles - RESERVED_HANDLES.min(handles / 2);
    wanted.min(usize::try_from(left).unwrap_or(usize::MAX))
}

/// A socket that is served.
pub struct Listening {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<GracefulShutdown>,
}

/// The part of all connections that strangers may have, and the most of them that this gives.
const STRANGERS_SHARE: usize = 4;
const MAX_STRANGERS: usize = 4096;

/// The client at the other end of a connection. Each of its requests has it among its extensions.
pub(crate) struct Guest {
    stranger: Stranger,
    places: Arc<Semaphore>,
    place: OnceLock<OwnedSemaphorePermit>,
}

impl Guest {
    pub(crate) fn new(stranger: Stranger, places: Arc<Semaphore>) -> Self {
        Self {
            stranger,
            places,
            place: OnceLock::new(),
        }
    }

    /// It has shown a token that this node knows. Where all places are taken it is served all the same, but
    /// may have to go for a newcomer.
    pub(crate) fn welcome(&self) {
        if !self.is_known()
            && let Ok(place) = self.places.clone().try_acquire_owned()
            && self.place.set(place).is_ok()
        {
            self.stranger.leave();
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.place.get().is_some()
    }
}

/// Serves a router on a socket, at most `connections` clients at once.
///
/// # Errors
/// The socket cannot be used.
pub fn serve(
    socket: std::net::TcpListener,
    router: Router,
    connections: usize,
) -> std::io::Result<Listening> {
    serve_within(socket, router, connections, HEADER_TIMEOUT)
}

fn serve_within(
    socket: std::net::TcpListener,
    router: Router,
    connections: usize,
    header_timeout: Duration,
) -> std::io::Result<Listening> {
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    let listener = TcpListener::from_std(socket)?;
    let (stop, stopped) = watch::channel(false);
    let strangers = (connections / STRANGERS_SHARE).clamp(1, MAX_STRANGERS);
    let entrance = Entrance {
        router,
        strangers: Strangers::new(strangers),
        places: Arc::new(Semaphore::new(connections.saturating_sub(strangers))),
        header_timeout,
    };
    let task = tokio::spawn(entrance.accept(listener, stopped));
    Ok(Listening {
        address,
        stop,
        task,
    })
}

impl Listening {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, lets requests under way finish, at most for `limit`.
    pub async fn stop(self, limit: Duration) {
        let _ = self.stop.send(true);
        if let Ok(graceful) = self.task.await
            && tokio::time::timeout(limit, graceful.shutdown())
                .await
                .is_err()
        {
            tracing::warn!("some requests did not finish in time");
        }
    }
}

struct Entrance {
    router: Router,
    strangers: Arc<Strangers>,
    places: Arc<Semaphore>,
    header_timeout: Duration,
}

impl Entrance {
    async fn accept(
        self,
        listener: TcpListener,
        mut stopped: watch::Receiver<bool>,
    ) -> GracefulShutdown {
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => return graceful,
            };
            let Ok((stream, from)) = accepted else {
                // Out of file descriptors, most likely: some will be free again soon.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let guest = Arc::new(Guest::new(
                self.strangers.enter(from.ip()),
                self.places.clone(),
            ));
            let router = TowerToHyperService::new(self.router.clone());
            let asking = guest.clone();
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(asking.clone());
                router.call(request)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.header_timeout)
                .max_buf_size(HEADER_BYTES)
                .serve_connection(TokioIo::new(Impatient::new(stream, WRITE_TIMEOUT)), service);
            let connection = graceful.watch(connection);
            tokio::spawn(async move {
                tokio::select! {
                    ended = connection => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a connection ended");
                        }
                    }
                    () = guest.stranger.turned_out() => {}
                }
            });
        }
    }
}

/// A stream whose writes fail when the other side takes nothing for too long.
struct Impatient<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            waiting: None,
        }
    }

    /// Passes on what a write came to, unless it has waited for too long.
    fn judge<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        task: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let limit = self.limit;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(waiting.as_mut().poll(task));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(task, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(task, bytes);
        self.judge(written, task)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(task, pieces);
        self.judge(written, task)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush; its readiness says nothing of the other side.
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    #[test]
    fn clients_leave_handles_for_the_node() {
        for (wanted, handles, room) in [
            (30_000, None, 30_000),
            (30_000, Some(1 << 20), 30_000),
            (30_000, Some(1024), 512),
            (30_000, Some(256), 128),
            (100, Some(1024), 100),
        ] {
            assert_eq!(room_within(wanted, handles), room, "{wanted} {handles:?}");
        }
    }

    /// A place where only `/known` is said by somebody known, and 8 connections.
    fn house() -> (Listening, String) {
        let router = Router::new().fallback(|request: Request<axum::body::Body>| async move {
            if request.uri().path() == "/known" {
                request.extensions().get::<Arc<Guest>>().unwrap().welcome();
            }
            "served"
        });
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // Nobody is cut off for being idle.
        let listening = serve_within(socket, router, 8, Duration::from_secs(3_600)).unwrap();
        let address = listening.address().to_string();
        (listening, address)
    }

    async fn crowd(address: &str) -> Vec<TcpStream> {
        let mut crowd = Vec::new();
        for _ in 0..50 {
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        crowd
    }

    /// Whether a request on the connection is answered.
    async fn asks(stream: &mut TcpStream, path: &str) -> bool {
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        if stream.write_all(head.as_bytes()).await.is_err() {
            return false;
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"served") {
            match stream.read_buf(&mut answer).await {
                Ok(0) | Err(_) => return false,
                Ok(_) => {}
            }
        }
        true
    }

    #[tokio::test]
    async fn a_crowd_of_idle_clients_keeps_nobody_out() {
        let (listening, address) = house();
        let mut crowd = crowd(&address).await;
        let mut known = TcpStream::connect(&address).await.unwrap();
        assert!(asks(&mut known, "/known").await);
        let mut end = Vec::new();
        let _ = crowd[0].read_to_end(&mut end).await;
        assert!(end.is_empty(), "the oldest was turned out");
        listening.stop(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn who_is_known_stays_in_a_crowd() {
        let (listening, address) = house();
        let mut known = TcpStream::connect(&address).await.unwrap();
        assert!(asks(&mut known, "/known").await);
        let mut unknown = TcpStream::connect(&address).await.unwrap();
        assert!(asks(&mut unknown, "/").await);
        let mut crowd = crowd(&address).await;
        // When one of the crowd has gone, so has whoever came before it.
        let mut end = Vec::new();
        let _ = crowd[0].read_to_end(&mut end).await;
        assert!(asks(&mut known, "/").await);
        assert!(!asks(&mut unknown, "/").await);
        listening.stop(Duration::ZERO).await;
    }

    #[tokio::test]
    async fn more_known_clients_than_places_are_served_too() {
        let (listening, address) = house();
        let mut all = Vec::new();
        for _ in 0..20 {
            let mut client = TcpStream::connect(&address).await.unwrap();
            assert!(asks(&mut client, "/known").await);
            all.push(client);
        }
        let mut stayed = 0;
        for client in &mut all {
            stayed += usize::from(asks(client, "/known").await);
        }
        assert_eq!(stayed, 8, "as many as may be connected at once");
        // A place of one that has gone is given to the next.
        drop(all);
        let mut late = TcpStream::connect(&address).await.unwrap();
        assert!(asks(&mut late, "/known").await);
        listening.stop(Duration::ZERO).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_cut_off() {
        let (near, _far) = tokio::io::duplex(16);
        let mut stream = Impatient::new(near, WRITE_TIMEOUT);
        let fault = stream.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!(fault.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_little_now_and_then_is_served() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut stream = Impatient::new(near, WRITE_TIMEOUT);
        let reading = tokio::spawn(async move {
            let mut some = [0; 16];
            for _ in 0..8 {
                tokio::time::sleep(WRITE_TIMEOUT / 2).await;
                far.read_exact(&mut some).await.unwrap();
            }
        });
        stream.write_all(&[0; 128]).await.unwrap();
        reading.await.unwrap();
    }
}
