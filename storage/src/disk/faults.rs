//! What a simulated crash keeps, and the generator that decides it.

use super::SECTOR_BYTES;

/// A small generator (splitmix64): same seed, same numbers, on every machine.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// True `ppm` times in a million.
    pub(super) fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
    }
}

/// A change of a file that is in the cache and not yet durable.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Write { offset: u64, data: Vec<u8> },
    SetLen(u64),
}

impl Change {
    /// Applies the whole change.
    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => store(bytes, *offset, data),
            Self::SetLen(len) => bytes.resize(*len as usize, 0),
        }
    }
}

/// Writes `data` at `offset`, growing with zeros.
pub(super) fn store(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = offset as usize;
    let end = start + data.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    if let Some(slot) = bytes.get_mut(start..end) {
        slot.copy_from_slice(data);
    }
}

/// How a crash treats the unsynced changes of one file.
enum Fate {
    Lost,
    Kept,
    /// The first ones whole, the next one torn, the rest lost.
    Prefix,
    /// Each sector by itself.
    Scattered,
}

/// What is on the medium of one file after a crash.
pub(super) fn after_crash(mut durable: Vec<u8>, pending: &[Change], rng: &mut Random) -> Vec<u8> {
    let fate = match rng.below(4) {
        0 => Fate::Lost,
        1 => Fate::Kept,
        2 => Fate::Prefix,
        _ => Fate::Scattered,
    };
    match fate {
        Fate::Lost => {}
        Fate::Kept => pending.iter().for_each(|change| change.apply(&mut durable)),
        Fate::Prefix => {
            let whole = rng.below(pending.len() as u64 + 1) as usize;
            for (at, change) in pending.iter().enumerate() {
                if at < whole {
                    change.apply(&mut durable);
                } else if at == whole {
                    tear(&mut durable, change, rng);
                }
            }
        }
        Fate::Scattered => pending
            .iter()
            .for_each(|change| scatter(&mut durable, change, rng)),
    }
    durable
}

/// Keeps a prefix of a write that ends anywhere, in the middle of a sector too.
fn tear(bytes: &mut Vec<u8>, change: &Change, rng: &mut Random) {
    if let Change::Write { offset, data } = change {
        let keep = rng.below(data.len() as u64 + 1) as usize;
        store(bytes, *offset, data.get(..keep).unwrap_or_default());
    }
}

/// Keeps or loses each sector of a write by a coin.
fn scatter(bytes: &mut Vec<u8>, change: &Change, rng: &mut Random) {
    match change {
        Change::SetLen(_) => {
            if rng.below(2) == 0 {
                change.apply(bytes);
            }
        }
        Change::Write { offset, data } => {
            let mut at = 0_usize;
            while at < data.len() {
                let position = *offset as usize + at;
                let to_boundary = SECTOR_BYTES - position % SECTOR_BYTES;
                let end = (at + to_boundary).min(data.len());
                if rng.below(2) == 0 {
                    store(
                        bytes,
                        position as u64,
                        data.get(at..end).unwrap_or_default(),
                    );
                }
                at = end;
            }
        }
    }
}
