//! What came of a command, for the leader to act on and for the archive to keep.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::state::{Run, Session, SessionEnd, Task};
use crate::{Actor, Name, Refusal, RefusalCode, Reply, SkipReason};

/// Everything that comes of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the proposer is told.
    pub reply: Result<Reply, Refusal>,
    /// What happened, in order.
    pub events: Vec<Event>,
}

/// One thing that happened. Facts for the archive carry everything the archive needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Instants of a job were decided. Belongs in the fire ledger.
    Decided(FireDecision),
    /// A run was created.
    RunCreated(Arc<Run>),
    /// A run is over. Belongs in the archive, with its tasks.
    RunFinished {
        /// The run as it ended.
        run: Arc<Run>,
        /// Its tasks by shard.
        tasks: Vec<Arc<Task>>,
    },
    /// Tasks became ready to be granted.
    TasksQueued {
        /// The run.
        run: u64,
    },
    /// A task was granted; its session should be told.
    Assigned {
        /// To whom.
        session: u64,
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
    },
    /// A task is to be stopped; its session should be told.
    CancelRequested {
        /// Who holds it.
        session: u64,
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
    },
    /// A task lost its owner.
    Orphaned {
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
        /// The epoch that ended.
        epoch: u64,
    },
    /// Records of a shard were worked through again after a takeover.
    Replayed {
        /// How many.
        records: u64,
    },
    /// A piece of a task's output. Belongs in the archive.
    Output {
        /// The run.
        run: u64,
        /// The shard.
        shard: u32,
        /// The epoch under which it was written.
        epoch: u64,
        /// The byte position of this piece in all output kept for the task.
        position_bytes: u64,
        /// The text.
        text: String,
    },
    /// An executor process came.
    SessionOpened(Arc<Session>),
    /// An executor process is gone.
    SessionEnded {
        /// Which.
        session: u64,
        /// Of which instance.
        instance: Name,
        /// Why.
        why: SessionEnd,
    },
    /// A job was created, changed, paused, resumed or deleted.
    JobChanged {
        /// Which.
        job: Name,
    },
    /// One link of the audit chain. Belongs in the archive.
    Audited(AuditRecord),
    /// A command was refused.
    Refused {
        /// Why.
        code: RefusalCode,
    },
}

/// The decision about one due instant, or about a range of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FireDecision {
    /// The job.
    pub job: Name,
    /// Its revision at that time.
    pub revision: u64,
    /// The first instant.
    pub first_ms: u64,
    /// The last instant; the same for a single one.
    pub last_ms: u64,
    /// How many instants.
    pub count: u64,
    /// The run that was created, if the decision was to run.
    pub run: Option<u64>,
    /// Why it was not.
    pub skipped: Option<SkipReason>,
    /// When it was decided, on the calendar clock.
    pub decided_at_ms: u64,
    /// The log index of the decision.
    pub index: u64,
    /// The term in which it was decided.
    pub term: u64,
}

/// One link of the audit chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Counts the links from 1, without a gap.
    pub seq: u64,
    /// The log index of the command.
    pub index: u64,
    /// The term of the command.
    pub term: u64,
    /// When, on the calendar clock.
    pub at_ms: u64,
    /// Who.
    pub actor: Actor,
    /// What, in a word: `put_job`, `cancel_run`.
    pub action: String,
    /// On what.
    pub subject: String,
    /// SHA-256 over the encoded command.
    pub command_digest: [u8; 32],
    /// The hash of the link before.
    pub previous: [u8; 32],
    /// SHA-256 over all of the above.
    pub hash: [u8; 32],
}
