//! The indexes of each replica.

use super::Invariant;
use crate::judge::{Findings, Seen};

/// Compares each sample's indexes with its entities.
#[derive(Default)]
pub(super) struct IndexesAreExact;

impl Invariant for IndexesAreExact {
    fn sentence(&self) -> &'static str {
        "the indexes of a state are what its jobs, runs, tasks and sessions say"
    }

    fn reason(&self) -> &'static str {
        "loops look at the indexes only: what is missing there is never done, what is left there blocks others"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        if let Seen::Sampled { node, replica, .. } = seen
            && !replica.state.check()
        {
            findings.add(format!("n{node} at {:?}", replica.applied));
        }
    }
}
