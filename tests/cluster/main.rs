//! Whole clusters of real processes: what DESIGN promises, tried with SIGKILL, SIGSTOP and damaged disks.
//!
//! Names of tests begin with the scenario they hold. `TENURE_FULL=1` runs the long forms, `TENURE_QUICK=1`
//! leaves out the slow ones.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test fails by panicking, its own functions too, and may say what it saw"
)]

mod command_line;
mod crash;
mod disk;
mod every_second;
mod executors;
mod failover;
mod follower;
mod quorum;
mod support;
mod whole;

/// Not a test of its own: the executor that other tests start as a process. Without their environment it
/// has nothing to do.
#[test]
fn child_executor() {
    support::child_main();
}
