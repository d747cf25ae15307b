//! Tables, checksums, counts and the applied index, on top of an engine.
//!
//! Keys in the engine: one byte for the table, then the key. Table 0 is the archive's own: the
//! applied index, the counts, and the mark of an import that is not complete.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::engine::{Batch, Engine};
use super::{
    Archive, ArchiveError, Change, Chunk, MAX_KEY_BYTES, MAX_VALUE_BYTES, Page, Scan, Table,
};

const APPLIED_KEY: &[u8] = b"\0applied";
pub(super) const IMPORT_KEY: &[u8] = b"\0import";
const CRC_BYTES: usize = 4;

/// An archive over an engine. See [`SledArchive`](super::SledArchive) and
/// [`MemArchive`](super::MemArchive).
pub struct Records<E: Engine> {
    pub(super) engine: E,
    /// Batches and imports go one after the other.
    writing: Mutex<()>,
}

/// Puts the checksum of key and value in front of the value.
pub(super) fn seal(key: &[u8], value: &[u8]) -> Vec<u8> {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), value);
    let mut out = Vec::with_capacity(CRC_BYTES + value.len());
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(value);
    out
}

/// Checks and removes the checksum.
pub(super) fn unseal<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], ArchiveError> {
    let damaged = || ArchiveError::Damaged {
        what: format!(
            "the record under key {} does not match its checksum",
            show(key)
        ),
    };
    let (crc, value) = stored
        .split_first_chunk::<CRC_BYTES>()
        .ok_or_else(damaged)?;
    if crc32c::crc32c_append(crc32c::crc32c(key), value).to_le_bytes() != *crc {
        return Err(damaged());
    }
    Ok(value)
}

