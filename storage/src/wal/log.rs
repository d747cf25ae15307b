//! The log as it is in memory: where each entry lies, and the payloads of the newest.
//!
//! Invariants:
//! - `slots` is contiguous: slot `i` is the entry `first + i`.
//! - `hot` holds the payloads of the last `hot.len()` slots. An entry that is not yet written is
//!   always in it.
//! - The owner holds the lock only for short, synchronous steps.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::{Entry, LogId, LogState, WalError};

/// A segment file that may be read. As long as a reader holds it, the file is neither removed
/// nor used again.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) sequence: u32,
    pub(super) path: PathBuf,
    pub(super) seed: u32,
}

/// Where the record of an entry lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Not written yet; the number tells apart appends of the same index.
    Pending(u64),
    Written {
        segment: u32,
        offset: u32,
    },
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    term: u64,
    node: u64,
    place: Place,
    payload_bytes: u32,
}

/// A record that must be read from disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColdRecord {
    pub(super) id: LogId,
    pub(super) offset: u32,
    pub(super) payload_bytes: u32,
}

/// Records of one segment that are read with one call.
#[derive(Debug)]
pub(super) struct ColdRun {
    pub(super) segment: Arc<Segment>,
    pub(super) records: Vec<ColdRecord>,
}

/// What a read has to do: first the cold runs in order, then the hot entries.
#[derive(Debug, Default)]
pub(super) struct ReadPlan {
    pub(super) cold: Vec<ColdRun>,
    pub(super) hot: Vec<Entry>,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    first: u64,
    slots: VecDeque<Slot>,
    hot: VecDeque<Bytes>,
    hot_bytes: usize,
    cache_bytes: usize,
    /// Next index of an empty log; `None` if any will do.
    start: Option<u64>,
    pub(super) purged: Option<LogId>,
    pub(super) vote: Option<Bytes>,
    pub(super) committed: Option<Bytes>,
    pub(super) segments: BTreeMap<u32, Arc<Segment>>,
    next_append: u64,
    /// Why nothing is accepted any more.
    pub(super) fatal: Option<Arc<str>>,
}

impl Log {
    pub(super) fn new(cache_bytes: usize) -> Self {
        Self {
            cache_bytes,
            ..Self::default()
        }
    }

    /// Index of the next entry; `None` if any will do.
    pub(super) fn next_index(&self) -> Option<u64> {
        if self.slots.is_empty() {
            self.start
        } else {
            Some(self.first + self.slots.len() as u64)
        }
    }

    /// Sets the next index of an empty log.
    pub(super) fn start_at(&mut self, next: Option<u64>) {
        self.clear(next);
    }

