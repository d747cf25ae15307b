//! What leaves the archive: finished runs by count and age of their job, decisions by age.
//!
//! Every node does this for itself, by the same rule, a little with each batch, so nothing is ever scanned as
//! a whole. Two ways find what is over the limit:
//!
//! - A job whose runs finish is looked at again after a few of them, from its oldest run on.
//! - A slow walk over everything finds what no event leads to: jobs that were deleted or stand still.
//!
//! What is removed goes with the next batch, so an idle cluster removes nothing, and keeps nothing new either.
//! Links of the audit chain are never removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_machine::codec::{self, Kind};
use tenure_machine::{Event, FireDecision, History, Name, Run, Task};
use tenure_storage::archive::{Archive, ArchiveError, Change, Scan, Table};

use super::keys;

/// Most records that one look removes, and about the most that one batch removes.
const BATCH: usize = 256;
/// A job is looked at after so many of its runs finished or instants were decided.
const LOOK_AFTER: u32 = 16;
/// Most jobs whose limits are remembered; the others are looked at when they come again.
const MAX_WATCHED: usize = 100_000;
/// How many records of a table the slow walk visits with each batch.
const WALK: usize = 8;
/// Decisions of a job whose limits are not known are kept so long: 30 days.
const UNKNOWN_AGE_MS: u64 = 30 * 86_400_000;

#[derive(Debug, Default)]
pub(super) struct Retention {
    watched: BTreeMap<Name, Watched>,
    /// Jobs that have to be looked at.
    due: BTreeSet<Name>,
    /// The latest time any event named.
    now_ms: u64,
    walk_runs: Option<Vec<u8>>,
    walk_decisions: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Watched {
    limits: History,
    since_look: u32,
    /// How many finished runs the archive holds; counted at the first look.
    runs: Option<u64>,
}

impl Retention {
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::RunFinished { run, .. } => {
                self.now_ms = self.now_ms.max(run.finished_at_ms.unwrap_or(0));
                self.finished(run.key.job(), run.spec.history);
            }
            Event::Decided(decision) => {
                self.now_ms = self.now_ms.max(decision.decided_at_ms);
                if let Some(watched) = self.watched.get_mut(&decision.job) {
                    watched.since_look += 1;
                }
            }
            _ => {}
        }
    }

    fn finished(&mut self, job: &Name, limits: History) {
        if self.watched.len() >= MAX_WATCHED && !self.watched.contains_key(job) {
            self.watched.pop_first();
        }
        let fresh = || Watched {
            limits,
            since_look: LOOK_AFTER,
            runs: None,
        };
        let watched = self.watched.entry(job.clone()).or_insert_with(fresh);
        watched.limits = limits;
        watched.since_look += 1;
        watched.runs = watched.runs.map(|runs| runs + 1);
        if watched.since_look >= LOOK_AFTER {
            watched.since_look = 0;
            self.due.insert(job.clone());
        }
    }

    /// What may be removed now.
    pub(super) fn due(&mut self, archive: &dyn Archive) -> Result<Vec<Change>, ArchiveError> {
        let mut changes = Vec::new();
        if let Some(job) = self.due.pop_first() {
            self.look(archive, &job, &mut changes)?;
            if changes.len() >= BATCH {
                self.due.insert(job);
            }
        }
        self.walk_runs(archive, &mut changes)?;
        self.walk_decisions(archive, &mut changes)?;
        Ok(changes)
    }

    /// Removes the oldest runs and decisions of a job until it is within its limits.
    fn look(
        &mut self,
        archive: &dyn Archive,
        job: &Name,
        changes: &mut Vec<Change>,
    ) -> Result<(), ArchiveError> {
        let Some(watched) = self.watched.get_mut(job) else {
            return Ok(());
        };
        let oldest_ms = self.now_ms.saturating_sub(watched.limits.max_age_ms);
        let mut runs = match watched.runs {
            Some(runs) => runs,
            None => count_runs(archive, job)?,
        };
        let oldest_first = Scan {
            from: Some(keys::run_of_job(job, 0)),
            until: Some(keys::run_of_job(job, u64::MAX)),
            limit: BATCH,
            ..Scan::default()
        };
        for (key, _) in archive.scan(Table::Runs, &oldest_first)?.records {
            let Some(id) = keys::run_in(&key) else {
                continue;
            };
            let over = runs > u64::from(watched.limits.keep);
            if changes.len() >= BATCH || !(over || ended_before(archive, id, oldest_ms)?) {
                break;
            }
            remove_run(archive, id, key, changes)?;
            runs = runs.saturating_sub(1);
        }
        watched.runs = Some(runs);
        let oldest_first = Scan {
            from: Some(keys::decision(job, 0)),
            until: Some(keys::decision(job, oldest_ms)),
            limit: BATCH,
            ..Scan::default()
        };
        for (key, bytes) in archive.scan(Table::FireLedger, &oldest_first)?.records {
            if decision(&bytes).is_some_and(|decision| decision.last_ms < oldest_ms) {
                changes.push(Change::Delete {
                    table: Table::FireLedger,
                    key,
                });
            }
        }
        Ok(())
    }

    /// Visits a few runs, and removes those that are older than their own definition allows.
    fn walk_runs(
        &mut self,
        archive: &dyn Archive,
        changes: &mut Vec<Change>,
    ) -> Result<(), ArchiveError> {
        let scan = Scan {
            from: Some(keys::run(0)),
            until: Some(keys::run(u64::MAX)),
            cursor: self.walk_runs.take(),
            limit: WALK,
            ..Scan::default()
        };
        let page = archive.scan(Table::Runs, &scan)?;
        self.walk_runs = page.cursor;
        for (_, bytes) in page.records {
            let Some(run) = run(&bytes) else { continue };
            let oldest_ms = self.now_ms.saturating_sub(run.spec.history.max_age_ms);
            if run
                .finished_at_ms
                .is_some_and(|ended_ms| ended_ms < oldest_ms)
            {
                let key = keys::run_of_job(run.key.job(), run.id);
                remove_run(archive, run.id, key, changes)?;
                if let Some(watched) = self.watched.get_mut(run.key.job()) {
                    watched.runs = None;
                }
            }
        }
        Ok(())
    }

    fn walk_decisions(
        &mut self,
        archive: &dyn Archive,
        changes: &mut Vec<Change>,
    ) -> Result<(), ArchiveError> {
        let scan = Scan {
            cursor: self.walk_decisions.take(),
            limit: WALK,
            ..Scan::default()
        };
        let page = archive.scan(Table::FireLedger, &scan)?;
        self.walk_decisions = page.cursor;
        for (key, bytes) in page.records {
            let Some(decision) = decision(&bytes) else {
                continue;
            };
            let known = self
                .watched
                .get(&decision.job)
                .map(|watched| watched.limits.max_age_ms);
            let oldest_ms = self.now_ms.saturating_sub(known.unwrap_or(UNKNOWN_AGE_MS));
            if decision.last_ms < oldest_ms {
                changes.push(Change::Delete {
                    table: Table::FireLedger,
                    key,
                });
            }
        }
        Ok(())
    }
}

