//! `apply`: the only thing that changes the state.
//!
//! Each entry goes through the same gate: clocks, term, idempotency, the command itself, the audit chain.
//! A command either changes what it says or is refused; it never does half. For that, each command first
//! checks everything and then changes, and the checks are all in front.

mod edit;
mod executors;
mod fires;
mod jobs;
mod losses;
mod runs;
mod tasks;

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::codec::{self, Kind};
use crate::event::AuditRecord;
use crate::state::{Counter, RequestRecord, TermRecord};
use crate::{
    Command, Event, LogPosition, MAX_GRACE_MS, MAX_REQUEST_KEY_BYTES, MAX_REQUESTS,
    MAX_TERM_HISTORY, Outcome, Proposal, Refusal, RefusalCode, Reply, RequestKey, State,
};

use jobs::Definition;
pub(crate) use runs::activate_run;

/// What a command works with.
pub(crate) struct Entry<'a> {
    pub(crate) at: LogPosition,
    pub(crate) proposal: &'a Proposal,
    pub(crate) events: Vec<Event>,
}

pub(crate) type Applied = Result<Reply, Refusal>;

impl State {
    /// Applies one log entry and says what came of it.
    ///
    /// Never panics and never fails: what cannot be done is a [`Refusal`].
    pub fn apply(&mut self, at: LogPosition, proposal: &Proposal) -> Outcome {
        let clock = &mut self.meta.clock;
        clock.lease_ms = clock.lease_ms.max(proposal.stamp.lease_ms);
        clock.calendar_ms = clock.calendar_ms.max(proposal.stamp.calendar_ms);
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::CalendarSetBack) {
            clock.calendar_ms = proposal.stamp.calendar_ms;
        }
        let mut entry = Entry {
            at,
            proposal,
            events: Vec::new(),
        };
        let reply = self.gate(&mut entry);
        if let Err(refusal) = &reply {
            self.count_refusal(refusal.code);
            entry.events.push(Event::Refused { code: refusal.code });
        }
        Outcome {
            reply,
            events: entry.events,
        }
    }

    fn gate(&mut self, entry: &mut Entry<'_>) -> Applied {
        let proposal = entry.proposal;
        let asked = proposal.term;
        #[cfg(feature = "planted-bugs")]
        let asked = asked.filter(|_| !tenure_planted::is(tenure_planted::Bug::TermUnchecked));
        if let Some(term) = asked
            && term != entry.at.term
        {
            return Err(Refusal::new(
                RefusalCode::StaleTerm,
                format!(
                    "proposed in term {term}, appended in term {}",
                    entry.at.term
                ),
            ));
        }
        if proposal.term.is_none() && proposal.command.is_leaders() {
            return Err(Refusal::new(
                RefusalCode::StaleTerm,
                "only a leader loop may propose this, and it names its term",
            ));
        }
        let bootstrap = matches!(proposal.command, Command::Bootstrap { .. });
        if !bootstrap && self.meta.cluster_id.is_none() {
            return Err(Refusal::new(
                RefusalCode::Bootstrap,
                "the cluster has no identity yet",
            ));
        }
        let Some(request) = &proposal.request else {
            return self.carry_out(entry);
        };
        if let Some(answer) = self.answer_again(request)? {
            return answer;
        }
        let reply = self.carry_out(entry);
        if !is_tried_again(&reply) {
            self.remember(entry, request, &reply);
        }
        reply
    }

    fn carry_out(&mut self, entry: &mut Entry<'_>) -> Applied {
        let reply = self.dispatch(entry);
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::AuditMissing)
            && matches!(entry.proposal.command, Command::PauseJob { .. })
        {
            return reply;
        }
        if let Ok(reply) = &reply
            && changed(reply)
            && let Some((action, subject)) = audited(entry)
        {
            self.audit(entry, action, subject);
        }
        reply
    }

    fn dispatch(&mut self, entry: &mut Entry<'_>) -> Applied {
        if let Some(session) = entry.proposal.command.spoken_for() {
            self.check_principal(session, &entry.proposal.actor)?;
        }
        match &entry.proposal.command {
            Command::Bootstrap {
                cluster_id,
                generation,
            } => self.bootstrap(cluster_id.clone(), *generation),
            Command::TermStarted { grace_ms } => self.term_started(entry, *grace_ms),
            Command::PutJob {
                name,
                expect,
                spec,
                paused,
                next_at_ms,
                superseded,
            } => {
                let definition = Definition {
                    spec,
                    paused: *paused,
                    next_at_ms: *next_at_ms,
                    superseded: *superseded,
                };
                self.put_job(entry, name, *expect, &definition)
            }
            Command::DeleteJob {
                name,
                expect,
                undecided,
            } => self.delete_job(entry, name, *expect, *undecided),
            Command::PauseJob { name } => self.pause_job(entry, name),
            Command::ResumeJob {
                name,
                skipped,
                next_at_ms,
            } => self.resume_job(entry, name, *skipped, *next_at_ms),
            Command::TriggerJob { name, key, params } => {
                self.trigger_job(entry, name, key.as_ref(), params.as_ref())
            }
            Command::Fire {
                job,
                revision,
                scheduled_at_ms,
                next_at_ms,
            } => self.fire(entry, job, *revision, *scheduled_at_ms, *next_at_ms),
            Command::SkipFires {
                job,
                revision,
                first_ms,
                last_ms,
                count,
                next_at_ms,
                reason,
            } => {
                let range = fires::Range {
                    first_ms: *first_ms,
                    last_ms: *last_ms,
                    count: *count,
                };
                self.skip_fires(entry, job, *revision, range, *next_at_ms, *reason)
            }
            Command::Assign { task, session } => self.assign(entry, *task, *session),
            Command::ExpireSession {
                session,
                deadline_ms,
            } => self.expire_session(entry, *session, *deadline_ms),
            Command::ExpireTask { task, deadline_ms } => {
                self.expire_task(entry, *task, *deadline_ms)
            }
            Command::EndOverdueTask { task, limit_ms } => {
                self.end_overdue_task(entry, *task, *limit_ms)
            }
            Command::Sweep => Ok(Reply::Swept {
                removed: self.sweep(),
            }),
            Command::RegisterSession(registration) => self.register(entry, registration),
            Command::Heartbeat(heartbeat) => self.heartbeat(entry, heartbeat),
            Command::StartTask { session, task } => self.start_task(*session, *task),
            Command::Checkpoint {
                session,
                task,
                offset,
                state,
            } => self.checkpoint(entry, *session, *task, *offset, state),
            Command::AppendOutput {
                session,
                task,
                seq,
                text,
            } => self.append_output(entry, *session, *task, *seq, text),
            Command::ReportResult {
                session,
                task,
                outcome,
                progress,
                output_tail,
            } => {
                let report = tasks::Report {
                    outcome,
                    progress: *progress,
                    tail: output_tail,
                };
                self.report_result(entry, *session, *task, &report)
            }
            Command::ReleaseTask { session, task } => self.release_task(entry, *session, *task),
            Command::DrainExecutor {
                instance,
                within_ms,
            } => self.drain(instance, *within_ms),
            Command::CloseSession { session } => self.close_session(entry, *session),
            Command::CancelRun { run, reason } => self.cancel_run(entry, *run, reason),
            Command::DrainSession { session, within_ms } => {
                self.drain_session(*session, *within_ms)
            }
        }
    }

    fn bootstrap(&mut self, cluster_id: crate::Name, generation: u64) -> Applied {
        if let Some(present) = &self.meta.cluster_id {
            return Err(Refusal::new(
                RefusalCode::Bootstrap,
                format!("the cluster already is {present}"),
            ));
        }
        if !cluster_id.is_label() || generation == 0 {
            return Err(Refusal::new(
                RefusalCode::Invalid,
                "cluster id or generation is empty",
            ));
        }
        self.meta.cluster_id = Some(cluster_id);
        self.meta.generation = generation;
        Ok(Reply::Done)
    }

    fn term_started(&mut self, entry: &Entry<'_>, grace_ms: u64) -> Applied {
        // Time without a leader does not flow: whoever could not renew gets a heartbeat interval to do so.
        // A leader that was cut off from its majority for a while says this again in its own term.
        let grace_ms = grace_ms.min(MAX_GRACE_MS);
        let until = self.meta.clock.lease_ms.saturating_add(grace_ms);
        self.meta.grace_until_lease_ms = self.meta.grace_until_lease_ms.max(until);
        if self
            .terms
            .back()
            .is_some_and(|last| last.term >= entry.at.term)
        {
            return Ok(Reply::Done);
        }
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::NextFireFromNow) {
            self.cursors_from_now();
        }
        self.count(Counter::Elections, 1);
        self.terms.push_back(TermRecord {
            term: entry.at.term,
            index: entry.at.index,
            at_ms: self.meta.clock.calendar_ms,
        });
        if self.terms.len() > MAX_TERM_HISTORY {
            self.terms.pop_front();
        }
        Ok(Reply::Done)
    }

    pub(crate) fn count(&mut self, counter: Counter, by: u64) {
        if by > 0 {
            let value = self.counters.entry(counter).or_default();
            *value = value.saturating_add(by);
        }
    }

    fn count_refusal(&mut self, code: RefusalCode) {
        let counter = match code {
            RefusalCode::StaleTerm => Counter::StaleTermRejections,
            RefusalCode::StaleSession
            | RefusalCode::SessionReplaced
            | RefusalCode::SessionExpired
            | RefusalCode::SessionClosed => Counter::StaleSessionRejections,
            RefusalCode::StaleEpoch | RefusalCode::FutureEpoch => Counter::StaleEpochRejections,
            RefusalCode::DuplicateFire => Counter::DuplicateFiresRefused,
            _ => return,
        };
        self.count(counter, 1);
    }

    /// The answer to an earlier request with this key, or a refusal if that one asked for something else.
    fn answer_again(&self, request: &RequestKey) -> Result<Option<Applied>, Refusal> {
        let length = request.key.as_str().len();
        // The key is prefixed with its principal, so it may be twice as long as what a caller gives.
        if length == 0 || length > 2 * MAX_REQUEST_KEY_BYTES + 1 {
            return Err(Refusal::new(
                RefusalCode::Invalid,
                "idempotency key is empty or too long",
            ));
        }
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::IdempotencyForgotten)
            || tenure_planted::is(tenure_planted::Bug::RunKeyUnchecked)
        {
            return Ok(None);
        }
        match self.requests.get(&request.key) {
            None => Ok(None),
            Some(record) if record.fingerprint == request.fingerprint => {
                Ok(Some(record.reply.clone()))
            }
            Some(record) => Err(Refusal::new(
                RefusalCode::IdempotencyConflict,
                format!(
                    "the key was used for another request, at log index {}",
                    record.index
                ),
            )),
        }
    }

    fn remember(&mut self, entry: &Entry<'_>, request: &RequestKey, reply: &Applied) {
        if self.requests.len() >= MAX_REQUESTS
            && let Some((index, key)) = self.index.requests.get_min().cloned()
        {
            self.index.requests.remove(&index);
            self.requests.remove(&key);
        }
        self.index
            .requests
            .insert(entry.at.index, request.key.clone());
        self.requests.insert(
            request.key.clone(),
            Arc::new(RequestRecord {
                key: request.key.clone(),
                fingerprint: request.fingerprint,
                reply: reply.clone(),
                index: entry.at.index,
                at_lease_ms: self.meta.clock.lease_ms,
            }),
        );
    }

    fn audit(&mut self, entry: &mut Entry<'_>, action: &'static str, subject: String) {
        // Encoding fails for a value over the body limit only, which the limits of each command exclude.
        let bytes = codec::encode(Kind::LogEntry, &entry.proposal.command).unwrap_or_default();
        let mut record = AuditRecord {
            seq: self.meta.audit_seq + 1,
            index: entry.at.index,
            term: entry.at.term,
            at_ms: self.meta.clock.calendar_ms,
            actor: entry.proposal.actor.clone(),
            action: action.to_owned(),
            subject,
            command_digest: Sha256::digest(&bytes).into(),
            previous: self.meta.audit_hash,
            hash: [0; 32],
        };
        record.hash = record.link();
        self.meta.audit_seq = record.seq;
        self.meta.audit_hash = record.hash;
        entry.events.push(Event::Audited(record));
    }
}

