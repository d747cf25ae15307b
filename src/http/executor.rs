//! What executors say: registration, heartbeats, and the life of a task.
//!
//! Invariants:
//! - A session is used by nobody but the principal that registered it, an administrator included: a token
//!   that leaks must not be able to confirm another's work.
//! - Everything here but the poll is one log entry, so that at each log index there is one answer to who
//!   holds what. Refusals come from `apply` alone.

use std::sync::Arc;

use tenure_api::ids::{Generation, SessionId};
use tenure_api::protocol::{
    self, CheckpointAnswer, CheckpointRequest, DEFAULT_HEARTBEAT_INTERVAL_MS, DEFAULT_LEASE_TTL_MS,
    Done, DrainRequest, HeartbeatAnswer, HeartbeatRequest, MAX_MESSAGE_BYTES, Outcome,
    OutputAnswer, OutputRequest, RegisterAnswer, RegisterRequest, ReleaseRequest, ResultAnswer,
    ResultRequest, Resume, StartAnswer, StartRequest, TaskKey, TaskVerdict,
};
use tenure_api::{ErrorCode, runs};
use tenure_machine as machine;
use tenure_machine::{
    Command, HeldTask, MAX_LEASE_TTL_MS, MIN_LEASE_TTL_MS, Name, Registration, Reply, Session,
    State, TaskOutcome, TaskRef, Verdict,
};

use super::answer::Answer;
use super::call::Call;
use super::failure::Failure;
use super::view;

/// The longest an executor may take to drain, in milliseconds.
const MAX_DRAIN_MS: u64 = 7 * 24 * 3600 * 1000;

/// `POST /v1/executor/sessions`
pub(crate) async fn register(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: RegisterRequest = call.json()?;
    let wanted_ms = request.lease_ttl_ms.unwrap_or(DEFAULT_LEASE_TTL_MS);
    let registration = Registration {
        instance: Name::new(&request.instance_id),
        version: request.version,
        capabilities: request.capabilities.iter().map(Name::new).collect(),
        labels: request
            .labels
            .iter()
            .map(|(key, value)| (Name::new(key), Name::new(value)))
            .collect(),
        capacity: request.capacity,
        lease_ttl_ms: wanted_ms.clamp(MIN_LEASE_TTL_MS, MAX_LEASE_TTL_MS),
    };
    match call.change(Command::RegisterSession(registration)).await? {
        Reply::Session {
            session,
            lease_ttl_ms,
            generation,
            ..
        } => Ok(Answer::json(&RegisterAnswer {
            session: SessionId(session),
            lease_ttl_ms,
            heartbeat_interval_ms: heartbeat_interval_ms(lease_ttl_ms),
            generation: Generation(generation),
        })),
        other => Err(Failure::odd_reply(&other)),
    }
}

/// As often within each lease as within the default one, so that two losses in a row are survived.
fn heartbeat_interval_ms(lease_ttl_ms: u64) -> u64 {
    (lease_ttl_ms * DEFAULT_HEARTBEAT_INTERVAL_MS / DEFAULT_LEASE_TTL_MS).max(1)
}

/// `DELETE /v1/executor/sessions/{session}`
pub(crate) async fn close(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    call.no_body()?;
    let session = own_session(&call)?;
    call.tell(Command::CloseSession { session }).await?;
    Ok(Answer::json(&Done {}))
}

/// `POST /v1/executor/sessions/{session}/heartbeat`
pub(crate) async fn heartbeat(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: HeartbeatRequest = call.json()?;
    let session = own_session(&call)?;
    let heartbeat = machine::Heartbeat {
        session,
        slots_used: request.slots_used,
        healthy: request.healthy,
        tasks: request
            .tasks
            .iter()
            .map(|held| HeldTask {
                task: task_ref(held.key),
                progress: held.progress,
            })
            .collect(),
    };
    match call.tell(Command::Heartbeat(heartbeat)).await? {
        Reply::Renewed {
            lease_ttl_ms,
            verdicts,
            drain_in_ms,
        } => {
            let state = call.shared.consensus.stale().state;
            let keys = request.tasks.iter().map(|held| held.key);
            Ok(Answer::json(&HeartbeatAnswer {
                lease_ttl_ms,
                tasks: keys
                    .zip(verdicts)
                    .map(|(key, verdict)| verdict_on(&state, key, verdict))
                    .collect(),
                draining: drain_in_ms.is_some(),
                drain_deadline_in_ms: drain_in_ms,
            }))
        }
        other => Err(Failure::odd_reply(&other)),
    }
}

