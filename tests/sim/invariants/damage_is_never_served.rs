//! Bytes that decayed on a disk go nowhere.

use std::collections::BTreeSet;

use tenure_machine::codec::{self, Kind};
use tenure_raft::wire::{PeerRequest, WirePayload};

use super::{Invariant, digest};
use crate::judge::{Findings, Seen};

/// What was committed, and whose disk is damaged.
#[derive(Default)]
pub(super) struct DamageIsNeverServed {
    damaged: BTreeSet<usize>,
    /// Term and digest of the command at each place of the log.
    log: Vec<(u64, Option<u64>)>,
}

impl Invariant for DamageIsNeverServed {
    fn sentence(&self) -> &'static str {
        "a node with a damaged disk sends what was committed or nothing, and is equal to all or takes no part"
    }

    fn reason(&self) -> &'static str {
        "one bad copy must not become the copy of all"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Damaged { node } => {
                self.damaged.insert(*node);
            }
            Seen::Committed(entry) => {
                let bytes = entry.proposal.map(|p| codec::encode(Kind::LogEntry, p));
                let bytes = bytes.and_then(Result::ok);
                let digest = bytes.map(|bytes| digest(&bytes));
                self.log.push((entry.at.term, digest));
            }
            Seen::Message {
                from,
                request: PeerRequest::Append(append),
            } if self.damaged.contains(from) => {
                for entry in &append.entries {
                    let WirePayload::Command(bytes) = &entry.payload else {
                        continue;
                    };
                    let known = self.log.get(entry.at.index as usize);
                    let known = known.filter(|(term, _)| *term == entry.at.term);
                    if known.is_some_and(|(_, known)| *known != Some(digest(&bytes.0))) {
                        findings.add(format!(
                            "n{from}, which is damaged, sends another entry at {:?} than was committed",
                            entry.at
                        ));
                    }
                }
            }
            _ => {}
        }
    }
}
