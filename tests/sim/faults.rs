//! What goes wrong, when, for how long.
//!
//! Which faults may come together, and what is owed meanwhile, is in [`crate::atlas`]; faults that wait for a
//! moment of the protocol are in [`crate::traps`], damage of disks in [`crate::damage`].

mod executors;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_storage::disk::Struck;
use tokio::time::{Instant, sleep};

use crate::chance;
use crate::clock::MachineClock;
use crate::cluster::{Cluster, Condition};
use crate::network::{Weather, name};
use crate::node::Crash;
use crate::plan::Plan;
use crate::scope::{self, Process, WORLD, loops_of};
use crate::site::{FIRST_EXECUTOR, Site};
use crate::tell;
use crate::workload::FIRST_CLIENT;

/// Every kind of fault, as it is counted.
pub const KINDS: &[&str] = &[
    "kill",
    "power loss",
    "power loss of all",
    "power loss at a change of the disk",
    "pause of a node",
    "pause of a node's loops",
    "cut, one way out",
    "cut, one way in",
    "cut of one pair",
    "cut off from all nodes",
    "cut of an executor or client",
    "weather",
    "slow disk",
    "failed sync",
    "full disk",
    "jump of a clock",
    "hand-over",
    "snapshot asked for",
    "false alarm: a live port refuses for a while",
    "false alarm: a connection breaks and a connect is refused",
    "crash of an executor",
    "pause of an executor",
    "pause of an executor at a heartbeat",
    "second process of an executor",
    "death of the leader before a sync",
    "death or cut between commit and reply",
    "death between grant and delivery",
    "death amid a snapshot transfer",
    "words of a former owner after a takeover",
    "damaged archive",
    "flipped bit, node down",
    "flipped bit, node running",
    "misdirected write",
];

/// An executor process of a run.
#[derive(Clone)]
struct Worker {
    process: Process,
    instance: String,
    clock: Arc<MachineClock>,
}

/// Makes things go wrong.
pub struct Storm {
    pub(crate) cluster: Arc<Cluster>,
    site: Arc<Site>,
    workers: Vec<Worker>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: BTreeMap<&'static str, u64>,
    /// No fault begins any more, and those that last end.
    over: bool,
    duplicates: BTreeSet<Process>,
    /// Until when the lead may be changing because of a fault.
    stirs_until: Option<Instant>,
}

impl Storm {
    /// A storm that has not begun, and its executors, which start now.
    pub fn new(cluster: Arc<Cluster>, site: Arc<Site>, plan: &Plan) -> Arc<Self> {
        let workers = (0..plan.executors).map(|at| Worker {
            process: FIRST_EXECUTOR + at,
            instance: format!("executor-{at}"),
            clock: clock(plan.drift_ppm),
        });
        let storm = Self {
            cluster,
            site,
            workers: workers.collect(),
            state: Mutex::default(),
        };
        for worker in &storm.workers {
            storm.start(worker);
        }
        Arc::new(storm)
    }

    fn start(&self, worker: &Worker) {
        let Worker {
            process,
            instance,
            clock,
        } = worker.clone();
        self.site.start(process, instance, clock);
    }

