//! The long poll: an executor asks for work and waits for it.
//!
//! It reads this leader's own state, without making sure by a majority that it still leads. That is safe: an
//! assignment delivered here gives no right to run anything. The executor must get `start` acknowledged
//! first, which is a log entry, and a leader that was deposed cannot commit one. A poll costs no round trip
//! between nodes, however many executors ask.
//!
//! Nothing is remembered between polls. An assignment is in every answer until it is started or the executor
//! says that it knows it; so one that was lost on the way comes again.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_api::ErrorCode;
use tenure_api::ids::{Epoch, Generation, Revision};
use tenure_api::protocol::{
    Assignment, CancelNotice, MAX_POLL_ASSIGNMENTS, MAX_POLL_WAIT_MS, PollAnswer, PollRequest,
    TaskKey,
};
use tenure_api::token::FencingToken;
use tenure_machine as machine;
use tenure_machine::{Session, Stamp, State, TaskState};
use tokio::time::Instant;

use super::answer::Answer;
use super::call::Call;
use super::convert::{capability, job_name, params_map};
use super::executor::{cancel_reason, check_owner, checkpoint_of, ended};
use super::failure::Failure;
use super::view::{origin, task_key};

/// How often a waiting poll makes sure that this node still leads. A watch on the node's standing would wake
/// every poll at every commit.
const LEADERSHIP_CHECK: Duration = Duration::from_secs(1);

/// How long a poll waits at least when all it has is cancellations that were there when it came: they stay
/// until the executor has stopped the work, and it must not spin meanwhile.
const CANCEL_PACE: Duration = Duration::from_millis(500);

/// The most tasks an executor may say that it knows.
const MAX_KNOWN: usize = machine::MAX_CAPACITY as usize;

/// `POST /v1/executor/sessions/{session}/poll`
pub(crate) async fn poll(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: PollRequest = call.json()?;
    check(&request)?;
    let session: u64 = call.parameter(0, "session")?;
    // A session that this node does not know may be in entries that it has yet to apply, right after an
    // election: then a read index makes sure.
    if call
        .shared
        .consensus
        .stale()
        .state
        .session(session)
        .is_none()
    {
        call.shared.consensus.read().await?;
    }
    let known: BTreeSet<TaskKey> = request.known.iter().copied().collect();
    let wake = call.shared.wakeups.session(session);
    let standing = call.shared.consensus.standing();
    let began = Instant::now();
    let end = began + Duration::from_millis(request.wait_ms);
    let mut woken = false;
    loop {
        // Waiting begins before the look, so that nothing that comes between them is missed.
        let waking = wake.notified();
        tokio::pin!(waking);
        waking.as_mut().enable();
        if !standing.borrow().leads {
            let detail = "this node ceased to lead while the poll waited";
            return Err(Failure::new(ErrorCode::NoLeader, detail));
        }
        let found = look(&call, session, &known, request.max)?;
        let now = Instant::now();
        let paced = woken || now >= began + CANCEL_PACE;
        let urgent = !found.assignments.is_empty() || (paced && !found.cancels.is_empty());
        if urgent || now >= end {
            return Ok(Answer::json(&found));
        }
        let mut until = end.min(now + LEADERSHIP_CHECK);
        if !found.cancels.is_empty() {
            until = until.min(began + CANCEL_PACE);
        }
        tokio::select! {
            biased;
            () = &mut waking => woken = true,
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

fn check(request: &PollRequest) -> Result<(), Failure> {
    if !(1..=MAX_POLL_ASSIGNMENTS).contains(&request.max) {
        let detail = format!("max is 1 to {MAX_POLL_ASSIGNMENTS}");
        return Err(Failure::invalid("max", detail));
    }
    if request.wait_ms > MAX_POLL_WAIT_MS {
        let detail = format!("wait_ms is at most {MAX_POLL_WAIT_MS}");
        return Err(Failure::invalid("wait_ms", detail));
    }
    if request.known.len() > MAX_KNOWN {
        let detail = format!("known has at most {MAX_KNOWN} tasks");
        return Err(Failure::invalid("known", detail));
    }
    Ok(())
}

/// What there is for a session now.
fn look(call: &Call, id: u64, known: &BTreeSet<TaskKey>, max: u32) -> Result<PollAnswer, Failure> {
    let state = call.shared.consensus.stale().state;
    let Some(session) = state.session(id) else {
        return Err(ended(&state, id));
    };
    check_owner(call, session)?;
    let now = call.shared.consensus.now();
    let mut found = PollAnswer {
        draining: session.drain_limit_lease_ms.is_some(),
        ..PollAnswer::default()
    };
    for task in state.held_by(id) {
        let key = task_key(task);
        if task.cancel_limit_lease_ms.is_some() {
            found.cancels.push(CancelNotice {
                key,
                reason: cancel_reason(&state, task.run),
            });
            continue;
        }
        let fresh = task.state == TaskState::Assigned && !known.contains(&key);
        if fresh
            && found.assignments.len() < max as usize
            && let Some(run) = state.run(task.run)
        {
            let assignment = assignment(&state, session, run, task, now)?;
            found.assignments.push(assignment);
        }
    }
    Ok(found)
}

fn assignment(
    state: &State,
    session: &Session,
    run: &machine::Run,
    task: &machine::Task,
    now: Stamp,
) -> Result<Assignment, Failure> {
    let generation = Generation(state.meta().generation);
    let (trigger, scheduled_at_ms) = origin(run);
    let params = run.params.as_ref().unwrap_or(&run.spec.task.params);
    let granted_ms = task
        .owner
        .as_ref()
        .map_or(0, |owner| owner.deadline_lease_ms);
    let deadline_ms = state.effective_deadline(session.deadline_lease_ms.min(granted_ms));
    Ok(Assignment {
        key: task_key(task),
        shard_count: run.spec.shards,
        attempt: task.attempt.saturating_add(1),
        job: job_name(run.key.job())?,
        revision: Revision(run.revision),
        scheduled_at_ms: i64::try_from(scheduled_at_ms).unwrap_or(i64::MAX),
        capability: capability(&run.spec.task.capability)?,
        params: params_map(params)?.into(),
        timeout_ms: run.spec.timeout_ms,
        fencing_token: FencingToken::new(generation, Epoch(task.epoch)),
        fencing_scope: State::fencing_scope(run, task.shard),
        generation,
        checkpoint: task.checkpoint.as_deref().map(checkpoint_of),
        trigger,
        deadline_in_ms: deadline_ms.saturating_sub(now.lease_ms),
    })
}
