//! A request that is repeated under its key.

use std::collections::BTreeMap;

use tenure_machine::{Event, Name, Refusal, RefusalCode, Reply};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// What each key stood for, and how it was answered.
#[derive(Default)]
pub(super) struct RepeatsAreOne(BTreeMap<Name, ([u8; 16], Result<Reply, Refusal>)>);

impl Invariant for RepeatsAreOne {
    fn sentence(&self) -> &'static str {
        "a request that comes again under its key is answered as the first time and does nothing"
    }

    fn reason(&self) -> &'static str {
        "who did not hear the answer must be able to ask again, and to believe what it hears"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let (Some(proposal), Some(outcome)) = (entry.proposal, entry.outcome) else {
            return;
        };
        let Some(request) = &proposal.request else {
            return;
        };
        match self.0.get(&request.key) {
            Some((fingerprint, _)) if *fingerprint != request.fingerprint => {}
            Some((_, first)) => {
                let quiet = |event: &Event| matches!(event, Event::Refused { .. });
                if outcome.reply != *first || !outcome.events.iter().all(quiet) {
                    findings.add(format!(
                        "{:?} was answered {first:?}, and again {:?}",
                        proposal.command, outcome.reply
                    ));
                }
            }
            None if !comes_again(&outcome.reply) => {
                let known = (request.fingerprint, outcome.reply.clone());
                self.0.insert(request.key.clone(), known);
            }
            None => {}
        }
    }
}

/// Whether it was refused for now only, and is tried again under the same key.
fn comes_again(reply: &Result<Reply, Refusal>) -> bool {
    let refused = reply.as_ref().err().map(|refusal| refusal.code);
    matches!(
        refused,
        Some(
            RefusalCode::Bootstrap
                | RefusalCode::CursorMismatch
                | RefusalCode::DuplicateFire
                | RefusalCode::NotDue
                | RefusalCode::InstanceConflict
        )
    )
}
