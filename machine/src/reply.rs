//! What a proposer gets back.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::state::Checkpoint;

/// A command that was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Nothing to say.
    Done,
    /// The job stands at this revision. `changed` is false where the definition was the same already.
    Job {
        /// The revision.
        revision: u64,
        /// Whether this command made it.
        created: bool,
        /// Whether anything changed.
        changed: bool,
    },
    /// A run was created, or was there already under this key.
    Run {
        /// Its id.
        run: u64,
        /// Whether this command made it.
        created: bool,
    },
    /// An instant was decided.
    Fired {
        /// The run, where there is one.
        run: Option<u64>,
    },
    /// A task was granted.
    Granted {
        /// The epoch of the grant.
        epoch: u64,
    },
    /// A session was opened.
    Session {
        /// Its number.
        session: u64,
        /// The session of the same instance that ended in the same entry.
        replaced: Option<u64>,
        /// The lease that was granted.
        lease_ttl_ms: u64,
        /// The generation of the cluster.
        generation: u64,
    },
    /// A lease was renewed.
    Renewed {
        /// For how long, in milliseconds of the lease clock.
        lease_ttl_ms: u64,
        /// What to do with each task that was listed, in the order of the list.
        verdicts: Vec<Verdict>,
        /// Whether the executor is to drain, and how much time is left.
        drain_in_ms: Option<u64>,
    },
    /// A handler may run.
    Started {
        /// Counts the attempts of the task from 1.
        attempt: u32,
        /// Where to go on.
        checkpoint: Option<Arc<Checkpoint>>,
        /// How far the earlier owner said it had come.
        last_progress: Option<u64>,
        /// The epoch of the earlier owner.
        previous_epoch: Option<u64>,
    },
    /// A checkpoint was committed, or was there already.
    Checkpointed {
        /// Its offset.
        offset: u64,
    },
    /// Output was taken.
    OutputTaken {
        /// How much of this piece is kept, in bytes.
        accepted_bytes: u64,
        /// Whether some output of the task has been dropped.
        truncated: bool,
    },
    /// A result was taken, now or earlier under the same epoch.
    ResultTaken {
        /// Whether it had been taken earlier.
        repeated: bool,
        /// Whether another attempt will follow.
        retrying: bool,
    },
    /// A run is ended or will end.
    Cancelling {
        /// How many of its tasks an executor still has to stop.
        pending: u32,
    },
    /// How much a sweep removed.
    Swept {
        /// Items.
        removed: u32,
    },
}

/// What an executor is to do with a task it listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Go on.
    Keep,
    /// Stop and report `cancelled`.
    Cancel,
    /// Stop; it is not yours.
    Lost,
}

/// A command that was not carried out. Deterministic: every replica gives the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code:?}: {detail}")]
pub struct Refusal {
    /// The stable reason.
    pub code: RefusalCode,
    /// The particulars, for people.
    pub detail: String,
}

impl Refusal {
    /// A refusal with its particulars.
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }
}

/// Why a command was not carried out. Append-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RefusalCode {
    /// The cluster has no identity yet, or has one already.
    Bootstrap,
    /// The leader loop that proposed this is not of the entry's term.
    StaleTerm,
    /// The session never was, or ended so long ago that nobody remembers why.
    StaleSession,
    /// Another process registered under the same instance id.
    SessionReplaced,
    /// The session's lease ran out.
    SessionExpired,
    /// The executor said goodbye.
    SessionClosed,
    /// The epoch is not the task's present one.
    StaleEpoch,
    /// The epoch is higher than any that was granted.
    FutureEpoch,
    /// There is no such job.
    UnknownJob,
    /// There is no such run.
    UnknownRun,
    /// There is no such task.
    UnknownTask,
    /// There is no such executor.
    UnknownExecutor,
    /// The job is not at the revision the caller named.
    RevisionMismatch,
    /// The planned revision is not the present one.
    StaleRevision,
    /// The instant is decided already, or is not where the cursor stands.
    DuplicateFire,
    /// The instant is not due yet.
    NotDue,
    /// The job is paused.
    Paused,
    /// The job is not paused.
    NotPaused,
    /// The job has as many runs as it may have.
    BacklogFull,
    /// The checkpoint is behind the committed one.
    CheckpointRegressed,
    /// The checkpoint's state is too long.
    CheckpointTooLarge,
    /// Some other part of the command is too long or too many.
    TooLarge,
    /// The command makes no sense.
    Invalid,
    /// The cluster holds as many of these as it may.
    LimitExceeded,
    /// The idempotency key was used for another request.
    IdempotencyConflict,
    /// The task cannot be granted: not waiting, or not yet.
    NotGrantable,
    /// The executor cannot take the task: no capacity, draining, unhealthy or not fit.
    NotEligible,
    /// A renewal got in before, or the deadline is not over.
    NotExpired,
    /// The run is over.
    AlreadyFinal,
    /// The task was not started.
    NotStarted,
    /// The planned instants do not match where the cursor stands: plan again.
    CursorMismatch,
    /// An earlier run is live and the job forbids overlap.
    Overlap,
    /// Processes take one instance id from each other; wait before registering again.
    InstanceConflict,
    /// Another principal registered the session.
    NotOwner,
}
