//! Clusters in one process: real files in a temporary folder, real TCP on loopback.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{BoxFuture, ready};
use tempfile::TempDir;
use tenure_machine::{Actor, Command, LogPosition, Name, Registration, Stamp, State};
use tenure_raft::config::RaftConfig;
use tenure_raft::node::{Hooks, Node};
use tenure_raft::propose::{Committed, Draft, ProposeError, Stamper};
use tenure_raft::service::ForwardHandler;
use tenure_raft::state_machine::{Applied, ApplyObserver, PurgeBarrier};
use tenure_raft::tcp_node::{TcpNode, TcpNodeSetup};
use tenure_raft::transport::{ClusterSecret, TransportLimits};
use tenure_raft::types::{Member, NodeId, TokioRuntime};
use tenure_storage::wal::WalOptions;

pub const SECRET: &[u8] = b"a secret that only tests know";
/// Generous: it only bounds how long a failing test takes.
pub const LIMIT: Duration = Duration::from_secs(60);

pub type TestNode = Node<TokioRuntime>;

/// Stands in for everything above consensus, and remembers what it was told.
#[derive(Default)]
pub struct Above {
    id: NodeId,
    clock_ms: AtomicU64,
    pub heard: Mutex<Vec<LogPosition>>,
    pub replaced: Mutex<Vec<LogPosition>>,
    pub barriers: Mutex<Vec<LogPosition>>,
    pub fatal: Arc<Mutex<Option<String>>>,
    /// While set, applying is held up.
    pub hold: AtomicBool,
}

impl Stamper for Above {
    fn stamp(&self, _term: u64) -> Stamp {
        let ms = self.clock_ms.fetch_add(1, Ordering::Relaxed);
        Stamp {
            lease_ms: ms,
            calendar_ms: ms,
        }
    }
}

impl ApplyObserver for Above {
    fn applied(&self, run: Vec<Applied>) -> BoxFuture<'_, ()> {
        self.heard.lock().unwrap().extend(run.iter().map(|a| a.at));
        Box::pin(async {
            while self.hold.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }

    fn replaced(&self, at: LogPosition, _state: State) -> BoxFuture<'_, ()> {
        self.replaced.lock().unwrap().push(at);
        Box::pin(ready(()))
    }
}

impl PurgeBarrier for Above {
    fn make_durable(&self, upto: LogPosition) -> BoxFuture<'_, io::Result<()>> {
        self.barriers.lock().unwrap().push(upto);
        Box::pin(ready(Ok(())))
    }
}

impl ForwardHandler for Above {
    fn forwarded(&self, from: NodeId, request: Bytes) -> BoxFuture<'static, Bytes> {
        let text = String::from_utf8_lossy(&request).into_owned();
        let answer = format!("node {} heard {text:?} from node {from}", self.id);
        Box::pin(ready(Bytes::from(answer)))
    }
}

pub fn test_config() -> RaftConfig {
    RaftConfig {
        // The machine that runs tests may be busy: fewer elections by accident.
        election_timeout_min_ms: 1_000,
        election_timeout_max_ms: 2_000,
        quorum_loss_probe_interval_ms: 4_000,
        ..RaftConfig::default()
    }
}

pub fn test_wal() -> WalOptions {
    WalOptions {
        segment_bytes: 8 << 20,
        batch_target_bytes: 256 << 10,
        max_record_bytes: 2 << 20,
        ..WalOptions::default()
    }
}

struct Place {
    dir: TempDir,
    listen: String,
    node: Option<TcpNode>,
    above: Arc<Above>,
}

/// Nodes, running or not.
pub struct Cluster {
    places: BTreeMap<NodeId, Place>,
    config: RaftConfig,
}

impl Cluster {
    /// Starts nodes 1 to `size`; they are not a cluster yet.
    pub async fn start(size: u64, config: RaftConfig) -> Self {
        let mut cluster = Self {
            places: BTreeMap::new(),
            config,
        };
        for id in 1..=size {
            cluster.add(id).await;
        }
        cluster
    }

    /// Starts nodes 1 to `size` and makes them a cluster with an identity.
    pub async fn running(size: u64, config: RaftConfig) -> Self {
        let cluster = Self::start(size, config).await;
        cluster
            .node(1)
            .initialize(cluster.members())
            .await
            .expect("initialised");
        let bootstrap = Command::Bootstrap {
            cluster_id: Name::new("test"),
            generation: 1,
        };
        commit_command(&cluster, bootstrap).await;
        cluster
    }

    /// Adds a node with an empty folder.
    pub async fn add(&mut self, id: NodeId) {
        let place = Place {
            dir: TempDir::new().expect("a folder"),
            listen: "127.0.0.1:0".to_owned(),
            node: None,
            above: Arc::default(),
        };
        self.places.insert(id, place);
        self.restart(id).await;
    }

