//! Lines of the log that somebody outside can cause as often as they like.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// At most one line in this time.
const INTERVAL: Duration = Duration::from_secs(60);

/// Lets the first line through, then at most one a minute.
#[derive(Debug, Default)]
pub(crate) struct Sparing(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl Sparing {
    /// Whether to write the line now: if so, how many were held back since the one before.
    pub(crate) fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < INTERVAL)
        {
            state.held_back += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_tells_of_all() {
        let sparing = Sparing::default();
        let start = Instant::now();
        let at = |ms: u64| sparing.pass_at(start + Duration::from_millis(ms));
        assert_eq!(at(0), Some(0));
        assert_eq!((at(1), at(30_000), at(59_999)), (None, None, None));
        assert_eq!(at(60_000), Some(3));
        assert_eq!((at(60_001), at(180_000)), (None, Some(1)));
    }
}
