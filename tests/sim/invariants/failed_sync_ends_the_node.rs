//! After a sync that failed nothing is known of what is durable.

use std::collections::BTreeMap;

use super::Invariant;
use crate::clock;
use crate::judge::{Findings, Seen};

/// How long a process may take to end. Nothing that it does meanwhile takes virtual time.
const GRACE_US: u64 = 50_000;

/// When a sync of each node's present process failed.
#[derive(Default)]
pub(super) struct FailedSyncEndsTheNode(BTreeMap<usize, u64>);

impl Invariant for FailedSyncEndsTheNode {
    fn sentence(&self) -> &'static str {
        "a process whose sync failed ends, and neither applies, asks nor answers anything from then on"
    }

    fn reason(&self) -> &'static str {
        "the cache shows bytes that the medium may not have, and a second sync that succeeds says nothing of them"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let node = match seen {
            Seen::SyncFailed { node } => {
                self.0.entry(*node).or_insert_with(clock::true_us);
                return;
            }
            Seen::Began { node } => {
                self.0.remove(node);
                return;
            }
            Seen::Applied { node, .. } | Seen::Answered { node, .. } => node,
            Seen::Message { from, .. } => from,
            _ => return,
        };
        let late = |failed_us: &u64| clock::true_us() > failed_us + GRACE_US;
        if self.0.get(node).is_some_and(late) {
            self.0.remove(node);
            findings.add(format!("n{node} goes on after a sync that failed"));
        }
    }
}
