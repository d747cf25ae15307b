//! What a capability sees of the task it runs, and how it ends.
//!
//! In production this is the SDK's task context; in tests it is a recorder. The capabilities and the
//! task socket know nothing else, so they run without a cluster.

use futures::future::BoxFuture;
use serde_json::Value;
use tenure_api::FencingToken;

/// What is fixed for one tenure of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskFacts {
    /// The run.
    pub run: u64,
    /// The job's name.
    pub job: String,
    /// The job's revision when the run was made.
    pub revision: u64,
    /// The instant it was due, in milliseconds since the Unix epoch.
    pub scheduled_at_ms: i64,
    /// The shard's index, from zero.
    pub shard: u32,
    /// How many shards the run has.
    pub shard_count: u32,
    /// Which attempt this is, from one.
    pub attempt: u32,
    /// The epoch it was granted under.
    pub epoch: u64,
    /// The cluster's generation.
    pub generation: u64,
    /// What downstream systems check.
    pub fencing_token: FencingToken,
    /// What the token is compared within.
    pub fencing_scope: String,
    /// The checkpoint to go on from.
    pub checkpoint: Option<Resume>,
    /// What the last owner had reached, as far as it said.
    pub last_progress: Option<u64>,
    /// The job's parameters.
    pub params: Value,
}

/// A committed checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// How far the work is durable.
    pub offset: u64,
    /// The task's own state.
    pub state: Vec<u8>,
}

/// Why a task must stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// Somebody cancelled the run, or a newer run replaces it.
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The attempt took longer than it may.
    #[error("timed out")]
    TimedOut,
    /// The right to run it is gone, or cannot be shown to be there any more. Somebody else may run
    /// it soon.
    #[error("lease lost: {0}")]
    LeaseLost(String),
    /// The executor leaves and gives the shard back.
    #[error("the executor drains")]
    Draining,
}

/// Why the cluster did not do what a task asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// This tenure is over. The task must stop.
    #[error("this tenure is over: {0}")]
    Fenced(String),
    /// The cluster refused it, with a stable code.
    #[error("{code}: {detail}")]
    Refused {
        /// The code, such as `checkpoint_regressed`.
        code: String,
        /// Why.
        detail: String,
    },
    /// No answer in time. The same request may be made again.
    #[error("the cluster did not answer: {0}")]
    Unavailable(String),
}

/// How a handler ended by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The work is done.
    Succeeded(Value),
    /// The work failed.
    Failed {
        /// Why.
        message: String,
        /// Whether another attempt may help.
        retryable: bool,
    },
    /// It stopped because it had to.
    Stopped(StopReason),
}

impl Ending {
    /// A failure that another attempt will not mend.
    pub fn refused(message: impl ToString) -> Self {
        Self::Failed {
            message: message.to_string(),
            retryable: false,
        }
    }
}

/// What a running task may ask of its executor.
pub trait TaskPort: Send + Sync + 'static {
    /// What is fixed for this tenure.
    fn facts(&self) -> &TaskFacts;

    /// The highest term seen in any answer of the cluster.
    fn term(&self) -> u64;

    /// Commits a checkpoint and gives back the committed offset.
    fn checkpoint(&self, offset: u64, state: Vec<u8>) -> BoxFuture<'_, Result<u64, PortError>>;

    /// Says how far the work is. Goes with the next heartbeat.
    ///
    /// # Errors
    /// The tenure is over.
    fn progress(&self, value: u64) -> Result<(), PortError>;

    /// Adds a line to the task's output. Bounded: what is too much is dropped, not queued.
    fn log(&self, line: &str);

    /// Completes when the task must stop.
    fn stopped(&self) -> BoxFuture<'_, StopReason>;
}

#[cfg(test)]
pub(crate) mod recorder {
    //! A port that writes down what it is asked.

    use super::*;
    use std::sync::Mutex;
    use tenure_api::{Epoch, Generation};
    use tokio::sync::watch;

    /// Remembers calls. Refuses checkpoints that go back, like the cluster.
    pub(crate) struct Recorder {
        facts: TaskFacts,
        pub(crate) lines: Mutex<Vec<String>>,
        pub(crate) checkpoints: Mutex<Vec<(u64, Vec<u8>)>>,
        pub(crate) progress: Mutex<Vec<u64>>,
        stop: watch::Sender<Option<StopReason>>,
    }

    impl Recorder {
        pub(crate) fn new(params: Value) -> Self {
            Self::with_checkpoint(params, None)
        }

        pub(crate) fn with_checkpoint(params: Value, checkpoint: Option<Resume>) -> Self {
            let facts = TaskFacts {
                run: 41,
                job: "count-words".into(),
                revision: 3,
                scheduled_at_ms: 1_780_000_000_000,
                shard: 2,
                shard_count: 4,
                attempt: 1,
                epoch: 19,
                generation: 1,
                fencing_token: FencingToken::new(Generation(1), Epoch(19)),
                fencing_scope: "count-words/2".into(),
                checkpoint,
                last_progress: None,
                params,
            };
            Self {
                facts,
                lines: Mutex::default(),
                checkpoints: Mutex::default(),
                progress: Mutex::default(),
                stop: watch::channel(None).0,
            }
        }

        pub(crate) fn stop(&self, reason: StopReason) {
            self.stop.send_replace(Some(reason));
        }

        pub(crate) fn output(&self) -> Vec<String> {
            self.lines.lock().unwrap().clone()
        }

        fn fenced(&self) -> Result<(), PortError> {
            match &*self.stop.borrow() {
                Some(reason @ StopReason::LeaseLost(_)) => {
                    Err(PortError::Fenced(reason.to_string()))
                }
                _ => Ok(()),
            }
        }
    }

    impl TaskPort for Recorder {
        fn facts(&self) -> &TaskFacts {
            &self.facts
        }

        fn term(&self) -> u64 {
            7
        }

        fn checkpoint(&self, offset: u64, state: Vec<u8>) -> BoxFuture<'_, Result<u64, PortError>> {
            Box::pin(async move {
                self.fenced()?;
                let mut checkpoints = self.checkpoints.lock().unwrap();
                if checkpoints.last().is_some_and(|(last, _)| *last > offset) {
                    return Err(PortError::Refused {
                        code: "checkpoint_regressed".into(),
                        detail: format!("offset {offset} lies before the committed one"),
                    });
                }
                checkpoints.push((offset, state));
                Ok(offset)
            })
        }

        fn progress(&self, value: u64) -> Result<(), PortError> {
            self.fenced()?;
            self.progress.lock().unwrap().push(value);
            Ok(())
        }

        fn log(&self, line: &str) {
            self.lines.lock().unwrap().push(line.to_owned());
        }

        fn stopped(&self) -> BoxFuture<'_, StopReason> {
            let mut stop = self.stop.subscribe();
            Box::pin(async move {
                let stopped = stop.wait_for(Option::is_some).await.unwrap();
                stopped.clone().unwrap()
            })
        }
    }
}
