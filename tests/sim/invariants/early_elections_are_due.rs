//! Elections that do not wait for the timers.

use std::collections::{BTreeMap, BTreeSet};

use tenure_raft::wire::PeerRequest;

use super::Invariant;
use crate::clock;
use crate::judge::{Findings, Seen};

/// How long a refusal is good for. Who stands writes its vote down first, and a slow disk takes its time.
const GOOD_US: u64 = 40_000_000;
/// How many of a leader's terms a refusal of its port is good for: who probes may not know the newest.
const TERMS: usize = 3;

/// Who may stand for election although the leader's lease has not ended, and who did.
#[derive(Default)]
pub(super) struct EarlyElectionsAreDue {
    leaders: BTreeMap<u64, u64>,
    /// The term a leader handed over, and the heir.
    handed_over: BTreeSet<(u64, u64)>,
    /// The term whose leader's port refused, to whom; whether a process lived behind it, and when.
    refused: BTreeMap<(u64, u64), (bool, u64)>,
    /// The term that was stood for, by whom.
    stood: BTreeSet<(u64, u64)>,
    against_dead: u64,
    against_living: u64,
    open: u64,
}

impl Invariant for EarlyElectionsAreDue {
    fn sentence(&self) -> &'static str {
        "nobody stands with the mark of a hand-over, which voters follow before the leader's lease has ended, unless the leader hands over or its port has refused"
    }

    fn reason(&self) -> &'static str {
        "a leader that lives and answers must not be deposed by a broken connection, by silence or by a verdict about another one"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Probed(probed) if probed.refused => {
                let (leader, follower) = (probed.to as u64, probed.from as u64);
                let terms = self.leaders.iter().rev();
                let led = terms.filter(|(_, who)| **who == leader).take(TERMS);
                for (term, _) in led {
                    self.refused
                        .insert((*term, follower), (probed.lives, clock::true_us()));
                }
            }
            Seen::Probed(_) => self.open += 1,
            Seen::Message { request, .. } => match request {
                PeerRequest::Append(append) => {
                    self.leaders.insert(append.vote.term, append.vote.node);
                }
                PeerRequest::TransferLeader(transfer) => {
                    self.handed_over.insert((transfer.from.term, transfer.to));
                }
                PeerRequest::Vote(question) if question.leadership_transfer => {
                    let (term, node) = (question.vote.term, question.vote.node);
                    if self.stood.insert((term, node)) {
                        self.judge(term.saturating_sub(1), node, findings);
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("elections at once, the leader was dead", self.against_dead),
            ("elections at once, the leader lived", self.against_living),
            ("looks at a leader's port that was open", self.open),
        ]
    }
}

impl EarlyElectionsAreDue {
    /// Node `node` stands against the leader of `term`.
    fn judge(&mut self, term: u64, node: u64, findings: &mut Findings) {
        let refused = self.refused.remove(&(term, node));
        match refused.filter(|(_, at_us)| clock::true_us() <= at_us + GOOD_US) {
            Some((true, _)) => self.against_living += 1,
            Some((false, _)) => self.against_dead += 1,
            None if self.handed_over.contains(&(term, node)) => {}
            None => findings.add(format!(
                "n{node} stands against the leader of term {term}, {:?}, which neither handed over nor refused it",
                self.leaders.get(&term)
            )),
        }
    }
}
