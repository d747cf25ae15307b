//! The replicated state.
//!
//! Everything is in persistent (copy-on-write) maps, so a clone is O(1): a snapshot is a clone that is
//! written out while `apply` goes on. What loops need to find is indexed here too, so that no loop scans
//! everything: due jobs, deadlines, the queues of waiting tasks.
//!
//! Invariant: the indexes ([`Index`]) follow from the entities. They are not written to a snapshot; reading
//! one builds them again, and `check` compares.

mod entities;
mod index;
mod records;

use std::sync::Arc;

use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};

pub use entities::*;
pub use index::{Index, Requirement};
pub(crate) use index::{JobKeys, TaskKeys, task_limit};
pub use records::{Record, RecordError, StateBuilder};

use crate::{MAX_GRACE_MS, Name, RunKey, Stamp};

/// The whole replicated state. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(crate) meta: Meta,
    pub(crate) counters: OrdMap<Counter, u64>,
    pub(crate) terms: Vector<TermRecord>,
    pub(crate) jobs: OrdMap<Name, Arc<Job>>,
    pub(crate) shards: OrdMap<(Name, u32), Arc<Shard>>,
    pub(crate) runs: OrdMap<u64, Arc<Run>>,
    pub(crate) tasks: OrdMap<(u64, u32), Arc<Task>>,
    pub(crate) sessions: OrdMap<u64, Arc<Session>>,
    pub(crate) ended: OrdMap<u64, Arc<EndedSession>>,
    pub(crate) requests: OrdMap<Name, Arc<RequestRecord>>,
    pub(crate) index: Index,
}

/// What there is one of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The cluster's identity; `None` before `Bootstrap`.
    pub cluster_id: Option<Name>,
    /// Grows with each restore.
    pub generation: u64,
    /// The two clocks: the highest stamp that was seen.
    pub clock: Stamp,
    /// No lease ends before this reading of the lease clock.
    pub grace_until_lease_ms: u64,
    /// Shards of new jobs count on from here: the highest epoch of any shard that was removed.
    pub epoch_floor: u64,
    /// The first instant of a new job is later than this: the last instant decided for any job that was
    /// removed. So a job that comes back under its name cannot decide an instant again.
    pub fire_floor_ms: u64,
    /// The last link of the audit chain.
    pub audit_seq: u64,
    /// Its hash.
    pub audit_hash: [u8; 32],
}

impl State {
    /// The state of a cluster in which nothing has happened.
    pub fn new() -> Self {
        Self::default()
    }

    /// What there is one of.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The two clocks.
    pub fn clock(&self) -> Stamp {
        self.meta.clock
    }

    /// A counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(&counter).copied().unwrap_or(0)
    }

    /// The latest terms, oldest first.
    pub fn terms(&self) -> impl Iterator<Item = &TermRecord> {
        self.terms.iter()
    }

    /// A job.
    pub fn job(&self, name: &Name) -> Option<&Arc<Job>> {
        self.jobs.get(name)
    }

    /// How many jobs there are.
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// The jobs behind a name, in order of their names; from the first one for `None`.
    pub fn jobs_after(&self, name: Option<&Name>) -> impl Iterator<Item = &Arc<Job>> {
        range_after(&self.jobs, name)
    }

    /// A run that is still live: waiting, active or lately finished.
    pub fn run(&self, id: u64) -> Option<&Arc<Run>> {
        self.runs.get(&id)
    }

    /// How many runs are live.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// The live runs before an id, the newest first.
    pub fn runs_before(&self, id: Option<u64>) -> impl Iterator<Item = &Arc<Run>> {
        self.runs
            .range(..id.unwrap_or(u64::MAX))
            .rev()
            .map(|(_, run)| run)
    }

    /// The run with a key, if it is still live.
    pub fn run_by_key(&self, key: &RunKey) -> Option<u64> {
        self.index.runs_by_key.get(key).copied()
    }

    /// A task of a live run.
    pub fn task(&self, run: u64, shard: u32) -> Option<&Arc<Task>> {
        self.tasks.get(&(run, shard))
    }

    /// The tasks of a live run by shard.
    pub fn tasks_of(&self, run: u64) -> impl Iterator<Item = &Arc<Task>> {
        self.tasks
            .range((run, 0)..=(run, u32::MAX))
            .map(|(_, task)| task)
    }

    /// What outlives the runs of a shard.
    pub fn shard(&self, job: &Name, index: u32) -> Option<&Arc<Shard>> {
        self.shards.get(&(job.clone(), index))
    }

    /// What outlives the runs of a job's shards, by shard.
    pub fn shards_of(&self, job: &Name) -> impl Iterator<Item = &Arc<Shard>> {
        self.shards
            .range((job.clone(), 0)..=(job.clone(), u32::MAX))
            .map(|(_, shard)| shard)
    }

    /// A live session.
    pub fn session(&self, id: u64) -> Option<&Arc<Session>> {
        self.sessions.get(&id)
    }

    /// The live session of an instance.
    pub fn session_of(&self, instance: &Name) -> Option<&Arc<Session>> {
        self.index
            .instances
            .get(instance)
            .and_then(|id| self.sessions.get(id))
    }

    /// How many sessions are live.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// The live sessions behind an instance, in order of their instances.
    pub fn sessions_after(&self, instance: Option<&Name>) -> impl Iterator<Item = &Arc<Session>> {
        range_after(&self.index.instances, instance).filter_map(|id| self.sessions.get(id))
    }

    /// The tasks a session holds, by run and shard.
    pub fn held_by(&self, session: u64) -> impl Iterator<Item = &Arc<Task>> {
        self.index
            .held
            .range((session, 0, 0)..=(session, u64::MAX, u32::MAX))
            .filter_map(|(_, run, shard)| self.tasks.get(&(*run, *shard)))
    }

    /// How many tasks a session holds.
    pub fn held_count(&self, session: u64) -> u32 {
        self.index.held_counts.get(&session).copied().unwrap_or(0)
    }

    /// Why a session ended, if that is remembered.
    pub fn ended_session(&self, id: u64) -> Option<&Arc<EndedSession>> {
        self.ended.get(&id)
    }

    /// How many tasks wait for a grant.
    pub fn queued_count(&self) -> usize {
        self.index.queued
    }

    /// The indexes that plans are made from.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// When a lease with this deadline really ends: no sooner than the grace of the present term, but leaders
    /// that come and go faster than a grace do not keep it for ever.
    pub fn effective_deadline(&self, deadline_lease_ms: u64) -> u64 {
        let grace = self.meta.grace_until_lease_ms;
        deadline_lease_ms.max(grace.min(deadline_lease_ms.saturating_add(MAX_GRACE_MS)))
    }

    /// Where the epoch of a shard stands, whether or not it was ever granted.
    pub fn shard_epoch(&self, job: &Name, index: u32) -> u64 {
        self.shard(job, index)
            .map_or(self.meta.epoch_floor, |shard| shard.epoch)
    }
}

fn range_after<'a, V: Clone>(
    map: &'a OrdMap<Name, V>,
    after: Option<&Name>,
) -> impl Iterator<Item = &'a V> {
    use std::ops::Bound;
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    map.range::<_, Name>((from, Bound::Unbounded))
        .map(|(_, value)| value)
}
