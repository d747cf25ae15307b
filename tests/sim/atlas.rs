//! The atlas of faults: which may come together, and what is owed meanwhile.
//!
//! **Safety is owed always.** Every invariant is checked after every step, whatever is broken. That needs one
//! limit only: what a majority has acknowledged must be on a disk that can be read again.
//!
//! | fault | how many nodes at once | why |
//! | --- | --- | --- |
//! | killed, without power, suspended, cut off, slow | all | nothing is lost that was synced |
//! | a sync that fails, a full disk | all | the node ends before it says that anything is durable |
//! | **damage of what was durable**: flipped bits, a misdirected write | a minority in a run | a third copy cannot be had from two that are bad |
//!
//! A damaged node finds the damage at its start or when it reads, and then takes no part. There is no way yet
//! to give it a new number and a new folder (changing the members is not built), so it is **left out**: nobody
//! starts it again, and in the calm it owes nothing. One that starts in spite of the damage, because a
//! snapshot or the log around it made the damaged bytes needless, is a member like any other and must be equal
//! to all.
//!
//! Damage keeps away from what was synced last: for up to eight batches, or about 100 ms, the log has no mark
//! of it, and their loss looks like a torn tail (`storage/src/wal/mod.rs` says so). That is one lost copy more
//! than Raft is built for, and no test can ask for it to be survived.
//!
//! **Liveness is owed where a majority is well**: it runs, is not suspended, its disks are fast, and its
//! members hear each other, the same ones for a while. Then the log must grow, and no due instant may stay
//! undecided. In the calm all that is not left out is well, and all that was begun must end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure::clock::Clock as _;
use tokio::time::Instant;

use crate::cluster::{Cluster, Condition};
use crate::network::Weather;
use crate::scope::{self, Process};

/// Which nodes of a run are damaged, and which of them take no part any more.
#[derive(Debug, Default)]
pub struct Atlas {
    damaged: BTreeSet<Process>,
    left_out: BTreeSet<Process>,
}

impl Atlas {
    /// Lets a node of `nodes` be damaged, if it never was and a minority is damaged then.
    pub fn claim(&mut self, node: Process, nodes: usize) -> bool {
        self.may_claim(node, nodes) && self.damaged.insert(node)
    }

    /// Whether a node of `nodes` may be damaged.
    pub fn may_claim(&self, node: Process, nodes: usize) -> bool {
        let minority = (nodes - 1) / 2;
        self.damaged.len() < minority && !self.damaged.contains(&node)
    }

    /// Whether a node's disk was damaged.
    pub fn is_damaged(&self, node: Process) -> bool {
        self.damaged.contains(&node)
    }

    /// A damaged node refused to start.
    pub fn leave_out(&mut self, node: Process) {
        self.left_out.insert(node);
    }

    /// Whether a node takes no part any more.
    pub fn is_left_out(&self, node: Process) -> bool {
        self.left_out.contains(&node)
    }
}

/// Sees that a majority that is well goes on.
pub struct Watchdog {
    limit: Duration,
    well: BTreeSet<Process>,
    since: Instant,
    committed: u64,
    /// The instants that were due at the last look, and since when.
    overdue: BTreeMap<(String, u64), Instant>,
    /// How many times it was owed that the log grows, and did.
    pub owed: u64,
}

impl Watchdog {
    /// A watchdog that gives a majority `limit` from when it became well.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            well: BTreeSet::new(),
            since: Instant::now(),
            committed: 0,
            overdue: BTreeMap::new(),
            owed: 0,
        }
    }

    /// Looks at the cluster; says what is wrong.
    pub fn look(&mut self, cluster: &Cluster) -> Option<String> {
        let committed = cluster.judge.committed();
        let fine = |nodes: &BTreeSet<Process>| {
            nodes.len() * 2 > cluster.nodes().len() && are_well(cluster, nodes)
        };
        if !fine(&self.well) {
            self.well = majorities(&cluster.nodes())
                .into_iter()
                .find(fine)
                .unwrap_or_default();
            self.begin(committed);
            self.overdue.clear();
            return None;
        }
        if let Some(what) = self.look_at_instants(cluster) {
            return Some(what);
        }
        if self.since.elapsed() < self.limit {
            return None;
        }
        let stands = committed == self.committed;
        self.owed += u64::from(!stands);
        self.begin(committed);
        stands.then(|| format!("{:?} were well for {:?}", self.well, self.limit))
    }

    /// An instant that is due by the clock of who leads is decided within the limit.
    fn look_at_instants(&mut self, cluster: &Cluster) -> Option<String> {
        let leaders = cluster.leaders();
        let leader = leaders.into_iter().find(|node| self.well.contains(node))?;
        let now_ms = cluster.clock(leader).wall_ms();
        let state = cluster.judge.replay();
        let due = state.jobs_after(None).filter_map(|job| {
            let due_ms = job.next_fire_ms.filter(|_| job.paused_at_ms.is_none())?;
            (due_ms < now_ms).then(|| (job.name.to_string(), due_ms))
        });
        let before = std::mem::take(&mut self.overdue);
        let since = |key: &(String, u64)| before.get(key).copied().unwrap_or_else(Instant::now);
        self.overdue = due.map(|key| (key.clone(), since(&key))).collect();
        let late = self
            .overdue
            .iter()
            .find(|(_, since)| since.elapsed() > self.limit);
        let ((job, due_ms), since) = late?;
        let what = format!(
            "{job} was due at {due_ms}, which n{leader}, whose clock shows {now_ms}, has not decided for {:?}",
            since.elapsed()
        );
        self.overdue.clear();
        Some(what)
    }

    fn begin(&mut self, committed: u64) {
        self.since = Instant::now();
        self.committed = committed;
    }
}

/// All sets of nodes that are just a majority.
fn majorities(nodes: &[Process]) -> Vec<BTreeSet<Process>> {
    let least = nodes.len() / 2 + 1;
    let sets = (0_u32..1 << nodes.len()).filter(|set| set.count_ones() as usize == least);
    sets.map(|set| {
        let members = nodes.iter().enumerate();
        let members = members.filter(|(at, _)| set & (1 << at) != 0);
        members.map(|(_, node)| *node).collect()
    })
    .collect()
}

fn are_well(cluster: &Cluster, nodes: &BTreeSet<Process>) -> bool {
    let hears = |from: &Process| nodes.iter().all(|to| !cluster.network.is_cut(*from, *to));
    let Weather {
        delay_us: (_, longest_us),
        resent_per_mille,
        broken_per_mille,
        // A majority that is well answers what comes twice.
        copied_per_mille: _,
    } = cluster.network.weather();
    longest_us <= 20_000
        && resent_per_mille <= 5
        && broken_per_mille <= 3
        && nodes.iter().all(|node| {
            cluster.condition(*node) == Condition::Up
                && !scope::is_paused(*node)
                && !scope::is_paused(scope::loops_of(*node))
                && cluster.slowness(*node) == 1
                && hears(node)
        })
}