    fn state<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often each kind of fault happened.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state(|state| state.counts.clone())
    }

    /// Counts a fault of a disk when it takes effect: it may not, or the disk may be gone before.
    pub(crate) fn count_when_struck(
        self: &Arc<Self>,
        kind: &'static str,
        node: Process,
        times: fn(Struck) -> u64,
    ) {
        let storm = self.clone();
        let disk = self.cluster.disk(node);
        let before = times(disk.struck());
        scope::spawn_in(WORLD, async move {
            for _ in 0..1_000 {
                // The disk that is found after a crash counts from nothing.
                let now = [&disk, &storm.cluster.disk(node)].map(|disk| times(disk.struck()));
                if now.into_iter().any(|now| now > 0 && now != before) {
                    return storm.count(kind);
                }
                if storm.state(|state| state.over) {
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
    }

    /// Whether what is done to a node now has anything to strike.
    fn runs(&self, node: Process) -> bool {
        self.cluster.condition(node) == Condition::Up
    }

    pub(crate) fn count(&self, kind: &'static str) {
        debug_assert!(KINDS.contains(&kind), "{kind}");
        self.state(|state| *state.counts.entry(kind).or_default() += 1);
    }

    /// Makes things go wrong for as long as the plan says.
    pub async fn rage(self: &Arc<Self>, plan: &Plan) {
        let until = Instant::now() + Duration::from_millis(plan.storm_ms);
        while Instant::now() < until {
            sleep(Duration::from_millis(chance::between(50, plan.calm_ms))).await;
            self.strike().await;
        }
    }

    pub(crate) fn node(&self) -> Process {
        chance::one_of(&self.cluster.nodes())
    }

    /// A node that runs, the leader by preference.
    fn likely_leader(&self) -> Process {
        match self.cluster.leaders().first() {
            Some(leader) if chance::happens(600) => *leader,
            _ => self.node(),
        }
    }

    async fn strike(self: &Arc<Self>) {
        match chance::between(0, 126) {
            0..14 => self.crash_one(),
            14..16 => self.crash_all(),
            16..21 => self.pause_node(),
            21..24 => self.pause_loops(),
            24..38 => self.cut_nodes(),
            38..44 => self.cut_clients(),
            44..52 => self.weather(),
            52..58 => self.slow_disk(),
            58..64 => self.fail_sync(),
            64..68 => self.die_at_a_change(),
            68..70 => self.fill_disk(),
            70..75 => self.jump_clock(),
            75..80 => self.hand_over().await,
            80..83 => self.snapshot(),
            83..89 => self.crash_executor(),
            89..93 => self.pause_executor(),
            93..96 => self.pause_at_heartbeat(),
            96..100 => self.duplicate_executor(),
            100..108 => self.set_trap(),
            108..114 => {
                if !self.damage().await {
                    self.crash_one();
                }
            }
            _ => self.false_alarms(),
        }
    }

    /// Whether the lead may be changing now.
    pub fn stirs(&self) -> bool {
        self.state(|state| {
            state
                .stirs_until
                .is_some_and(|until| Instant::now() < until)
        })
    }

    fn stir(&self) {
        let until = Instant::now() + Duration::from_millis(800);
        self.state(|state| state.stirs_until = Some(until));
    }

    /// A leader lives, but seems dead to others, several times in a row.
    fn false_alarms(self: &Arc<Self>) {
        let storm = self.clone();
        scope::spawn_in(WORLD, async move {
            for _ in 0..chance::between(1, 6) {
                if storm.state(|state| state.over) {
                    return;
                }
                let node = storm.false_alarm();
                if let Some(node) = node.filter(|_| chance::happens(250)) {
                    // By then others may have stood; it does not learn that soon.
                    sleep(Duration::from_millis(chance::between(2, 30))).await;
                    storm.cut_off(node);
                }
                sleep(Duration::from_millis(chance::between(5, 500))).await;
            }
        });
    }

    /// Which node seems dead.
    fn false_alarm(self: &Arc<Self>) -> Option<Process> {
        let node = self.likely_leader();
        if self.cluster.condition(node) != Condition::Up {
            return None;
        }
        self.stir();
        let others = self.cluster.nodes();
        let whose = chance::happens(500).then(|| chance::one_of(&others));
        let (kind, connections, ms) = if chance::happens(500) {
            let ms = chance::one_of(&[20, 100, 500, 2_000]);
            ("false alarm: a live port refuses for a while", u64::MAX, ms)
        } else {
            let connections = chance::between(1, 5);
            (
                "false alarm: a connection breaks and a connect is refused",
                connections,
                500,
            )
        };
        self.count(kind);
        tell!("{}: {kind}", name(node));
        let network = &self.cluster.network;
        network.refuse(node, connections);
        network.break_connections(node, whose);
        self.undo_later(ms, move |storm| storm.cluster.network.refuse_no_more(node));
        Some(node)
    }

    fn crash_one(self: &Arc<Self>) {
        let node = self.likely_leader();
        let (kind, crash) = if chance::happens(500) {
            ("kill", Crash::Kill)
        } else {
            ("power loss", Crash::PowerLoss)
        };
        self.crash(node, kind, crash);
    }

    fn crash_all(self: &Arc<Self>) {
        for node in self.cluster.nodes() {
            self.crash(node, "power loss of all", Crash::PowerLoss);
        }
    }

    /// Ends a node's process, and starts it again later.
    pub(crate) fn crash(self: &Arc<Self>, node: Process, kind: &'static str, crash: Crash) {
        if self.cluster.condition(node) == Condition::Down || self.cluster.is_left_out(node) {
            return;
        }
        self.count(kind);
        self.stir();
        self.cluster.crash(node, crash);
        self.restart_later(node, chance::between(20, 8_000));
    }

    pub(crate) fn restart_later(self: &Arc<Self>, node: Process, after_ms: u64) {
        let storm = self.clone();
        scope::spawn_in(WORLD, async move {
            sleep(Duration::from_millis(after_ms)).await;
            if !storm.state(|state| state.over) && storm.cluster.condition(node) == Condition::Down
            {
                if storm.cluster.may_lose_archive(node) && chance::happens(350) {
                    storm.count("damaged archive");
                    tell!("the archive of {} is damaged", name(node));
                    storm.cluster.lose_archive(node);
                }
                storm.stir();
                storm.cluster.start(node);
            }
        });
    }

    /// Ends a node's process after a while, and starts it again.
    pub(crate) fn crash_later(self: &Arc<Self>, node: Process, after_ms: u64) {
        self.undo_later(after_ms, move |storm| {
            storm.crash(node, "kill", Crash::Kill)
        });
    }

    /// Undoes something after a while, or when the storm is over.
    fn undo_later(self: &Arc<Self>, after_ms: u64, undo: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let storm = self.clone();
        scope::spawn_in(WORLD, async move {
            sleep(Duration::from_millis(after_ms)).await;
            if !storm.state(|state| state.over) {
                undo(&storm);
            }
        });
    }

    fn pause_node(self: &Arc<Self>) {
        let node = self.likely_leader();
        let ms = chance::one_of(&[100, 600, 2_000, 8_000, 20_000]);
        if !self.runs(node) {
            return;
        }
        self.count("pause of a node");
        tell!("{} is suspended for {ms} ms", name(node));
        scope::pause(node);
        scope::pause(loops_of(node));
        self.undo_later(ms, move |_| {
            tell!("{} goes on", name(node));
            scope::resume(node);
            scope::resume(loops_of(node));
        });
    }

    /// The loops of a node stand still while its consensus goes on. Often it loses the lead meanwhile and gets
    /// it back, so that its leader's loop wakes in another term.
    fn pause_loops(self: &Arc<Self>) {
        let leader = self.cluster.leaders().first().copied();
        let node = leader.unwrap_or_else(|| self.node());
        let ms = chance::one_of(&[600, 2_000, 6_000]);
        if !self.runs(node) {
            return;
        }
        self.count("pause of a node's loops");
        tell!("the loops of {} stand still for {ms} ms", name(node));
        scope::pause(loops_of(node));
        self.undo_later(ms, move |_| {
            tell!("the loops of {} go on", name(node));
            scope::resume(loops_of(node));
        });
        let others = self.cluster.nodes().into_iter().filter(|n| *n != node);
        let others: Vec<Process> = others.collect();
        if chance::happens(700) && !others.is_empty() {
            let other = chance::one_of(&others);
            self.transfer_later(100, node, other);
            self.transfer_later(ms / 2, other, node);
        }
    }

    /// Asks a node, if it leads then, to hand over.
    fn transfer_later(self: &Arc<Self>, after_ms: u64, from: Process, to: Process) {
        self.undo_later(after_ms, move |storm| {
            if let Some(running) = storm.cluster.running(from) {
                tell!("{} hands over to {}", name(from), name(to));
                scope::spawn_in(from, async move {
                    let node = running.consensus.node().clone();
                    // It may fail: this is a storm.
                    let limit = Duration::from_secs(1);
                    let _ = node.transfer_leadership(to as u64, limit).await;
                });
            }
        });
    }

    fn cut_nodes(self: &Arc<Self>) {
        let node = self.likely_leader();
        let others: Vec<Process> = self
            .cluster
            .nodes()
            .into_iter()
            .filter(|n| *n != node)
            .collect();
        let mut cuts = Vec::new();
        let kind = match chance::between(0, 4) {
            0 => {
                cuts.extend(others.iter().map(|other| (node, *other)));
                "cut, one way out"
            }
            1 => {
                cuts.extend(others.iter().map(|other| (*other, node)));
                "cut, one way in"
            }
            2 => {
                let other = chance::one_of(&others);
                cuts.extend([(node, other), (other, node)]);
                "cut of one pair"
            }
            _ => return self.cut_off(node),
        };
        self.cut(kind, cuts, node);
    }

    fn cut_off(self: &Arc<Self>, node: Process) {
        let others = self.cluster.nodes().into_iter().filter(|n| *n != node);
        let cuts = others.flat_map(|other| [(node, other), (other, node)]);
        self.cut("cut off from all nodes", cuts.collect(), node);
    }

    fn cut_clients(self: &Arc<Self>) {
        let process = if chance::happens(300) {
            FIRST_CLIENT
        } else {
            FIRST_EXECUTOR + chance::between(0, self.workers.len() as u64) as usize
        };
        let mut cuts = Vec::new();
        for node in self.cluster.nodes() {
            if chance::happens(700) {
                cuts.push((process, node));
            }
            if chance::happens(700) {
                cuts.push((node, process));
            }
        }
        self.cut("cut of an executor or client", cuts, process);
    }

    /// Cuts for a while.
    pub(crate) fn cut(
        self: &Arc<Self>,
        kind: &'static str,
        cuts: Vec<(Process, Process)>,
        whom: Process,
    ) {
        let ms = chance::one_of(&[200, 1_000, 4_000, 12_000, 30_000]);
        // It may come from a fault that had a while to wait.
        if self.state(|state| state.over) {
            return;
        }
        self.count(kind);
        tell!("{}: {kind} for {ms} ms", name(whom));
        for (from, to) in &cuts {
            self.cluster.network.cut(*from, *to);
        }
        self.undo_later(ms, move |storm| {
            tell!("{}: the cut heals", name(whom));
            for (from, to) in cuts {
                storm.cluster.network.heal(from, to);
            }
        });
    }

    fn weather(&self) {
        let weather = Weather {
            delay_us: chance::one_of(&[(200, 1_800), (200, 20_000), (5_000, 60_000)]),
            resent_per_mille: chance::one_of(&[0, 5, 30]),
            broken_per_mille: chance::one_of(&[0, 3, 20]),
            copied_per_mille: chance::one_of(&[0, 30, 150]),
        };
        self.count("weather");
        tell!("the network: {weather:?}");
        self.cluster.network.set_weather(weather);
    }

    fn slow_disk(self: &Arc<Self>) {
        let node = self.likely_leader();
        let times = chance::one_of(&[10, 50, 400]);
        if !self.runs(node) {
            return;
        }
        self.count("slow disk");
        tell!("the disk of {} is {times} times slower", name(node));
        self.cluster.set_slowness(node, times);
        self.undo_later(chance::between(500, 10_000), move |storm| {
            storm.cluster.set_slowness(node, 1);
        });
    }

    fn fail_sync(self: &Arc<Self>) {
        self.fail_a_sync(self.likely_leader(), chance::between(0, 10));
    }

    /// Lets one of a node's next syncs fail.
    pub(crate) fn fail_a_sync(self: &Arc<Self>, node: Process, nth: u64) {
        tell!("a sync of {} will fail", name(node));
        self.count_when_struck("failed sync", node, |struck| struck.syncs);
        self.cluster.disk(node).fail_sync(nth);
        self.revive_later(node);
    }

    fn die_at_a_change(self: &Arc<Self>) {
        let node = self.likely_leader();
        let disk = self.cluster.disk(node);
        tell!(
            "the power of {} fails at one of its next changes",
            name(node)
        );
        disk.crash_after(disk.changes() + chance::between(1, 40));
        let storm = self.clone();
        scope::spawn_in(WORLD, async move {
            // The machine goes with its disk. Until then the node sees what a disk that is gone says.
            while !storm.state(|state| state.over) {
                if storm.lose_power(node) {
                    return storm.restart_later(node, chance::between(1_000, 10_000));
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        self.revive_later(node);
    }

    /// Ends a node whose disk has lost its power; whether it had.
    fn lose_power(&self, node: Process) -> bool {
        let lost =
            self.cluster.condition(node) == Condition::Up && self.cluster.disk(node).is_dead();
        if lost {
            self.count("power loss at a change of the disk");
            self.cluster.crash(node, Crash::PowerLoss);
        }
        lost
    }

    fn fill_disk(self: &Arc<Self>) {
        let node = self.node();
        tell!("the disk of {} is full", name(node));
        self.count_when_struck("full disk", node, |struck| struck.refused);
        self.cluster.fill(node, true);
        // The log has its room already; a snapshot needs some.
        if chance::happens(500) {
            self.ask_for_snapshot(node);
        }
        self.revive_later(node);
    }

    /// A node that ended because of its disk loses its power some time later and starts again.
    fn revive_later(self: &Arc<Self>, node: Process) {
        let storm = self.clone();
        scope::spawn_in(WORLD, async move {
            sleep(Duration::from_millis(chance::between(1_000, 10_000))).await;
            if storm.state(|state| state.over) {
                return;
            }
            storm.cluster.fill(node, false);
            let ended = matches!(storm.cluster.condition(node), Condition::Ended(_));
            if ended && !storm.cluster.is_left_out(node) {
                let crash = chance::one_of(&[Crash::Kill, Crash::PowerLoss]);
                storm.cluster.crash(node, crash);
                storm.cluster.start(node);
            }
        });
    }

    fn jump_clock(&self) {
        let node = self.node();
        let by_ms = match chance::between(0, 4) {
            0 => 3_600_000,
            1 => -3_600_000,
            2 => chance::between(0, 10_000) as i64 - 5_000,
            _ => chance::between(0, 600) as i64 - 300,
        };
        self.count("jump of a clock");
        tell!("the wall clock of {} jumps by {by_ms} ms", name(node));
        let clock = self.cluster.clock(node);
        if clock.wall_error_ms().abs() > 60_000 {
            // Somebody sets it right.
            clock.set_right(chance::between(0, 200) as i64 - 100);
        } else {
            clock.jump(by_ms);
        }
    }

    async fn hand_over(&self) {
        let Some(leader) = self.cluster.leaders().first().copied() else {
            return;
        };
        let (Some(running), heir) = (self.cluster.running(leader), self.node()) else {
            return;
        };
        self.count("hand-over");
        self.stir();
        tell!("{} hands over to {}", name(leader), name(heir));
        scope::spawn_in(leader, async move {
            let limit = Duration::from_secs(3);
            let node = running.consensus.node().clone();
            // It may fail: this is a storm.
            let _ = node.transfer_leadership(heir as u64, limit).await;
        });
    }

    fn snapshot(&self) {
        self.ask_for_snapshot(self.node());
    }

    /// Lets a node take a snapshot.
    pub(crate) fn ask_for_snapshot(&self, node: Process) {
        if let Some(running) = self.cluster.running(node) {
            self.count("snapshot asked for");
            scope::spawn_in(node, async move {
                let _ = running.consensus.node().trigger_snapshot().await;
            });
        }
    }

    /// All is well from now on.
    pub fn end(&self) {
        tell!("the storm is over");
        self.state(|state| state.over = true);
        self.cluster.judge.traps.clear();
        self.cluster.network.heal_all();
        self.cluster.network.set_weather(Weather::default());
        for node in self.cluster.nodes() {
            scope::resume(node);
            scope::resume(loops_of(node));
            self.cluster.network.refuse_no_more(node);
            self.cluster.set_slowness(node, 1);
            self.cluster.fill(node, false);
            self.cluster
                .clock(node)
                .set_right(chance::between(0, 200) as i64 - 100);
            if self.cluster.condition(node) != Condition::Up && !self.cluster.is_left_out(node) {
                self.cluster.crash(node, Crash::Kill);
                self.cluster.start(node);
            }
        }
        let duplicates = self.state(|state| std::mem::take(&mut state.duplicates));
        duplicates.into_iter().for_each(scope::kill);
        for worker in &self.workers {
            self.cluster.network.unfreeze(worker.process);
            scope::resume(worker.process);
            self.revive(worker);
        }
    }

    /// Starts again what ended by itself after the storm, because of a fault that was put in before.
    pub fn mend(&self) {
        for node in self.cluster.nodes() {
            let ended = matches!(self.cluster.condition(node), Condition::Ended(_));
            if self.lose_power(node) {
                self.cluster.start(node);
            } else if ended && !self.cluster.is_left_out(node) {
                self.cluster.crash(node, Crash::Kill);
                self.cluster.start(node);
            }
        }
    }
}

/// A machine's clock that runs up to so much faster or slower, and is off by up to a second.
pub fn clock(drift_ppm: u64) -> Arc<MachineClock> {
    let drift = chance::between(0, 2 * drift_ppm + 1) as i64 - drift_ppm as i64;
    let base_ms = chance::between(1_000, 100_000_000);
    MachineClock::new(drift, base_ms, chance::between(0, 2_000) as i64 - 1_000)
}
