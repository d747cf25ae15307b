//! What happened in a run, line by line: virtual time, then words.
//!
//! Two runs of one seed write the same bytes. The text is kept only when it is asked for; its hash always
//! is, so that two runs can be compared cheaply.

use std::cell::RefCell;
use std::fmt::Write as _;

use crate::clock;

#[derive(Default)]
struct Trace {
    text: Option<String>,
    hash: u64,
    lines: u64,
    scratch: String,
}

thread_local! {
    static TRACE: RefCell<Trace> = RefCell::default();
}

/// What a run left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The hash over all lines.
    pub hash: u64,
    /// How many lines there were.
    pub lines: u64,
    /// The lines, if they were asked for.
    pub text: Option<String>,
}

/// Begins a run.
pub fn reset(keep_text: bool) {
    TRACE.with_borrow_mut(|trace| {
        *trace = Trace {
            text: keep_text.then(String::new),
            hash: 0xcbf2_9ce4_8422_2325,
            ..Trace::default()
        };
    });
}

/// Writes one line.
pub fn line(words: std::fmt::Arguments<'_>) {
    TRACE.with_borrow_mut(|trace| {
        trace.scratch.clear();
        // Writing into a string cannot fail.
        let _ = writeln!(trace.scratch, "{:>12} {words}", clock::true_us());
        for byte in trace.scratch.bytes() {
            trace.hash = (trace.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        trace.lines += 1;
        if let Some(text) = &mut trace.text {
            text.push_str(&trace.scratch);
        }
    });
}

/// Ends a run.
pub fn take() -> Recorded {
    TRACE.with_borrow_mut(|trace| {
        let trace = std::mem::take(trace);
        Recorded {
            hash: trace.hash,
            lines: trace.lines,
            text: trace.text,
        }
    })
}

/// Writes one line into the trace, in the words of `format!`.
#[macro_export]
macro_rules! trace {
    ($($words:tt)*) => { $crate::trace::line(format_args!($($words)*)) };
}
