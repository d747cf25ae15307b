//! A simulated node: a machine with its disk, archive and clocks, and the process that runs on it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::assembly::{Assembly, Frame, Settings, Surroundings};
use tenure::blocking::Blocking;
use tenure::consensus::RaftConsensus;
use tenure::http::{Limits, router};
use tenure::leader::LeaderConfig;
use tenure::security::Tokens;
use tenure_raft::config::RaftConfig;
use tenure_raft::node::{Node, NodeSetup};
use tenure_raft::state_machine::ApplyObserver;
use tenure_storage::archive::MemArchive;
use tenure_storage::disk::{DelayHook, DiskOp, SimDisk};
use tenure_storage::identity::{self, Identity};
use tenure_storage::wal::{Spawn, WalOptions};

use crate::chance::{self, SeededEntropy};
use crate::clock::MachineClock;
use crate::judge::{Judge, Seen};
use crate::network::{Network, PeerLink};
use crate::run::must_not_outlive;
use crate::runtime::SimRt;
use crate::scope::{self, Process};
use crate::traps::Moment;

/// The cluster's name in every run.
pub const CLUSTER: &str = "sim";

/// Where each node has its files.
pub const DIR: &str = "/data";

/// What is the same for all nodes of a run.
#[derive(Clone)]
pub struct NodeSettings {
    /// Timers and limits of consensus.
    pub raft: RaftConfig,
    /// How nodes lead.
    pub leader: LeaderConfig,
    /// Who may do what.
    pub tokens: Arc<Tokens>,
}

/// How a process ends without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed; the machine and its page cache live.
    Kill,
    /// The machine loses power: what was not synced may be gone.
    PowerLoss,
}

/// A machine. It outlives the processes that run on it.
pub struct Machine {
    /// The node's number, and its process.
    pub id: Process,
    /// Its clocks.
    pub clock: Arc<MachineClock>,
    /// Its disk as the present process sees it.
    pub disk: SimDisk,
    /// How many times slower than usual syncs are.
    pub slowness: Arc<AtomicU64>,
    archive: Arc<MemArchive>,
}

/// A node that runs.
#[derive(Clone)]
pub struct Running {
    /// Consensus as its loops see it.
    pub consensus: Arc<RaftConsensus<SimRt>>,
    /// Whether its archive has every fact.
    pub feed: Arc<tenure::history::Feed>,
    /// Its archive.
    pub archive: Arc<MemArchive>,
}

impl Machine {
    /// A machine that was set up for its node and never started.
    pub async fn new(id: Process, clock: Arc<MachineClock>, judge: Arc<Judge>) -> Self {
        let slowness = Arc::new(AtomicU64::new(1));
        let disk = SimDisk::new(chance::number());
        let identity = Identity {
            cluster_id: CLUSTER.into(),
            node_id: id as u64,
            created: "in a simulation".into(),
            ready: false,
        };
        identity::create(&disk, Path::new(DIR), &identity)
            .await
            .expect("an empty disk takes an identity");
        disk.set_delay(Some(latency(id, slowness.clone(), judge)));
        Self {
            id,
            clock,
            disk,
            slowness,
            archive: Arc::new(MemArchive::empty()),
        }
    }

    /// What the next process finds after a crash.
    ///
    /// # Errors
    /// The archive cannot be opened.
    pub fn crash(&mut self, crash: Crash) -> Result<(), String> {
        let keep = match crash {
            Crash::Kill => {
                self.disk = self.disk.kill(chance::number());
                usize::MAX
            }
            Crash::PowerLoss => {
                self.disk = self.disk.crash(chance::number());
                chance::between(0, 40) as usize
            }
        };
        let next = self.archive.crash(keep).map_err(|e| e.to_string())?;
        self.archive = Arc::new(next);
        Ok(())
    }

    /// The next process finds an archive that was damaged: it has been moved aside, and an empty one is there.
    pub fn lose_archive(&mut self) {
        self.archive = Arc::new(MemArchive::empty());
    }

    /// What [`start`] needs.
    pub fn boot(&self) -> Boot {
        Boot {
            id: self.id,
            clock: self.clock.clone(),
            disk: self.disk.clone(),
            archive: self.archive.clone(),
        }
    }
}

/// What a process is started with.
pub struct Boot {
    id: Process,
    clock: Arc<MachineClock>,
    disk: SimDisk,
    archive: Arc<MemArchive>,
}

