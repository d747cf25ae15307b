//! Questions about what is over, off the runtime.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use tenure_machine::codec::{self, Kind};
use tenure_machine::{FireDecision, Name, Run, Task};
use tenure_storage::archive::{Archive, Page, Scan, Table};

use super::{Feed, keys};
use crate::blocking::Blocking;
use crate::http::history::{FinishedRun, FinishedSummary, History, HistoryError, OutputChunk};

/// The archive of a node as the interface sees it.
pub struct ArchiveHistory {
    archive: Arc<dyn Archive>,
    feed: Arc<Feed>,
    blocking: Blocking,
}

impl ArchiveHistory {
    /// Reads this archive, behind this feed.
    pub fn new(archive: Arc<dyn Archive>, feed: Arc<Feed>, blocking: Blocking) -> Arc<Self> {
        Arc::new(Self {
            archive,
            feed,
            blocking,
        })
    }

    /// Asks where work may block, when everything applied before is in. While facts are missing there is no
    /// answer: a list would be short without a word, and a run that is over would not be known.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Archive) -> Result<T, HistoryError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, HistoryError>> {
        let archive = self.archive.clone();
        Box::pin(async move {
            self.whole()?;
            self.feed.settled().await;
            let answer = self.blocking.run(move || question(&*archive)).await;
            // It may have been filled anew meanwhile.
            self.whole()?;
            answer.map_err(failed)?
        })
    }

    fn whole(&self) -> Result<(), HistoryError> {
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::PartOfTheArchive) {
            return Ok(());
        }
        if self.feed.complete() {
            return Ok(());
        }
        Err(HistoryError::Incomplete)
    }
}

fn failed(error: impl std::fmt::Display) -> HistoryError {
    HistoryError::Unreadable(error.to_string())
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HistoryError> {
    codec::decode(Kind::ArchiveRecord, bytes).map_err(failed)
}

fn finished(archive: &dyn Archive, id: u64) -> Result<Option<FinishedRun>, HistoryError> {
    let Some(bytes) = archive.get(Table::Runs, &keys::run(id)).map_err(failed)? else {
        return Ok(None);
    };
    let (run, tasks): (Arc<Run>, Vec<Arc<Task>>) = read(&bytes)?;
    Ok(Some(FinishedRun { run, tasks }))
}

fn scan(archive: &dyn Archive, table: Table, scan: &Scan) -> Result<Page, HistoryError> {
    archive.scan(table, scan).map_err(failed)
}

impl History for ArchiveHistory {
    fn complete(&self) -> bool {
        self.feed.complete()
    }

    fn run(&self, id: u64) -> BoxFuture<'_, Result<Option<FinishedRun>, HistoryError>> {
        self.ask(move |archive| finished(archive, id))
    }

    fn runs_before(
        &self,
        job: Option<Name>,
        before: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<FinishedSummary>, HistoryError>> {
        self.ask(move |archive| {
            let (from, until) = match &job {
                Some(job) => (keys::run_of_job(job, 0), keys::run_of_job(job, before)),
                None => (keys::run(0), keys::run(before)),
            };
            let newest_first = Scan {
                from: Some(from),
                until: Some(until),
                backward: true,
                cursor: None,
                limit,
            };
            let page = scan(archive, Table::Runs, &newest_first)?;
            let mut found = Vec::with_capacity(page.records.len());
            for (key, _) in &page.records {
                let Some(id) = keys::run_in(key) else {
                    continue;
                };
                if let Some(finished) = finished(archive, id)? {
                    found.push(FinishedSummary::from(&finished));
                }
            }
            Ok(found)
        })
    }

    fn decisions(
        &self,
        job: Name,
        from_ms: u64,
        before_ms: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<FireDecision>, HistoryError>> {
        self.ask(move |archive| {
            let latest_first = Scan {
                from: Some(keys::decision(&job, 0)),
                until: Some(keys::decision(&job, before_ms)),
                backward: true,
                cursor: None,
                limit,
            };
            let mut found = Vec::new();
            for (_, bytes) in scan(archive, Table::FireLedger, &latest_first)?.records {
                let decision: FireDecision = read(&bytes)?;
                if decision.last_ms < from_ms {
                    break;
                }
                found.push(decision);
            }
            Ok(found)
        })
    }

    fn decision_at(
        &self,
        job: Name,
        instant_ms: u64,
    ) -> BoxFuture<'_, Result<Option<FireDecision>, HistoryError>> {
        self.ask(move |archive| {
            let last_begun = Scan {
                from: Some(keys::decision(&job, 0)),
                until: Some(keys::decision(&job, instant_ms.saturating_add(1))),
                backward: true,
                cursor: None,
                limit: 1,
            };
            let page = scan(archive, Table::FireLedger, &last_begun)?;
            let Some((_, bytes)) = page.records.first() else {
                return Ok(None);
            };
            let decision: FireDecision = read(bytes)?;
            Ok((decision.last_ms >= instant_ms).then_some(decision))
        })
    }

    fn output(
        &self,
        run: u64,
        shard: u32,
    ) -> BoxFuture<'_, Result<Vec<OutputChunk>, HistoryError>> {
        self.ask(move |archive| {
            let of_task = Scan {
                from: Some(keys::output(run, shard, 0)),
                until: Some(keys::output(run, shard, u64::MAX)),
                limit: 4_096,
                ..Scan::default()
            };
            let page = scan(archive, Table::RunOutput, &of_task)?;
            let mut found = Vec::with_capacity(page.records.len());
            for (key, bytes) in &page.records {
                let Some(position_bytes) = keys::run_in(key) else {
                    continue;
                };
                let (epoch, text) = read(bytes)?;
                found.push(OutputChunk {
                    epoch,
                    position_bytes,
                    text,
                });
            }
            Ok(found)
        })
    }
}
