//! What goes into the log.
//!
//! The encoding is positional: the enums here are append-only and the order of their variants is part of
//! the format. `codec` has golden bytes that fail when an ordinal moves.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{JobSpec, Name};

/// Where an entry stands in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogPosition {
    /// The Raft term in which it was appended.
    pub term: u64,
    /// Its log index.
    pub index: u64,
}

/// One log entry: a command, who asked for it and when the leader proposed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The two clocks of the leader when it proposed this.
    pub stamp: Stamp,
    /// The term of the leader loop that proposed this. `apply` refuses the command in any other term.
    /// `None` for what a client asked for.
    pub term: Option<u64>,
    /// Who asked.
    pub actor: Actor,
    /// The caller's idempotency key, if any.
    pub request: Option<RequestKey>,
    /// What is to be done.
    pub command: Command,
}

/// The two clocks (design §4). `apply` keeps the maximum of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Milliseconds for which leases have been running. It stands still while nobody leads.
    pub lease_ms: u64,
    /// Wall time: milliseconds since the Unix epoch.
    pub calendar_ms: u64,
}

/// Who asked for a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// A leader loop.
    Scheduler,
    /// A principal that the node authenticated.
    Principal {
        /// Its name, never its secret.
        name: Name,
        /// The role it acted in.
        role: Role,
    },
}

impl Actor {
    /// The principal, if it is one.
    pub fn principal(&self) -> Option<&Name> {
        match self {
            Self::Scheduler => None,
            Self::Principal { name, .. } => Some(name),
        }
    }
}

/// What a principal may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Reads.
    Viewer,
    /// Works: registers, polls, reports.
    Executor,
    /// Defines, triggers and cancels.
    Operator,
    /// Everything.
    Admin,
}

/// An idempotency key and what it was used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// The key, already made unique to its principal.
    pub key: Name,
    /// A digest of the request. The same key with another digest is refused.
    pub fingerprint: [u8; 16],
}

/// What the caller believes about the present revision of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    /// Nothing.
    Any,
    /// That there is no such job.
    Absent,
    /// That it is at this revision.
    Revision(u64),
}

/// Names one grant of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskRef {
    /// The run.
    pub run: u64,
    /// The shard of the run's job.
    pub shard: u32,
    /// The epoch of the grant.
    pub epoch: u64,
}

/// A task that an executor says it still works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTask {
    /// Which, under which epoch.
    pub task: TaskRef,
    /// How far it has come since, in the handler's own count. Not committed.
    pub progress: Option<u64>,
}

/// What an executor says of itself when it registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Stable over restarts of the process.
    pub instance: Name,
    /// Semantic version of the executor.
    pub version: String,
    /// What it can do.
    pub capabilities: Vec<Name>,
    /// What it is.
    pub labels: BTreeMap<Name, Name>,
    /// How many tasks it takes at once.
    pub capacity: u32,
    /// How long its lease is to last without a renewal, in milliseconds of the lease clock.
    pub lease_ttl_ms: u64,
}

/// A renewal of an executor's lease, and of the leases of all tasks it lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The session that is renewed.
    pub session: u64,
    /// How many of its slots it counts as used.
    pub slots_used: u32,
    /// What its own probe says.
    pub healthy: bool,
    /// What it still works on.
    pub tasks: Vec<HeldTask>,
}

/// How an attempt ended, in the words of its executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskOutcome {
    /// Done. The value is JSON text.
    Succeeded {
        /// What the handler returned.
        value: Option<String>,
    },
    /// Not done.
    Failed {
        /// Why, for people.
        message: String,
        /// Whether another attempt makes sense.
        retryable: bool,
    },
    /// Stopped because the cluster asked for it.
    Cancelled,
    /// Stopped because the attempt took too long.
    TimedOut,
}

/// Why due instants were decided as "not run" without a look at the job's runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SkipReason {
    /// They were late and the misfire policy says so.
    Misfire,
    /// The job was paused.
    Paused,
    /// An earlier run was live and the job forbids overlap.
    Overlap,
    /// The backlog was full.
    BacklogFull,
    /// The job's trigger changed while several instants were due. The latest kept its place.
    Changed,
    /// The job was deleted.
    Deleted,
}

