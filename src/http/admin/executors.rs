//! Executors: list, read, drain.

use std::sync::Arc;

use tenure_api::executors::{DrainExecutorRequest, ExecutorsQuery};
use tenure_api::{InstanceId, Page};
use tenure_machine::{Command, Name, State};

use super::cursor;
use crate::http::answer::Answer;
use crate::http::call::Call;
use crate::http::executor::check_drain;
use crate::http::failure::Failure;
use crate::http::view;

/// `GET /v1/executors`
pub(crate) async fn list(call: Call) -> Result<Answer, Failure> {
    let query: ExecutorsQuery = call.query()?;
    let limit = cursor::page_items(query.limit)?;
    let after: Option<String> = cursor::read("executors", query.cursor.as_deref())?;
    let state = call.state().await?;
    let now = call.shared.consensus.now();
    let after = after.map(Name::new);
    let sessions: Vec<_> = state
        .sessions_after(after.as_ref())
        .take(limit + 1)
        .map(Arc::clone)
        .collect();
    let mut page = Page::default();
    for session in sessions.iter().take(limit) {
        page.items.push(view::executor(&state, session, now)?);
    }
    if sessions.len() > limit {
        let last = sessions.get(limit - 1);
        page.next_cursor = last.map(|session| cursor::write("executors", &session.instance));
    }
    Ok(Answer::json(&page))
}

/// `GET /v1/executors/{instance}`
pub(crate) async fn get(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let instance = instance_of(&call)?;
    let state = call.state().await?;
    show(&call, &state, &instance)
}

/// `POST /v1/executors/{instance}/drain`
pub(crate) async fn drain(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let instance = instance_of(&call)?;
    let request: DrainExecutorRequest = call.json()?;
    let within_ms = check_drain("deadline", request.deadline.get())?;
    call.change(Command::DrainExecutor {
        instance: instance.clone(),
        within_ms,
    })
    .await?;
    let state = call.shared.consensus.stale().state;
    show(&call, &state, &instance)
}

fn instance_of(call: &Call) -> Result<Name, Failure> {
    let instance: InstanceId = call.parameter(0, "instance")?;
    Ok(Name::new(&instance))
}

fn show(call: &Call, state: &State, instance: &Name) -> Result<Answer, Failure> {
    let Some(session) = state.session_of(instance) else {
        return Err(Failure::not_found(format!(
            "no executor {instance} has a live session"
        )));
    };
    let now = call.shared.consensus.now();
    Ok(Answer::json(&view::executor_with_tasks(
        state, session, now,
    )?))
}
