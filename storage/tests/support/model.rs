//! The log as it should be: a plain map, and a workload that drives both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tenure_storage::wal::{Entry, LogId, LogState, Wal, WalError};

use super::{Life, entry, id};

/// One operation on the log.
#[derive(Debug, Clone)]
pub enum Op {
    Append(Vec<Entry>),
    Vote(u8),
    Committed(Option<u8>),
    Truncate(Option<u64>),
    Purge(LogId),
    Flush,
}

/// What a log holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model {
    pub entries: BTreeMap<u64, Entry>,
    pub purged: Option<LogId>,
    pub vote: Option<Bytes>,
    pub committed: Option<Bytes>,
}

impl Model {
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Append(entries) => {
                self.entries
                    .extend(entries.iter().map(|e| (e.id.index, e.clone())));
            }
            Op::Vote(v) => self.vote = Some(Bytes::from(vec![*v; 9])),
            Op::Committed(c) => self.committed = c.map(|c| Bytes::from(vec![c; 5])),
            Op::Truncate(after) => self.entries.retain(|index, _| Some(*index) <= *after),
            Op::Purge(upto) => {
                if self.purged.is_none_or(|purged| purged.index < upto.index) {
                    self.purged = Some(*upto);
                    self.entries.retain(|index, _| *index > upto.index);
                }
            }
            Op::Flush => {}
        }
    }

    pub fn next_index(&self) -> u64 {
        let last = self.entries.keys().next_back().copied();
        last.or(self.purged.map(|p| p.index))
            .map_or(0, |index| index + 1)
    }

    pub fn state(&self) -> LogState {
        let last = self.entries.values().next_back().map(|e| e.id);
        LogState {
            purged: self.purged,
            last: last.or(self.purged),
        }
    }

    /// What the log holds, read through its public face.
    /// In one line, without payloads.
    pub fn brief(&self) -> String {
        let ids: Vec<_> = self
            .entries
            .values()
            .map(|e| (e.id.term, e.id.index))
            .collect();
        let meta = (&self.purged, &self.vote, &self.committed);
        format!("entries {ids:?}, purged, vote, committed {meta:?}")
    }

    pub async fn of(wal: &Wal) -> Result<Model, WalError> {
        let entries = wal.read(.., u64::MAX).await?;
        let purged = wal.log_state().purged;
        let model = Model {
            entries: entries.into_iter().map(|e| (e.id.index, e)).collect(),
            purged,
            vote: wal.vote(),
            committed: wal.committed(),
        };
        assert_eq!(model.state(), wal.log_state());
        let indexes: Vec<_> = model.entries.keys().copied().collect();
        assert!(
            indexes.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "contiguous: {indexes:?}"
        );
        if let (Some(first), Some(purged)) = (indexes.first(), purged) {
            assert_eq!(
                purged.index + 1,
                *first,
                "no hole behind the purged entries"
            );
        }
        Ok(model)
    }
}

/// Numbers for the workload; not the disk's generator.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// The next operation that makes sense for this state.
pub fn next_op(dice: &mut Dice, model: &Model, term: &mut u64) -> Op {
    match dice.roll(20) {
        0 | 1 => Op::Vote(dice.roll(250) as u8),
        2 => Op::Committed((dice.roll(5) > 0).then(|| dice.roll(250) as u8)),
        3 => {
            *term += 1;
            let back = dice.roll(5) + 1;
            let floor = model.purged.map(|p| p.index);
            let after = model.next_index().checked_sub(back + 1);
            Op::Truncate(after.max(floor))
        }
        4 | 5 => {
            let next = model.next_index();
            if dice.roll(12) == 0 {
                Op::Purge(id(*term, next + dice.roll(10)))
            } else {
                match next.checked_sub(dice.roll(8) + 1) {
                    Some(index) => {
                        let known = model.entries.get(&index).map(|e| e.id);
                        known.map_or(Op::Flush, Op::Purge)
                    }
                    None => Op::Flush,
                }
            }
        }
        6 => Op::Flush,
        _ => {
            let next = model.next_index();
            let count = dice.roll(4) + 1;
            Op::Append(
                (next..next + count)
                    .map(|i| entry(*term, i, dice.roll(900) as usize))
                    .collect(),
            )
        }
    }
}

fn steps(op: &Op) -> Vec<Op> {
    match op {
        Op::Append(entries) => entries
            .iter()
            .map(|e| Op::Append(vec![e.clone()]))
            .collect(),
        other => vec![other.clone()],
    }
}

/// What happened to a workload.
pub struct Outcome {
    /// All states the log went through, entry by entry: an append may survive in part.
    pub states: Vec<Model>,
    /// Index of the last state that is known to be durable.
    pub acknowledged: usize,
    pub failed: bool,
}

/// Runs up to `count` operations, and stops at the first failure.
pub async fn drive(life: &Life, start: Model, seed: u64, count: usize) -> Outcome {
    let mut dice = Dice(seed);
    let mut term = 1 + start.state().last.map_or(0, |id| id.term);
    let mut states = vec![start.clone()];
    let mut model = start;
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let mut failed = false;
    for _ in 0..count {
        let op = next_op(&mut dice, &model, &mut term);
        // Known before it is asked for: a failed operation may yet be found on the disk.
        for step in steps(&op) {
            model.apply(&step);
            states.push(model.clone());
        }
        let at = states.len() - 1;
        let ack = Arc::clone(&acknowledged);
        let ack = move |result: &Result<(), WalError>| {
            if result.is_ok() {
                ack.fetch_max(at, Ordering::Relaxed);
            }
        };
        let result = match op {
            Op::Append(entries) => life.wal.append(entries, Box::new(move |r| ack(&r))).await,
            Op::Vote(v) => {
                let result = life.wal.save_vote(Bytes::from(vec![v; 9])).await;
                ack(&result);
                result
            }
            Op::Committed(c) => life.wal.save_committed(c.map(|c| vec![c; 5].into())).await,
            Op::Truncate(after) => {
                let result = life.wal.truncate_after(after).await;
                ack(&result);
                result
            }
            Op::Purge(upto) => life.wal.purge(upto).await,
            Op::Flush => life.wal.flush().await,
        };
        if result.is_err() {
            failed = true;
            break;
        }
        if dice.roll(3) == 0 {
            tokio::task::yield_now().await;
        }
    }
    if !failed {
        failed = life.wal.flush().await.is_err();
    }
    tokio::task::yield_now().await;
    Outcome {
        states,
        acknowledged: acknowledged.load(Ordering::Relaxed),
        failed,
    }
}
