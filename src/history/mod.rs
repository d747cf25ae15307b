//! What is over: finished runs, their output, the fire ledger and the audit chain, in the archive.
//!
//! The facts come out of `apply` as events and go into the archive on every node, in log order, on a thread
//! of its own (a plain task in a simulation). The archive is not part of the replicated state; it follows from it.
//!
//! Invariants:
//! - A snapshot can only be found, and the log only be purged, when everything that follows from the entries
//!   it covers is durable in the archive ([`Feed`] is the barrier of both). So a restart never skips a fact.
//! - A fact is written once: the archive knows up to which log index it is fed, and entries that are
//!   applied again after a restart change nothing.
//! - A question about the archive waits until everything is in that belongs to a state read before it was asked.
//! - An archive that misses facts (damaged, moved aside, or behind a snapshot that came from the leader) is
//!   filled again from another member's ([`heal`]); until then `complete` is false and questions are refused
//!   ([`HistoryError::Incomplete`](crate::http::history::HistoryError)), never answered in part.

mod feed;
mod heal;
mod keys;
mod query;
mod retain;
#[cfg(test)]
mod tests;

pub use feed::{Feed, FeedError, Feeder, open_or_rebuild};
pub use heal::{ArchiveAnswer, ArchiveQuestion, heal, serve_export};
pub use query::ArchiveHistory;
