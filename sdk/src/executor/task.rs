//! One task from assignment to acknowledged result.
//!
//! Invariants:
//! - The handler is polled only after the cluster acknowledged the start, and never after the
//!   lease is over by this process's clock.
//! - A result is repeated until the cluster acknowledges or refuses it.
//! - A panic in a handler is that task's failure and nothing else.

use super::cancel::CancelReason;
use super::context::TaskContext;
use super::handler::{HandlerResult, TaskError};
use super::output::cut;
use super::session::{Held, Phase, Session};
use crate::caller::Repeat;
use crate::error::Error;
use crate::retry::Backoff;
use crate::transport::BoxFuture;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tenure_api::protocol::{
    Assignment, Done, MAX_MESSAGE_BYTES, MAX_RESULT_VALUE_BYTES, Outcome, OutputAnswer,
    OutputRequest, ReleaseRequest, ResultAnswer, ResultRequest, StartAnswer, StartRequest, TaskKey,
};
use tenure_api::{ErrorCode, paths};

/// How often output is sent while a handler runs.
const OUTPUT_INTERVAL: Duration = Duration::from_millis(500);
/// How long the end of a task waits for its last output to be sent.
const OUTPUT_FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// The shortest and longest pause between attempts to report.
const REPORT_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How a handler came to its end.
enum End {
    Returned(HandlerResult),
    Panicked(String),
    /// It did not return within the grace after it was told to stop.
    Abandoned,
    /// The lease or grant is gone. Nothing is reported.
    Lost,
}

/// What is told to the cluster.
enum Report {
    Result(Outcome),
    Release(String),
    Nothing,
}

/// Runs the task and removes it from its session.
pub(crate) async fn run(session: Arc<Session>, held: Arc<Held>, assignment: Assignment) {
    let key = held.key;
    if let Some(report) = work(&session, &held, assignment).await {
        held.set_phase(Phase::Reporting);
        match report {
            Report::Nothing => {}
            Report::Result(outcome) => report_result(&session, &held, outcome).await,
            Report::Release(reason) => release(&session, &held, reason).await,
        }
    }
    session.finished(key);
}

/// Starts the task and runs its handler. `None` when the start was refused.
async fn work(session: &Arc<Session>, held: &Arc<Held>, assignment: Assignment) -> Option<Report> {
    let start = match start(session, held).await {
        Ok(start) => start,
        Err(report) => return report,
    };
    let counters = session.core.counters();
    counters.tasks_started.add();
    let timeout = assignment.timeout_ms.map(Duration::from_millis);
    let Some(handler) = session
        .core
        .handlers
        .get(assignment.capability.as_str())
        .cloned()
    else {
        let message = format!(
            "this executor has no handler named {}",
            assignment.capability
        );
        return Some(Report::Result(Outcome::Failed {
            message,
            retryable: true,
        }));
    };
    held.set_phase(Phase::Running);
    let context = TaskContext::new(Arc::clone(session), Arc::clone(held), assignment, start);
    let end = {
        let guarded = Guarded {
            handler: handler(context),
            session: Arc::clone(session),
            held: Arc::clone(held),
        };
        drive(session, held, guarded, timeout).await
        // The handler's future is dropped here: nothing of it runs any more.
    };
    if !matches!(end, End::Lost) {
        let flush = flush_output(session, held);
        session
            .environment()
            .within(OUTPUT_FLUSH_LIMIT, flush)
            .await;
    }
    Some(judge(session, held, end))
}

/// Asks the cluster to start. An error is what to report instead of running.
async fn start(session: &Arc<Session>, held: &Arc<Held>) -> Result<StartAnswer, Option<Report>> {
    let request = StartRequest::from(held.key);
    let mut backoff = Backoff::new(REPORT_BACKOFF.0, REPORT_BACKOFF.1);
    loop {
        if session.lease.is_over(session.environment()) {
            return Err(Some(Report::Nothing));
        }
        let asked = post::<_, StartAnswer>(session, paths::SESSION_START, &request);
        let answer = tokio::select! {
            biased;
            reason = held.cancellation.cancelled() => {
                return Err(Some(match reason {
                    CancelReason::LeaseLost => Report::Nothing,
                    CancelReason::Draining => Report::Release(reason.to_string()),
                    CancelReason::Requested(_) | CancelReason::TimedOut => {
                        Report::Result(Outcome::Cancelled)
                    }
                }));
            }
            answer = asked => answer,
        };
        match answer {
            Ok(start) => return Ok(start),
            Err(error) => {
                if let Some(code) = error.code().filter(|code| !is_passing(*code)) {
                    session.core.counters().starts_refused.add();
                    session.note_refusal(code, held);
                    tracing::info!(key = ?held.key, %error, "a start was refused");
                    return Err(None);
                }
                tracing::debug!(key = ?held.key, %error, "a start was not answered");
            }
        }
        let pause = backoff.pause(session.environment());
        session.environment().sleep(pause).await;
    }
}

