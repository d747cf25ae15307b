//! Peer connections over loopback: order, bounds, failures, and strangers.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use tenure_raft::transport::auth::dial;
use tenure_raft::transport::{
    CallError, ClusterSecret, Identity, Lane, PeerService, PeerTransport, TcpTransport,
    TransportLimits,
};
use tenure_raft::types::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LIMIT: Duration = Duration::from_secs(30);

fn identity(node: NodeId, secret: &str) -> Identity {
    Identity {
        node,
        cluster: "test".to_owned(),
        secret: ClusterSecret::new(secret.as_bytes()).expect("long enough"),
    }
}

const SECRET: &str = "what the cluster knows";

fn small() -> TransportLimits {
    TransportLimits {
        frame_bytes: 1024,
        calls_in_flight: 64,
        connections: 3,
        handshake_timeout_ms: 2_000,
        ..TransportLimits::default()
    }
}

fn transport(node: NodeId, secret: &str, limits: TransportLimits) -> Arc<TcpTransport> {
    TcpTransport::new(
        identity(node, secret),
        limits,
        tokio::runtime::Handle::current(),
    )
}

/// Answers with the request, remembers the order, and can be told not to answer.
#[derive(Default)]
struct Echo {
    seen: Mutex<Vec<Bytes>>,
    hung_up: Mutex<Vec<NodeId>>,
    mute: AtomicBool,
}

impl PeerService for Echo {
    fn serve(&self, _from: NodeId, _lane: Lane, request: Bytes) -> BoxFuture<'static, Bytes> {
        self.seen.lock().unwrap().push(request.clone());
        if self.mute.load(Ordering::Relaxed) {
            return futures::future::pending().boxed();
        }
        async move { request }.boxed()
    }

    fn hung_up(&self, from: NodeId) {
        self.hung_up.lock().unwrap().push(from);
    }
}

struct Pair {
    dialler: Arc<TcpTransport>,
    listener: Arc<TcpTransport>,
    echo: Arc<Echo>,
    address: String,
}

impl Pair {
    async fn new(limits: TransportLimits) -> Self {
        Self::with_secret(limits, SECRET).await
    }

    async fn with_secret(limits: TransportLimits, secret: &str) -> Self {
        let listener = transport(2, SECRET, limits.clone());
        let echo = Arc::new(Echo::default());
        let address = listener
            .listen("127.0.0.1:0", echo.clone())
            .await
            .expect("listens");
        Self {
            dialler: transport(1, secret, limits),
            listener,
            echo,
            address: address.to_string(),
        }
    }

