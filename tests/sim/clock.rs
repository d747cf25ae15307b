//! The clocks of simulated machines: each with its own offset and speed, and with jumps.
//!
//! True time is the runtime's virtual time. Timers (`tokio::time`) of nodes run on true time; what a node
//! reads as its monotonic and wall clock runs on its own. Executors sleep by their own clock, too.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Virtual wall time at the start of each run: 2026-03-02T00:00:00Z, a Monday.
pub const EPOCH_MS: u64 = 1_772_409_600_000;

thread_local! {
    static ORIGIN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Begins a run, inside its runtime.
pub fn reset() {
    ORIGIN.set(Some(Instant::now()));
}

/// Ends a run.
pub fn end() {
    ORIGIN.set(None);
}

/// Whether a run is under way on this thread.
pub fn in_a_run() -> bool {
    ORIGIN.get().is_some()
}

/// Microseconds of true time since the run began.
pub fn true_us() -> u64 {
    let origin = ORIGIN.get();
    origin.map_or(0, |origin| {
        u64::try_from(origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    })
}

/// Milliseconds of true time since the run began.
pub fn true_ms() -> u64 {
    true_us() / 1000
}

/// The clocks of one machine.
#[derive(Debug)]
pub struct MachineClock {
    /// Speed in millionths of true time.
    rate_ppm: u64,
    /// What is added to the monotonic clock, so that no two machines agree.
    monotonic_base_ms: u64,
    /// Wall minus monotonic clock.
    wall_offset_ms: AtomicI64,
    jumps: AtomicU64,
}

impl MachineClock {
    /// A clock with a drift in millionths, and an offset of its wall clock.
    pub fn new(drift_ppm: i64, monotonic_base_ms: u64, wall_offset_ms: i64) -> Arc<Self> {
        let wall = EPOCH_MS as i64 - monotonic_base_ms as i64 + wall_offset_ms;
        Arc::new(Self {
            rate_ppm: (1_000_000 + drift_ppm) as u64,
            monotonic_base_ms,
            wall_offset_ms: AtomicI64::new(wall),
            jumps: AtomicU64::new(0),
        })
    }

    /// Moves the wall clock.
    pub fn jump(&self, by_ms: i64) {
        self.wall_offset_ms.fetch_add(by_ms, Ordering::Relaxed);
        self.jumps.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the wall clock right, but for `off_by_ms`.
    pub fn set_right(&self, off_by_ms: i64) {
        let right = (EPOCH_MS + true_ms()) as i64 - self.monotonic_us() as i64 / 1000;
        self.wall_offset_ms
            .store(right + off_by_ms, Ordering::Relaxed);
    }

    /// How far the wall clock is from the true time, in milliseconds.
    pub fn wall_error_ms(&self) -> i64 {
        tenure::clock::Clock::wall_ms(self) as i64 - (EPOCH_MS + true_ms()) as i64
    }

    fn monotonic_us(&self) -> u64 {
        let passed = u128::from(true_us()) * u128::from(self.rate_ppm) / 1_000_000;
        self.monotonic_base_ms * 1000 + passed as u64
    }

    /// How long `duration` of this clock is in true time, rounded up.
    fn in_true_time(&self, duration: Duration) -> Duration {
        let us = duration.as_micros().saturating_mul(1_000_000) / u128::from(self.rate_ppm) + 1;
        Duration::from_micros(u64::try_from(us).unwrap_or(u64::MAX))
    }
}

impl tenure::clock::Clock for MachineClock {
    fn monotonic_ms(&self) -> u64 {
        self.monotonic_us() / 1000
    }

    fn wall_ms(&self) -> u64 {
        let offset = self.wall_offset_ms.load(Ordering::Relaxed);
        (self.monotonic_us() as i64 / 1000 + offset).max(0) as u64
    }
}

impl tenure_sdk::Clock for MachineClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.monotonic_us())
    }

    fn sleep(&self, duration: Duration) -> tenure_sdk::BoxFuture<'static, ()> {
        // Years are as good as never, and the runtime's timers do not reach further.
        const LONGEST: Duration = Duration::from_secs(365 * 86_400);
        Box::pin(tokio::time::sleep(self.in_true_time(duration.min(LONGEST))))
    }
}
