//! Commits a second through three nodes in one process: real files, real `fdatasync`, real TCP.
//!
//! `cargo bench -p tenure-raft --bench commit [-- seconds [folder]]`. The folder should be on the
//! disk that is to be measured; the default is the system's temporary folder.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use tenure_machine::{Actor, Command, LogPosition, Name, Stamp, State};
use tenure_raft::config::RaftConfig;
use tenure_raft::node::{Hooks, Node};
use tenure_raft::propose::{Draft, Stamper};
use tenure_raft::service::ForwardHandler;
use tenure_raft::state_machine::{Applied, ApplyObserver, PurgeBarrier};
use tenure_raft::tcp_node::{TcpNode, TcpNodeSetup};
use tenure_raft::transport::{ClusterSecret, TransportLimits};
use tenure_raft::types::{Member, NodeId, TokioRuntime};
use tenure_storage::wal::WalOptions;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

const CLIENTS: [usize; 3] = [1, 64, 1024];
const TIMEOUT: Duration = Duration::from_secs(30);

/// The layers above consensus, doing nothing.
struct Nothing;

impl Stamper for Nothing {
    fn stamp(&self, _term: u64) -> Stamp {
        Stamp::default()
    }
}

impl ApplyObserver for Nothing {
    fn applied(&self, _run: Vec<Applied>) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    fn replaced(&self, _at: LogPosition, _state: State) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

impl PurgeBarrier for Nothing {
    fn make_durable(&self, _upto: LogPosition) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

impl ForwardHandler for Nothing {
    fn forwarded(&self, _from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(ready(request))
    }
}

async fn start(id: NodeId, dir: PathBuf) -> Fallible<TcpNode> {
    let nothing = Arc::new(Nothing);
    let setup = TcpNodeSetup {
        id,
        cluster: "bench".to_owned(),
        secret: ClusterSecret::new(b"only for this bench")?,
        listen: "127.0.0.1:0".to_owned(),
        config: RaftConfig {
            worker_threads: 1,
            ..RaftConfig::default()
        },
        limits: TransportLimits::default(),
        dir,
        wal: WalOptions::default(),
        hooks: Hooks {
            stamper: nothing.clone(),
            observer: nothing.clone(),
            barrier: nothing.clone(),
            forward: nothing,
            // Exiting is what a real node does.
            on_fatal: Box::new(|_| std::process::exit(70)),
        },
    };
    Ok(TcpNode::start(setup).await?)
}

/// A command of ordinary size that changes the state.
fn command() -> Draft {
    Draft {
        term: None,
        actor: Actor::Scheduler,
        request: None,
        command: Command::PauseJob {
            name: Name::new("a-job-whose-name-is-about-as-long-as-names-are-in-practice"),
        },
    }
}

/// Each client proposes, waits for the outcome, and proposes again. Returns the sorted latencies of
/// what was committed, and how many proposals were not (an election on a busy machine).
async fn measure(
    node: &Node<TokioRuntime>,
    clients: usize,
    time: Duration,
) -> Fallible<(Vec<u64>, u64)> {
    let stop = Arc::new(AtomicBool::new(false));
    let failed = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let (node, stop, failed) = (node.clone(), stop.clone(), failed.clone());
            tokio::spawn(async move {
                let mut latencies_us = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    match node.propose(command(), TIMEOUT).await {
                        Ok(_) => latencies_us.push(begun.elapsed().as_micros() as u64),
                        Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                    }
                }
                latencies_us
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let mut latencies_us = Vec::new();
    for task in tasks {
        latencies_us.extend(task.await?);
    }
    latencies_us.sort_unstable();
    Ok((latencies_us, failed.load(Ordering::Relaxed)))
}

async fn run(time: Duration, folder: PathBuf) -> Fallible<()> {
    let mut nodes = BTreeMap::new();
    for id in 1..=3 {
        nodes.insert(id, start(id, folder.join(id.to_string())).await?);
    }
    let members = nodes.iter().map(|(id, node)| {
        let member = Member {
            peer_address: node.peer_address().to_string(),
            http_address: String::new(),
        };
        (*id, member)
    });
    let first = nodes.get(&1).ok_or("no node")?.node();
    first.initialize(members.collect()).await?;
    let mut leadership = first.leadership();
    let elected = leadership.until(|l| l.leader.is_some()).await;
    let leader = elected.and_then(|l| l.leader).ok_or("no leader")?.id;
    let node = nodes.get(&leader).ok_or("no leader")?.node();
    let mut out = io::stdout();
    writeln!(out, "clients  commits/s  p50 ms  p99 ms  failed")?;
    for clients in CLIENTS {
        measure(node, clients, time / 4).await?;
        let begun = Instant::now();
        let (latencies_us, failed) = measure(node, clients, time).await?;
        let rate = latencies_us.len() as f64 / begun.elapsed().as_secs_f64();
        let percentile = |p: usize| {
            let at = (latencies_us.len().saturating_sub(1)) * p / 100;
            latencies_us.get(at).copied().unwrap_or(0) as f64 / 1_000.0
        };
        writeln!(
            out,
            "{clients:>7}  {rate:>9.0}  {:>6.2}  {:>6.2}  {failed:>6}",
            percentile(50),
            percentile(99)
        )?;
    }
    for node in nodes.into_values() {
        node.shutdown().await;
    }
    Ok(())
}

fn main() -> Fallible<()> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let as_test = std::env::args().any(|a| a == "--test");
    let seconds = match words.first() {
        Some(seconds) => seconds.parse()?,
        None => 4.0,
    };
    let time = Duration::from_secs_f64(if as_test { 0.05 } else { seconds });
    let dir = match words.get(1) {
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run(time, dir.path().to_owned()))
}