    fn call(
        &self,
        lane: Lane,
        text: impl Into<Bytes>,
    ) -> BoxFuture<'static, Result<Bytes, CallError>> {
        self.dialler
            .call(2, &self.address, lane, text.into(), LIMIT)
    }
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_calls_arrive_in_order_and_each_finds_its_answer() {
    let limits = TransportLimits {
        calls_in_flight: 2_000,
        ..small()
    };
    let pair = Pair::new(limits).await;
    let texts: Vec<Bytes> = (0..1_000)
        .map(|n| Bytes::from(format!("call {n}")))
        .collect();
    let calls: Vec<_> = texts
        .iter()
        .map(|text| pair.call(Lane::Raft, text.clone()))
        .collect();
    let answers: Vec<Bytes> = join_all(calls)
        .await
        .into_iter()
        .map(|a| a.expect("answered"))
        .collect();
    assert_eq!(answers, texts);
    assert_eq!(*pair.echo.seen.lock().unwrap(), texts);
    assert_eq!(
        pair.listener.stats().accepted(),
        1,
        "one connection carried them all"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_lane_has_its_own_connection() {
    let pair = Pair::new(small()).await;
    for lane in [Lane::Raft, Lane::Heartbeat, Lane::Forward] {
        pair.call(lane, "x").await.expect("answered");
    }
    assert_eq!(pair.listener.stats().accepted(), 3);
    let fourth = pair
        .dialler
        .call(2, &pair.address, Lane::Snapshot, Bytes::new(), LIMIT)
        .await;
    assert!(
        fourth.is_err(),
        "only 3 connections are allowed: {fourth:?}"
    );
    assert!(pair.listener.stats().refused_connections() >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_port_is_told_apart_from_silence() {
    let unused = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = unused.local_addr().expect("address").to_string();
    let dialler = transport(1, SECRET, small());
    // Somebody accepts, and says nothing.
    let silent = dialler
        .call(2, &address, Lane::Raft, Bytes::from("x"), LIMIT)
        .await;
    assert!(
        matches!(silent, Err(CallError::Silent { .. })),
        "{silent:?}"
    );
    drop(unused);
    let end = Instant::now() + LIMIT;
    loop {
        // During the pause after a failure the earlier reason is repeated.
        let refused = dialler
            .call(2, &address, Lane::Raft, Bytes::from("x"), LIMIT)
            .await;
        let error = refused.expect_err("nobody listens");
        if error == CallError::Refused {
            assert!(!error.may_have_been_served());
            return;
        }
        assert!(Instant::now() < end, "{error:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_call_ends_by_its_deadline_and_the_connection_is_made_anew() {
    let pair = Pair::new(small()).await;
    pair.call(Lane::Raft, "first").await.expect("answered");
    pair.echo.mute.store(true, Ordering::Relaxed);
    let wait = Duration::from_millis(50);
    let silent = pair
        .dialler
        .call(2, &pair.address, Lane::Raft, Bytes::from("x"), wait)
        .await;
    assert_eq!(silent, Err(CallError::Silent { waited_ms: 50 }));
    assert!(silent.expect_err("no answer").may_have_been_served());
    pair.echo.mute.store(false, Ordering::Relaxed);
    eventually("a new connection", || pair.listener.stats().accepted() == 1).await;
    let mut answered = false;
    for _ in 0..1_000 {
        answered = pair.call(Lane::Raft, "again").await.is_ok();
        if answered && pair.listener.stats().accepted() == 2 {
            break;
        }
    }
    assert!(answered);
    assert_eq!(
        pair.listener.stats().accepted(),
        2,
        "the silent one was given up"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_calls_and_too_large_ones_are_refused_before_anything_is_sent() {
    let pair = Pair::new(small()).await;
    pair.echo.mute.store(true, Ordering::Relaxed);
    let mut waiting: Vec<_> = (0..64).map(|_| pair.call(Lane::Raft, "x")).collect();
    assert_eq!(pair.call(Lane::Raft, "x").await, Err(CallError::Overloaded));
    let large = pair.call(Lane::Heartbeat, vec![0; 1025]).await;
    assert_eq!(
        large,
        Err(CallError::TooLarge {
            bytes: 1025,
            limit_bytes: 1024
        })
    );
    drop(waiting.pop());
    // The place of the one that gave up comes free when the connection has looked at it.
    eventually("a place came free", || {
        pair.call(Lane::Raft, "x").now_or_never().is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_comes_back_is_found() {
    let pair = Pair::new(small()).await;
    pair.call(Lane::Raft, "before").await.expect("answered");
    pair.listener.close();
    let end = Instant::now() + LIMIT;
    while pair.call(Lane::Raft, "meanwhile").await.is_ok() {
        assert!(Instant::now() < end, "the old connection is still there");
    }
    pair.listener
        .listen(&pair.address, pair.echo.clone())
        .await
        .expect("listens again");
    let end = Instant::now() + LIMIT;
    while pair.call(Lane::Raft, "after").await.is_err() {
        assert!(Instant::now() < end, "never reconnected");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_another_secret_gets_nowhere() {
    let pair = Pair::with_secret(small(), "what somebody else knows").await;
    let call = pair.call(Lane::Raft, "let me in").await;
    assert!(
        matches!(call, Err(CallError::NotAuthenticated(_))),
        "{call:?}"
    );
    assert!(!call.expect_err("refused").may_have_been_served());
    assert_eq!(pair.listener.stats().rejected_handshakes(), 1);
    assert!(
        pair.echo.seen.lock().unwrap().is_empty(),
        "nothing reached the service"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_says_whether_the_port_is_open_now() {
    let pair = Pair::new(small()).await;
    let probe = || pair.dialler.probe(2, &pair.address, LIMIT);
    assert_eq!(probe().await, Ok(()));
    pair.listener.close();
    let end = Instant::now() + LIMIT;
    while probe().await != Err(CallError::Refused) {
        assert!(Instant::now() < end, "the port is not closed");
    }
    // Calls have failed and pause, and repeat the reason meanwhile.
    while pair.call(Lane::Raft, "x").await != Err(CallError::Refused) {
        assert!(Instant::now() < end, "still open");
    }
    pair.listener
        .listen(&pair.address, pair.echo.clone())
        .await
        .expect("listens again");
    assert_eq!(probe().await, Ok(()), "what is over says nothing");
    pair.call(Lane::Raft, "x").await.ok();
    assert_eq!(pair.listener.stats().rejected_handshakes(), 0);
    assert!(pair.echo.hung_up.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_peers_connection_is_told_unless_a_newer_one_took_its_place() {
    let pair = Pair::new(small()).await;
    pair.call(Lane::Raft, "x").await.expect("answered");
    let again = transport(1, SECRET, small());
    let call = || again.call(2, &pair.address, Lane::Raft, Bytes::from("y"), LIMIT);
    call().await.expect("answered");
    eventually("the first one was replaced", || {
        pair.listener.stats().replaced_connections() == 1
    })
    .await;
    assert!(pair.echo.hung_up.lock().unwrap().is_empty());
    again.close();
    eventually("its end was told", || {
        *pair.echo.hung_up.lock().unwrap() == [1]
    })
    .await;
}

/// Whoever only reaches the port must not keep a peer out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_strangers_does_not_keep_a_peer_out() {
    let limits = TransportLimits {
        strangers: 4,
        // They would stay for as long as the test runs.
        handshake_timeout_ms: 600_000,
        ..small()
    };
    let pair = Pair::new(limits).await;
    let mut crowd = Vec::new();
    for _ in 0..50 {
        crowd.push(TcpStream::connect(&pair.address).await.expect("connected"));
    }
    for lane in [Lane::Raft, Lane::Heartbeat, Lane::Forward] {
        pair.call(lane, "x").await.expect("answered");
    }
    // Each call may have needed the place of one more.
    eventually("the rest was turned out", || {
        (46..=49).contains(&pair.listener.stats().refused_connections())
    })
    .await;
    assert_eq!(all_it_says(&mut crowd[0]).await, b"");
    assert_eq!(pair.listener.stats().accepted(), 3);
}

/// The former connection may be half open: then nothing ever ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_dials_anew_takes_the_place_of_its_former_connection() {
    let pair = Pair::new(small()).await;
    let mut former: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        let mut peer = TcpStream::connect(&pair.address).await.expect("connected");
        dial(&mut peer, &identity(1, SECRET), 2, Lane::Raft)
            .await
            .expect("proven");
        former.push(peer);
    }
    pair.call(Lane::Raft, "x").await.expect("answered");
    pair.call(Lane::Heartbeat, "x").await.expect("answered");
    let stats = pair.listener.stats();
    assert_eq!((stats.accepted(), stats.replaced_connections()), (12, 10));
    assert_eq!(stats.refused_connections(), 0);
    for mut peer in former {
        assert_eq!(all_it_says(&mut peer).await, b"", "it was hung up");
    }
}

/// Reads until the other side hangs up.
async fn all_it_says(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is as good as an end.
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut said))
        .await
        .expect("the other side hangs up");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_hears_nothing_whatever_it_says() {
    let pair = Pair::new(small()).await;
    let openings: [&[u8]; 4] = [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n............................",
        &[0xff; 4096],
        b"TNRP\x63\x00\x01.......................................................",
    ];
    for opening in openings {
        let mut stranger = TcpStream::connect(&pair.address).await.expect("connected");
        // It may be cut off while it talks.
        let _ = stranger.write_all(opening).await;
        assert_eq!(all_it_says(&mut stranger).await, b"", "after {opening:?}");
    }
    eventually("all were counted", || {
        pair.listener.stats().rejected_handshakes() == 4
    })
    .await;
    assert!(pair.echo.seen.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversize_frame_ends_a_proven_connection() {
    let pair = Pair::new(small()).await;
    let mut peer = TcpStream::connect(&pair.address).await.expect("connected");
    dial(&mut peer, &identity(1, SECRET), 2, Lane::Raft)
        .await
        .expect("proven");
    peer.write_all(&1_000_000_u32.to_le_bytes())
        .await
        .expect("sent");
    assert_eq!(all_it_says(&mut peer).await, b"");
    assert_eq!(pair.listener.stats().rejected_frames(), 1);
}

/// Holds up the first request until the second has been served.
#[derive(Default)]
struct OneSlow {
    served: Arc<AtomicU64>,
}

impl PeerService for OneSlow {
    fn serve(&self, _from: NodeId, _lane: Lane, request: Bytes) -> BoxFuture<'static, Bytes> {
        let served = self.served.clone();
        async move {
            while request == "slow" && served.load(Ordering::Relaxed) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            served.fetch_add(1, Ordering::Relaxed);
            request
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_request_does_not_hold_up_the_next() {
    let listener = transport(2, SECRET, small());
    let service = Arc::new(OneSlow::default());
    let address = listener
        .listen("127.0.0.1:0", service)
        .await
        .expect("listens")
        .to_string();
    let dialler = transport(1, SECRET, small());
    for lane in [Lane::Raft, Lane::Forward] {
        let call = |text: &'static str| dialler.call(2, &address, lane, Bytes::from(text), LIMIT);
        let (slow, quick) = (call("slow"), call("quick"));
        assert_eq!(quick.await.expect("answered"), "quick");
        assert_eq!(slow.await.expect("answered"), "slow");
    }
}
