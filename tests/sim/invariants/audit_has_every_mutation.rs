//! The audit chain is whole.

use tenure_machine::{Command, Event, Reply, State};

use super::Invariant;
use crate::judge::{Findings, Seen};

/// The last link.
#[derive(Default)]
pub(super) struct AuditHasEveryMutation {
    seq: u64,
    hash: [u8; 32],
}

impl Invariant for AuditHasEveryMutation {
    fn sentence(&self) -> &'static str {
        "each change by the control plane leaves one link in the audit chain, and the chain is whole"
    }

    fn reason(&self) -> &'static str {
        "a change that left no trace can be denied"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let (Some(proposal), Some(outcome)) = (entry.proposal, entry.outcome) else {
            return;
        };
        let mut links = 0;
        for event in &outcome.events {
            if let Event::Audited(link) = event {
                links += 1;
                let follows = link.seq == self.seq + 1 && link.previous == self.hash;
                if !follows || link.link() != link.hash || link.index != entry.at.index {
                    findings.add(format!("link {} does not follow {}", link.seq, self.seq));
                }
                (self.seq, self.hash) = (link.seq, link.hash);
            }
        }
        let mutates = match (&proposal.command, &outcome.reply) {
            (_, Err(_)) => Some(false),
            (
                Command::PutJob { name, .. }
                | Command::DeleteJob { name, .. }
                | Command::PauseJob { name }
                | Command::ResumeJob { name, .. },
                Ok(_),
            ) => Some(entry.before.job(name) != entry.after.job(name)),
            (Command::CancelRun { run, .. }, Ok(_)) => {
                let cancelled =
                    |state: &State| state.run(*run).is_some_and(|r| r.cancelled.is_some());
                (!cancelled(entry.before) && cancelled(entry.after)).then_some(true)
            }
            (Command::CloseSession { .. }, Ok(_)) => Some(true),
            (Command::TriggerJob { .. }, Ok(Reply::Run { .. })) => {
                let made = |event: &Event| matches!(event, Event::RunCreated(_));
                Some(outcome.events.iter().any(made))
            }
            (Command::RegisterSession(_) | Command::ExpireSession { .. }, Ok(_))
                if proposal.request.is_none() =>
            {
                Some(true)
            }
            (Command::Heartbeat(_) | Command::Checkpoint { .. } | Command::Fire { .. }, Ok(_)) => {
                Some(false)
            }
            _ => None,
        };
        if mutates.is_some_and(|mutates| u32::from(mutates) != links) {
            findings.add(format!("{links} links for {:?}", proposal.command));
        }
    }
}
