//! Everything that is random in a run, from one seed.
//!
//! One generator a thread, because a run is one thread. [`reset`] begins a run.

use std::cell::Cell;
use std::convert::Infallible;

use rand::TryRng;

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Begins a run: everything that is drawn from now on follows from `seed`.
pub fn reset(seed: u64) {
    STATE.set(mixed(seed ^ 0x5EED_0F7E_4E25_1337));
}

/// Spreads a number over all bits (splitmix64).
pub fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The next number.
pub fn number() -> u64 {
    let state = STATE.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
    STATE.set(state);
    mixed(state)
}

/// A number from `from` up to, and without, `until`; `from` if there is none.
pub fn between(from: u64, until: u64) -> u64 {
    if until <= from {
        return from;
    }
    from + number() % (until - from)
}

/// True `per_mille` times in a thousand.
pub fn happens(per_mille: u64) -> bool {
    per_mille > 0 && number() % 1000 < per_mille
}

/// One of them.
///
/// # Panics
/// There is none.
pub fn one_of<T: Copy>(choices: &[T]) -> T {
    choices[between(0, choices.len() as u64) as usize]
}

/// A generator of its own, seeded from the run's.
#[derive(Debug, Clone)]
pub struct Generator(u64);

impl Generator {
    /// Seeded with the run's next number.
    pub fn fork() -> Self {
        Self(number())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }
}

impl TryRng for Generator {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.next() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let from = self.next().to_le_bytes();
            chunk.copy_from_slice(&from[..chunk.len()]);
        }
        Ok(())
    }
}

/// The entropy of simulated nodes, executors and clients.
#[derive(Debug, Clone, Copy)]
pub struct SeededEntropy;

impl tenure::security::Entropy for SeededEntropy {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), tenure::security::EntropyError> {
        for chunk in buffer.chunks_mut(8) {
            let from = number().to_le_bytes();
            chunk.copy_from_slice(&from[..chunk.len()]);
        }
        Ok(())
    }
}

impl tenure_sdk::Entropy for SeededEntropy {
    fn next_u64(&self) -> u64 {
        number()
    }
}