fn show(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

fn full_key(table: Table, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(1 + key.len());
    full.push(table as u8);
    full.extend_from_slice(key);
    full
}

fn count_key(table: Table) -> Vec<u8> {
    vec![0, b'#', table as u8]
}

fn number(key: &[u8], value: &[u8]) -> Result<u64, ArchiveError> {
    value
        .try_into()
        .map(u64::from_le_bytes)
        .map_err(|_| ArchiveError::Damaged {
            what: format!("the number under key {} has a wrong length", show(key)),
        })
}

impl<E: Engine> Records<E> {
    /// Opens what the engine holds. `required` is the index that was durable once.
    pub(super) fn open(engine: E, required: Option<u64>) -> Result<Self, ArchiveError> {
        let records = Self::wrap(engine);
        let found = records.applied_index()?;
        let importing = records.read(IMPORT_KEY)?.is_some();
        for table in Table::ALL {
            records.count(table)?;
        }
        if importing || found < required {
            return Err(ArchiveError::Incomplete {
                found,
                required: required.unwrap_or(0),
            });
        }
        Ok(records)
    }

    pub(super) fn wrap(engine: E) -> Self {
        Self {
            engine,
            writing: Mutex::new(()),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
        match self.engine.get(key)? {
            Some(stored) => Ok(Some(unseal(key, &stored)?.to_vec())),
            None => Ok(None),
        }
    }

    fn read_number(&self, key: &[u8]) -> Result<Option<u64>, ArchiveError> {
        self.read(key)?.map(|value| number(key, &value)).transpose()
    }

    /// Adds changes to a batch, with the counts that follow from them.
    pub(super) fn stage(&self, changes: &[Change], batch: &mut Batch) -> Result<(), ArchiveError> {
        // Last change of each key wins; the counts compare it with what is stored.
        let mut last: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for change in changes {
            let (table, key, value) = match change {
                Change::Put { table, key, value } => (table, key, Some(value)),
                Change::Delete { table, key } => (table, key, None),
            };
            check_size(key.len(), MAX_KEY_BYTES)?;
            check_size(value.map_or(0, Vec::len), MAX_VALUE_BYTES)?;
            let full = full_key(*table, key);
            let sealed = value.map(|value| seal(&full, value));
            last.insert(full, sealed);
        }
        let mut counts: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
        for (key, value) in &last {
            let (more, fewer) = counts.entry(key.first().copied().unwrap_or(0)).or_default();
            match (self.engine.get(key)?.is_some(), value.is_some()) {
                (false, true) => *more += 1,
                (true, false) => *fewer += 1,
                _ => {}
            }
        }
        batch.extend(last);
        for table in Table::ALL {
            if let Some((more, fewer)) = counts.get(&(table as u8)) {
                let count = (self.count(table)? + more).saturating_sub(*fewer);
                let key = count_key(table);
                let value = seal(&key, &count.to_le_bytes());
                batch.push((key, Some(value)));
            }
        }
        Ok(())
    }

    /// Adds the applied index to a batch.
    pub(super) fn stage_index(index: Option<u64>, batch: &mut Batch) {
        let value = index.map(|index| seal(APPLIED_KEY, &index.to_le_bytes()));
        batch.push((APPLIED_KEY.to_vec(), value));
    }
}

fn check_size(bytes: usize, limit_bytes: usize) -> Result<(), ArchiveError> {
    if bytes > limit_bytes {
        return Err(ArchiveError::TooLarge { bytes, limit_bytes });
    }
    Ok(())
}

impl<E: Engine> Archive for Records<E> {
    fn apply(&self, index: u64, changes: &[Change]) -> Result<bool, ArchiveError> {
        let _writing = self.lock();
        if self
            .applied_index()?
            .is_some_and(|applied| index <= applied)
        {
            return Ok(false);
        }
        let mut batch = Batch::new();
        self.stage(changes, &mut batch)?;
        Self::stage_index(Some(index), &mut batch);
        self.engine.write(batch)?;
        Ok(true)
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
        self.read(&full_key(table, key))
    }

    fn scan(&self, table: Table, scan: &Scan) -> Result<Page, ArchiveError> {
        let mut from = full_key(table, scan.from.as_deref().unwrap_or_default());
        let mut until = match &scan.until {
            Some(until) => full_key(table, until),
            None => vec![table as u8 + 1],
        };
        if let Some(cursor) = &scan.cursor {
            let cursor = full_key(table, cursor);
            if scan.backward {
                until = until.min(cursor);
            } else {
                // The smallest key behind the cursor.
                let behind = [cursor.as_slice(), &[0]].concat();
                from = from.max(behind);
            }
        }
        let mut page = Page::default();
        if from >= until || scan.limit == 0 {
            return Ok(page);
        }
        self.engine
            .range(&from, &until, scan.backward, &mut |key, stored| {
                if page.records.len() == scan.limit {
                    page.cursor = page.records.last().map(|(key, _)| key.clone());
                    return Ok(false);
                }
                let value = unseal(key, stored)?.to_vec();
                page.records
                    .push((key.get(1..).unwrap_or_default().to_vec(), value));
                Ok(true)
            })?;
        Ok(page)
    }

    fn count(&self, table: Table) -> Result<u64, ArchiveError> {
        Ok(self.read_number(&count_key(table))?.unwrap_or(0))
    }

    fn applied_index(&self) -> Result<Option<u64>, ArchiveError> {
        self.read_number(APPLIED_KEY)
    }

    fn barrier(&self) -> Result<Option<u64>, ArchiveError> {
        // A batch that is applied meanwhile may or may not be in.
        let index = self.applied_index()?;
        self.engine.barrier(index)?;
        Ok(index)
    }

    fn verify(&self) -> Result<(), ArchiveError> {
        let _writing = self.lock();
        for table in Table::ALL {
            let mut found = 0_u64;
            self.engine.range(
                &[table as u8],
                &[table as u8 + 1],
                false,
                &mut |key, stored| {
                    unseal(key, stored)?;
                    found += 1;
                    Ok(true)
                },
            )?;
            let expected = self.count(table)?;
            if found != expected {
                let what = format!("table {table:?} has {found} records instead of {expected}");
                return Err(ArchiveError::Damaged { what });
            }
        }
        Ok(())
    }

    fn export(&self, cursor: Option<&[u8]>, max_bytes: usize) -> Result<Chunk, ArchiveError> {
        self.export_chunk(cursor, max_bytes)
    }

    fn import(&self, chunk: &[u8]) -> Result<bool, ArchiveError> {
        self.import_chunk(chunk)
    }
}
