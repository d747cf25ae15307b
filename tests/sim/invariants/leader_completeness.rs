//! Who leads has everything that was committed before.

use std::collections::BTreeSet;

use tenure_machine::LogPosition;
use tenure_raft::wire::PeerRequest;

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The term of each committed entry, by its place.
#[derive(Default)]
pub(super) struct LeaderCompleteness {
    terms: Vec<u64>,
    /// Leaders that were found to lack something; told of once each.
    told: BTreeSet<(u64, u64)>,
}

impl Invariant for LeaderCompleteness {
    fn sentence(&self) -> &'static str {
        "a leader's log has at each place the entry that was committed there in an earlier term or in its own"
    }

    fn reason(&self) -> &'static str {
        "leader completeness (Raft, figure 3): else what was acknowledged is overwritten on those who have it"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => self.terms.push(entry.at.term),
            Seen::Message {
                request: PeerRequest::Append(append),
                ..
            } => {
                let (term, node) = (append.vote.term, append.vote.node);
                let entries = append.entries.iter().map(|entry| entry.at);
                for at in append.previous.into_iter().chain(entries) {
                    if let Some(committed) = self.other_than_committed(term, at)
                        && self.told.insert((term, node))
                    {
                        findings.add(format!(
                            "n{node} leads term {term} with {at:?}, where an entry of term {committed} was committed"
                        ));
                    }
                }
            }
            _ => {}
        }
    }
}

impl LeaderCompleteness {
    /// The term of what was committed there, if the leader of `term` must have that and has something else.
    fn other_than_committed(&self, term: u64, at: LogPosition) -> Option<u64> {
        let committed = *self.terms.get(at.index as usize)?;
        (committed <= term && committed != at.term).then_some(committed)
    }
}