    pub(super) fn state(&self) -> LogState {
        let last = self.slots.back().map(|slot| LogId {
            term: slot.term,
            node: slot.node,
            index: self.first + self.slots.len() as u64 - 1,
        });
        LogState {
            purged: self.purged,
            last: last.or(self.purged),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    /// First index that is present.
    pub(super) fn first_index(&self) -> Option<u64> {
        (!self.slots.is_empty()).then_some(self.first)
    }

    /// Fails if the log is dead or closed.
    pub(super) fn usable(&self) -> Result<(), WalError> {
        match &self.fatal {
            Some(reason) => Err(WalError::Fatal(Arc::clone(reason))),
            None => Ok(()),
        }
    }

    /// Checks that the entries follow the log and each other.
    pub(super) fn check_follows(&self, groups: &[Vec<Entry>]) -> Result<(), WalError> {
        let Some(head) = groups.iter().flatten().next() else {
            return Ok(());
        };
        let expected = self.next_index().unwrap_or(head.id.index)..;
        for (expected, entry) in expected.zip(groups.iter().flatten()) {
            if entry.id.index != expected {
                return Err(WalError::Gap {
                    expected,
                    got: entry.id.index,
                });
            }
        }
        Ok(())
    }

    /// Adds entries that were checked before and are not yet written; returns the number of the
    /// append.
    pub(super) fn append(&mut self, entries: &[Entry]) -> u64 {
        self.next_append += 1;
        for entry in entries {
            self.push(
                entry.id,
                entry.payload.clone(),
                Place::Pending(self.next_append),
            );
        }
        self.evict();
        self.next_append
    }

    /// Adds an entry that was found on disk. False if it does not follow the log.
    pub(super) fn replay(&mut self, id: LogId, payload: &[u8], segment: u32, offset: u32) -> bool {
        if self.next_index().is_some_and(|next| next != id.index) {
            return false;
        }
        self.push(
            id,
            Bytes::copy_from_slice(payload),
            Place::Written { segment, offset },
        );
        self.evict();
        true
    }

    fn push(&mut self, id: LogId, payload: Bytes, place: Place) {
        if self.slots.is_empty() {
            self.first = id.index;
        }
        let payload_bytes = payload.len() as u32;
        self.slots.push_back(Slot {
            term: id.term,
            node: id.node,
            place,
            payload_bytes,
        });
        self.hot_bytes += payload.len();
        self.hot.push_back(payload);
    }

    /// Notes where an entry was written, if it is still the one that was appended.
    pub(super) fn written(&mut self, append: u64, index: u64, segment: u32, offset: u32) {
        let Some(at) = index.checked_sub(self.first) else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(at as usize)
            && slot.place == Place::Pending(append)
        {
            slot.place = Place::Written { segment, offset };
        }
    }

    /// Drops payloads beyond the size of the cache, oldest first, written ones only.
    pub(super) fn evict(&mut self) {
        while self.hot_bytes > self.cache_bytes {
            let at = self.slots.len() - self.hot.len();
            match self.slots.get(at) {
                Some(Slot {
                    place: Place::Written { .. },
                    ..
                }) => {}
                _ => break,
            }
            if let Some(payload) = self.hot.pop_front() {
                self.hot_bytes -= payload.len();
            }
        }
    }

    /// Removes entries after `after` (all if `None`), but never what is purged. Returns the next
    /// index.
    pub(super) fn truncate_after(&mut self, after: Option<u64>) -> Option<u64> {
        let floor = self.purged.map(|id| id.index + 1);
        let keep = match (after.map(|index| index + 1), floor) {
            (Some(keep), Some(floor)) => keep.max(floor),
            (Some(keep), None) => keep,
            (None, Some(floor)) => floor,
            (None, None) => {
                self.clear(None);
                return None;
            }
        };
        self.truncate_from(keep);
        self.next_index()
    }

    /// Removes the entries from `index` on.
    pub(super) fn truncate_from(&mut self, index: u64) {
        match self.next_index() {
            Some(next) if next <= index => {}
            _ if self.slots.is_empty() || index <= self.first => self.clear(Some(index)),
            _ => {
                let remove = self.slots.len() - (index - self.first) as usize;
                for _ in 0..remove {
                    self.slots.pop_back();
                    if let Some(payload) = self.hot.pop_back() {
                        self.hot_bytes -= payload.len();
                    }
                }
            }
        }
    }

    pub(super) fn clear(&mut self, start: Option<u64>) {
        self.slots.clear();
        self.hot.clear();
        self.hot_bytes = 0;
        self.start = start;
    }

    /// Removes entries up to `upto`. False if that much was purged before.
    pub(super) fn purge(&mut self, upto: LogId) -> bool {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return false;
        }
        self.purged = Some(upto);
        let next = upto.index + 1;
        if self.next_index().is_none_or(|end| end <= next) {
            self.clear(Some(next));
            return true;
        }
        let remove = (next.saturating_sub(self.first) as usize).min(self.slots.len());
        for _ in 0..remove {
            if self.hot.len() == self.slots.len()
                && let Some(payload) = self.hot.pop_front()
            {
                self.hot_bytes -= payload.len();
            }
            self.slots.pop_front();
        }
        if !self.slots.is_empty() {
            self.first += remove as u64;
        }
        true
    }

    /// Takes the segments before `keep_from` out of reach of new readers.
    pub(super) fn release_segments(&mut self, keep_from: u32) -> Vec<Arc<Segment>> {
        let keep = self.segments.split_off(&keep_from);
        std::mem::replace(&mut self.segments, keep)
            .into_values()
            .collect()
    }

    /// Plans a read of the live part of `range`. Stops before the payloads exceed `max_bytes`,
    /// but takes at least one entry.
    pub(super) fn plan_read(
        &self,
        range: &impl RangeBounds<u64>,
        max_bytes: u64,
        run_bytes: u64,
    ) -> ReadPlan {
        let mut plan = ReadPlan::default();
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let skip = start.saturating_sub(self.first);
        let count = end.saturating_sub(self.first).min(self.slots.len() as u64);
        let hot_from = (self.slots.len() - self.hot.len()) as u64;
        let mut total = 0_u64;
        for at in skip..count {
            let Some(slot) = self.slots.get(at as usize) else {
                break;
            };
            total = total.saturating_add(u64::from(slot.payload_bytes));
            if total > max_bytes && at > skip {
                break;
            }
            let id = LogId {
                term: slot.term,
                node: slot.node,
                index: self.first + at,
            };
            if let Some(payload) = at
                .checked_sub(hot_from)
                .and_then(|at| self.hot.get(at as usize))
            {
                plan.hot.push(Entry {
                    id,
                    payload: payload.clone(),
                });
            } else if let Place::Written { segment, offset } = slot.place {
                let record = ColdRecord {
                    id,
                    offset,
                    payload_bytes: slot.payload_bytes,
                };
                if !self.plan_cold(&mut plan, segment, record, run_bytes) {
                    break;
                }
            }
        }
        plan
    }

    /// Adds a cold record to the last run, or starts a new one. False if its segment is gone.
    fn plan_cold(
        &self,
        plan: &mut ReadPlan,
        segment: u32,
        record: ColdRecord,
        run_bytes: u64,
    ) -> bool {
        if let Some(run) = plan.cold.last_mut()
            && run.segment.sequence == segment
            && let Some(head) = run.records.first()
            && record.offset > head.offset
            && u64::from(record.offset - head.offset) + u64::from(record.payload_bytes) <= run_bytes
        {
            run.records.push(record);
        } else if let Some(found) = self.segments.get(&segment) {
            plan.cold.push(ColdRun {
                segment: Arc::clone(found),
                records: vec![record],
            });
        } else {
            return false;
        }
        true
    }
}
