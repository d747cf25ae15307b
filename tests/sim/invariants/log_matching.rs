//! Raft's log matching, seen on the wire.

use std::collections::BTreeMap;

use tenure_raft::wire::{PeerRequest, WirePayload};

use super::{Invariant, digest};
use crate::judge::{Findings, Seen};

/// What is sent for each (index, term).
#[derive(Default)]
pub(super) struct LogMatching(BTreeMap<(u64, u64), u64>);

impl Invariant for LogMatching {
    fn sentence(&self) -> &'static str {
        "two entries with the same place and the same term are the same entry"
    }

    fn reason(&self) -> &'static str {
        "a follower takes a matching place and term for a matching log before it"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Message {
            from,
            request: PeerRequest::Append(append),
        } = seen
        else {
            return;
        };
        for entry in &append.entries {
            let digest = match &entry.payload {
                WirePayload::Blank => 1,
                WirePayload::Command(bytes) => digest(&bytes.0),
                WirePayload::Membership(members) => digest(format!("{members:?}").as_bytes()),
            };
            let key = (entry.at.index, entry.at.term);
            if *self.0.entry(key).or_insert(digest) != digest {
                findings.add(format!("n{from} sends another entry at {:?}", entry.at));
            }
        }
    }
}
