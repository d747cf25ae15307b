//! Faults that wait for a moment of the protocol: the next time something happens, something goes wrong.
//!
//! A fault that comes by the clock seldom hits the instant between two steps that belong together. A trap
//! does: it is shown each moment and strikes at the one it waits for. What it does happens in a task of the
//! world, before the process that ran into it goes on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_machine::{Command, Outcome, Proposal};
use tenure_raft::transport::Lane;
use tenure_raft::wire::PeerRequest;
use tokio::time::sleep;

use crate::chance;
use crate::cluster::Condition;
use crate::faults::Storm;
use crate::network::name;
use crate::node::Crash;
use crate::scope::{self, Process, WORLD};
use crate::site::FIRST_EXECUTOR;
use crate::tell;

/// A moment of the protocol.
#[derive(Clone, Copy)]
pub enum Moment<'a> {
    /// An entry is applied for the first time anywhere, by this node, and nobody was answered yet. The
    /// node's state is locked.
    Committed {
        /// The node.
        node: Process,
        /// What was proposed.
        proposal: &'a Proposal,
        /// What came of it.
        outcome: &'a Outcome,
    },
    /// A request leaves a node for another one.
    Sent {
        /// The sender.
        from: Process,
        /// The target.
        to: Process,
        /// The lane.
        lane: Lane,
        /// What it says, where that is not opaque or a part of something.
        request: Option<&'a PeerRequest>,
    },
    /// A node is about to sync a file or a folder.
    Syncs {
        /// The node.
        node: Process,
    },
}

