//! After a sync that failed nothing is known of what is durable.

use std::collections::BTreeMap;

use tenure_raft::wire::{AppendAnswer, PeerRequest, PeerResponse};

use super::Invariant;
use crate::clock;
use crate::judge::{Findings, Seen};
use crate::scope;

/// How long a process may take to end. Nothing that it does meanwhile takes virtual time. What it says until then must
/// not depend on the sync: no answer, which could say that something is stored.
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
            Seen::Began { node } | Seen::Ended { node } => {
                self.0.remove(node);
                return;
            }
            Seen::Answered {
                node,
                request,
                answer,
            } if promises(request, answer) => {
                if self.0.remove(node).is_some() {
                    findings.add(format!(
                        "n{node} answers {answer:?} after a sync that failed"
                    ));
                }
                return;
            }
            Seen::Passed { .. } => {
                let now_us = clock::true_us();
                self.0.retain(|node, failed_us| {
                    if scope::is_paused(*node) {
                        *failed_us = now_us;
                    }
                    let ended = now_us <= *failed_us + GRACE_US;
                    if !ended {
                        findings.add(format!("n{node} has not ended after a sync that failed"));
                    }
                    ended
                });
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

/// Whether an answer says that something is on the node's disk that the request brought.
fn promises(request: &PeerRequest, answer: &PeerResponse) -> bool {
    match (request, answer) {
        (PeerRequest::Append(append), PeerResponse::Append(answer)) => {
            *answer == AppendAnswer::Stored && !append.entries.is_empty()
        }
        (PeerRequest::Vote(_), PeerResponse::Vote(answer)) => answer.granted,
        (_, PeerResponse::SnapshotDone(_)) => true,
        _ => false,
    }
}
