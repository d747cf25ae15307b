//! What a client was told did not happen.

use std::collections::BTreeSet;

use tenure_machine::{Event, RunKey};

use super::Invariant;
use crate::judge::{Ack, Call, Findings, Seen};

/// The keys under which runs were made, and those of which somebody was told that nothing happened.
#[derive(Default)]
pub(super) struct NoMeansNo {
    made: BTreeSet<String>,
    denied: BTreeSet<String>,
}

impl Invariant for NoMeansNo {
    fn sentence(&self) -> &'static str {
        "what a client was told has not happened has not happened, and does not happen later"
    }

    fn reason(&self) -> &'static str {
        "who believes that nothing happened does it again under another key"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                for event in entry.outcome.map_or(&[][..], |outcome| &outcome.events) {
                    if let Event::RunCreated(run) = event
                        && let RunKey::Keyed(_, key) = &run.key
                        && let Some((_, key)) = key.as_str().split_once(':')
                    {
                        if self.denied.contains(key) {
                            findings.add(format!("{key} makes run {} after all", run.id));
                        }
                        self.made.insert(key.to_owned());
                    }
                }
            }
            Seen::Acknowledged(Call {
                ack: Ack::Nothing { key },
                ..
            }) => {
                if self.made.contains(key) {
                    findings.add(format!("{key} has made a run"));
                }
                self.denied.insert(key.clone());
            }
            _ => {}
        }
    }
}
