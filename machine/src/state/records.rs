//! The state as a sequence of records, for snapshots and for the state hash.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::*;
use crate::JobSpec;
use crate::codec::{self, CodecError, Kind};

/// One record of the state. Append-only: the order of the variants is part of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// What there is one of. The first record of every state.
    Meta(Meta),
    /// A counter.
    Counter(Counter, u64),
    /// A term.
    Term(TermRecord),
    /// A job.
    Job(Arc<Job>),
    /// A shard.
    Shard(Arc<Shard>),
    /// A run.
    Run(Arc<Run>),
    /// A task.
    Task(Arc<Task>),
    /// A live session.
    Session(Arc<Session>),
    /// An ended session.
    EndedSession(Arc<EndedSession>),
    /// An idempotency result.
    Request(Arc<RequestRecord>),
}

/// Why records do not make a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A record could not be read.
    #[error("a state record could not be read: {0}")]
    Codec(#[from] CodecError),
    /// The first record is missing.
    #[error("the state has no meta record")]
    NoMeta,
    /// A task without its run.
    #[error("task {shard} of run {run} has no run")]
    TaskWithoutRun {
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
    },
}

impl State {
    /// The records of the state, in an order that is the same on every replica.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        std::iter::once(Record::Meta(self.meta.clone()))
            .chain(
                self.counters
                    .iter()
                    .map(|(counter, value)| Record::Counter(*counter, *value)),
            )
            .chain(self.terms.iter().map(|term| Record::Term(*term)))
            .chain(self.jobs.values().map(|job| Record::Job(job.clone())))
            .chain(
                self.shards
                    .values()
                    .map(|shard| Record::Shard(shard.clone())),
            )
            .chain(self.runs.values().map(|run| Record::Run(run.clone())))
            .chain(self.tasks.values().map(|task| Record::Task(task.clone())))
            .chain(
                self.sessions
                    .values()
                    .map(|session| Record::Session(session.clone())),
            )
            .chain(
                self.ended
                    .values()
                    .map(|ended| Record::EndedSession(ended.clone())),
            )
            .chain(
                self.requests
                    .values()
                    .map(|request| Record::Request(request.clone())),
            )
    }

    /// SHA-256 over all records. Equal on replicas that applied the same entries. O(n).
    pub fn hash(&self) -> Result<[u8; 32], CodecError> {
        let mut hasher = Sha256::new();
        let mut buffer = Vec::new();
        for record in self.records() {
            buffer.clear();
            codec::encode_into(Kind::SnapshotRecord, &record, &mut buffer)?;
            hasher.update(&buffer);
        }
        Ok(hasher.finalize().into())
    }

    /// Whether the indexes are what the entities say. For tests.
    pub fn check(&self) -> bool {
        self.index == Index::of(self)
    }
}

/// Makes a state from its records.
#[derive(Debug, Default)]
pub struct StateBuilder {
    state: State,
    meta_seen: bool,
    specs: BTreeMap<(Name, u64), Arc<JobSpec>>,
}

impl StateBuilder {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one record.
    pub fn push(&mut self, record: Record) {
        let state = &mut self.state;
        match record {
            Record::Meta(meta) => {
                state.meta = meta;
                self.meta_seen = true;
            }
            Record::Counter(counter, value) => {
                state.counters.insert(counter, value);
            }
            Record::Term(term) => state.terms.push_back(term),
            Record::Job(job) => {
                self.specs
                    .insert((job.name.clone(), job.revision), job.spec.clone());
                state.jobs.insert(job.name.clone(), job);
            }
            Record::Shard(shard) => {
                state.shards.insert((shard.job.clone(), shard.index), shard);
            }
            Record::Run(mut run) => {
                // Runs share the definition of their revision; keep it so.
                let key = (run.key.job().clone(), run.revision);
                let spec = self
                    .specs
                    .entry(key)
                    .or_insert_with(|| run.spec.clone())
                    .clone();
                if spec == run.spec {
                    Arc::make_mut(&mut run).spec = spec;
                }
                state.runs.insert(run.id, run);
            }
            Record::Task(task) => {
                state.tasks.insert((task.run, task.shard), task);
            }
            Record::Session(session) => {
                state.sessions.insert(session.id, session);
            }
            Record::EndedSession(ended) => {
                state.ended.insert(ended.id, ended);
            }
            Record::Request(request) => {
                state.requests.insert(request.key.clone(), request);
            }
        }
    }

    /// The state, with its indexes.
    pub fn finish(mut self) -> Result<State, RecordError> {
        if !self.meta_seen {
            return Err(RecordError::NoMeta);
        }
        for task in self.state.tasks.values() {
            if !self.state.runs.contains_key(&task.run) {
                return Err(RecordError::TaskWithoutRun {
                    run: task.run,
                    shard: task.shard,
                });
            }
        }
        self.state.index = Index::of(&self.state);
        Ok(self.state)
    }
}
