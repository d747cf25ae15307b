//! What a handler sees of its task.
//!
//! Each call that waits looks at the lease before and after, so a handler whose lease is over is
//! told so instead of going on.

use super::cancel::CancelReason;
use super::handler::{ContextError, TaskError};
use super::session::{Held, Session};
use crate::caller::Repeat;
use crate::error::Error;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tenure_api::protocol::{
    Assignment, Checkpoint, CheckpointAnswer, CheckpointRequest, MAX_CHECKPOINT_BYTES, Resume,
    StartAnswer, TaskKey, TriggerKind,
};
use tenure_api::{
    Epoch, ErrorCode, FencingToken, Generation, JobName, Problem, Revision, RunId, Term, Timestamp,
    paths,
};

/// A task, as its handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct TaskContext {
    inner: Arc<Inner>,
}

struct Inner {
    session: Arc<Session>,
    held: Arc<Held>,
    assignment: Assignment,
    attempt: u32,
    resume: Resume,
    term: Term,
}

impl fmt::Debug for TaskContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TaskKey { run, shard, epoch } = self.inner.held.key;
        write!(f, "TaskContext(run {run}, shard {shard}, epoch {epoch})")
    }
}

impl TaskContext {
    pub(crate) fn new(
        session: Arc<Session>,
        held: Arc<Held>,
        assignment: Assignment,
        start: StartAnswer,
    ) -> Self {
        let term = Term(session.core.caller.highest_term());
        let StartAnswer { attempt, resume } = start;
        Self {
            inner: Arc::new(Inner {
                session,
                held,
                assignment,
                attempt,
                resume,
                term,
            }),
        }
    }

    // What the task is.

    /// The run's number.
    pub fn run(&self) -> RunId {
        self.inner.assignment.key.run
    }

    /// The job's name.
    pub fn job(&self) -> &JobName {
        &self.inner.assignment.job
    }

    /// The job's revision when the run was made.
    pub fn revision(&self) -> Revision {
        self.inner.assignment.revision
    }

    /// The capability that was asked for: the handler's name.
    pub fn capability(&self) -> &str {
        self.inner.assignment.capability.as_str()
    }

    /// The instant the run was due.
    pub fn scheduled_at(&self) -> Timestamp {
        Timestamp::from_ms(self.inner.assignment.scheduled_at_ms)
    }

    /// What made the run.
    pub fn trigger(&self) -> TriggerKind {
        self.inner.assignment.trigger
    }

    /// The shard's index, from zero.
    pub fn shard(&self) -> u32 {
        self.inner.assignment.key.shard
    }

    /// How many shards the run has.
    pub fn shard_count(&self) -> u32 {
        self.inner.assignment.shard_count
    }

    /// Which attempt this is, from one.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// How long the attempt may take in all.
    pub fn timeout(&self) -> Option<Duration> {
        self.inner.assignment.timeout_ms.map(Duration::from_millis)
    }

    /// The parameters as they were sent: a JSON object.
    pub fn raw_params(&self) -> &Value {
        &self.inner.assignment.params
    }

