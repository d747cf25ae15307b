//! Time in which nobody led is nobody's fault.

use std::collections::BTreeMap;

use tenure_machine::LogPosition;
use tenure_raft::wire::PeerRequest;

use super::Invariant;
use crate::clock;
use crate::judge::{Findings, Seen};

/// Where no leader said anything to anybody for so long, there was none that worked.
const SILENT_US: u64 = 1_000_000;
/// No clock of a run is faster than true time by more than this, in a thousand.
const FASTEST_PER_MILLE: u64 = 60;
/// How much of led time may lie between the stamp of an entry and the first message that has it, and a step of
/// the clock at each end.
const SLACK_US: u64 = 2_500_000;

/// The last silence, and where the lease clock stood before it.
#[derive(Default)]
pub(super) struct LeaderlessTimeExpiresNobody {
    /// When a leader last said something.
    heard_us: u64,
    /// When each entry that is not committed was first sent. A disk may hold its commitment up for long.
    sent_us: BTreeMap<LogPosition, u64>,
    /// The lease clock in the committed state, and when the entry was sent that set it so.
    last: (u64, u64),
    before: Option<Before>,
}

struct Before {
    lease_ms: u64,
    since_us: u64,
    /// How much of the time since then nobody said anything.
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
                request: PeerRequest::Append(append),
                ..
            } => {
                let (lease_ms, since_us) = self.last;
                let silent_us = now_us - self.heard_us.max(since_us);
                if silent_us > SILENT_US {
                    self.before = Some(Before {
                        lease_ms,
                        since_us,
                        silent_us,
                    });
                }
                self.heard_us = now_us;
                for entry in &append.entries {
                    self.sent_us.entry(entry.at).or_insert(now_us);
                }
            }
            Seen::Committed(entry) => {
                let lease_ms = entry.after.clock().lease_ms;
                if lease_ms > self.last.0 {
                    let sent_us = self.sent_us.get(&entry.at).copied();
                    self.last = (lease_ms, sent_us.unwrap_or(now_us));
                }
                self.sent_us.retain(|at, _| at.index > entry.at.index);
                let Some(before) = &self.before else { return };
                let led_us = (now_us - before.since_us).saturating_sub(before.silent_us);
                let most_us = led_us + led_us * FASTEST_PER_MILLE / 1000 + SLACK_US;
                if (lease_ms - before.lease_ms) * 1000 > most_us {
                    findings.add(format!(
                        "it stands at {lease_ms} ms and stood at {} ms; of the {} ms between, {} ms were silent",
                        before.lease_ms,
                        (now_us - before.since_us) / 1000,
                        before.silent_us / 1000
                    ));
                }
            }
            _ => {}
        }
    }
}
