//! Nobody's lease runs while nobody can renew it.

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The fastest that a machine's clock may run, in thousandths of true time.
const FASTEST_PER_MILLE: u64 = 1_060;
/// What lies between the making of a stamp and the commit of its entry, with the step that a leader takes before
/// it notices that its majority is gone.
const SLACK_MS: u64 = 4_000;

/// How long there was a leader so far, and where the lease clock stood how long ago.
#[derive(Default)]
pub(super) struct LeaseClockWaits {
    led_us: u64,
    led: bool,
    last: Option<(u64, u64)>,
    first: Option<(u64, u64)>,
    /// How often there was no leader any more.
    lapses: u64,
}

impl Invariant for LeaseClockWaits {
    fn sentence(&self) -> &'static str {
        "the lease clock counts no time in which no node that runs leads a majority"
    }

    fn reason(&self) -> &'static str {
        "nobody is judged late for the time when nobody could renew"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Passed { us, led } => {
                // Led at either end counts as led in between: more than it was, never less.
                if self.led || *led {
                    self.led_us += us;
                }
                self.lapses += u64::from(self.led && !*led);
                self.led = *led;
            }
            Seen::Committed(entry) => {
                let lease_ms = entry.after.clock().lease_ms;
                if let Some((before_ms, led_us)) = self.last {
                    let led_ms = (self.led_us - led_us) / 1_000;
                    let flowed_ms = lease_ms - before_ms;
                    if flowed_ms > led_ms * FASTEST_PER_MILLE / 1_000 + SLACK_MS {
                        findings.add(format!(
                            "it went on by {flowed_ms} ms up to {:?}; there was a leader for {led_ms} ms of them",
                            entry.at
                        ));
                    }
                }
                self.last = Some((lease_ms, self.led_us));
                // What lies in between is allowed once for each time the lead is lost, not for each entry.
                let (first_ms, led_us) = *self.first.get_or_insert((lease_ms, self.led_us));
                let (flowed_ms, led_ms) = (lease_ms - first_ms, (self.led_us - led_us) / 1_000);
                let slack_ms = SLACK_MS * (self.lapses + 1);
                if flowed_ms > led_ms * FASTEST_PER_MILLE / 1_000 + slack_ms {
                    findings.add(format!(
                        "it has gone on by {flowed_ms} ms up to {:?}, in {led_ms} ms with a leader and {} lapses",
                        entry.at, self.lapses
                    ));
                }
            }
            _ => {}
        }
    }
}
