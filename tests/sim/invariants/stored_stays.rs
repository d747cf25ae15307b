//! What a node said is on its disk is there after each restart.

use std::collections::BTreeMap;

use tenure_raft::wire::{AppendAnswer, PeerRequest, PeerResponse};

use super::Invariant;
use crate::judge::{Findings, Seen};
use crate::scope::Process;

/// The term of each committed entry, and what each node said it had stored.
#[derive(Default)]
pub(super) struct StoredStays {
    committed: Vec<u64>,
    /// Places and terms that are not known to be committed yet, and the highest place that is.
    said: BTreeMap<Process, (BTreeMap<u64, u64>, Option<u64>)>,
}

impl Invariant for StoredStays {
    fn sentence(&self) -> &'static str {
        "a node that said it has stored an entry still has it after a restart, if the entry was committed"
    }

    fn reason(&self) -> &'static str {
        "the leader counted it towards the majority that an acknowledgement stands on"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => self.committed.push(entry.at.term),
            Seen::Answered {
                node,
                request: PeerRequest::Append(append),
                answer: PeerResponse::Append(AppendAnswer::Stored),
            } => {
                if let Some(last) = append.entries.last() {
                    let said = self.said.entry(*node).or_default();
                    said.0.insert(last.at.index, last.at.term);
                }
            }
            Seen::Started { node, last_log, .. } => self.started(*node, *last_log, findings),
            _ => {}
        }
    }
}

impl StoredStays {
    fn started(&mut self, node: Process, last_log: Option<u64>, findings: &mut Findings) {
        let Some((said, highest)) = self.said.get_mut(&node) else {
            return;
        };
        for (index, term) in &*said {
            if self.committed.get(*index as usize) == Some(term) {
                *highest = (*highest).max(Some(*index));
            }
        }
        // What is committed later at these places may be another entry of the same term only if it is the
        // same entry; what was replaced by a later term never counts.
        said.retain(|index, _| *index >= self.committed.len() as u64);
        if last_log < *highest {
            findings.add(format!(
                "the log of n{node} ends at {last_log:?}; it had stored {highest:?}, which is committed"
            ));
        }
    }
}
