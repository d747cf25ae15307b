//! Time in the log.

use super::Invariant;
use crate::judge::{Findings, Seen};

/// Looks at the clocks of the state.
#[derive(Default)]
pub(super) struct ClocksNeverGoBack {
    term: u64,
}

impl Invariant for ClocksNeverGoBack {
    fn sentence(&self) -> &'static str {
        "neither clock of the state, nor the term, ever goes back"
    }

    fn reason(&self) -> &'static str {
        "a deadline that has passed has passed for everybody"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let (before, after) = (entry.before.clock(), entry.after.clock());
        if after.lease_ms < before.lease_ms || after.calendar_ms < before.calendar_ms {
            findings.add(format!("{before:?} to {after:?} at {:?}", entry.at));
        }
        if entry.at.term < self.term {
            findings.add(format!("term {} at {:?}", self.term, entry.at));
        }
        self.term = entry.at.term;
    }
}
