//! What a sink that checks tokens accepts.

use std::collections::BTreeMap;

use tenure_machine::{Command, Overlap};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The highest token each scope was granted, and the highest one its sink accepted.
#[derive(Default)]
pub(super) struct SinkIsFenced {
    granted: BTreeMap<String, u64>,
    accepted: BTreeMap<String, (u64, u64)>,
}

impl Invariant for SinkIsFenced {
    fn sentence(&self) -> &'static str {
        "a checking sink accepts nothing below the highest token it saw, and sees no token that was not granted"
    }

    fn reason(&self) -> &'static str {
        "a late owner must not undo what its successor did"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        match seen {
            Seen::Committed(entry) => {
                let Some(Command::Assign { task, .. }) = entry.proposal.map(|p| &p.command) else {
                    return;
                };
                let accepted = entry.outcome.is_some_and(|outcome| outcome.reply.is_ok());
                if accepted && let Some(run) = entry.after.run(task.run) {
                    let job = run.key.job();
                    let scope = match run.spec.overlap {
                        Overlap::Allow => format!("{job}/{}@{}", task.shard, task.run),
                        _ => format!("{job}/{}", task.shard),
                    };
                    self.granted.insert(scope, task.epoch);
                }
            }
            Seen::Stored {
                scope,
                token,
                accepted: true,
                ..
            } => {
                let granted = self.granted.get(*scope).copied().unwrap_or(0);
                if token.1 > granted {
                    findings.add(format!("{scope}: token {token:?}, granted up to {granted}"));
                }
                let highest = self.accepted.entry((*scope).to_owned()).or_default();
                if *token < *highest {
                    findings.add(format!("{scope}: {token:?} accepted after {highest:?}"));
                }
                *highest = (*highest).max(*token);
            }
            _ => {}
        }
    }
}
