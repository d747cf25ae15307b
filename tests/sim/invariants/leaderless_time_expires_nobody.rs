//! Time in which nobody led is nobody's fault.

use tenure_raft::wire::PeerRequest;

use super::Invariant;
use crate::clock;
use crate::judge::{Findings, Seen};

/// Where no leader said anything to anybody for so long, there was none that worked.
const SILENT_US: u64 = 1_000_000;
/// No clock of a run is faster than true time by more than this, in a thousand.
const FASTEST_PER_MILLE: u64 = 60;
/// How much of led time may lie between the stamp of an entry and its commitment, and a step of the clock at
/// each end.
const SLACK_US: u64 = 2_500_000;

/// The last silence, and where the lease clock stood before it.
#[derive(Default)]
pub(super) struct LeaderlessTimeExpiresNobody {
    /// When a leader last said something.
    heard_us: u64,
    /// The lease clock behind the last entry, and when that was committed.
    last: (u64, u64),
    before: Option<Before>,
}

struct Before {
    lease_ms: u64,
    committed_us: u64,
    silent_us: u64,
}

impl Invariant for LeaderlessTimeExpiresNobody {
    fn sentence(&self) -> &'static str {
        "the lease clock stands while no leader works, so that no lease ends for want of one"
    }

    fn reason(&self) -> &'static str {
        "an executor that had nobody to renew its lease with has not failed"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let now_us = clock::true_us();
        match seen {
            Seen::Message {
                request: PeerRequest::Append(_),
                ..
            } => {
                let silent_us = now_us - self.heard_us;
                if silent_us > SILENT_US {
                    self.before = Some(Before {
                        lease_ms: self.last.0,
                        committed_us: self.last.1,
                        silent_us,
                    });
                }
                self.heard_us = now_us;
            }
            Seen::Committed(entry) => {
                let lease_ms = entry.after.clock().lease_ms;
                self.last = (lease_ms, now_us);
                let Some(before) = &self.before else { return };
                let led_us = (now_us - before.committed_us).saturating_sub(before.silent_us);
                let most_us = led_us + led_us * FASTEST_PER_MILLE / 1000 + SLACK_US;
                if (lease_ms - before.lease_ms) * 1000 > most_us {
                    findings.add(format!(
                        "it stands at {lease_ms} ms and stood at {} ms; of the {} ms between, {} ms were silent",
                        before.lease_ms,
                        (now_us - before.committed_us) / 1000,
                        before.silent_us / 1000
                    ));
                }
            }
            _ => {}
        }
    }
}
