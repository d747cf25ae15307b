//! openraft's log storage over Tenure's write-ahead log.
//!
//! The log keeps opaque payloads; this adapter gives them meaning:
//!
//! | entry | payload |
//! | --- | --- |
//! | blank | empty |
//! | command | the envelope its leader encoded (kind `LogEntry`), byte for byte |
//! | membership | an envelope of kind `NodeRecord` around [`WireMembership`] |
//!
//! Invariants:
//! - `append` returns when the entries can be read and reports them flushed when they are durable;
//!   it never waits for the disk. Votes are durable before `save_vote` returns.
//! - The cache of decoded entries is a run without gaps that the log holds too. So replication and
//!   apply do not decode what was just appended; what is not cached is read from the log.
//! - Bytes that do not decode are an error that stops the node, never skipped.
//!
//! Absent: the decision when to purge. It follows the snapshot, see [`crate::state_machine`].

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::{Stream, TryStreamExt, stream};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{LogIdOptionExt, OptionalSend};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_machine::LogPosition;
use tenure_machine::codec::{self, Kind};
use tenure_storage::wal::{self, Wal};

use crate::types::{
    AsyncRuntime, EncodedEntry, Entry, LogId, Payload, Types, Vote, log_id, position, raft_id,
    term_of,
};
use crate::wire::{WireMembership, WireVote};

/// Most bytes of entries that one step of a long read takes from the log.
const READ_STEP_BYTES: u64 = 4 << 20;
/// Memory an entry takes beside its payload, for the bound of the cache.
const ENTRY_OVERHEAD_BYTES: u64 = 256;

/// The log of one node, as openraft sees it. Clones share the log and the cache.
pub struct LogStore<R> {
    wal: Wal,
    cache: Arc<Mutex<EntryCache>>,
    batch_bytes: u64,
    runtime: PhantomData<fn() -> R>,
}

impl<R> Clone for LogStore<R> {
    fn clone(&self) -> Self {
        Self {
            wal: self.wal.clone(),
            cache: self.cache.clone(),
            batch_bytes: self.batch_bytes,
            runtime: PhantomData,
        }
    }
}

impl<R> LogStore<R> {
    /// Wraps `wal`. `cache_bytes` bounds the decoded entries in memory, `batch_bytes` the entries
    /// of one replication message.
    pub fn new(wal: Wal, cache_bytes: u64, batch_bytes: u64) -> Self {
        Self {
            wal,
            cache: Arc::new(Mutex::new(EntryCache::new(cache_bytes))),
            batch_bytes,
            runtime: PhantomData,
        }
    }

    /// The last purged entry, if any.
    pub fn purged(&self) -> Option<LogPosition> {
        self.wal.log_state().purged.map(|id| position(from_wal(id)))
    }

    fn cache(&self) -> MutexGuard<'_, EntryCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries of `start..end` that are present; stops before `max_bytes`, but not before the
    /// first.
    async fn entries(&self, start: u64, end: u64, max_bytes: u64) -> io::Result<Vec<Entry>> {
        if start >= end {
            return Ok(Vec::new());
        }
        if let Some(cached) = self.cache().range(start, end, max_bytes) {
            return Ok(cached);
        }
        self.wal
            .read(start..end, max_bytes)
            .await?
            .into_iter()
            .map(decode_entry)
            .collect()
    }
}

fn wal_id(id: LogId) -> wal::LogId {
    wal::LogId {
        term: term_of(&id),
        // With the standard leader id the term alone names the leader.
        node: 0,
        index: id.index,
    }
}

fn from_wal(id: wal::LogId) -> LogId {
    log_id(id.term, id.index)
}