    /// Starts a node again on the files it left.
    pub async fn restart(&mut self, id: NodeId) {
        let place = self.places.get_mut(&id).expect("known");
        place.above = Arc::new(Above {
            id,
            ..Above::default()
        });
        let above = place.above.clone();
        let fatal = above.fatal.clone();
        let setup = TcpNodeSetup {
            id,
            cluster: "test".to_owned(),
            secret: ClusterSecret::new(SECRET).expect("long enough"),
            listen: place.listen.clone(),
            config: self.config.clone(),
            limits: TransportLimits::default(),
            dir: place.dir.path().to_owned(),
            wal: test_wal(),
            hooks: Hooks {
                stamper: above.clone(),
                observer: above.clone(),
                barrier: above.clone(),
                forward: above.clone(),
                on_fatal: Box::new(move |why| *fatal.lock().unwrap() = Some(why)),
            },
        };
        let node = TcpNode::start(setup).await.expect("started");
        place.listen = node.peer_address().to_string();
        place.node = Some(node);
    }

    /// Kills a node: nobody is told.
    pub async fn kill(&mut self, id: NodeId) {
        let place = self.places.get_mut(&id).expect("known");
        place.node.take().expect("running").halt().await;
    }

    pub fn tcp(&self, id: NodeId) -> &TcpNode {
        self.places[&id].node.as_ref().expect("running")
    }

    pub fn node(&self, id: NodeId) -> &TestNode {
        self.tcp(id).node()
    }

    pub fn above(&self, id: NodeId) -> &Above {
        &self.places[&id].above
    }

    pub fn ids(&self) -> Vec<NodeId> {
        let running = self.places.iter().filter(|(_, p)| p.node.is_some());
        running.map(|(id, _)| *id).collect()
    }

    pub fn member(&self, id: NodeId) -> Member {
        Member {
            peer_address: self.places[&id].listen.clone(),
            http_address: format!("http://node-{id}"),
        }
    }

    pub fn members(&self) -> BTreeMap<NodeId, Member> {
        self.places
            .keys()
            .map(|id| (*id, self.member(*id)))
            .collect()
    }

    /// Waits until one running node leads and all running nodes agree on it.
    pub async fn leader(&self) -> NodeId {
        eventually("all running nodes follow one leader", || {
            let mut leaders = self.ids().into_iter().map(|id| {
                let standing = self.node(id).standing();
                standing.leadership.leader.map(|leader| leader.id)
            });
            let first = leaders.next()??;
            let agreed = leaders.all(|leader| leader == Some(first));
            let leads = self.ids().contains(&first)
                && self.node(first).standing().leadership.leads().is_some();
            (agreed && leads).then_some(first)
        })
        .await
    }

    pub async fn follower(&self) -> NodeId {
        let leader = self.leader().await;
        let followers = self.ids().into_iter().find(|id| *id != leader);
        followers.expect("more than one node runs")
    }

    /// Waits until a node's state is the leader's.
    pub async fn caught_up(&self, id: NodeId) {
        let leader = self.leader().await;
        let goal = self.node(leader).stale().applied;
        eventually("the node has caught up", || {
            (self.node(id).stale().applied >= goal).then_some(())
        })
        .await;
    }

    pub fn no_failures(&self) {
        for (id, place) in &self.places {
            let fatal = place.above.fatal.lock().unwrap();
            assert_eq!(*fatal, None, "node {id} failed");
        }
    }
}

/// Waits for a condition; says which one when it never comes.
pub async fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Something that leaves a trace in the state: an executor of this name registers.
pub fn register(name: &str) -> Command {
    Command::RegisterSession(Registration {
        instance: Name::new(name),
        version: "1.0.0".to_owned(),
        capabilities: vec![Name::new("shell")],
        labels: BTreeMap::new(),
        capacity: 1,
        lease_ttl_ms: 60_000,
    })
}

pub fn has(state: &State, name: &str) -> bool {
    state.session_of(&Name::new(name)).is_some()
}

pub fn draft(command: Command) -> Draft {
    Draft {
        term: None,
        actor: Actor::Scheduler,
        request: None,
        command,
    }
}

pub async fn propose(node: &TestNode, command: Command) -> Result<Committed, ProposeError> {
    node.propose(draft(command), LIMIT).await
}

/// Registers an executor of this name, as [`commit_command`] does.
pub async fn commit(cluster: &Cluster, name: &str) {
    commit_command(cluster, register(name)).await;
}

/// Proposes to whoever leads until it is committed, as a client with an idempotent command does.
pub async fn commit_command(cluster: &Cluster, command: Command) {
    let end = Instant::now() + LIMIT;
    loop {
        let leader = cluster.leader().await;
        match propose(cluster.node(leader), command.clone()).await {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < end, "never committed: {error}"),
        }
    }
}
