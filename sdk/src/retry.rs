//! How long to wait before the next attempt.

use crate::environment::Environment;
use std::time::Duration;

/// Exponential back-off with jitter, and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The pause after the first failed round.
    pub initial_backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// How long one attempt at one node may take.
    pub attempt_timeout: Duration,
    /// How long all attempts together may take.
    pub overall_timeout: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            attempt_timeout: Duration::from_secs(5),
            overall_timeout: Duration::from_secs(30),
        }
    }
}

/// The pauses of one call.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(initial: Duration, max: Duration) -> Self {
        Self {
            next: initial.min(max),
            max,
        }
    }

    /// The next pause: half of it fixed, half by chance, so that many clients spread out.
    pub(crate) fn pause(&mut self, environment: &Environment) -> Duration {
        let base = self.next;
        self.next = base.saturating_mul(2).min(self.max);
        base / 2 + (base / 2).mul_f64(environment.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Entropy;
    use std::sync::Arc;

    struct Fixed(u64);

    impl Entropy for Fixed {
        fn next_u64(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn pauses_double_up_to_the_limit() {
        for (chance, expected) in [(0, [25, 50, 100, 100]), (u64::MAX, [50, 100, 200, 200])] {
            let environment = Environment {
                entropy: Arc::new(Fixed(chance)),
                ..Environment::default()
            };
            let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(200));
            for wanted_ms in expected {
                let pause = backoff.pause(&environment).as_secs_f64() * 1000.0;
                assert!(
                    (pause - f64::from(wanted_ms)).abs() < 0.01,
                    "{pause} {wanted_ms}"
                );
            }
        }
    }
}