fn encode_record<T: Serialize>(kind: Kind, value: &T) -> io::Result<Bytes> {
    codec::encode(kind, value)
        .map(Bytes::from)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

fn decode_record<T: DeserializeOwned>(kind: Kind, bytes: &[u8], what: &str) -> io::Result<T> {
    codec::decode(kind, bytes)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {e}")))
}

fn encode_entry(entry: &Entry) -> io::Result<wal::Entry> {
    let payload = match &entry.payload {
        Payload::Blank => Bytes::new(),
        Payload::Normal(command) => command.bytes().clone(),
        Payload::Membership(membership) => {
            encode_record(Kind::NodeRecord, &WireMembership::from(membership))?
        }
    };
    Ok(wal::Entry {
        id: wal_id(entry.log_id),
        payload,
    })
}

fn decode_entry(entry: wal::Entry) -> io::Result<Entry> {
    let index = entry.id.index;
    let bad = |e| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("log entry {index}: {e}"),
        )
    };
    // The third byte of an envelope is its kind.
    let payload = match entry.payload.get(2) {
        None if entry.payload.is_empty() => Payload::Blank,
        Some(kind) if *kind == Kind::NodeRecord as u8 => {
            let membership: WireMembership =
                codec::decode(Kind::NodeRecord, &entry.payload).map_err(bad)?;
            Payload::Membership(membership.try_into().map_err(bad)?)
        }
        _ => Payload::Normal(EncodedEntry::decode(entry.payload).map_err(bad)?),
    };
    Ok(Entry {
        log_id: from_wal(entry.id),
        payload,
    })
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

/// The entries from `start` up to but not including `end`, in steps of bounded size.
fn stream_entries<R: AsyncRuntime>(
    store: LogStore<R>,
    (start, end): (u64, u64),
) -> impl Stream<Item = io::Result<Entry>> + Send + use<R> {
    stream::try_unfold((store, start), move |(store, start)| async move {
        let step = store.entries(start, end, READ_STEP_BYTES).await?;
        let Some(last) = step.last() else {
            return Ok::<_, io::Error>(None);
        };
        let next = last.log_id.index + 1;
        Ok(Some((
            stream::iter(step.into_iter().map(Ok)),
            (store, next),
        )))
    })
    .try_flatten()
}

impl<R: AsyncRuntime> RaftLogReader<Types<R>> for LogStore<R> {
    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Box::pin(stream_entries(self.clone(), bounds(&range)))
    }

    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        stream_entries(self.clone(), bounds(&range))
            .try_collect()
            .await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        let Some(bytes) = self.wal.vote() else {
            return Ok(None);
        };
        let vote: WireVote = decode_record(Kind::Vote, &bytes, "stored vote")?;
        Ok(Some(vote.into()))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.entries(start, end, self.batch_bytes).await
    }
}

