//! A cluster of simulated nodes: starting, crashing, and what each of them is doing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::consensus::{Consensus as _, RaftConsensus, Standing};
use tenure_raft::standing::Role;
use tenure_raft::state_machine::Replica;
use tenure_storage::disk::SimDisk;

use crate::atlas::Atlas;
use crate::chance;
use crate::clock::MachineClock;
use crate::judge::{Judge, Seen};
use crate::network::{Network, name};
use crate::node::{self, Crash, Machine, NodeSettings, Running};
use crate::runtime::SimRt;
use crate::scope::{self, Process, WORLD, loops_of};
use crate::tell;

/// Where the process of a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// No process.
    Down,
    /// It reads its disk.
    Starting,
    /// It runs.
    Up,
    /// It ended by itself, or refused to start, for this reason. Nobody starts it again unasked.
    Ended(String),
}

struct Slot {
    machine: Machine,
    condition: Condition,
    running: Option<Running>,
}

/// All nodes of a run.
pub struct Cluster {
    /// What they talk over.
    pub network: Arc<Network>,
    /// Who checks what they do.
    pub judge: Arc<Judge>,
    settings: NodeSettings,
    slots: Mutex<BTreeMap<Process, Slot>>,
    atlas: Mutex<Atlas>,
}

impl Cluster {
    /// Machines that were set up and are off.
    pub async fn new(
        clocks: Vec<Arc<MachineClock>>,
        settings: NodeSettings,
        network: Arc<Network>,
        judge: Arc<Judge>,
    ) -> Arc<Self> {
        let mut slots = BTreeMap::new();
        for (at, clock) in clocks.into_iter().enumerate() {
            let slot = Slot {
                machine: Machine::new(at + 1, clock, judge.clone()).await,
                condition: Condition::Down,
                running: None,
            };
            slots.insert(at + 1, slot);
        }
        Arc::new(Self {
            network,
            judge,
            settings,
            slots: Mutex::new(slots),
            atlas: Mutex::default(),
        })
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Process, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, node: Process, look: impl FnOnce(&mut Slot) -> R) -> R {
        look(self.slots().get_mut(&node).expect("a node of this cluster"))
    }