/// Polls the handler's future, but never when its lease is over.
struct Guarded {
    handler: BoxFuture<'static, HandlerResult>,
    session: Arc<Session>,
    held: Arc<Held>,
}

impl Future for Guarded {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<End> {
        // A process that was paused comes back here first: the clock decides, not a timer that
        // has not been polled yet.
        if self.session.lease.is_over(self.session.environment()) {
            self.held.cancellation.cancel(CancelReason::LeaseLost);
        }
        if self.held.cancellation.is_lost() {
            return Poll::Ready(End::Lost);
        }
        match catch_unwind(AssertUnwindSafe(|| self.handler.as_mut().poll(task))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => Poll::Ready(End::Returned(result)),
            Err(panic) => Poll::Ready(End::Panicked(panic_message(panic.as_ref()))),
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Runs the handler until it returns, or must be given up.
async fn drive(
    session: &Arc<Session>,
    held: &Arc<Held>,
    guarded: Guarded,
    timeout: Option<Duration>,
) -> End {
    let environment = session.environment();
    let mut guarded = std::pin::pin!(guarded);
    let mut output = std::pin::pin!(send_output(session, held));
    let mut time_limit = std::pin::pin!(async {
        match timeout {
            Some(limit) => environment.sleep(limit).await,
            None => std::future::pending().await,
        }
    });
    let mut give_up = std::pin::pin!(async {
        let reason = held.cancellation.cancelled().await;
        if reason != CancelReason::LeaseLost {
            tokio::select! {
                biased;
                () = held.cancellation.lost() => {}
                () = environment.sleep(session.grace(&reason)) => return End::Abandoned,
            }
        }
        End::Lost
    });
    let mut timed_out = false;
    loop {
        tokio::select! {
            biased;
            end = &mut give_up => return end,
            () = &mut time_limit, if !timed_out => {
                timed_out = true;
                held.cancellation.cancel(CancelReason::TimedOut);
            }
            end = &mut guarded => return end,
            () = &mut output => {}
        }
    }
}

/// What the end means for the cluster.
fn judge(session: &Session, held: &Held, end: End) -> Report {
    let counters = session.core.counters();
    let reason = held.cancellation.reason();
    match (end, reason) {
        (End::Lost, _) => {
            counters.tasks_lost.add();
            Report::Nothing
        }
        // Returning because of the loss looks the same as having finished. It is not reported, so
        // that no one takes it for the work being done.
        (_, Some(CancelReason::LeaseLost)) => {
            counters.tasks_lost.add();
            Report::Nothing
        }
        (End::Returned(Ok(value)), None | Some(CancelReason::Draining)) => {
            let outcome = succeeded(value);
            match outcome {
                Outcome::Succeeded { .. } => counters.tasks_succeeded.add(),
                _ => counters.tasks_failed.add(),
            }
            Report::Result(outcome)
        }
        (_, Some(CancelReason::Draining)) => {
            counters.tasks_released.add();
            Report::Release("the executor drains".to_owned())
        }
        (_, Some(CancelReason::TimedOut)) => {
            counters.tasks_timed_out.add();
            Report::Result(Outcome::TimedOut)
        }
        (_, Some(CancelReason::Requested(_))) => {
            counters.tasks_cancelled.add();
            Report::Result(Outcome::Cancelled)
        }
        (End::Returned(Err(error)), None) => {
            counters.tasks_failed.add();
            Report::Result(failed(error))
        }
        (End::Panicked(message), None) => {
            counters.tasks_panicked.add();
            counters.tasks_failed.add();
            let message = format!("the handler panicked: {message}");
            Report::Result(failed(TaskError::retryable(message)))
        }
        // It is given up only after a reason was set.
        (End::Abandoned, None) => {
            counters.tasks_failed.add();
            Report::Result(failed(TaskError::retryable("the handler was given up")))
        }
    }
}

fn succeeded(value: Option<serde_json::Value>) -> Outcome {
    let bytes = value.as_ref().map_or(0, |value| {
        serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
    });
    if bytes > MAX_RESULT_VALUE_BYTES {
        let message =
            format!("the result has {bytes} bytes, at most {MAX_RESULT_VALUE_BYTES} are allowed");
        return Outcome::Failed {
            message,
            retryable: false,
        };
    }
    Outcome::Succeeded { value }
}

fn failed(error: TaskError) -> Outcome {
    let message = cut(&error.message, MAX_MESSAGE_BYTES).to_owned();
    Outcome::Failed {
        message,
        retryable: error.retryable,
    }
}

/// Sends output in batches for as long as the handler runs. Never completes.
async fn send_output(session: &Session, held: &Held) {
    loop {
        held.output.filled().await;
        // Lines that come close together share a call.
        session.environment().sleep(OUTPUT_INTERVAL).await;
        if let Some(text) = held.output.take() {
            send_batch(session, held, text).await;
        }
    }
}

/// Sends what is left.
async fn flush_output(session: &Session, held: &Held) {
    while let Some(text) = held.output.take() {
        send_batch(session, held, text).await;
    }
}

async fn send_batch(session: &Session, held: &Held, text: String) {
    let TaskKey { run, shard, epoch } = held.key;
    let request = OutputRequest {
        run,
        shard,
        epoch,
        seq: held.next_output_seq(),
        text,
    };
    match post::<_, OutputAnswer>(session, paths::SESSION_OUTPUT, &request).await {
        Ok(answer) if answer.truncated => held.output.close(),
        Ok(_) => {}
        // Output is not worth holding up work. What could not be sent is gone.
        Err(error) => {
            session.core.counters().output_lines_dropped.add();
            tracing::debug!(key = ?held.key, %error, "output was not accepted");
        }
    }
}

/// Reports the result until it is acknowledged or refused.
async fn report_result(session: &Session, held: &Held, outcome: Outcome) {
    let mut request = ResultRequest {
        key: held.key,
        outcome,
        progress: held.progress(),
        output_tail: None,
    };
    let counters = session.core.counters();
    let mut backoff = Backoff::new(REPORT_BACKOFF.0, REPORT_BACKOFF.1);
    let mut replaced = false;
    loop {
        match post::<_, ResultAnswer>(session, paths::SESSION_RESULT, &request).await {
            Ok(_) => return counters.results_acknowledged.add(),
            Err(error) => match error.code() {
                Some(ErrorCode::InvalidRequest | ErrorCode::PayloadTooLarge) if !replaced => {
                    // The cluster will never take this one. It must still learn that it ended.
                    replaced = true;
                    let message = format!("the result was not accepted: {error}");
                    request.outcome = failed(TaskError::permanent(message));
                }
                Some(code) if !is_passing(code) => {
                    counters.results_refused.add();
                    session.note_refusal(code, held);
                    tracing::warn!(key = ?held.key, %error, "a result was refused");
                    return;
                }
                _ => tracing::debug!(key = ?held.key, %error, "a result was not acknowledged"),
            },
        }
        let pause = backoff.pause(session.environment());
        session.environment().sleep(pause).await;
    }
}

/// Gives the shard back until that is acknowledged or refused.
async fn release(session: &Session, held: &Held, reason: String) {
    let TaskKey { run, shard, epoch } = held.key;
    let request = ReleaseRequest {
        run,
        shard,
        epoch,
        reason,
    };
    let mut backoff = Backoff::new(REPORT_BACKOFF.0, REPORT_BACKOFF.1);
    loop {
        match post::<_, Done>(session, paths::SESSION_RELEASE, &request).await {
            Ok(Done {}) => return,
            Err(error) => {
                if let Some(code) = error.code().filter(|code| !is_passing(*code)) {
                    session.note_refusal(code, held);
                    return;
                }
            }
        }
        let pause = backoff.pause(session.environment());
        session.environment().sleep(pause).await;
    }
}

/// Whether an error may go away without a change of the request: then it is asked again.
fn is_passing(code: ErrorCode) -> bool {
    code.retryable()
        || matches!(
            code,
            // A token can be replaced while work runs, and a node's fault may be that node's.
            ErrorCode::Unauthenticated
                | ErrorCode::Forbidden
                | ErrorCode::Internal
                | ErrorCode::Unknown
                | ErrorCode::NotInitialized
        )
}

async fn post<B: Serialize, T: DeserializeOwned>(
    session: &Session,
    route: &str,
    body: &B,
) -> Result<T, Error> {
    let mut call = session.call(route, Repeat::Harmless);
    let json = serde_json::to_vec(body).map_err(|fault| Error::Protocol(fault.to_string()))?;
    call.body = Bytes::from(json);
    session.core.caller.json(call).await
}