/// True at the moment it waits for: then it is gone.
pub type Trap = Box<dyn FnMut(Moment<'_>) -> bool + Send>;

/// The traps that wait.
#[derive(Default)]
pub struct Traps(Mutex<Vec<Trap>>);

impl Traps {
    /// Sets one.
    pub fn set(&self, trap: impl FnMut(Moment<'_>) -> bool + Send + 'static) {
        self.with(|traps| traps.push(Box::new(trap)));
    }

    /// Shows a moment to all of them; whether one struck.
    pub fn offer(&self, moment: Moment<'_>) -> bool {
        self.with(|traps| {
            let before = traps.len();
            traps.retain_mut(|trap| !trap(moment));
            traps.len() < before
        })
    }

    /// Takes all away.
    pub fn clear(&self) {
        let traps = self.with(std::mem::take);
        drop(traps);
    }

    fn with<R>(&self, look: impl FnOnce(&mut Vec<Trap>) -> R) -> R {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a client or an executor waits for an answer to.
pub fn is_answered(command: &Command) -> bool {
    matches!(
        command,
        Command::PutJob { .. }
            | Command::DeleteJob { .. }
            | Command::PauseJob { .. }
            | Command::ResumeJob { .. }
            | Command::TriggerJob { .. }
            | Command::StartTask { .. }
            | Command::Checkpoint { .. }
            | Command::ReportResult { .. }
    )
}

impl Storm {
    /// Sets a trap of some kind.
    pub(crate) fn set_trap(self: &Arc<Self>) {
        match chance::between(0, 5) {
            0 => self.trap_a_sync(),
            1 => self.trap_a_reply(),
            2 => self.trap_a_grant(),
            3 => self.trap_a_takeover(),
            _ => self.trap_a_snapshot(),
        }
    }

    /// The leader dies just before a sync.
    fn trap_a_sync(self: &Arc<Self>) {
        let (storm, mut passes) = (self.clone(), chance::between(0, 6));
        self.cluster.judge.traps.set(move |moment| {
            let Moment::Syncs { node } = moment else {
                return false;
            };
            if !storm.cluster.leaders().contains(&node) {
                return false;
            }
            if passes > 0 {
                passes -= 1;
                return false;
            }
            storm.strike_down(node, "death of the leader before a sync");
            true
        });
    }

    /// The leader dies, or is cut off, when an entry is committed and its client not yet told.
    fn trap_a_reply(self: &Arc<Self>) {
        let storm = self.clone();
        self.cluster.judge.traps.set(move |moment| {
            let Moment::Committed { node, proposal, .. } = moment else {
                return false;
            };
            if !is_answered(&proposal.command) {
                return false;
            }
            let kind = "death or cut between commit and reply";
            if chance::happens(300) {
                storm.fall_silent(node, kind);
            } else {
                storm.strike_down(node, kind);
            }
            true
        });
    }

    /// The leader or the executor dies when a task is granted and the executor not yet told.
    fn trap_a_grant(self: &Arc<Self>) {
        let storm = self.clone();
        self.cluster.judge.traps.set(move |moment| {
            let Moment::Committed { node, proposal, .. } = moment else {
                return false;
            };
            let Command::Assign { session, .. } = &proposal.command else {
                return false;
            };
            let kind = "death between grant and delivery";
            let state = storm.cluster.judge.replay();
            let worker = state.session(*session).and_then(|session| {
                let number = session.instance.as_str().strip_prefix("executor-")?;
                number.parse::<usize>().ok()
            });
            match worker.filter(|_| chance::happens(400)) {
                Some(worker) => storm.strike_executor(FIRST_EXECUTOR + worker, kind),
                None => storm.strike_down(node, kind),
            }
            true
        });
    }

    /// When a task has begun under its next owner, what was said under the last one comes once more.
    fn trap_a_takeover(self: &Arc<Self>) {
        let (storm, mut begun) = (self.clone(), BTreeMap::new());
        self.cluster.judge.traps.set(move |moment| {
            let Moment::Committed {
                node,
                proposal,
                outcome,
            } = moment
            else {
                return false;
            };
            let Command::StartTask { task, .. } = &proposal.command else {
                return false;
            };
            if outcome.reply.is_err() {
                return false;
            }
            let before = begun.insert((task.run, task.shard), task.epoch);
            if before.is_none_or(|epoch| epoch == task.epoch) {
                return false;
            }
            let storm = storm.clone();
            scope::spawn_in(WORLD, async move {
                storm.count("words of a former owner after a takeover");
                storm.cluster.network.say_again(node);
            });
            true
        });
    }

    /// A follower stays away until it needs a snapshot; amid its transfer one of both ends dies.
    fn trap_a_snapshot(self: &Arc<Self>) {
        let followers: Vec<Process> = self
            .cluster
            .nodes()
            .into_iter()
            .filter(|node| {
                self.cluster.condition(*node) == Condition::Up
                    && !self.cluster.leaders().contains(node)
            })
            .collect();
        if followers.is_empty() {
            return;
        }
        let follower = chance::one_of(&followers);
        tell!("{} is away until it needs a snapshot", name(follower));
        self.cluster.crash(follower, Crash::Kill);
        let away_ms = chance::between(6_000, 15_000);
        self.restart_later(follower, away_ms);
        let storm = self.clone();
        scope::spawn_in(WORLD, async move {
            sleep(Duration::from_millis(away_ms - 1_000)).await;
            // Whoever leads then has purged what the follower lacks.
            for node in storm.cluster.nodes() {
                storm.ask_for_snapshot(node);
            }
        });
        let (storm, mut passes) = (self.clone(), chance::between(0, 3));
        self.cluster.judge.traps.set(move |moment| {
            let Moment::Sent { from, to, lane, .. } = moment else {
                return false;
            };
            if lane != Lane::Snapshot {
                return false;
            }
            if passes > 0 {
                passes -= 1;
                return false;
            }
            let victim = if chance::happens(500) { from } else { to };
            if chance::happens(250) {
                storm.fail_a_sync(to, chance::between(0, 3));
            } else {
                storm.strike_down(victim, "death amid a snapshot transfer");
            }
            true
        });
    }

    /// A node dies before it goes on with what it does now.
    fn strike_down(self: &Arc<Self>, node: Process, kind: &'static str) {
        let storm = self.clone();
        let crash = chance::one_of(&[Crash::Kill, Crash::PowerLoss]);
        scope::spawn_in(WORLD, async move { storm.crash(node, kind, crash) });
    }

    fn strike_executor(self: &Arc<Self>, process: Process, kind: &'static str) {
        let storm = self.clone();
        scope::spawn_in(WORLD, async move {
            storm.count(kind);
            storm.kill_executor(process);
        });
    }

    /// Nothing that a node says reaches anybody, for a while.
    fn fall_silent(self: &Arc<Self>, node: Process, kind: &'static str) {
        let listeners = (1..scope::PROCESSES).filter(|listener| *listener != node);
        let cuts = listeners.map(|listener| (node, listener)).collect();
        // At once: the answer is on its way when the task of the world would run.
        self.cut(kind, cuts, node);
    }
}