/// The due instants of a job's trigger that nobody has decided, as a plan found them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undecided {
    /// The first: where the cursor stands.
    pub first_ms: u64,
    /// The last.
    pub last_ms: u64,
    /// How many there are, first and last counted.
    pub count: u64,
    /// The instant behind them.
    pub next_at_ms: Option<u64>,
}

/// What becomes of the instants of a trigger that another replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Superseded {
    /// All due and undecided instants but the latest; the instant behind them is the latest.
    pub skipped: Option<Undecided>,
    /// The first instant that is not due. The command is refused once it is.
    pub not_due_ms: Option<u64>,
}

/// What can be asked of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Gives the cluster its identity. The first command of every cluster.
    Bootstrap {
        /// Random, made once.
        cluster_id: Name,
        /// 1, and one more after each restore from a backup.
        generation: u64,
    },
    /// A leader took office. Gives every live lease `grace_ms` from now, at least.
    TermStarted {
        /// At least one heartbeat interval.
        grace_ms: u64,
    },
    /// Creates or changes a job.
    PutJob {
        /// Its name.
        name: Name,
        /// The revision the caller knows.
        expect: Expect,
        /// The new definition.
        spec: Arc<JobSpec>,
        /// Whether it is to be paused; `None` leaves that as it is.
        paused: Option<bool>,
        /// The first due instant after now under the new definition.
        next_at_ms: Option<u64>,
        /// Set when the job has another trigger so far.
        superseded: Option<Superseded>,
    },
    /// Removes a job. Its live runs are cancelled, and what is due and undecided is decided as "not run".
    DeleteJob {
        /// Its name.
        name: Name,
        /// The revision the caller knows.
        expect: Expect,
        /// What is due and undecided.
        undecided: Option<Undecided>,
    },
    /// Stops a job from firing.
    PauseJob {
        /// Its name.
        name: Name,
    },
    /// Lets a job fire again. The instants of the pause are decided here, as a range.
    ResumeJob {
        /// Its name.
        name: Name,
        /// First, last and number of the due instants of the pause.
        skipped: Option<(u64, u64, u64)>,
        /// The first due instant after the pause.
        next_at_ms: Option<u64>,
    },
    /// Creates a run now.
    TriggerJob {
        /// Its name.
        name: Name,
        /// Makes the run unique; without one the log index does.
        key: Option<Name>,
        /// Replaces the job's parameters.
        params: Option<String>,
    },
    /// Decides one due instant: a run, unless overlap or backlog forbid it.
    Fire {
        /// The job.
        job: Name,
        /// The revision it was planned for.
        revision: u64,
        /// The due instant. Must be where the cursor stands.
        scheduled_at_ms: u64,
        /// Where the cursor goes.
        next_at_ms: Option<u64>,
    },
    /// Decides a range of due instants as "not run".
    SkipFires {
        /// The job.
        job: Name,
        /// The revision it was planned for.
        revision: u64,
        /// The first instant. Must be where the cursor stands.
        first_ms: u64,
        /// The last one.
        last_ms: u64,
        /// How many there are, first and last counted.
        count: u64,
        /// Where the cursor goes.
        next_at_ms: Option<u64>,
        /// Why.
        reason: SkipReason,
    },
    /// Grants a task to a session. The epoch must be the shard's next one.
    Assign {
        /// The task and its new epoch.
        task: TaskRef,
        /// To whom.
        session: u64,
    },
    /// Ends a session whose lease ran out. Refused if a renewal got in before.
    ExpireSession {
        /// The session.
        session: u64,
        /// The deadline the leader saw.
        deadline_ms: u64,
    },
    /// Ends a grant that its session no longer renews. Refused if a renewal got in before.
    ExpireTask {
        /// The grant.
        task: TaskRef,
        /// The deadline the leader saw.
        deadline_ms: u64,
    },
    /// Ends an attempt or a cancellation that its executor did not end in time.
    EndOverdueTask {
        /// The grant.
        task: TaskRef,
        /// The limit the leader saw.
        limit_ms: u64,
    },
    /// Removes what has been kept long enough: finished runs, idempotency results, ended sessions.
    Sweep,
    /// An executor process comes. The same instance's earlier session ends in this entry.
    RegisterSession(Registration),
    /// An executor lives, and works on what it lists.
    Heartbeat(Heartbeat),
    /// An executor is about to run a handler.
    StartTask {
        /// Its session.
        session: u64,
        /// The grant.
        task: TaskRef,
    },
    /// An executor commits how far it has come.
    Checkpoint {
        /// Its session.
        session: u64,
        /// The grant.
        task: TaskRef,
        /// The handler's own count.
        offset: u64,
        /// Whatever the handler needs to go on.
        state: Arc<[u8]>,
    },
    /// An executor reports output of a task.
    AppendOutput {
        /// Its session.
        session: u64,
        /// The grant.
        task: TaskRef,
        /// Counts the pieces of this grant from 0, so that a repeat is recognised.
        seq: u32,
        /// The text.
        text: String,
    },
    /// An executor reports how an attempt ended.
    ReportResult {
        /// Its session.
        session: u64,
        /// The grant.
        task: TaskRef,
        /// How.
        outcome: TaskOutcome,
        /// How far it came.
        progress: Option<u64>,
        /// The end of its output.
        output_tail: Option<String>,
    },
    /// An executor gives a task back.
    ReleaseTask {
        /// Its session.
        session: u64,
        /// The grant.
        task: TaskRef,
    },
    /// No new work for the present session of an instance; at the deadline it should be gone.
    DrainExecutor {
        /// The instance.
        instance: Name,
        /// How long it has, in milliseconds of the lease clock.
        within_ms: u64,
    },
    /// An executor process goes. What it still holds is orphaned.
    CloseSession {
        /// Its session.
        session: u64,
    },
    /// Ends a run early.
    CancelRun {
        /// The run.
        run: u64,
        /// Why, for people.
        reason: String,
    },
    /// An executor process wants no new work; at the deadline it should be gone. Names its session, so that
    /// one that was replaced cannot drain the one that took its place.
    DrainSession {
        /// Its session.
        session: u64,
        /// How long it has, in milliseconds of the lease clock.
        within_ms: u64,
    },
}

