//! Handlers and what they return.

use super::cancel::CancelReason;
use super::context::TaskContext;
use crate::error::Error;
use crate::transport::BoxFuture;
use serde_json::Value;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tenure_api::{ErrorCode, Problem};

/// Why a handler failed. Made from any error by `?`; such a failure may be retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    /// What went wrong.
    pub message: String,
    /// Whether another attempt may help.
    pub retryable: bool,
}

impl TaskError {
    /// A failure that another attempt may mend.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retryable: true,
        }
    }

    /// A failure that will be the same each time.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            retryable: false,
        }
    }
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// `TaskError` is not an `Error` itself, so that this covers every other error.
impl<E: std::error::Error> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self::retryable(error.to_string())
    }
}

/// Why a call of the task's context did nothing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ContextError {
    /// The handler must stop. Return as soon as possible.
    Stopped(CancelReason),
    /// The cluster refused it, for example a checkpoint with a lower offset.
    Refused(Box<Problem>),
    /// The cluster could not be reached in time. Whether it was done is unknown; it is safe to
    /// do again.
    Unavailable(String),
}

impl ContextError {
    /// The code, where the cluster gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(problem) => Some(problem.code),
            Self::Stopped(_) | Self::Unavailable(_) => None,
        }
    }
}

impl From<Error> for ContextError {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(problem) => Self::Refused(problem),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(reason) => reason.fmt(f),
            Self::Refused(problem) => problem.fmt(f),
            Self::Unavailable(last) => write!(f, "the cluster is not reachable: {last}"),
        }
    }
}

impl std::error::Error for ContextError {}

/// What a handler may give back: nothing, or a JSON value that is kept with the run.
pub trait ReturnValue: Send + 'static {
    /// The value, if any.
    fn into_value(self) -> Option<Value>;
}

impl ReturnValue for () {
    fn into_value(self) -> Option<Value> {
        None
    }
}

impl ReturnValue for Value {
    fn into_value(self) -> Option<Value> {
        Some(self)
    }
}

impl ReturnValue for Option<Value> {
    fn into_value(self) -> Option<Value> {
        self
    }
}

pub(crate) type HandlerResult = Result<Option<Value>, TaskError>;

/// A handler with its types taken away.
pub(crate) type Handler =
    Arc<dyn Fn(TaskContext) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

pub(crate) fn boxed<F, Fut, T>(handler: F) -> Handler
where
    F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, TaskError>> + Send + 'static,
    T: ReturnValue,
{
    let handler = Arc::new(handler);
    Arc::new(move |context| {
        let handler = Arc::clone(&handler);
        // The handler is called inside the future, so that a panic in it is the task's.
        Box::pin(async move { handler(context).await.map(ReturnValue::into_value) })
    })
}
