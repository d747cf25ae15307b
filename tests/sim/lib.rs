//! Whole clusters of Tenure in one thread, on virtual time, from one seed.
//!
//! What runs is the real thing: the machine, the leader's loop, consensus with openraft, the log and the
//! snapshots, the request handlers, the SDK's client and executors. What a run cannot have is put behind
//! the same traits: see `docs/testing.md`.
//!
//! Invariant: the same seed gives the same trace, byte for byte. So nothing here reads a real clock, draws a
//! number from the system, starts a thread inside a run, or iterates over a map whose order is seeded.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this whole crate is a test: it fails by panicking and speaks to people"
)]

pub mod atlas;
pub mod chance;
pub mod clock;
pub mod cluster;
pub mod damage;
pub mod failover;
pub mod faults;
pub mod invariants;
pub mod judge;
pub mod network;
pub mod node;
pub mod plan;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod run;
pub mod runtime;
pub mod scope;
pub mod site;
pub mod stage;
pub mod story;
pub mod trace;
pub mod traps;
pub mod workload;
pub mod world;