impl<R: AsyncRuntime> RaftLogStorage<Types<R>> for LogStore<R> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types<R>>> {
        let state = self.wal.log_state();
        Ok(LogState {
            last_purged_log_id: state.purged.map(from_wal),
            last_log_id: state.last.map(from_wal),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let bytes = encode_record(Kind::Vote, &WireVote::from(*vote))?;
        Ok(self.wal.save_vote(bytes).await?)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let bytes = match committed {
            Some(id) => Some(encode_record(Kind::NodeRecord, &position(id))?),
            None => None,
        };
        Ok(self.wal.save_committed(bytes).await?)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let Some(bytes) = self.wal.committed() else {
            return Ok(None);
        };
        let at: LogPosition = decode_record(Kind::NodeRecord, &bytes, "stored commit")?;
        Ok(Some(raft_id(at)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<R>>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let records = entries
            .iter()
            .map(encode_entry)
            .collect::<io::Result<_>>()?;
        let on_durable: wal::Callback =
            Box::new(move |done| callback.io_completed(done.map_err(io::Error::from)));
        self.wal.append(records, on_durable).await?;
        let mut cache = self.cache();
        for entry in entries {
            cache.push(entry);
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.cache().truncate(last.next_index());
        Ok(self.wal.truncate_after(last.map(|id| id.index)).await?)
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.cache().purge(upto.index);
        Ok(self.wal.purge(wal_id(upto)).await?)
    }
}

/// The newest entries, decoded, without gaps.
struct EntryCache {
    entries: VecDeque<Entry>,
    bytes: u64,
    limit_bytes: u64,
}

impl EntryCache {
    fn new(limit_bytes: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            limit_bytes,
        }
    }

    fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.log_id.index)
    }

    fn push(&mut self, entry: Entry) {
        let next = self.entries.back().map(|last| last.log_id.index + 1);
        if next.is_some_and(|next| next != entry.log_id.index) {
            self.entries.clear();
            self.bytes = 0;
        }
        self.bytes += size_of_entry(&entry);
        self.entries.push_back(entry);
        while self.bytes > self.limit_bytes && self.pop_front() {}
    }

    fn pop_front(&mut self) -> bool {
        let Some(entry) = self.entries.pop_front() else {
            return false;
        };
        self.bytes -= size_of_entry(&entry);
        true
    }

    /// Removes entries from `from` on.
    fn truncate(&mut self, from: u64) {
        while let Some(last) = self.entries.back() {
            if last.log_id.index < from {
                return;
            }
            self.bytes -= size_of_entry(last);
            self.entries.pop_back();
        }
    }

    /// Removes entries up to and including `upto`.
    fn purge(&mut self, upto: u64) {
        while self.first().is_some_and(|first| first <= upto) && self.pop_front() {}
    }

    /// `start..end`, cut at `max_bytes`; `None` unless all of it is here.
    fn range(&self, start: u64, end: u64, max_bytes: u64) -> Option<Vec<Entry>> {
        let first = self.first()?;
        let from = usize::try_from(start.checked_sub(first)?).ok()?;
        let count = usize::try_from(end - start).ok()?;
        if from.checked_add(count)? > self.entries.len() {
            return None;
        }
        let mut taken = Vec::with_capacity(count.min(1024));
        let mut bytes = 0;
        for entry in self.entries.range(from..from + count) {
            bytes += size_of_entry(entry);
            if bytes > max_bytes && !taken.is_empty() {
                break;
            }
            taken.push(entry.clone());
        }
        Some(taken)
    }
}

fn size_of_entry(entry: &Entry) -> u64 {
    let payload = match &entry.payload {
        Payload::Normal(command) => command.bytes().len() as u64,
        Payload::Blank | Payload::Membership(_) => 0,
    };
    payload + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank(index: u64) -> Entry {
        Entry {
            log_id: log_id(1, index),
            payload: Payload::Blank,
        }
    }

    fn indexes(cache: &EntryCache) -> Vec<u64> {
        cache.entries.iter().map(|e| e.log_id.index).collect()
    }

    fn filled(limit_entries: u64, indexes: std::ops::Range<u64>) -> EntryCache {
        let mut cache = EntryCache::new(limit_entries * ENTRY_OVERHEAD_BYTES);
        indexes.for_each(|index| cache.push(blank(index)));
        cache
    }

    #[test]
    fn the_cache_keeps_the_newest_within_its_bound() {
        let cache = filled(3, 0..10);
        assert_eq!(indexes(&cache), [7, 8, 9]);
        assert_eq!(cache.bytes, 3 * ENTRY_OVERHEAD_BYTES);
    }

    #[test]
    fn the_cache_answers_only_what_it_holds_whole() {
        let cache = filled(3, 0..10);
        let found = |start, end| cache.range(start, end, u64::MAX).map(|e| e.len());
        assert_eq!(found(7, 10), Some(3));
        assert_eq!(found(8, 9), Some(1));
        assert_eq!(found(6, 9), None, "the first is gone");
        assert_eq!(found(9, 11), None, "the last is not there yet");
        let one = cache.range(7, 10, 1).expect("whole");
        assert_eq!(one.len(), 1, "one entry always fits");
    }

    #[test]
    fn truncation_purge_and_gaps_leave_no_stale_entry() {
        let mut cache = filled(10, 0..10);
        cache.truncate(7);
        cache.purge(3);
        assert_eq!(indexes(&cache), [4, 5, 6]);
        cache.push(blank(7));
        assert_eq!(indexes(&cache), [4, 5, 6, 7]);
        cache.push(blank(20));
        assert_eq!(indexes(&cache), [20], "a gap starts anew");
        cache.truncate(0);
        assert_eq!((indexes(&cache), cache.bytes), (vec![], 0));
    }
}
