//! A task's output on its way to the cluster: bounded, sent in batches, never in the handler's way.
//!
//! Lines that come faster than they can be sent, or after the cluster has kept all it will, are
//! dropped and counted.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tenure_api::protocol::MAX_OUTPUT_CALL_BYTES;
use tokio::sync::Notify;

/// The most text that waits to be sent, in bytes.
const MAX_PENDING_BYTES: usize = 64 * 1024;
/// The longest line that is kept whole, in bytes.
const MAX_LINE_BYTES: usize = 4 * 1024;

#[derive(Debug, Default)]
pub(crate) struct Output {
    pending: Mutex<Pending>,
    /// Wakes the sender when there is something.
    filled: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    lines: VecDeque<String>,
    bytes: usize,
    dropped: u64,
    /// The cluster keeps no more.
    full: bool,
}

impl Output {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line. Tells whether it was kept.
    pub(crate) fn push(&self, line: &str) -> bool {
        let line = cut(line, MAX_LINE_BYTES);
        let mut pending = self.pending();
        let size = line.len() + 1;
        if pending.full || pending.bytes + size > MAX_PENDING_BYTES {
            pending.dropped += 1;
            return false;
        }
        pending.bytes += size;
        pending.lines.push_back(format!("{line}\n"));
        drop(pending);
        self.filled.notify_one();
        true
    }

    /// Waits until there is something to send.
    pub(crate) async fn filled(&self) {
        while self.pending().lines.is_empty() {
            self.filled.notified().await;
        }
    }

    /// The next batch, `None` when there is nothing. Says so when lines were dropped.
    pub(crate) fn take(&self) -> Option<String> {
        let mut pending = self.pending();
        let mut text = String::new();
        if pending.dropped > 0 && !pending.full {
            text = format!("[{} lines dropped]\n", pending.dropped);
            pending.dropped = 0;
        }
        while let Some(line) = pending.lines.front() {
            if text.len() + line.len() > MAX_OUTPUT_CALL_BYTES {
                break;
            }
            if let Some(line) = pending.lines.pop_front() {
                pending.bytes -= line.len();
                text.push_str(&line);
            }
        }
        (!text.is_empty()).then_some(text)
    }

    /// The cluster keeps no more: what waits and what comes is dropped.
    pub(crate) fn close(&self) {
        let mut pending = self.pending();
        pending.full = true;
        pending.lines.clear();
        pending.bytes = 0;
    }
}

/// The longest start of `text` that has at most `limit` bytes and ends between characters.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_batched_within_the_limit_of_a_call() {
        let output = Output::default();
        let line = "x".repeat(1_023);
        for _ in 0..20 {
            assert!(output.push(&line));
        }
        assert_eq!(output.take().map(|text| text.len()), Some(16 * 1_024));
        assert_eq!(output.take().map(|text| text.len()), Some(4 * 1_024));
        assert_eq!(output.take(), None);
    }

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_said_to_be() {
        let output = Output::default();
        let line = "x".repeat(4_095);
        let kept = (0..20).filter(|_| output.push(&line)).count();
        assert_eq!(kept, 16);
        let text = output.take().unwrap();
        assert!(text.starts_with("[4 lines dropped]\n"), "{}", &text[..40]);
        assert!(output.push("room again"));
    }

    #[test]
    fn a_full_task_keeps_nothing() {
        let output = Output::default();
        assert!(output.push("a"));
        output.close();
        assert!(!output.push("b"));
        assert_eq!(output.take(), None);
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("ab", 9), "ab");
    }
}
