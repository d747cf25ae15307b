//! Raft's state-machine safety.

use std::collections::BTreeMap;

use tenure_machine::LogPosition;
use tenure_machine::codec::{self, Kind};

use super::{Invariant, digest};
use crate::judge::{Findings, Seen};

/// The entry at each place, and how far each node has come.
#[derive(Default)]
pub(super) struct SameEntryEverywhere {
    entries: Vec<(LogPosition, u64)>,
    applied: BTreeMap<usize, Option<u64>>,
}

impl Invariant for SameEntryEverywhere {
    fn sentence(&self) -> &'static str {
        "all nodes apply the same entry at the same place, in order, without a gap"
    }

    fn reason(&self) -> &'static str {
        "what one node has applied is committed, and what is committed is never another entry elsewhere"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Began { node } => {
                self.applied.insert(*node, None);
            }
            Seen::Jumped { node, at } => {
                self.applied.insert(*node, Some(at.index));
            }
            Seen::Applied {
                node,
                at,
                proposal,
                outcome,
            } => {
                let before = self.applied.insert(*node, Some(at.index)).flatten();
                if at.index != before.map_or(0, |before| before + 1) {
                    findings.add(format!("n{node} applies {at:?} after {before:?}"));
                }
                let bytes = proposal.map(|p| codec::encode(Kind::LogEntry, p));
                let bytes = bytes.and_then(Result::ok).unwrap_or_default();
                let digest = digest(&bytes) ^ outcome.map_or(0, digest_of_outcome);
                match self.entries.get(at.index as usize) {
                    Some(known) if *known != (*at, digest) => findings.add(format!(
                        "n{node} applies {at:?}, another node applied {:?} there, or with another outcome",
                        known.0
                    )),
                    Some(_) => {}
                    None => self.entries.push((*at, digest)),
                }
            }
            _ => {}
        }
    }
}

fn digest_of_outcome(outcome: &tenure_machine::Outcome) -> u64 {
    let events = codec::encode(Kind::ArchiveRecord, &outcome.events).unwrap_or_default();
    let reply = codec::encode(Kind::ArchiveRecord, &outcome.reply).unwrap_or_default();
    digest(&events).rotate_left(17) ^ digest(&reply)
}
