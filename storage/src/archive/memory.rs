//! The archive in memory, for simulations: it forgets in a crash what is not behind a barrier.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ArchiveError;
use super::engine::{Batch, Engine, Visit};
use super::records::Records;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// An archive in memory.
pub type MemArchive = Records<MemEngine>;

/// Maps in memory: what readers see, and what a crash leaves.
#[derive(Clone, Default)]
pub struct MemEngine {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    seen: Map,
    durable: Map,
    /// Batches since the last barrier.
    pending: Vec<Batch>,
    durable_index: Option<u64>,
}

fn write(map: &mut Map, batch: &Batch) {
    for (key, value) in batch {
        match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
    }
}

impl MemArchive {
    /// An empty archive.
    #[must_use]
    pub fn empty() -> Self {
        Self::wrap(MemEngine::default())
    }

    /// What the next process finds after a power loss: all up to the last barrier, and the first
    /// `keep` batches after it (or all there are).
    ///
    /// # Errors
    /// As opening a real archive.
    pub fn crash(&self, keep: usize) -> Result<Self, ArchiveError> {
        let state = self.engine.lock();
        let mut durable = state.durable.clone();
        state
            .pending
            .iter()
            .take(keep)
            .for_each(|batch| write(&mut durable, batch));
        let durable_index = state.durable_index;
        let next = State {
            seen: durable.clone(),
            durable,
            pending: Vec::new(),
            durable_index,
        };
        Self::open(
            MemEngine {
                state: Arc::new(Mutex::new(next)),
            },
            durable_index,
        )
    }

    /// Flips bits of one stored byte of the `nth` record, to test that damage is found.
    pub fn damage(&self, nth: usize, byte: usize, mask: u8) {
        let mut state = self.engine.lock();
        if let Some(byte) = state
            .seen
            .values_mut()
            .nth(nth)
            .and_then(|value| value.get_mut(byte))
        {
            *byte ^= mask;
        }
    }
}

impl MemEngine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for MemEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
        Ok(self.lock().seen.get(key).cloned())
    }

    fn range(
        &self,
        from: &[u8],
        until: &[u8],
        backward: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), ArchiveError> {
        let state = self.lock();
        let bounds = (Bound::Included(from), Bound::Excluded(until));
        let mut pairs = state.seen.range::<[u8], _>(bounds);
        while let Some((key, value)) = if backward {
            pairs.next_back()
        } else {
            pairs.next()
        } {
            if !visit(key, value)? {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, batch: Batch) -> Result<(), ArchiveError> {
        let mut state = self.lock();
        write(&mut state.seen, &batch);
        state.pending.push(batch);
        Ok(())
    }

    fn clear_but(&self, keep: &[u8]) -> Result<(), ArchiveError> {
        let mut state = self.lock();
        let all: Batch = state
            .seen
            .keys()
            .filter(|key| *key != keep)
            .map(|key| (key.clone(), None))
            .collect();
        write(&mut state.seen, &all);
        state.pending.push(all);
        Ok(())
    }

    fn barrier(&self, index: Option<u64>) -> Result<(), ArchiveError> {
        let mut state = self.lock();
        for batch in std::mem::take(&mut state.pending) {
            write(&mut state.durable, &batch);
        }
        state.durable_index = index.or(state.durable_index);
        Ok(())
    }
}

impl Default for MemArchive {
    fn default() -> Self {
        Self::empty()
    }
}