fn verdict_on(state: &State, key: TaskKey, verdict: Verdict) -> TaskVerdict {
    let (verdict, reason) = match verdict {
        Verdict::Keep => (protocol::Verdict::Keep, None),
        Verdict::Cancel => (
            protocol::Verdict::Cancel,
            Some(cancel_reason(state, key.run.get())),
        ),
        Verdict::Lost => (
            protocol::Verdict::Lost,
            Some("the task is over, or held under another epoch".to_owned()),
        ),
    };
    TaskVerdict {
        key,
        verdict,
        reason,
    }
}

/// Why a run was asked to stop.
pub(crate) fn cancel_reason(state: &State, run: u64) -> String {
    let reason = state.run(run).and_then(|run| run.cancelled.clone());
    reason.unwrap_or_else(|| "the run was cancelled".to_owned())
}

/// `POST /v1/executor/sessions/{session}/start`
pub(crate) async fn start(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: StartRequest = call.json()?;
    let session = own_session(&call)?;
    let task = task_ref(request.key());
    match call.tell(Command::StartTask { session, task }).await? {
        Reply::Started {
            attempt,
            checkpoint,
            last_progress,
            previous_epoch,
        } => Ok(Answer::json(&StartAnswer {
            attempt,
            resume: Resume {
                checkpoint: checkpoint.as_deref().map(checkpoint_of),
                last_progress,
                previous_epoch: previous_epoch.map(Into::into),
            },
        })),
        other => Err(Failure::odd_reply(&other)),
    }
}

/// `POST /v1/executor/sessions/{session}/checkpoint`
pub(crate) async fn checkpoint(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: CheckpointRequest = call.json()?;
    let session = own_session(&call)?;
    let command = Command::Checkpoint {
        session,
        task: task_ref(request.key()),
        offset: request.offset,
        state: Arc::from(request.state.0),
    };
    match call.tell(command).await? {
        Reply::Checkpointed { offset } => Ok(Answer::json(&CheckpointAnswer { offset })),
        other => Err(Failure::odd_reply(&other)),
    }
}

/// `POST /v1/executor/sessions/{session}/output`
pub(crate) async fn output(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: OutputRequest = call.json()?;
    let session = own_session(&call)?;
    let seq = u32::try_from(request.seq)
        .map_err(|_| Failure::invalid("seq", "seq counts the calls of this tenure from zero"))?;
    let command = Command::AppendOutput {
        session,
        task: task_ref(request.key()),
        seq,
        text: request.text,
    };
    match call.tell(command).await? {
        Reply::OutputTaken {
            accepted_bytes,
            truncated,
        } => Ok(Answer::json(&OutputAnswer {
            accepted_bytes,
            truncated,
        })),
        other => Err(Failure::odd_reply(&other)),
    }
}

/// `POST /v1/executor/sessions/{session}/result`
pub(crate) async fn result(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: ResultRequest = call.json()?;
    let session = own_session(&call)?;
    let task = task_ref(request.key);
    let ended = match &request.outcome {
        Outcome::Succeeded { .. } => runs::TaskState::Succeeded,
        Outcome::Failed { .. } => runs::TaskState::Failed,
        Outcome::Cancelled => runs::TaskState::Cancelled,
        Outcome::TimedOut => runs::TaskState::TimedOut,
    };
    let command = Command::ReportResult {
        session,
        task,
        outcome: outcome_of(request.outcome)?,
        progress: request.progress,
        output_tail: request.output_tail,
    };
    match call.tell(command).await? {
        Reply::ResultTaken { retrying, .. } => {
            let state = call.shared.consensus.stale().state;
            let now = state
                .task(task.run, task.shard)
                .map(|task| view::task_state(task.state));
            // A task that has left the live state is what it was reported to be.
            let otherwise = if retrying {
                runs::TaskState::Queued
            } else {
                ended
            };
            Ok(Answer::json(&ResultAnswer {
                state: now.unwrap_or(otherwise),
            }))
        }
        other => Err(Failure::odd_reply(&other)),
    }
}