    /// The parameters as a type. A mismatch is a permanent failure.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        serde_json::from_value(self.raw_params().clone())
            .map_err(|fault| TaskError::permanent(format!("the parameters do not fit: {fault}")))
    }

    /// One parameter as a type. A mismatch is a permanent failure.
    pub fn params_at<T: DeserializeOwned>(&self, name: &str) -> Result<T, TaskError> {
        let value = self.raw_params().get(name).cloned().unwrap_or(Value::Null);
        serde_json::from_value(value).map_err(|fault| {
            TaskError::permanent(format!("the parameter {name} does not fit: {fault}"))
        })
    }

    // Numbers that fence.

    /// The shard's epoch: this handler's tenure.
    pub fn epoch(&self) -> Epoch {
        self.inner.assignment.key.epoch
    }

    /// The term that was current when the task started.
    pub fn term(&self) -> Term {
        self.inner.term
    }

    /// The cluster's generation.
    pub fn generation(&self) -> Generation {
        self.inner.assignment.generation
    }

    /// What downstream systems check: as text with `to_string`, as two numbers with `pair`.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.assignment.fencing_token
    }

    /// What the token is compared within. A sink keeps the highest token for each scope.
    pub fn fencing_scope(&self) -> &str {
        &self.inner.assignment.fencing_scope
    }

    // Where to go on.

    /// The last committed checkpoint when the task started.
    pub fn committed(&self) -> Option<&Checkpoint> {
        self.inner.resume.checkpoint.as_ref()
    }

    /// The offset to go on from: the committed one, or zero.
    pub fn resume_offset(&self) -> u64 {
        self.committed().map_or(0, |checkpoint| checkpoint.offset)
    }

    /// How far the last owner said it was. What lies between the committed offset and this may
    /// have been done already, by the epoch in [`Self::previous_epoch`].
    pub fn last_progress(&self) -> Option<u64> {
        self.inner.resume.last_progress
    }

    /// The epoch of the last owner, if there was one.
    pub fn previous_epoch(&self) -> Option<Epoch> {
        self.inner.resume.previous_epoch
    }

    // What the handler tells.

    /// Says how far the handler is. Sent with the next heartbeat; commits nothing.
    pub fn progress(&self, offset: u64) {
        self.inner.held.set_progress(offset);
    }

    /// Commits a checkpoint: the effects up to `offset` are done. Call it after they are, never
    /// before; [`Self::commit_after`] keeps that order. Returns once the checkpoint is durable on
    /// a majority.
    ///
    /// The offset never goes back. Committing the same one twice is harmless. `state` is the
    /// handler's own, at most 64 KiB.
    pub async fn checkpoint(
        &self,
        offset: u64,
        state: impl Into<Vec<u8>>,
    ) -> Result<(), ContextError> {
        self.check()?;
        let state = state.into();
        if state.len() > MAX_CHECKPOINT_BYTES {
            let detail = format!(
                "{} bytes, at most {MAX_CHECKPOINT_BYTES} are allowed",
                state.len()
            );
            let problem = Problem::new(ErrorCode::CheckpointTooLarge, detail);
            return Err(ContextError::Refused(Box::new(problem)));
        }
        let TaskKey { run, shard, epoch } = self.inner.held.key;
        let request = CheckpointRequest {
            run,
            shard,
            epoch,
            offset,
            state: state.into(),
        };
        let body = serde_json::to_vec(&request)
            .map_err(|fault| ContextError::Unavailable(fault.to_string()))?;
        let outcome = self.send_checkpoint(Bytes::from(body)).await;
        self.note_checkpoint(offset, &outcome);
        // The lease may have run out while this waited. The next line must not run then.
        self.check()?;
        outcome.map(|_| ()).map_err(ContextError::from)
    }

    async fn send_checkpoint(&self, body: Bytes) -> Result<CheckpointAnswer, Error> {
        let session = &self.inner.session;
        let remaining = session.lease.remaining(session.environment());
        let mut call = session.call(paths::SESSION_CHECKPOINT, Repeat::Harmless);
        call.overall_timeout = remaining;
        call.body = body;
        tokio::select! {
            biased;
            () = self.inner.held.cancellation.lost() => {
                Err(Error::OutcomeUnknown { last: CancelReason::LeaseLost.to_string() })
            }
            outcome = session.core.caller.json(call) => outcome,
        }
    }

    fn note_checkpoint(&self, offset: u64, outcome: &Result<CheckpointAnswer, Error>) {
        let session = &self.inner.session;
        match outcome {
            Ok(_) => {
                session.core.counters().checkpoints_committed.add();
                self.inner.held.set_progress(offset);
            }
            Err(error) => {
                session.core.counters().checkpoints_refused.add();
                if let Some(code) = error.code() {
                    session.note_refusal(code, &self.inner.held);
                }
            }
        }
    }

    /// Runs `effect`, and commits a checkpoint after it has succeeded. This is the right order:
    /// a crash in between repeats the effect, it never skips it.
    pub async fn commit_after<T, E>(
        &self,
        effect: impl Future<Output = Result<T, E>>,
        offset: u64,
        state: impl Into<Vec<u8>>,
    ) -> Result<T, TaskError>
    where
        E: Into<TaskError>,
    {
        self.check()?;
        let done = effect.await.map_err(Into::into)?;
        self.checkpoint(offset, state).await?;
        Ok(done)
    }

    /// Adds a line to the run's output. Never waits; lines that come too fast are dropped and
    /// counted, and a line is cut at 4 KiB.
    pub fn log(&self, line: impl AsRef<str>) {
        for line in line.as_ref().lines() {
            if !self.inner.held.output.push(line) {
                self.inner
                    .session
                    .core
                    .counters()
                    .output_lines_dropped
                    .add();
            }
        }
    }

    // When to stop.

    /// Fails when the handler must stop. Call it before each effect in a handler that does not
    /// otherwise wait.
    pub fn check(&self) -> Result<(), ContextError> {
        match self.cancel_reason() {
            None => Ok(()),
            // A drain lets the handler save what it has.
            Some(CancelReason::Draining) => Ok(()),
            Some(reason) => Err(ContextError::Stopped(reason)),
        }
    }

    /// Whether the handler should stop, for whatever reason.
    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Why the handler should stop, if it should.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        let session = &self.inner.session;
        if session.lease.is_over(session.environment()) {
            self.inner.held.cancellation.cancel(CancelReason::LeaseLost);
        }
        self.inner.held.cancellation.reason()
    }

    /// Waits until the handler should stop.
    pub async fn cancelled(&self) -> CancelReason {
        self.inner.held.cancellation.cancelled().await
    }

    /// How long the lease still lasts without another renewal.
    pub fn lease_remaining(&self) -> Duration {
        let session = &self.inner.session;
        session.lease.remaining(session.environment())
    }
}
