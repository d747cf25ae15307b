//! The task port over the SDK: how a capability's words become the cluster's.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use tenure_api::ErrorCode;
use tenure_sdk::{CancelReason, ContextError, TaskContext, TaskError};

use super::port::{Ending, PortError, Resume, StopReason, TaskFacts, TaskPort};

/// A task of the SDK as a port.
#[derive(Debug)]
pub struct SessionPort {
    context: TaskContext,
    facts: TaskFacts,
}

impl SessionPort {
    /// The port of one task.
    pub fn new(context: TaskContext) -> Arc<Self> {
        let facts = TaskFacts {
            run: context.run().get(),
            job: context.job().to_string(),
            revision: context.revision().get(),
            scheduled_at_ms: context.scheduled_at().as_ms(),
            shard: context.shard(),
            shard_count: context.shard_count(),
            attempt: context.attempt(),
            epoch: context.epoch().get(),
            generation: context.generation().get(),
            fencing_token: context.fencing_token(),
            fencing_scope: context.fencing_scope().to_owned(),
            checkpoint: context.committed().map(|checkpoint| Resume {
                offset: checkpoint.offset,
                state: checkpoint.state.as_slice().to_vec(),
            }),
            last_progress: context.last_progress(),
            params: context.raw_params().clone(),
        };
        Arc::new(Self { context, facts })
    }
}

impl TaskPort for SessionPort {
    fn facts(&self) -> &TaskFacts {
        &self.facts
    }

    fn term(&self) -> u64 {
        self.context.term().get()
    }

    fn checkpoint(&self, offset: u64, state: Vec<u8>) -> BoxFuture<'_, Result<u64, PortError>> {
        Box::pin(async move {
            let committed = self.context.checkpoint(offset, state).await;
            committed.map(|()| offset).map_err(port_error)
        })
    }

    fn progress(&self, value: u64) -> Result<(), PortError> {
        self.context.check().map_err(port_error)?;
        self.context.progress(value);
        Ok(())
    }

    fn log(&self, line: &str) {
        self.context.log(line);
    }

    fn stopped(&self) -> BoxFuture<'_, StopReason> {
        Box::pin(async move { stop_reason(self.context.cancelled().await) })
    }
}

fn stop_reason(reason: CancelReason) -> StopReason {
    match reason {
        CancelReason::Requested(why) => StopReason::Cancelled(why),
        CancelReason::TimedOut => StopReason::TimedOut,
        CancelReason::Draining => StopReason::Draining,
        CancelReason::LeaseLost => {
            StopReason::LeaseLost("another owner may hold the shard".to_owned())
        }
    }
}

fn port_error(error: ContextError) -> PortError {
    match error {
        ContextError::Stopped(reason) => PortError::Fenced(reason.to_string()),
        ContextError::Refused(problem) if ends_tenure(problem.code) => {
            PortError::Fenced(problem.to_string())
        }
        ContextError::Refused(problem) => PortError::Refused {
            code: problem.code.to_string(),
            detail: problem.detail,
        },
        other => PortError::Unavailable(other.to_string()),
    }
}

/// Whether a refusal means that somebody else has the shard, or nobody.
fn ends_tenure(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::StaleEpoch
            | ErrorCode::StaleSession
            | ErrorCode::SessionReplaced
            | ErrorCode::SessionExpired
            | ErrorCode::UnknownTask
            | ErrorCode::AlreadyFinal
    )
}

/// What the SDK is told. For a task that was stopped it knows the reason itself.
pub fn handler_result(ending: Ending) -> Result<Value, TaskError> {
    match ending {
        Ending::Succeeded(value) => Ok(value),
        Ending::Failed {
            message,
            retryable: true,
        } => Err(TaskError::retryable(message)),
        Ending::Failed {
            message,
            retryable: false,
        } => Err(TaskError::permanent(message)),
        Ending::Stopped(reason) => Err(TaskError::retryable(reason.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tenure_api::Problem;

    #[test]
    fn refusals_that_end_a_tenure_are_told_apart() {
        for code in ErrorCode::ALL {
            let problem = Box::new(Problem::new(*code, "because"));
            let fault = port_error(ContextError::Refused(problem));
            let fenced = matches!(fault, PortError::Fenced(_));
            let expected = [
                "stale_epoch",
                "stale_session",
                "session_replaced",
                "session_expired",
                "unknown_task",
                "already_final",
            ];
            assert_eq!(fenced, expected.contains(&code.as_str()), "{code}");
        }
        let lost = port_error(ContextError::Stopped(CancelReason::LeaseLost));
        assert_eq!(lost, PortError::Fenced("lease_lost".into()));
    }

    #[test]
    fn endings_become_results() {
        assert_eq!(handler_result(Ending::Succeeded(json!(1))), Ok(json!(1)));
        let refused = handler_result(Ending::refused("no"));
        assert_eq!(refused, Err(TaskError::permanent("no")));
        let stopped = handler_result(Ending::Stopped(StopReason::Draining));
        assert!(stopped.is_err_and(|error| error.retryable));
    }
}