fn outcome_of(outcome: Outcome) -> Result<TaskOutcome, Failure> {
    Ok(match outcome {
        Outcome::Succeeded { value } => TaskOutcome::Succeeded {
            value: value
                .map(|value| serde_json::to_string(&value))
                .transpose()
                .map_err(|error| Failure::invalid("outcome.value", error.to_string()))?,
        },
        Outcome::Failed { message, retryable } => TaskOutcome::Failed { message, retryable },
        Outcome::Cancelled => TaskOutcome::Cancelled,
        Outcome::TimedOut => TaskOutcome::TimedOut,
    })
}

/// `POST /v1/executor/sessions/{session}/release`
pub(crate) async fn release(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: ReleaseRequest = call.json()?;
    if request.reason.len() > MAX_MESSAGE_BYTES {
        let detail = format!("reason has at most {MAX_MESSAGE_BYTES} bytes");
        return Err(Failure::invalid("reason", detail));
    }
    let session = own_session(&call)?;
    let task = task_ref(request.key());
    // The reason is for whoever reads this node's log; the cluster decides nothing by it.
    tracing::info!(session, ?task, reason = ?request.reason, "task given back");
    call.tell(Command::ReleaseTask { session, task }).await?;
    Ok(Answer::json(&Done {}))
}

/// `POST /v1/executor/sessions/{session}/drain`
pub(crate) async fn drain(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: DrainRequest = call.json()?;
    let within_ms = check_drain("deadline_ms", request.deadline_ms)?;
    let session = own_session(&call)?;
    call.tell(Command::DrainSession { session, within_ms })
        .await?;
    Ok(Answer::json(&Done {}))
}

/// A time for draining, within bounds.
pub(crate) fn check_drain(field: &str, within_ms: u64) -> Result<u64, Failure> {
    if within_ms <= MAX_DRAIN_MS {
        return Ok(within_ms);
    }
    Err(Failure::invalid(
        field,
        format!("{field} is at most seven days"),
    ))
}

/// The session in the path. A stranger to a session that this node knows is turned away here, before it costs
/// a log entry; about any other, `apply` decides: who registered it, or why it ended.
pub(crate) fn own_session(call: &Call) -> Result<u64, Failure> {
    let id: u64 = call.parameter(0, "session")?;
    if let Some(session) = call.shared.consensus.stale().state.session(id) {
        check_owner(call, session)?;
    }
    Ok(id)
}

pub(crate) fn check_owner(call: &Call, session: &Session) -> Result<(), Failure> {
    let caller = &call.principal()?.name;
    if session
        .principal
        .as_ref()
        .is_some_and(|owner| owner.as_str() == caller.as_str())
    {
        return Ok(());
    }
    let detail = format!(
        "session {} was registered by another principal than {caller}",
        session.id
    );
    Err(Failure::new(ErrorCode::Forbidden, detail))
}

/// Why a session that is not live is not: in the words that `apply` would use.
pub(crate) fn ended(state: &State, id: u64) -> Failure {
    let Some(ended) = state.ended_session(id) else {
        return Failure::new(
            ErrorCode::StaleSession,
            format!("session {id} is not known"),
        );
    };
    let (code, how) = match ended.why {
        machine::SessionEnd::Replaced => (ErrorCode::SessionReplaced, "was replaced"),
        machine::SessionEnd::Expired => (ErrorCode::SessionExpired, "expired"),
        machine::SessionEnd::Closed => (ErrorCode::StaleSession, "was closed"),
    };
    let detail = format!(
        "session {id} of {} {how} at log index {}",
        ended.instance, ended.ended_index
    );
    Failure::new(code, detail)
}

fn task_ref(key: TaskKey) -> TaskRef {
    TaskRef {
        run: key.run.get(),
        shard: key.shard,
        epoch: key.epoch.get(),
    }
}

/// A committed checkpoint with its state.
pub(crate) fn checkpoint_of(checkpoint: &machine::Checkpoint) -> protocol::Checkpoint {
    protocol::Checkpoint {
        offset: checkpoint.offset,
        state: checkpoint.state.to_vec().into(),
        epoch: checkpoint.epoch.into(),
    }
}
