//! The archives agree with the log.

use std::collections::BTreeMap;

use tenure_machine::codec::{self, CodecError, Kind};
use tenure_machine::{AuditRecord, Event, FireDecision, Name, Run, Task};
use tenure_storage::archive::{Archive, Scan, Table};

use super::{Invariant, digest};
use crate::judge::{Findings, Seen};

/// What is over, as the log has it: digests of the records.
#[derive(Default)]
pub(super) struct ArchivesHoldWhatIsOver {
    runs: BTreeMap<u64, (Name, u32, u64)>,
    decisions: BTreeMap<(Name, u64), u64>,
    audit: BTreeMap<u64, u64>,
}

impl Invariant for ArchivesHoldWhatIsOver {
    fn sentence(&self) -> &'static str {
        "a complete archive has every finished run within retention, every decision and every link of the audit chain, as the log has them"
    }

    fn reason(&self) -> &'static str {
        "the state forgets what is over, so nobody else could say what happened"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                let events = entry.outcome.map_or(&[][..], |outcome| &outcome.events);
                events.iter().for_each(|event| self.over(event));
            }
            Seen::Archived { node, archive } => {
                let found = Found::read(*archive).map(|found| self.compare(&found));
                match found {
                    Ok(None) => {}
                    Ok(Some(what)) => findings.add(format!("the archive of n{node}: {what}")),
                    Err(error) => findings.add(format!("the archive of n{node}: {error}")),
                }
            }
            _ => {}
        }
    }
}

impl ArchivesHoldWhatIsOver {
    fn over(&mut self, event: &Event) {
        match event {
            Event::RunFinished { run, tasks } => {
                let record = codec::encode(Kind::ArchiveRecord, &(run, tasks));
                let keep = run.spec.history.keep;
                let known = (run.key.job().clone(), keep, of(record));
                self.runs.insert(run.id, known);
            }
            Event::Decided(decision) => {
                let key = (decision.job.clone(), decision.first_ms);
                let record = codec::encode(Kind::ArchiveRecord, decision);
                self.decisions.insert(key, of(record));
            }
            Event::Audited(link) => {
                let record = codec::encode(Kind::ArchiveRecord, link);
                self.audit.insert(link.seq, of(record));
            }
            _ => {}
        }
    }

    fn compare(&self, found: &Found) -> Option<String> {
        if found.decisions != self.decisions {
            let differs = first_difference(&found.decisions, &self.decisions);
            return Some(format!("decisions: {differs}"));
        }
        if found.audit != self.audit {
            let differs = first_difference(&found.audit, &self.audit);
            return Some(format!("audit chain: {differs}"));
        }
        // Of each job the newest runs are kept, as many as its definition says.
        let mut newer: BTreeMap<&Name, u32> = BTreeMap::new();
        for (id, (job, keep, record)) in self.runs.iter().rev() {
            let newer = newer.entry(job).or_default();
            match found.runs.get(id) {
                Some(found) if found == record => {}
                Some(_) => return Some(format!("run {id} is another one")),
                None if *newer >= *keep => {}
                None => return Some(format!("run {id} of {job} is missing")),
            }
            *newer += 1;
        }
        let unknown = found.runs.keys().find(|id| !self.runs.contains_key(id));
        unknown.map(|id| format!("run {id} never finished"))
    }
}

fn first_difference<K: Ord + std::fmt::Debug>(
    found: &BTreeMap<K, u64>,
    known: &BTreeMap<K, u64>,
) -> String {
    let keys = found.keys().chain(known.keys());
    let differs = keys
        .into_iter()
        .find(|key| found.get(key) != known.get(key));
    match differs {
        Some(key) if !found.contains_key(key) => format!("{key:?} is missing"),
        Some(key) if !known.contains_key(key) => format!("{key:?} was never committed"),
        other => format!("{other:?} is another one"),
    }
}

/// What an archive holds: digests of the records.
#[derive(Default)]
struct Found {
    runs: BTreeMap<u64, u64>,
    decisions: BTreeMap<(Name, u64), u64>,
    audit: BTreeMap<u64, u64>,
}

impl Found {
    fn read(archive: &dyn Archive) -> Result<Self, String> {
        let mut found = Self::default();
        for value in records(archive, Table::Runs)? {
            // Beside each run there is an empty record that leads from its job to it.
            if !value.is_empty() {
                let record = codec::decode(Kind::ArchiveRecord, &value);
                let (run, _): (Run, Vec<Task>) = record.map_err(|e| e.to_string())?;
                found.runs.insert(run.id, digest(&value));
            }
        }
        for value in records(archive, Table::FireLedger)? {
            let record = codec::decode(Kind::ArchiveRecord, &value);
            let decision: FireDecision = record.map_err(|e| e.to_string())?;
            let key = (decision.job, decision.first_ms);
            found.decisions.insert(key, digest(&value));
        }
        for value in records(archive, Table::Audit)? {
            let record = codec::decode(Kind::ArchiveRecord, &value);
            let link: AuditRecord = record.map_err(|e| e.to_string())?;
            found.audit.insert(link.seq, digest(&value));
        }
        Ok(found)
    }
}

/// The digest of a record. One that has no form has none that an archive could hold.
fn of(record: Result<Vec<u8>, CodecError>) -> u64 {
    digest(&record.unwrap_or_default())
}

fn records(archive: &dyn Archive, table: Table) -> Result<Vec<Vec<u8>>, String> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let scan = Scan {
            cursor,
            limit: 1_000,
            ..Scan::default()
        };
        let page = archive.scan(table, &scan).map_err(|e| e.to_string())?;
        all.extend(page.records.into_iter().map(|(_, value)| value));
        cursor = page.cursor;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}
