//! Jobs: list, read, put, delete, pause, resume, trigger, and what is due next.
//!
//! A put or a resume carries instants that were planned from a state. `apply` refuses them if the job moved
//! on meanwhile, and they are planned again, a bounded number of times. What a request requires of a job
//! (`If-Match`) is checked by `apply` too and never before it, so that a repeated idempotency key meets the
//! first answer and not a changed world.

use std::sync::Arc;

use http::StatusCode;
use tenure_api::job::check;
use tenure_api::jobs::{
    DEFAULT_NEXT_FIRES, JobChange, JobsQuery, MAX_NEXT_FIRES, NextFire, NextFires, NextQuery,
    Preview, PutJobAnswer,
};
use tenure_api::ledger::Decision;
use tenure_api::protocol::Done;
use tenure_api::runs::{TriggerAnswer, TriggerRequest};
use tenure_api::{ErrorCode, JobName, JobSpec, Page, Problem, Revision, RunId, Timestamp};
use tenure_machine as machine;
use tenure_machine::plan::Planner;
use tenure_machine::plan::schedule::ScheduleError;
use tenure_machine::{
    Command, Expect, Name, Refusal, RefusalCode, Reply, RunState, State, Trigger,
};

use super::cursor;
use crate::blocking::Blocking;
use crate::http::answer::Answer;
use crate::http::call::{Call, Precondition};
use crate::http::convert;
use crate::http::failure::{Failure, code_of, plan_again};
use crate::http::next::{self, Origin};
use crate::http::view;

/// How often a put or a resume is planned before the caller is told that the job keeps changing.
const MAX_PLANS: usize = 4;

/// `GET /v1/jobs`
pub(crate) async fn list(call: Call) -> Result<Answer, Failure> {
    let query: JobsQuery = call.query()?;
    let limit = cursor::page_items(query.limit)?;
    let after: Option<String> = cursor::read("jobs", query.cursor.as_deref())?;
    let state = call.state().await?;
    let prefix = query.prefix.as_deref().unwrap_or_default();
    // Names are in order, so those with the prefix stand together; it may be a name itself.
    let start = match &after {
        Some(after) => Some(Name::new(after)),
        None => (!prefix.is_empty()).then(|| Name::new(prefix)),
    };
    let exact = match (&after, &start) {
        (None, Some(name)) => state.job(name),
        _ => None,
    };
    let mut page = Page::default();
    let candidates = exact.into_iter().chain(state.jobs_after(start.as_ref()));
    let mut last: Option<Name> = None;
    let candidates = candidates.take_while(|job| job.name.as_str().starts_with(prefix));
    for (examined, job) in candidates.enumerate() {
        if page.items.len() >= limit || examined >= cursor::MAX_EXAMINED {
            page.next_cursor = last.map(|name| cursor::write("jobs", name));
            break;
        }
        last = Some(job.name.clone());
        let paused = query
            .paused
            .is_none_or(|paused| paused == job.paused_at_ms.is_some());
        let capable = query
            .capability
            .as_ref()
            .is_none_or(|wanted| wanted.as_str() == job.spec.task.capability.as_str());
        if paused && capable {
            page.items.push(view::job(job)?);
        }
    }
    Ok(Answer::json(&page))
}

/// `GET /v1/jobs/{name}`
pub(crate) async fn get(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let name = name_of(&call)?;
    let state = call.state().await?;
    let job = require(&state, &name)?;
    Ok(Answer::json(&view::job(job)?).with_revision(job.revision))
}

/// `PUT /v1/jobs/{name}`
pub(crate) async fn put(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let name: JobName = call.parameter(0, "name")?;
    let file = call.job_file()?;
    if file.name != name {
        let detail = format!(
            "name: the file is of job {}, the path of job {name}",
            file.name
        );
        return Err(Problem::new(ErrorCode::InvalidJob, detail)
            .at("name")
            .allowing([name.as_str()])
            .into());
    }
    let name = Name::new(&name);
    let precondition = call.precondition()?;
    let spec = convert::to_machine_arc(&file);
    // A file that says nothing of a pause leaves a pause alone: it was made on purpose, and only a resume
    // can decide the instants that it covered.
    let paused = file.paused.then_some(true);
    for _ in 0..MAX_PLANS {
        let state = call.shared.consensus.read().await?.state;
        let present = state.job(&name).map(Arc::as_ref);
        let now_ms = call.calendar_ms(&state);
        let next_at_ms = plan_next(&call, &state, present, &spec.trigger, now_ms)?;
        let superseded = match state.job(&name).cloned() {
            Some(job) if job.spec.trigger != spec.trigger => {
                let plan = move |planner: &mut Planner| planner.supersede(&job, now_ms);
                Some(planned(call.shared.blocking, plan).await?)
            }
            _ => None,
        };
        let command = Command::PutJob {
            superseded,
            name: name.clone(),
            expect: expected(precondition, present, &spec, paused),
            spec: spec.clone(),
            paused,
            next_at_ms,
        };
        match call.propose(command).await? {
            Ok(Reply::Job {
                revision,
                created,
                changed,
            }) => return put_answer(&call, &name, file, revision, created, changed),
            Ok(other) => return Err(Failure::odd_reply(&other)),
            Err(refusal) if plan_again(refusal.code) => {}
            Err(refusal) => return Err(put_refused(precondition, refusal)),
        }
    }
    Err(keeps_changing(&name))
}

