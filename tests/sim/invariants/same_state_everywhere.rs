//! Replicas are equal, and equal to a full replay.

use tenure_machine::State;
use tenure_machine::codec::{self, Kind};

use super::Invariant;
use crate::chance;
use crate::judge::{Findings, Seen};

/// Compares samples with the replay.
#[derive(Default)]
pub(super) struct SameStateEverywhere;

impl Invariant for SameStateEverywhere {
    fn sentence(&self) -> &'static str {
        "a replica at a place of the log is what a replay of the log up to there gives, whatever snapshots it came from"
    }

    fn reason(&self) -> &'static str {
        "a replica that differs decides differently once it leads"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Sampled {
            node,
            replica,
            replay,
        } = seen
        else {
            return;
        };
        if state_hash(&replica.state) != state_hash(replay) {
            findings.add(format!(
                "n{node} differs from the replay at {:?}: {}",
                replica.applied,
                first_difference(&replica.state, replay)
            ));
        }
    }
}

/// A hash over everything in a state.
pub fn state_hash(state: &State) -> u64 {
    let mut bytes = Vec::new();
    let mut hash = 0;
    for record in state.records() {
        bytes.clear();
        // A record of a live state always has a form.
        let _ = codec::encode_into(Kind::SnapshotRecord, &record, &mut bytes);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = chance::mixed(hash ^ u64::from_le_bytes(word));
        }
    }
    hash
}

fn first_difference(left: &State, right: &State) -> String {
    let mut right = right.records();
    for record in left.records() {
        let (left, right) = (format!("{record:?}"), format!("{:?}", right.next()));
        if right != format!("Some({left})") {
            return format!("{left} where the replay has {right}");
        }
    }
    "the replay has more".to_owned()
}
