//! Anyone can ask what was decided for an instant, and is told.

use std::collections::BTreeMap;

use tenure_machine::Event;

use super::Invariant;
use crate::judge::{Ack, Call, Findings, Seen};

/// All decisions of the log, by job and first instant.
#[derive(Default)]
pub(super) struct LedgerIsWhole {
    decisions: BTreeMap<String, BTreeMap<u64, Decided>>,
    pages: u64,
}

struct Decided {
    /// Where in the log.
    index: u64,
    last_ms: u64,
    run: Option<u64>,
}

impl Invariant for LedgerIsWhole {
    fn sentence(&self) -> &'static str {
        "the ledger of a job shows every decision once, as the log has it"
    }

    fn reason(&self) -> &'static str {
        "who asks what became of an instant has nothing else to look at"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                let events = entry.outcome.map_or(&[][..], |outcome| &outcome.events);
                for event in events {
                    if let Event::Decided(decision) = event {
                        let decided = Decided {
                            index: entry.at.index,
                            last_ms: decision.last_ms,
                            run: decision.run,
                        };
                        let of_job = self.decisions.entry(decision.job.to_string());
                        of_job.or_default().insert(decision.first_ms, decided);
                    }
                }
            }
            Seen::Acknowledged(Call {
                committed,
                ack:
                    Ack::Ledger {
                        job,
                        fires,
                        whole,
                        current,
                    },
            }) => {
                self.pages += 1;
                let known = self.decisions.entry(job.clone()).or_default();
                for (first_ms, last_ms, run) in fires {
                    let so = known
                        .get(first_ms)
                        .is_some_and(|decided| (decided.last_ms, decided.run) == (*last_ms, *run));
                    if !so {
                        findings.add(format!(
                            "{job} at {first_ms} to {last_ms}, run {run:?}: not so in the log"
                        ));
                    }
                }
                if !fires.is_sorted_by(|a, b| a.0 > b.0) {
                    findings.add(format!("{job}: out of order: {fires:?}"));
                }
                let lowest = if *whole {
                    Some(0)
                } else {
                    fires.last().map(|fire| fire.0)
                };
                // What one node has may end anywhere, but has no holes.
                let highest = fires.first().map(|fire| fire.0);
                let mut owed = known.iter().filter(|(first_ms, decided)| match current {
                    true => decided.index < *committed,
                    false => Some(**first_ms) <= highest,
                });
                let lacks = owed.find(|(first_ms, _)| {
                    lowest.is_some_and(|lowest| **first_ms >= lowest)
                        && !fires.iter().any(|fire| fire.0 == **first_ms)
                });
                if let Some((first_ms, decided)) = lacks {
                    findings.add(format!(
                        "{job} at {first_ms}, decided at index {}, is lacking: {fires:?}",
                        decided.index
                    ));
                }
            }
            _ => {}
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("pages of a ledger", self.pages)]
    }
}
