//! Who is no longer in office changes nothing.

use tenure_machine::{Command, Reply, TaskRef};

use super::Invariant;
use crate::judge::{Entry, Findings, Seen};

/// Looks at each command of a session or a leader's loop.
#[derive(Default)]
pub(super) struct StaleHasNoEffect;

impl Invariant for StaleHasNoEffect {
    fn sentence(&self) -> &'static str {
        "a session that is over, an epoch that is not the present one and a term that is over change nothing"
    }

    fn reason(&self) -> &'static str {
        "their holders do not know yet that others have taken over"
    }

    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings) {
        let Seen::Committed(entry) = seen else {
            return;
        };
        let Some(proposal) = entry.proposal else {
            return;
        };
        let done = entry.outcome.is_some_and(|outcome| outcome.reply.is_ok());
        if done && proposal.term.is_some_and(|term| term != entry.at.term) {
            findings.add(format!(
                "a command of term {:?} is carried out in term {}",
                proposal.term, entry.at.term
            ));
        }
        match &proposal.command {
            Command::StartTask { session, task }
            | Command::Checkpoint { session, task, .. }
            | Command::AppendOutput { session, task, .. }
            | Command::ReportResult { session, task, .. }
            | Command::ReleaseTask { session, task } => {
                check(entry, *session, Some(*task), findings);
            }
            Command::Heartbeat(heartbeat) => check(entry, heartbeat.session, None, findings),
            _ => {}
        }
    }
}

fn check(entry: &Entry<'_>, session: u64, task: Option<TaskRef>, findings: &mut Findings) {
    let live = entry.before.session(session).is_some();
    let holds = task.is_none_or(|task| {
        let known = entry.before.task(task.run, task.shard);
        known.is_some_and(|known| {
            known.epoch == task.epoch
                && known
                    .owner
                    .as_ref()
                    .is_some_and(|owner| owner.session == session)
        })
    });
    if live && holds {
        return;
    }
    let reply = entry.outcome.map(|outcome| &outcome.reply);
    // A repeated result under its own epoch is answered as the first one was.
    let repeated = matches!(reply, Some(Ok(Reply::ResultTaken { repeated: true, .. })));
    if !repeated && reply.is_some_and(Result::is_ok) {
        findings.add(format!(
            "{:?} is carried out",
            entry.proposal.map(|p| &p.command)
        ));
    }
    let Some(task) = task else { return };
    let [before, after] =
        [entry.before, entry.after].map(|state| state.task(task.run, task.shard).cloned());
    if before != after {
        findings.add(format!(
            "{task:?} of session {session} changes {before:?} to {after:?}"
        ));
    }
}
