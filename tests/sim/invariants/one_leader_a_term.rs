//! Raft's election safety.

use std::collections::BTreeMap;

use tenure_raft::wire::PeerRequest;

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The leader of each term.
#[derive(Default)]
pub(super) struct OneLeaderATerm(BTreeMap<u64, u64>);

impl Invariant for OneLeaderATerm {
    fn sentence(&self) -> &'static str {
        "a term has at most one leader"
    }

    fn reason(&self) -> &'static str {
        "two leaders of one term could commit different entries at one place, and a term would fence nothing"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Message { from, request } = seen else {
            return;
        };
        let vote = match request {
            PeerRequest::Append(append) => append.vote,
            PeerRequest::SnapshotOffer(offer) => offer.vote,
            _ => return,
        };
        let leader = *self.0.entry(vote.term).or_insert(vote.node);
        if !vote.committed || leader != vote.node || vote.node != *from as u64 {
            findings.add(format!(
                "n{from} sends entries as leader n{} of term {} (committed: {}), whose leader is n{leader}",
                vote.node, vote.term, vote.committed
            ));
        }
    }
}
