//! Tenure's consensus: openraft wired to the machine and the storage.
//!
//! ```text
//!                     node          the face: propose, read, standing, membership
//!                   ╱   │   ╲
//!       log_store   state_machine   network ── service      openraft's four sides
//!           │            │             │          │
//!      storage::wal   snapshots      transport (TCP, or a simulated network)
//! ```
//!
//! - [`node::Node`] is a member on any runtime, disk and network; [`tcp_node::TcpNode`] is that
//!   member as it runs in production.
//! - What the layers above owe a node is in [`node::Hooks`]: stamps, an observer of what is applied,
//!   the barrier before the log is purged, a handler for forwarded requests, and the end of the
//!   process when the node cannot go on.
//!
//! Invariants, each held by a test:
//! - A proposal is answered only when it is on disk on a majority and applied here. An error says
//!   whether it certainly did not happen.
//! - A leader loop's proposal is appended in the term it was made for, or not at all.
//! - A peer is not listened to before it has proved that it knows the cluster secret.
//! - The log is purged only behind a snapshot that is durable, and after the barrier.
//!
//! Absent, on purpose: what commands mean (the machine), how bytes get on disk (the storage),
//! HTTP, and any decision by a local clock about who holds what.

pub mod config;
pub mod contacts;
mod fast_failover;
pub mod log_store;
pub mod network;
pub mod node;
pub mod propose;
mod runner;
pub mod service;
mod snapshot_files;
pub mod snapshots;
mod sparing;
pub mod standing;
pub mod state_machine;
pub mod tcp_node;
pub mod transport;
pub mod types;
pub mod wire;
