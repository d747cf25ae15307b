//! The node process of Tenure: configuration, leader loops, HTTP, security, the built-in executor and the
//! command line.
//!
//! The parts and who may know whom are in `docs/ARCHITECTURE.md`.

pub mod assembly;
pub mod blocking;
pub mod cli;
pub mod clock;
pub mod config;
pub mod consensus;
pub mod dev;
pub mod executor;
pub mod history;
pub mod http;
pub mod leader;
pub mod listener;
pub mod node;
pub mod security;
pub mod signals;
pub mod wakeups;
pub mod watch;