impl Command {
    /// Whether only a leader loop proposes this. Such a command is bound to the term of its leader.
    pub fn is_leaders(&self) -> bool {
        match self {
            Self::TermStarted { .. }
            | Self::Fire { .. }
            | Self::SkipFires { .. }
            | Self::Assign { .. }
            | Self::ExpireSession { .. }
            | Self::ExpireTask { .. }
            | Self::EndOverdueTask { .. }
            | Self::Sweep => true,
            Self::Bootstrap { .. }
            | Self::PutJob { .. }
            | Self::DeleteJob { .. }
            | Self::PauseJob { .. }
            | Self::ResumeJob { .. }
            | Self::TriggerJob { .. }
            | Self::RegisterSession(_)
            | Self::Heartbeat(_)
            | Self::StartTask { .. }
            | Self::Checkpoint { .. }
            | Self::AppendOutput { .. }
            | Self::ReportResult { .. }
            | Self::ReleaseTask { .. }
            | Self::DrainExecutor { .. }
            | Self::CloseSession { .. }
            | Self::CancelRun { .. }
            | Self::DrainSession { .. } => false,
        }
    }

    /// The session that whoever asks for this speaks for, if it is the word of an executor.
    pub fn spoken_for(&self) -> Option<u64> {
        match self {
            Self::Heartbeat(beat) => Some(beat.session),
            Self::StartTask { session, .. }
            | Self::Checkpoint { session, .. }
            | Self::AppendOutput { session, .. }
            | Self::ReportResult { session, .. }
            | Self::ReleaseTask { session, .. }
            | Self::CloseSession { session }
            | Self::DrainSession { session, .. } => Some(*session),
            Self::Bootstrap { .. }
            | Self::TermStarted { .. }
            | Self::PutJob { .. }
            | Self::DeleteJob { .. }
            | Self::PauseJob { .. }
            | Self::ResumeJob { .. }
            | Self::TriggerJob { .. }
            | Self::Fire { .. }
            | Self::SkipFires { .. }
            | Self::Assign { .. }
            | Self::ExpireSession { .. }
            | Self::ExpireTask { .. }
            | Self::EndOverdueTask { .. }
            | Self::Sweep
            | Self::RegisterSession(_)
            | Self::DrainExecutor { .. }
            | Self::CancelRun { .. } => None,
        }
    }
}