/// `DELETE /v1/jobs/{name}`
pub(crate) async fn delete(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    call.no_body()?;
    let name = name_of(&call)?;
    let expect = call.expected_revision()?;
    for _ in 0..MAX_PLANS {
        let state = call.shared.consensus.read().await?.state;
        let now_ms = call.calendar_ms(&state);
        let command = match state.job(&name).cloned() {
            Some(job) => {
                let plan = move |planner: &mut Planner| planner.delete(&job, expect, now_ms);
                planned(call.shared.blocking, plan).await?
            }
            // `apply` says so: the answer may be one to a repeated request.
            None => Command::DeleteJob {
                name: name.clone(),
                expect,
                undecided: None,
            },
        };
        match call.propose(command).await? {
            Ok(_) => return Ok(Answer::json(&Done {})),
            Err(refusal) if plan_again(refusal.code) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Err(keeps_changing(&name))
}

/// `POST /v1/jobs/{name}/pause`
pub(crate) async fn pause(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    call.no_body()?;
    let name = name_of(&call)?;
    call.change(Command::PauseJob { name: name.clone() })
        .await?;
    changed_job(&call, &name)
}

/// `POST /v1/jobs/{name}/resume`
pub(crate) async fn resume(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    call.no_body()?;
    let name = name_of(&call)?;
    for _ in 0..MAX_PLANS {
        let state = call.shared.consensus.read().await?.state;
        let command = plan_resume(
            call.shared.blocking,
            &name,
            &state,
            call.calendar_ms(&state),
        )
        .await?;
        match call.propose(command).await? {
            Ok(_) => return changed_job(&call, &name),
            Err(refusal) if plan_again(refusal.code) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Err(keeps_changing(&name))
}

/// `POST /v1/jobs/{name}/trigger`
pub(crate) async fn trigger(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let name = name_of(&call)?;
    let request: TriggerRequest = call.json_or_default()?;
    let params = match &request.params {
        None => None,
        Some(value) => {
            let fields = check::params(value)
                .map_err(|why| Failure::invalid("params", format!("params: {why}")))?;
            Some(convert::params_text(&fields))
        }
    };
    let command = Command::TriggerJob {
        name,
        key: call.idempotency_key()?,
        params,
    };
    let Reply::Run { run, created } = call.change(command).await? else {
        let detail = "a trigger was answered with the reply of another command";
        return Err(Failure::new(ErrorCode::Internal, detail));
    };
    let state = call.shared.consensus.stale().state;
    let waits = state
        .run(run)
        .is_some_and(|run| run.state == RunState::Waiting);
    let replaces = state
        .run(run)
        .is_some_and(|run| run.spec.overlap == machine::Overlap::Replace);
    let decision = match (waits, replaces) {
        (false, _) => Decision::Run,
        (true, false) => Decision::RunWaiting,
        (true, true) => Decision::RunReplacing,
    };
    let reason = match (created, decision) {
        (false, _) => Some("The run was made by an earlier call with the same key.".to_owned()),
        (true, Decision::RunWaiting) => Some("It waits behind an earlier run.".to_owned()),
        (true, Decision::RunReplacing) => {
            Some("It starts when the run that it replaces has stopped.".to_owned())
        }
        (true, _) => None,
    };
    Ok(Answer::json(&TriggerAnswer {
        decision,
        run: Some(RunId(run)),
        reason,
    }))
}

/// `GET /v1/jobs/{name}/next`
pub(crate) async fn next_fires(call: Call) -> Result<Answer, Failure> {
    let query: NextQuery = call.query()?;
    let count = fires_wanted(query.count)?;
    let name = name_of(&call)?;
    let state = call.state().await?;
    let job = require(&state, &name)?;
    let now_ms = call.calendar_ms(&state);
    // A paused job is due again after its resume, whose instants are those behind now.
    let first_ms = match job.paused_at_ms {
        None => job.next_fire_ms,
        Some(_) => schedule_fault(call.shared.planner().schedules().next_after(
            &job.spec.trigger,
            job.created_at_ms,
            now_ms,
        ))?,
    };
    let fires = fires_from(&call, &job.spec.trigger, Origin::of(job), first_ms, count)?;
    Ok(Answer::json(&NextFires {
        job: convert::job_name(&job.name)?,
        timezone: next::timezone_of(&job.spec.trigger).to_owned(),
        fires,
    }))
}

/// `POST /v1/jobs/preview`
pub(crate) async fn preview(call: Call) -> Result<Answer, Failure> {
    let query: NextQuery = call.query()?;
    let count = fires_wanted(query.count)?;
    let file = call.job_file()?;
    let spec = convert::to_machine(&file);
    let state = call.state().await?;
    let name = Name::new(&file.name);
    let present = state.job(&name).map(Arc::as_ref);
    let now_ms = call.calendar_ms(&state);
    let first_ms = plan_next(&call, &state, present, &spec.trigger, now_ms)?;
    let origin = Origin {
        anchor_ms: present.map_or(now_ms, |job| job.created_at_ms),
        since_ms: now_ms,
    };
    let fires = fires_from(&call, &spec.trigger, origin, first_ms, count)?;
    let paused = file.paused.then_some(true);
    let change = match present {
        None => JobChange::Created,
        Some(job) if is_same(job, &spec, paused) => JobChange::Unchanged,
        Some(_) => JobChange::Updated,
    };
    Ok(Answer::json(&Preview {
        next: NextFires {
            job: file.name.clone(),
            timezone: next::timezone_of(&spec.trigger).to_owned(),
            fires,
        },
        spec: file,
        change,
    }))
}

/// The name in the path.
pub(super) fn name_of(call: &Call) -> Result<Name, Failure> {
    let name: JobName = call.parameter(0, "name")?;
    Ok(Name::new(&name))
}

fn require<'a>(state: &'a State, name: &Name) -> Result<&'a Arc<machine::Job>, Failure> {
    state
        .job(name)
        .ok_or_else(|| Failure::not_found(format!("no job {name}")))
}

fn is_same(job: &machine::Job, spec: &machine::JobSpec, paused: Option<bool>) -> bool {
    *job.spec == *spec && paused.is_none_or(|paused| paused == job.paused_at_ms.is_some())
}

/// What `apply` is to check. A put that says nothing may create a job and may change nothing.
fn expected(
    precondition: Precondition,
    present: Option<&machine::Job>,
    spec: &machine::JobSpec,
    paused: Option<bool>,
) -> Expect {
    match (precondition, present) {
        (Precondition::Absent, _) => Expect::Absent,
        (Precondition::Revision(revision), _) => Expect::Revision(revision),
        (Precondition::Exists, Some(job)) => Expect::Revision(job.revision),
        // No job has revision 0, so this is refused.
        (Precondition::Exists, None) => Expect::Revision(0),
        (Precondition::None, Some(job)) if is_same(job, spec, paused) => {
            Expect::Revision(job.revision)
        }
        (Precondition::None, _) => Expect::Absent,
    }
}

fn put_refused(precondition: Precondition, refusal: Refusal) -> Failure {
    match (refusal.code, precondition) {
        (RefusalCode::RevisionMismatch, Precondition::None) => {
            let detail = format!("{}, and the file differs from it", refusal.detail);
            Failure::new(ErrorCode::PreconditionRequired, detail)
        }
        (RefusalCode::Invalid | RefusalCode::TooLarge, _) => {
            Failure::new(ErrorCode::InvalidJob, refusal.detail)
        }
        (code, _) => Failure::new(code_of(code), refusal.detail),
    }
}

/// The job as it was put: its revision is the one that this put made, whoever has changed the job since. With
/// another's revision the client would overwrite, next time, what it has not seen. Whoever leads has applied
/// what it acknowledged.
fn put_answer(
    call: &Call,
    name: &Name,
    file: JobSpec,
    revision: u64,
    created: bool,
    changed: bool,
) -> Result<Answer, Failure> {
    let change = match (created, changed) {
        (true, _) => JobChange::Created,
        (false, true) => JobChange::Updated,
        (false, false) => JobChange::Unchanged,
    };
    let state = call.shared.consensus.stale().state;
    let job = match state.job(name) {
        Some(job) if job.revision == revision => view::job(job)?,
        // Someone has changed or removed it since. What was put is still what is told.
        _ => {
            let now = Timestamp::from_unsigned_ms(state.clock().calendar_ms);
            tenure_api::jobs::Job {
                spec: file,
                revision: Revision(revision),
                created_at: now,
                updated_at: now,
                next_fire_at: None,
                last_fire_at: None,
                live_runs: 0,
                waiting_runs: 0,
            }
        }
    };
    let status = match change {
        JobChange::Created => StatusCode::CREATED,
        JobChange::Updated | JobChange::Unchanged => StatusCode::OK,
    };
    Ok(Answer::json(&PutJobAnswer { change, job })
        .with_status(status)
        .with_revision(revision))
}

fn changed_job(call: &Call, name: &Name) -> Result<Answer, Failure> {
    let state = call.shared.consensus.stale().state;
    let job = require(&state, name)?;
    Ok(Answer::json(&view::job(job)?).with_revision(job.revision))
}

fn keeps_changing(name: &Name) -> Failure {
    let detail = format!("job {name} changed while the request was planned, {MAX_PLANS} times");
    Failure::new(ErrorCode::PreconditionFailed, detail)
}

/// The first instant under a new definition: after now, and after whatever was decided.
fn plan_next(
    call: &Call,
    state: &State,
    present: Option<&machine::Job>,
    trigger: &Trigger,
    now_ms: u64,
) -> Result<Option<u64>, Failure> {
    let (anchor_ms, decided_ms) = match present {
        Some(job) => (job.created_at_ms, job.last_fire_ms.unwrap_or(0)),
        None => (now_ms, state.meta().fire_floor_ms),
    };
    let new = present.is_none_or(|job| job.spec.trigger != *trigger);
    if let (Trigger::At { instant_ms }, true) = (trigger, new)
        && *instant_ms <= now_ms
    {
        let now = Timestamp::from_unsigned_ms(now_ms);
        let detail = format!("trigger.at: the instant is past; it is {now}");
        return Err(Problem::new(ErrorCode::InvalidJob, detail)
            .at("trigger.at")
            .into());
    }
    let mut planner = call.shared.planner();
    schedule_fault(
        planner
            .schedules()
            .next_after(trigger, anchor_ms, now_ms.max(decided_ms)),
    )
}

/// A plan in which years of instants may have to be counted, so it is made off the runtime.
async fn planned<T: Send + 'static>(
    blocking: Blocking,
    plan: impl FnOnce(&mut Planner) -> T + Send + 'static,
) -> Result<T, Failure> {
    let planned = blocking.run(move || plan(&mut Planner::default())).await;
    planned.map_err(|error| {
        tracing::error!(%error, "a plan failed");
        Failure::new(ErrorCode::Internal, "the change could not be planned")
    })
}

/// The command that resumes a job.
async fn plan_resume(
    blocking: Blocking,
    name: &Name,
    state: &State,
    now_ms: u64,
) -> Result<Command, Failure> {
    let job = state
        .job(name)
        .filter(|job| job.paused_at_ms.is_some())
        .cloned();
    let Some(job) = job else {
        // Nothing to decide: `apply` says whether there is such a job.
        return Ok(Command::ResumeJob {
            name: name.clone(),
            skipped: None,
            next_at_ms: None,
        });
    };
    planned(blocking, move |planner| planner.resume(&job, now_ms)).await
}

fn schedule_fault<T>(planned: Result<T, ScheduleError>) -> Result<T, Failure> {
    planned.map_err(|error| {
        let path = match &error {
            ScheduleError::Expression { .. } => "trigger.cron",
            ScheduleError::TimeZone { .. } => "trigger.timezone",
        };
        Problem::new(ErrorCode::InvalidJob, error.to_string())
            .at(path)
            .into()
    })
}

fn fires_wanted(count: Option<u32>) -> Result<usize, Failure> {
    let count = count.unwrap_or(DEFAULT_NEXT_FIRES);
    if (1..=MAX_NEXT_FIRES).contains(&count) {
        return Ok(count as usize);
    }
    Err(Failure::invalid(
        "count",
        format!("count is 1 to {MAX_NEXT_FIRES}"),
    ))
}

fn fires_from(
    call: &Call,
    trigger: &Trigger,
    origin: Origin,
    first_ms: Option<u64>,
    count: usize,
) -> Result<Vec<NextFire>, Failure> {
    let mut planner = call.shared.planner();
    let schedules = planner.schedules();
    schedule_fault(next::fires(schedules, trigger, origin, first_ms, count))
}