/// How long operations of a disk take: reads and writes go to the cache, syncs to the medium.
fn latency(node: Process, slowness: Arc<AtomicU64>, judge: Arc<Judge>) -> DelayHook {
    Arc::new(move |operation, amount| {
        let us = match operation {
            DiskOp::Sync | DiskOp::SyncDir => {
                if judge.traps.offer(Moment::Syncs { node }) {
                    // Its process ends before the sync is made.
                    return Box::pin(std::future::pending());
                }
                let us = if chance::happens(15) {
                    chance::between(5_000, 80_000)
                } else {
                    chance::between(200, 2_000)
                };
                return Box::pin(take(us, slowness.clone()));
            }
            DiskOp::Pause => amount,
            DiskOp::SyncFailed => {
                judge.show(&Seen::SyncFailed { node });
                0
            }
            _ => 0,
        };
        if us == 0 {
            return Box::pin(std::future::ready(()));
        }
        Box::pin(tokio::time::sleep(Duration::from_micros(us)))
    })
}

/// Takes so long on a disk of usual speed. One that is slow may become fast again meanwhile.
async fn take(us: u64, slowness: Arc<AtomicU64>) {
    const LOOK_US: u64 = 50_000;
    let mut left_us = us;
    while left_us > 0 {
        let slow = slowness.load(Ordering::Relaxed).max(1);
        let step_us = left_us.min((LOOK_US / slow).max(1));
        tokio::time::sleep(Duration::from_micros(step_us * slow)).await;
        left_us -= step_us;
    }
}

/// Starts the process of a node. To be called in its scope.
///
/// # Errors
/// Says why the node refuses to start.
pub async fn start(
    boot: Boot,
    settings: NodeSettings,
    network: Arc<Network>,
    observe: impl FnOnce(Arc<dyn ApplyObserver>) -> Arc<dyn ApplyObserver>,
    on_fatal: impl Fn(String) + Send + Sync + 'static,
) -> Result<Running, String> {
    let Boot {
        id,
        clock,
        disk,
        archive,
    } = boot;
    let dir = Path::new(DIR);
    let identity = identity::expect(&disk, dir, CLUSTER, id as u64)
        .await
        .map_err(|e| e.to_string())?;
    let spawn: Spawn = Arc::new(move |_name, task| {
        scope::spawn_in(id, task);
        Ok(())
    });
    let frame = Frame::new(Surroundings {
        clock,
        entropy: Arc::new(SeededEntropy),
        archive: archive.clone(),
        spawn: spawn.clone(),
        blocking: Blocking::InPlace,
        on_fatal: Arc::new(on_fatal),
    })
    .map_err(|e| e.to_string())?;
    let mut hooks = frame.hooks();
    hooks.observer = observe(hooks.observer);
    let election_timeout_max_ms = settings.raft.election_timeout_max_ms;
    let (node, _report) = Node::<SimRt>::start(NodeSetup {
        id: id as u64,
        cluster: CLUSTER.into(),
        config: settings.raft,
        disk: disk.clone(),
        dir: dir.to_owned(),
        wal: WalOptions {
            segment_bytes: 512 << 10,
            batch_target_bytes: 64 << 10,
            max_record_bytes: 128 << 10,
            cache_bytes: 256 << 10,
            queue_bytes: 1 << 20,
            salt: chance::mixed(id as u64),
            create: !identity.ready,
        },
        spawn,
        transport: Arc::new(PeerLink {
            network: network.clone(),
            node: id,
        }),
        hooks,
    })
    .await
    .map_err(|e| e.to_string())?;
    if !identity.ready {
        identity::mark_ready(&disk, dir, &identity)
            .await
            .map_err(|e| e.to_string())?;
    }
    let settings = Settings {
        cluster_id: CLUSTER.into(),
        tokens: settings.tokens,
        limits: Limits::default(),
        leader: settings.leader,
        election_timeout_max_ms,
    };
    let service = node.service();
    let Assembly {
        consensus,
        feed,
        gateway,
        loops,
    } = frame.complete(node, settings).map_err(|e| e.to_string())?;
    network.open(id, service, router(gateway));
    for task in loops {
        scope::spawn_in(scope::loops_of(id), task);
    }
    must_not_outlive("the consensus of a node", &consensus);
    must_not_outlive("the feed of a node", &feed);
    Ok(Running {
        consensus,
        feed,
        archive,
    })
}
