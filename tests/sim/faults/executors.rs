//! What goes wrong with executors.

use std::sync::Arc;

use super::{Storm, Worker};
use crate::chance;
use crate::network::name;
use crate::scope::{self, Process};
use crate::tell;

impl Storm {
    fn worker(&self) -> Worker {
        self.workers[chance::between(0, self.workers.len() as u64) as usize].clone()
    }

    pub(super) fn crash_executor(self: &Arc<Self>) {
        let worker = self.worker();
        self.count("crash of an executor");
        self.kill_executor(worker.process);
    }

    /// Ends the process of an executor, and starts it again later.
    pub(crate) fn kill_executor(self: &Arc<Self>, process: Process) {
        let Some(worker) = self.workers.iter().find(|w| w.process == process).cloned() else {
            return;
        };
        tell!("{} is killed", name(process));
        scope::kill(process);
        let after_ms = chance::between(20, 15_000);
        self.undo_later(after_ms, move |storm| storm.revive(&worker));
    }

    pub(super) fn revive(&self, worker: &Worker) {
        scope::kill(worker.process);
        self.start(worker);
    }

    pub(super) fn pause_executor(self: &Arc<Self>) {
        let process = self.worker().process;
        let ms = chance::one_of(&[500, 5_000, 15_000, 30_000]);
        self.count("pause of an executor");
        tell!("{} is suspended for {ms} ms", name(process));
        scope::pause(process);
        self.undo_later(ms, move |_| {
            tell!("{} goes on", name(process));
            scope::resume(process);
        });
    }

    /// An executor stands still from the moment at which it has sent a heartbeat: the answer waits for it.
    pub(super) fn pause_at_heartbeat(self: &Arc<Self>) {
        let process = self.worker().process;
        let ms = chance::one_of(&[15_000, 30_000]);
        self.count("pause of an executor at a heartbeat");
        tell!(
            "{} is suspended at its next heartbeat, for up to {ms} ms",
            name(process)
        );
        self.cluster.network.freeze_at_heartbeat(process);
        self.undo_later(ms, move |storm| {
            tell!("{} goes on", name(process));
            storm.cluster.network.unfreeze(process);
            scope::resume(process);
        });
    }

    /// A second process under the same instance id, for a while.
    pub(super) fn duplicate_executor(self: &Arc<Self>) {
        let worker = self.worker();
        let process = worker.process + 20;
        if !self.state(|state| state.duplicates.insert(process)) {
            return;
        }
        self.count("second process of an executor");
        self.start(&Worker {
            process,
            ..worker.clone()
        });
        self.undo_later(chance::between(1_000, 20_000), move |storm| {
            tell!("{} is killed", name(process));
            scope::kill(process);
            storm.revive(&worker);
            storm.state(|state| state.duplicates.remove(&process));
        });
    }
}