fn count_runs(archive: &dyn Archive, job: &Name) -> Result<u64, ArchiveError> {
    let mut count = 0;
    let mut scan = Scan {
        from: Some(keys::run_of_job(job, 0)),
        until: Some(keys::run_of_job(job, u64::MAX)),
        limit: 1_024,
        ..Scan::default()
    };
    loop {
        let page = archive.scan(Table::Runs, &scan)?;
        count += page.records.len() as u64;
        if page.cursor.is_none() {
            return Ok(count);
        }
        scan.cursor = page.cursor;
    }
}

fn remove_run(
    archive: &dyn Archive,
    id: u64,
    index_key: Vec<u8>,
    changes: &mut Vec<Change>,
) -> Result<(), ArchiveError> {
    changes.push(Change::Delete {
        table: Table::Runs,
        key: keys::run(id),
    });
    changes.push(Change::Delete {
        table: Table::Runs,
        key: index_key,
    });
    let mut scan = Scan {
        from: Some(keys::output(id, 0, 0)),
        until: Some(keys::output(id.saturating_add(1), 0, 0)),
        limit: 1_024,
        ..Scan::default()
    };
    loop {
        let page = archive.scan(Table::RunOutput, &scan)?;
        for (key, _) in page.records {
            changes.push(Change::Delete {
                table: Table::RunOutput,
                key,
            });
        }
        if page.cursor.is_none() {
            return Ok(());
        }
        scan.cursor = page.cursor;
    }
}

fn ended_before(archive: &dyn Archive, id: u64, oldest_ms: u64) -> Result<bool, ArchiveError> {
    // An index entry without its run is a leftover.
    let Some(bytes) = archive.get(Table::Runs, &keys::run(id))? else {
        return Ok(true);
    };
    Ok(run(&bytes).is_some_and(|run| run.finished_at_ms.unwrap_or(0) < oldest_ms))
}

/// A record that cannot be read is left alone: whoever asks for it is told.
fn run(bytes: &[u8]) -> Option<Arc<Run>> {
    let record: (Arc<Run>, Vec<Arc<Task>>) = codec::decode(Kind::ArchiveRecord, bytes).ok()?;
    Some(record.0)
}

fn decision(bytes: &[u8]) -> Option<FireDecision> {
    codec::decode(Kind::ArchiveRecord, bytes).ok()
}
