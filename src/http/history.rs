//! What the interface asks of the archive: finished runs, the fire ledger, output.
//!
//! The archive is fed from the events of `apply`. Either it knows no less than the state that a read returned
//! before it was asked, or it says that it misses facts. Implementations that wait for a disk do that off the runtime; hence the futures.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tenure_machine::{Event, FireDecision, Name, Run, Task};

use super::view::TaskTally;

/// Why the archive has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// It misses facts, and is being filled from another node.
    #[error("this node's archive misses facts and is being filled from another node's")]
    Incomplete,
    /// It cannot be read.
    #[error("the archive cannot be read: {0}")]
    Unreadable(String),
}

/// A finished run with its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedRun {
    /// The run as it ended.
    pub run: Arc<Run>,
    /// Its tasks by shard; none if it never began.
    pub tasks: Vec<Arc<Task>>,
}

/// A finished run as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedSummary {
    /// The run as it ended.
    pub run: Arc<Run>,
    /// What its tasks came to.
    pub tally: TaskTally,
}

impl From<&FinishedRun> for FinishedSummary {
    fn from(finished: &FinishedRun) -> Self {
        Self {
            run: finished.run.clone(),
            tally: TaskTally::of(&finished.run, finished.tasks.iter().map(Arc::as_ref)),
        }
    }
}

/// A piece of a task's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputChunk {
    /// The epoch that wrote it.
    pub epoch: u64,
    /// Where it begins in all output kept for the task, in bytes.
    pub position_bytes: u64,
    /// The text.
    pub text: String,
}

/// Reads the archive.
pub trait History: Send + Sync + 'static {
    /// Whether it has every fact that it should have. Else questions end with [`HistoryError::Incomplete`].
    fn complete(&self) -> bool {
        true
    }

    /// A finished run, if it is kept.
    fn run(&self, id: u64) -> BoxFuture<'_, Result<Option<FinishedRun>, HistoryError>>;

    /// At most `limit` finished runs with an id below `before`, the newest first; of one job or of all.
    fn runs_before(
        &self,
        job: Option<Name>,
        before: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<FinishedSummary>, HistoryError>>;

    /// At most `limit` decisions of a job whose first instant is below `before_ms` and whose last instant is
    /// at or after `from_ms`, the latest first. Decisions of one job never overlap.
    fn decisions(
        &self,
        job: Name,
        from_ms: u64,
        before_ms: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<FireDecision>, HistoryError>>;

    /// The decision whose instants include this one: the last one that begins at or before it, if it does not
    /// end before it.
    fn decision_at(
        &self,
        job: Name,
        instant_ms: u64,
    ) -> BoxFuture<'_, Result<Option<FireDecision>, HistoryError>>;

    /// The output that is kept for a task, in the order it was written.
    fn output(&self, run: u64, shard: u32)
    -> BoxFuture<'_, Result<Vec<OutputChunk>, HistoryError>>;
}

/// An archive in memory, for tests and simulations. It keeps everything.
#[derive(Debug, Default)]
pub struct MemoryHistory {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    runs: BTreeMap<u64, FinishedRun>,
    decisions: BTreeMap<(Name, u64), FireDecision>,
    output: BTreeMap<(u64, u32, u64), OutputChunk>,
}

impl MemoryHistory {
    /// An empty archive.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Keeps what these events say.
    pub fn record(&self, events: &[Event]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            match event {
                Event::Decided(decision) => {
                    let key = (decision.job.clone(), decision.first_ms);
                    kept.decisions.insert(key, decision.clone());
                }
                Event::RunFinished { run, tasks } => {
                    let finished = FinishedRun {
                        run: run.clone(),
                        tasks: tasks.clone(),
                    };
                    kept.runs.insert(run.id, finished);
                }
                Event::Output {
                    run,
                    shard,
                    epoch,
                    position_bytes,
                    text,
                } => {
                    let chunk = OutputChunk {
                        epoch: *epoch,
                        position_bytes: *position_bytes,
                        text: text.clone(),
                    };
                    kept.output.insert((*run, *shard, *position_bytes), chunk);
                }
                _ => {}
            }
        }
    }

    /// Forgets the decisions of a job before an instant, as retention would.
    pub fn forget_decisions(&self, job: &Name, before_ms: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.decisions
            .retain(|(name, first_ms), _| name != job || *first_ms >= before_ms);
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Kept) -> T,
    ) -> BoxFuture<'_, Result<T, HistoryError>> {
        let answer = question(&self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        Box::pin(std::future::ready(Ok(answer)))
    }
}

impl History for MemoryHistory {
    fn run(&self, id: u64) -> BoxFuture<'_, Result<Option<FinishedRun>, HistoryError>> {
        self.ask(|kept| kept.runs.get(&id).cloned())
    }

    fn runs_before(
        &self,
        job: Option<Name>,
        before: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<FinishedSummary>, HistoryError>> {
        self.ask(|kept| {
            kept.runs
                .range(..before)
                .rev()
                .map(|(_, finished)| finished)
                .filter(|finished| job.as_ref().is_none_or(|job| finished.run.key.job() == job))
                .take(limit)
                .map(FinishedSummary::from)
                .collect()
        })
    }

    fn decisions(
        &self,
        job: Name,
        from_ms: u64,
        before_ms: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<FireDecision>, HistoryError>> {
        self.ask(|kept| {
            kept.decisions
                .range((job.clone(), 0)..(job, before_ms))
                .rev()
                .map(|(_, decision)| decision.clone())
                .take_while(|decision| decision.last_ms >= from_ms)
                .take(limit)
                .collect()
        })
    }

    fn decision_at(
        &self,
        job: Name,
        instant_ms: u64,
    ) -> BoxFuture<'_, Result<Option<FireDecision>, HistoryError>> {
        self.ask(|kept| {
            kept.decisions
                .range((job.clone(), 0)..=(job, instant_ms))
                .next_back()
                .map(|(_, decision)| decision.clone())
                .filter(|decision| decision.last_ms >= instant_ms)
        })
    }

    fn output(
        &self,
        run: u64,
        shard: u32,
    ) -> BoxFuture<'_, Result<Vec<OutputChunk>, HistoryError>> {
        self.ask(|kept| {
            let of_task = (
                Bound::Included((run, shard, 0)),
                Bound::Included((run, shard, u64::MAX)),
            );
            kept.output
                .range(of_task)
                .map(|(_, chunk)| chunk.clone())
                .collect()
        })
    }
}
