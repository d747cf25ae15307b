//! Tenure's scheduler as a pure state machine.
//!
//! Two halves, both synchronous and free of I/O:
//!
//! - [`State::apply`] changes the replicated state. It is the only thing that does. It runs on every
//!   replica, so for the same state and the same proposal it gives the same result everywhere, for ever.
//! - `plan` looks at a state and says what a leader should *propose*. It may change between versions,
//!   because `apply` checks each proposal (revision, cursor, epoch, session, capacity, term) instead of
//!   computing it again.
//!
//! Invariants, each held by a test:
//!
//! - A deterministic failure is a reply ([`Refusal`]), never a panic and never an `Err` that stops a node.
//! - A refused command changes nothing but the clocks, the counters and, where it is a control-plane
//!   command, the idempotency results and the audit chain.
//! - Epochs, sessions, revisions and both clocks never go back.
//! - For each (job, instant) there is at most one decision, because a decision moves the job's cursor in
//!   the same entry and names the instant it found there.
//!
//! Absent, on purpose: clocks, random numbers, threads, files, sockets, async, floating point, and maps
//! whose order depends on a seed. `clippy.toml` beside this crate refuses them.

mod apply;
pub mod codec;
mod command;
mod event;
mod ident;
mod job;
mod limits;
pub mod plan;
mod reply;
mod state;

pub use command::{
    Actor, Command, Expect, Heartbeat, HeldTask, LogPosition, Proposal, Registration, RequestKey,
    Role, SkipReason, Stamp, Superseded, TaskOutcome, TaskRef, Undecided,
};
pub use event::{AuditRecord, Event, FireDecision, Outcome};
pub use ident::{FencingToken, Name, RunKey};
pub use job::{
    CheckpointScope, Execution, History, JobSpec, Misfire, MisfirePolicy, Overlap, Recovery, Retry,
    TaskTemplate, Trigger,
};
pub use limits::*;
pub use reply::{Refusal, RefusalCode, Reply, Verdict};
pub use state::{
    Checkpoint, Counter, EndedSession, Index, Job, Meta, Owner, Record, RecordError, Replay,
    RequestRecord, Requirement, Run, RunState, Session, SessionEnd, Shard, State, StateBuilder,
    Task, TaskState, TermRecord,
};
