//! What a node said in an election holds after each restart.

use std::collections::BTreeMap;

use tenure_raft::wire::{PeerRequest, PeerResponse};

use super::Invariant;
use crate::judge::{Findings, Seen};
use crate::scope::Process;

/// Whom each node supported in each term, and the highest term in which it did.
#[derive(Default)]
pub(super) struct VotesAreKept {
    given: BTreeMap<(Process, u64), u64>,
    highest: BTreeMap<Process, u64>,
}

impl Invariant for VotesAreKept {
    fn sentence(&self) -> &'static str {
        "a node supports one candidate a term, and after a restart knows each term in which it supported one"
    }

    fn reason(&self) -> &'static str {
        "a vote that is forgotten can be given twice, and two of them make two leaders"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let (node, vote) = match seen {
            // A candidate votes for itself before it asks others.
            Seen::Message {
                from,
                request: PeerRequest::Vote(question),
            } => (*from, question.vote),
            Seen::Answered {
                node,
                request: PeerRequest::Vote(question),
                answer: PeerResponse::Vote(answer),
            } if answer.granted => (*node, question.vote),
            Seen::Started { node, term, .. } => {
                let highest = self.highest.get(node).copied().unwrap_or(0);
                if *term < highest {
                    findings.add(format!(
                        "n{node} starts in term {term}; it voted in term {highest}"
                    ));
                }
                return;
            }
            _ => return,
        };
        let highest = self.highest.entry(node).or_default();
        *highest = (*highest).max(vote.term);
        let first = *self.given.entry((node, vote.term)).or_insert(vote.node);
        if first != vote.node {
            findings.add(format!(
                "n{node} supports n{first} and n{} in term {}",
                vote.node, vote.term
            ));
        }
    }
}
