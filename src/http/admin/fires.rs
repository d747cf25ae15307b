//! The fire ledger: what was decided for a job's instants, and why.

use tenure_api::ids::{Revision, RunId, Term};
use tenure_api::ledger::{Decision, Fire, FiresQuery};
use tenure_api::protocol::TriggerKind;
use tenure_api::runs::RunState;
use tenure_api::{Page, Problem, Timestamp};
use tenure_machine as machine;
use tenure_machine::{FireDecision, Name, SkipReason, State};

use super::cursor;
use super::jobs::name_of;
use crate::http::answer::Answer;
use crate::http::call::Call;
use crate::http::convert;
use crate::http::failure::Failure;
use crate::http::view::{TaskTally, run_state};

/// `GET /v1/jobs/{name}/fires`
pub(crate) async fn list(call: Call) -> Result<Answer, Failure> {
    let query: FiresQuery = call.query()?;
    let limit = cursor::page_items(query.limit)?;
    let name = name_of(&call)?;
    let before: Option<u64> = cursor::read("fires", query.cursor.as_deref())?;
    let from_ms = query.from.map_or(0, Timestamp::as_unsigned_ms);
    let to_ms = query.to.map_or(u64::MAX, Timestamp::as_unsigned_ms);
    let before_ms = before.map_or(to_ms, |before| before.min(to_ms));
    // The state first: the archive is then at least as new as what the read promises.
    let state = call.state().await?;
    let mut found = call
        .shared
        .history
        .decisions(name.clone(), from_ms, before_ms, limit + 1)
        .await?;
    if found.is_empty() && before.is_none() && state.job(&name).is_none() {
        return Err(Failure::not_found(format!("no job {name}")));
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found
        .last()
        .filter(|_| more)
        .map(|last| cursor::write("fires", last.first_ms));
    let mut items = Vec::with_capacity(found.len());
    for decision in &found {
        items.push(shown(&call, &state, decision).await?);
    }
    Ok(Answer::json(&Page { items, next_cursor }))
}

/// `GET /v1/jobs/{name}/fires/{instant}`
pub(crate) async fn get(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let name = name_of(&call)?;
    let instant_ms = instant_of(&call)?;
    let state = call.state().await?;
    let decision = call
        .shared
        .history
        .decision_at(name.clone(), instant_ms)
        .await?;
    if let Some(decision) = decision
        && includes(&call, &state, &decision, instant_ms)
    {
        return Ok(Answer::json(&shown(&call, &state, &decision).await?));
    }
    let why = undecided(&call, &state, &name, instant_ms);
    let problem = Problem::new(tenure_api::ErrorCode::NotFound, why);
    Err(problem.at("instant").into())
}

/// The instant in the path: RFC 3339, or milliseconds since the Unix epoch.
fn instant_of(call: &Call) -> Result<u64, Failure> {
    if let Ok(ms) = call.parameter::<u64>(1, "instant") {
        return Ok(ms);
    }
    let instant: Timestamp = call.parameter(1, "instant")?;
    Ok(instant.as_unsigned_ms())
}

/// Whether a decision is about this instant. One about a range of skipped instants names its ends only; what
/// lies between is told by the schedule, as long as the job still has the one it had then.
fn includes(call: &Call, state: &State, decision: &FireDecision, instant_ms: u64) -> bool {
    if instant_ms == decision.first_ms || instant_ms == decision.last_ms {
        return true;
    }
    match state.job(&decision.job) {
        Some(job) if job.revision == decision.revision => is_due_at(call, job, instant_ms),
        _ => true,
    }
}

/// Whether the job's present schedule has this instant.
fn is_due_at(call: &Call, job: &machine::Job, instant_ms: u64) -> bool {
    let Some(before_ms) = instant_ms.checked_sub(1) else {
        return false;
    };
    let mut planner = call.shared.planner();
    let next = planner
        .schedules()
        .next_after(&job.spec.trigger, job.created_at_ms, before_ms);
    next == Ok(Some(instant_ms))
}

/// Why the ledger has nothing about an instant.
fn undecided(call: &Call, state: &State, name: &Name, instant_ms: u64) -> String {
    let Some(job) = state.job(name) else {
        return format!("There is no job {name}, and nothing is kept about this instant.");
    };
    let instant = Timestamp::from_unsigned_ms(instant_ms);
    let now_ms = call.calendar_ms(state);
    if instant_ms < job.created_at_ms {
        let created = Timestamp::from_unsigned_ms(job.created_at_ms);
        return format!("{instant} lies before the job existed: it was created at {created}.");
    }
    let since_ms = job.trigger_since_ms;
    if instant_ms <= since_ms && since_ms > job.created_at_ms {
        let since = Timestamp::from_unsigned_ms(since_ms);
        return format!(
            "{instant} lies before the job's present schedule, which holds since {since}; nothing is kept about it."
        );
    }
    // The instant where the cursor stands is due by definition, whatever the schedule says by now.
    let next_is = job.next_fire_ms == Some(instant_ms);
    if !next_is && !is_due_at(call, job, instant_ms) {
        return format!("{instant} is not an instant of the job's present schedule.");
    }
    let undecided = job.next_fire_ms.is_some_and(|next| next <= instant_ms);
    match (undecided, job.paused_at_ms.is_some()) {
        _ if instant_ms > now_ms => {
            let now = Timestamp::from_unsigned_ms(now_ms);
            format!("{instant} is not due yet: it is {now}.")
        }
        (true, true) => format!(
            "{instant} was due while the job is paused; it is decided as skipped when the job is resumed."
        ),
        (true, false) => format!("{instant} is due and about to be decided."),
        (false, _) => format!("What was decided for {instant} is no longer kept."),
    }
}

/// A decision as the wire shows it, with its run as it is now.
async fn shown(call: &Call, state: &State, decision: &FireDecision) -> Result<Fire, Failure> {
    let run_state = match decision.run {
        None => None,
        Some(id) => state_of_run(call, state, id).await?,
    };
    let made = match run_state {
        Some(RunState::Waiting) => Decision::RunWaiting,
        _ => Decision::Run,
    };
    let what = match decision.skipped {
        None => made,
        Some(SkipReason::Misfire) => Decision::SkippedMisfire,
        Some(SkipReason::Paused) => Decision::SkippedPaused,
        Some(SkipReason::Overlap) => Decision::SkippedOverlap,
        Some(SkipReason::BacklogFull) => Decision::SkippedBacklogFull,
        Some(SkipReason::Changed) => Decision::SkippedChanged,
        Some(SkipReason::Deleted) => Decision::SkippedDeleted,
    };
    Ok(Fire {
        job: convert::job_name(&decision.job)?,
        scheduled_at: Timestamp::from_unsigned_ms(decision.first_ms),
        through: (decision.count > 1).then(|| Timestamp::from_unsigned_ms(decision.last_ms)),
        instants: decision.count,
        trigger: TriggerKind::Scheduled,
        decision: what,
        reason: reason(decision),
        run: decision.run.map(RunId),
        run_state,
        revision: Revision(decision.revision),
        decided_at: Timestamp::from_unsigned_ms(decision.decided_at_ms),
        term: Term(decision.term),
    })
}

async fn state_of_run(call: &Call, state: &State, id: u64) -> Result<Option<RunState>, Failure> {
    if let Some(run) = state.run(id) {
        let tally = TaskTally::of(run, state.tasks_of(id).map(AsRef::as_ref));
        return Ok(Some(run_state(run, &tally)));
    }
    let finished = call.shared.history.run(id).await?;
    Ok(finished.map(|finished| {
        let tasks = finished.tasks.iter().map(AsRef::as_ref);
        run_state(&finished.run, &TaskTally::of(&finished.run, tasks))
    }))
}

/// The decision in a sentence.
fn reason(decision: &FireDecision) -> String {
    let late_ms = decision.decided_at_ms.saturating_sub(decision.last_ms);
    let what = match decision.count {
        1 => "The instant was".to_owned(),
        count => format!("{count} instants were"),
    };
    match (decision.skipped, decision.run) {
        (None, Some(run)) => format!("Run {run} was created, {late_ms} ms after the instant."),
        (None, None) => "A run was decided.".to_owned(),
        (Some(SkipReason::Misfire), _) => format!(
            "{what} found {late_ms} ms late or more, and the job's misfire policy does not run them."
        ),
        (Some(SkipReason::Paused), _) => {
            format!("{what} due while the job was paused; decided when it was resumed.")
        }
        (Some(SkipReason::Overlap), _) => {
            format!("{what} due while an earlier run was live, and the job forbids overlap.")
        }
        (Some(SkipReason::Changed), _) => format!(
            "{what} due and not decided when the job got another trigger; the latest one kept its place."
        ),
        (Some(SkipReason::Deleted), _) => {
            format!("{what} due and not decided when the job was deleted.")
        }
        (Some(SkipReason::BacklogFull), _) => format!(
            "{what} due while the job had as many runs as its queue_limit, or the cluster as many as it holds."
        ),
    }
}
