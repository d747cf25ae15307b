//! Clock, chance and tasks: everything a process takes from the world apart from the network.

use crate::transport::BoxFuture;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// A monotonic clock.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed but arbitrary moment. Never goes back. It should go on while the process
    /// or the machine is suspended, because leases do.
    fn now(&self) -> Duration;

    /// Completes no earlier than after `duration` of this clock.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Random numbers, for jitter and unique keys.
pub trait Entropy: Send + Sync + 'static {
    /// The next number, all values alike.
    fn next_u64(&self) -> u64;
}

/// A task that was spawned. Dropping this lets it run on.
pub trait Running: Send + Sync {
    /// Stops it at its next wait.
    fn abort(&self);
}

/// Runs futures beside each other.
pub trait Spawn: Send + Sync + 'static {
    /// Starts a future.
    fn spawn(&self, future: BoxFuture<'static, ()>) -> Box<dyn Running>;
}

/// The three together.
#[derive(Clone)]
pub struct Environment {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub entropy: Arc<dyn Entropy>,
    /// Tasks.
    pub spawn: Arc<dyn Spawn>,
}

impl Default for Environment {
    /// The real ones, on tokio.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            entropy: Arc::new(OsEntropy),
            spawn: Arc::new(TokioSpawn),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

/// The real clock. On Linux it counts the time that the machine was suspended, which tokio's does
/// not: a machine that wakes up must see that its lease has run out.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(target_os = "linux")]
    fn now(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Duration::new(secs, nanos)
    }

    #[cfg(not(target_os = "linux"))]
    fn now(&self) -> Duration {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        let now = Instant::now();
        now.saturating_duration_since(*ORIGIN.get_or_init(|| now))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// tokio's clock, which a test can pause and move. Counts from the first time it is asked.
#[derive(Clone, Debug, Default)]
pub struct TokioClock {
    origin: OnceLock<Instant>,
}

impl Clock for TokioClock {
    fn now(&self) -> Duration {
        let now = Instant::now();
        now.saturating_duration_since(*self.origin.get_or_init(|| now))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Random numbers of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn next_u64(&self) -> u64 {
        getrandom::u64().unwrap_or_else(|_| {
            use std::hash::{BuildHasher, Hasher};
            // The standard library seeds each of these differently.
            std::collections::hash_map::RandomState::new()
                .build_hasher()
                .finish()
        })
    }
}

/// Tasks of the tokio runtime that the caller runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioSpawn;

impl Spawn for TokioSpawn {
    fn spawn(&self, future: BoxFuture<'static, ()>) -> Box<dyn Running> {
        Box::new(tokio::spawn(future).abort_handle())
    }
}

impl Running for tokio::task::AbortHandle {
    fn abort(&self) {
        tokio::task::AbortHandle::abort(self);
    }
}

/// Aborts a task when dropped.
pub(crate) struct AbortOnDrop(Box<dyn Running>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Environment {
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(crate) fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }

    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> AbortOnDrop {
        AbortOnDrop(self.spawn.spawn(Box::pin(future)))
    }

    /// A number from zero up to, and without, one.
    pub(crate) fn fraction(&self) -> f64 {
        // 53 bits are what a double holds.
        (self.entropy.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A key that no one else will make: 128 random bits.
    pub(crate) fn unique_key(&self) -> String {
        format!(
            "{:016x}{:016x}",
            self.entropy.next_u64(),
            self.entropy.next_u64()
        )
    }

    /// Runs `future` for at most `limit`. `None` when it took longer.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            value = future => Some(value),
            () = self.sleep(limit) => None,
        }
    }
}