impl AuditRecord {
    /// The hash this record must carry: SHA-256 over the record with its `hash` field zero.
    pub fn link(&self) -> [u8; 32] {
        let bare = Self {
            hash: [0; 32],
            ..self.clone()
        };
        let bytes = codec::encode(Kind::ArchiveRecord, &bare).unwrap_or_default();
        Sha256::digest(&bytes).into()
    }
}

/// Whether a reply tells of a change. What changed nothing leaves no link in the audit chain.
fn changed(reply: &Reply) -> bool {
    match reply {
        Reply::Job { changed, .. } => *changed,
        Reply::Run { created, .. } => *created,
        _ => true,
    }
}

/// Whether a command was refused for now only: its instants were planned from an older state, or it came too
/// soon. Its proposer tries again under the same key, so this is not the answer to remember.
fn is_tried_again(reply: &Applied) -> bool {
    let refused = reply.as_ref().err().map(|refusal| refusal.code);
    matches!(
        refused,
        Some(
            RefusalCode::CursorMismatch
                | RefusalCode::DuplicateFire
                | RefusalCode::NotDue
                | RefusalCode::InstanceConflict
        )
    )
}

/// What the audit chain says of a command: the control plane, not each heartbeat or checkpoint, whose
/// history the run keeps.
fn audited(entry: &Entry<'_>) -> Option<(&'static str, String)> {
    Some(match &entry.proposal.command {
        Command::Bootstrap { cluster_id, .. } => ("bootstrap", cluster_id.to_string()),
        Command::PutJob { name, .. } => ("put_job", name.to_string()),
        Command::DeleteJob { name, .. } => ("delete_job", name.to_string()),
        Command::PauseJob { name } => ("pause_job", name.to_string()),
        Command::ResumeJob { name, .. } => ("resume_job", name.to_string()),
        Command::TriggerJob { name, .. } => ("trigger_job", name.to_string()),
        Command::RegisterSession(registration) => {
            ("register_executor", registration.instance.to_string())
        }
        Command::ExpireSession { session, .. } => ("expire_session", session.to_string()),
        Command::DrainExecutor { instance, .. } => ("drain_executor", instance.to_string()),
        Command::CloseSession { session } => ("close_session", session.to_string()),
        Command::CancelRun { run, .. } => ("cancel_run", run.to_string()),
        Command::DrainSession { session, .. } => ("drain_session", session.to_string()),
        Command::TermStarted { .. }
        | Command::Fire { .. }
        | Command::SkipFires { .. }
        | Command::Assign { .. }
        | Command::ExpireTask { .. }
        | Command::EndOverdueTask { .. }
        | Command::Sweep
        | Command::Heartbeat(_)
        | Command::StartTask { .. }
        | Command::Checkpoint { .. }
        | Command::AppendOutput { .. }
        | Command::ReportResult { .. }
        | Command::ReleaseTask { .. } => return None,
    })
}