    fn atlas<R>(&self, look: impl FnOnce(&mut Atlas) -> R) -> R {
        look(&mut self.atlas.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a node's disk be damaged, if a majority stays sound: see [`crate::atlas`].
    pub fn claim_damage(&self, node: Process) -> bool {
        let nodes = self.nodes().len();
        let claimed = self.atlas(|atlas| atlas.claim(node, nodes));
        if claimed {
            self.judge.show(&Seen::Damaged { node });
        }
        claimed
    }

    /// Whether a node's disk may be damaged.
    pub fn may_be_damaged(&self, node: Process) -> bool {
        let nodes = self.nodes().len();
        self.atlas(|atlas| atlas.may_claim(node, nodes))
    }

    /// Whether a node found its damage and takes no part any more.
    pub fn is_left_out(&self, node: Process) -> bool {
        self.atlas(|atlas| atlas.is_left_out(node))
    }

    /// The nodes.
    pub fn nodes(&self) -> Vec<Process> {
        self.slots().keys().copied().collect()
    }

    /// Where a node stands.
    pub fn condition(&self, node: Process) -> Condition {
        self.with(node, |slot| slot.condition.clone())
    }

    /// A node's parts, if it runs.
    pub fn running(&self, node: Process) -> Option<Running> {
        self.with(node, |slot| slot.running.clone())
    }

    /// A node's clocks.
    pub fn clock(&self, node: Process) -> Arc<MachineClock> {
        self.with(node, |slot| slot.machine.clock.clone())
    }

    /// A node's disk.
    pub fn disk(&self, node: Process) -> SimDisk {
        self.with(node, |slot| slot.machine.disk.clone())
    }

    /// How many times slower than usual a node's syncs are.
    pub fn set_slowness(&self, node: Process, times: u64) {
        self.with(node, |slot| {
            slot.machine
                .slowness
                .store(times, std::sync::atomic::Ordering::Relaxed);
        });
    }

    /// How many times slower than usual they are.
    pub fn slowness(&self, node: Process) -> u64 {
        self.with(node, |slot| {
            slot.machine
                .slowness
                .load(std::sync::atomic::Ordering::Relaxed)
        })
    }

    /// Takes the room on a node's disk, or gives it back.
    pub fn fill(&self, node: Process, full: bool) {
        self.with(node, |slot| {
            let bytes = if full { 0 } else { u64::MAX };
            slot.machine.disk.set_capacity_bytes(bytes);
        });
    }

    /// What a running node knows.
    pub fn standing(&self, node: Process) -> Option<Standing> {
        let running = self.running(node)?;
        let standing = running.consensus.standing().borrow().clone();
        Some(standing)
    }

    /// Whether some node that runs leads, and its majority has answered of late.
    pub fn led_now(&self) -> bool {
        self.nodes().into_iter().any(|node| {
            let standing = self.standing(node).filter(|_| !scope::is_paused(node));
            standing.is_some_and(|s| s.leads && s.quorum_age_ms.is_none_or(|age| age <= 1_500))
        })
    }

    /// A running node's state.
    pub fn replica(&self, node: Process) -> Option<Replica> {
        Some(self.running(node)?.consensus.node().stale())
    }

    /// The nodes that take themselves for the leader.
    pub fn leaders(&self) -> Vec<Process> {
        let leads = |node: &Process| self.standing(*node).is_some_and(|standing| standing.leads);
        self.nodes().into_iter().filter(leads).collect()
    }

    /// Starts a node's process, which then reads its disk. One that is left out stays down.
    pub fn start(self: &Arc<Self>, node: Process) {
        if self.is_left_out(node) {
            return;
        }
        let boot = self.with(node, |slot| {
            slot.condition = Condition::Starting;
            slot.running = None;
            slot.machine.boot()
        });
        tell!("{} starts", name(node));
        let (cluster, settings) = (self.clone(), self.settings.clone());
        scope::spawn_in(node, async move {
            let judge = cluster.judge.clone();
            let fatal = cluster.clone();
            let started = node::start(
                boot,
                settings,
                cluster.network.clone(),
                |inner| judge.observe(node, inner),
                move |why| fatal.clone().ended(node, why),
            )
            .await;
            match started {
                Ok(running) => {
                    let consensus = running.consensus.clone();
                    cluster.with(node, |slot| {
                        slot.condition = Condition::Up;
                        slot.running = Some(running);
                    });
                    cluster.tell_of_start(node, &consensus).await;
                }
                Err(why) => cluster.ended(node, why),
            }
        });
    }

    /// Tells the judge what a node began with, before any time has passed.
    async fn tell_of_start(&self, node: Process, consensus: &RaftConsensus<SimRt>) {
        // Consensus tells of itself once it has been polled. One that knows no cluster stays a learner.
        let mut standing = consensus.node().standing();
        for _ in 0..100 {
            if standing.leadership.role != Role::Learner {
                break;
            }
            tokio::task::yield_now().await;
            standing = consensus.node().standing();
        }
        self.judge.show(&Seen::Started {
            node,
            term: standing.leadership.term,
            last_log: standing.last_log,
        });
    }

    /// A node said that it cannot go on. Its process ends, a moment later and not in its own code.
    fn ended(self: Arc<Self>, node: Process, why: String) {
        scope::spawn_in(WORLD, async move {
            let starting = self.with(node, |slot| slot.condition == Condition::Starting);
            let damaged = self.atlas(|atlas| atlas.is_damaged(node));
            // Only what was put in is an excuse: the simulated disk says so of each error of its own.
            let excused = why.contains("simulated") || (damaged && is_damage(&why));
            if damaged && starting && is_damage(&why) {
                self.atlas(|atlas| atlas.leave_out(node));
            }
            tell!("{} ends by itself: {why}", name(node));
            if !excused {
                self.judge.complain(
                    "a node ends by itself only when its disk failed",
                    format!("{} ended: {why}", name(node)),
                );
            }
            self.take_down(node, false);
            // A process that died of its disk finds it as a killed one does.
            self.fall(node, Crash::Kill);
            self.with(node, |slot| slot.condition = Condition::Ended(why));
        });
    }

    fn take_down(&self, node: Process, silent: bool) {
        scope::kill(node);
        scope::kill(loops_of(node));
        self.network.close(node, silent);
        self.judge.show(&Seen::Ended { node });
        self.with(node, |slot| {
            slot.running = None;
            slot.condition = Condition::Down;
        });
    }

    fn fall(&self, node: Process, crash: Crash) {
        let fallen = self.with(node, |slot| slot.machine.crash(crash));
        if let Err(why) = fallen {
            self.judge.complain(
                "an archive opens after every crash",
                format!("{}: {why}", name(node)),
            );
        }
    }

    /// Ends a node's process without asking it.
    pub fn crash(&self, node: Process, crash: Crash) {
        tell!("{} crashes: {crash:?}", name(node));
        let silent = crash == Crash::PowerLoss && chance::happens(500);
        self.take_down(node, silent);
        self.fall(node, crash);
    }

    /// Whether another archive than this node's has every fact, and each other node could say so: then this one
    /// may be lost.
    pub fn may_lose_archive(&self, node: Process) -> bool {
        let others = self.nodes().into_iter().filter(|other| *other != node);
        let whole = |other| self.running(other).is_some_and(|r| r.feed.complete());
        self.condition(node) == Condition::Down && others.into_iter().all(whole)
    }

    /// The archive of a node that does not run is damaged.
    pub fn lose_archive(&self, node: Process) {
        self.with(node, |slot| slot.machine.lose_archive());
    }

    /// Takes all apart. Parts know each other in circles, which would outlive the run.
    pub fn dissolve(&self) {
        self.judge.traps.clear();
        self.network.dissolve();
        let slots = std::mem::take(&mut *self.slots());
        drop(slots);
    }

    /// Waits, at most `limit`, until one node leads and a majority of the others follows it.
    pub async fn led(&self, limit: Duration) -> Option<Process> {
        let led = async {
            loop {
                if let Some(leader) = self.agreed_leader() {
                    return leader;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(limit, led).await.ok()
    }

    /// The leader, if all running nodes agree and they are a majority.
    pub fn agreed_leader(&self) -> Option<Process> {
        let nodes = self.nodes();
        let standings: Vec<Standing> = nodes.iter().filter_map(|n| self.standing(*n)).collect();
        if standings.len() * 2 <= nodes.len() {
            return None;
        }
        let leader = standings.iter().find(|standing| standing.leads)?;
        let agreed = standings.iter().all(|standing| {
            standing.term == leader.term
                && standing.leader.as_ref().map(|l| l.id) == Some(leader.node)
        });
        agreed.then_some(leader.node as Process)
    }
}

/// Whether a node says that what it had on its disk is not there any more.
fn is_damage(why: &str) -> bool {
    ["damaged", "missing"].iter().any(|word| why.contains(word))
}
