//! What was acknowledged is in the log, for ever.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{Command, Event, Reply, TaskRef};

use super::Invariant;
use crate::judge::{Ack, Call, Findings, Seen};

/// What the log holds, and what clients were told.
#[derive(Default)]
pub(super) struct AcknowledgedSurvives {
    changed_jobs: BTreeMap<u64, String>,
    triggers: BTreeMap<u64, ()>,
    checkpoints: BTreeSet<(u64, u32, u64, u64)>,
    keys: BTreeMap<String, u64>,
    sessions: BTreeSet<u64>,
    /// Where each session was renewed last.
    renewed: BTreeMap<u64, u64>,
    started: BTreeSet<(u64, u64, u64)>,
    ended: BTreeSet<(u64, u64, u64)>,
}

impl Invariant for AcknowledgedSurvives {
    fn sentence(&self) -> &'static str {
        "what was acknowledged is in the log, and the repeats of a request are one"
    }

    fn reason(&self) -> &'static str {
        "an acknowledgement that can be taken back is none"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                let Some(outcome) = entry.outcome else {
                    return;
                };
                for event in &outcome.events {
                    match event {
                        Event::JobChanged { job } => {
                            self.changed_jobs.insert(entry.at.index, job.to_string());
                        }
                        Event::RunCreated(run) => {
                            self.triggers.insert(run.id, ());
                        }
                        _ => {}
                    }
                }
                let command = entry.proposal.map(|proposal| &proposal.command);
                if let (Some(command), Ok(reply)) = (command, &outcome.reply) {
                    self.carried_out(entry.at.index, command, reply);
                }
            }
            Seen::Acknowledged(call) => self.acknowledged(call, findings),
            _ => {}
        }
    }
}

impl AcknowledgedSurvives {
    fn carried_out(&mut self, index: u64, command: &Command, reply: &Reply) {
        let grant = |task: &TaskRef| (task.run, u64::from(task.shard), task.epoch);
        match (command, reply) {
            (Command::Checkpoint { task, .. }, Reply::Checkpointed { offset }) => {
                let key = (task.run, task.shard, task.epoch, *offset);
                self.checkpoints.insert(key);
            }
            (Command::RegisterSession(_), Reply::Session { session, .. }) => {
                self.sessions.insert(*session);
            }
            (Command::Heartbeat(beat), _) => {
                self.renewed.insert(beat.session, index);
            }
            (Command::StartTask { task, .. }, _) => {
                self.started.insert(grant(task));
            }
            (Command::ReportResult { task, .. }, _) => {
                self.ended.insert(grant(task));
            }
            _ => {}
        }
    }

    fn acknowledged(&mut self, call: &Call, findings: &mut Findings) {
        let ack = &call.ack;
        let known = match ack {
            Ack::Registered(session) => self.sessions.contains(session),
            // Each renewal is an entry of its own, behind the moment at which it was asked for.
            Ack::Renewed(session) => {
                let renewed = self.renewed.get(session);
                renewed.is_some_and(|index| *index >= call.committed)
            }
            Ack::Started(grant) => self.started.contains(grant),
            Ack::Ended(grant) => self.ended.contains(grant),
            Ack::Job { name, revision, .. } => self.changed_jobs.get(revision) == Some(name),
            // That these are true is for `real_time_order`, `runs_are_found` and `no_means_no`.
            Ack::Read { .. }
            | Ack::NoJob { .. }
            | Ack::Paused { .. }
            | Ack::Deleted { .. }
            | Ack::Cancelled { .. }
            | Ack::Missing { .. }
            | Ack::Listed { .. }
            | Ack::Run { .. }
            | Ack::Ledger { .. }
            | Ack::Nothing { .. } => true,
            Ack::Trigger { key, run } => {
                let first = *self.keys.entry(key.clone()).or_insert(*run);
                if first != *run {
                    findings.add(format!("key {key} made run {first} and run {run}"));
                }
                self.triggers.contains_key(run)
            }
            Ack::Checkpoint {
                run,
                shard,
                epoch,
                offset,
            } => self.checkpoints.contains(&(*run, *shard, *epoch, *offset)),
        };
        if !known {
            findings.add(format!("{ack:?} is not in the log"));
        }
    }
}
