//! What a Tenure node remembers: a write-ahead log, snapshots, an identity and an archive.
//!
//! Everything here stores opaque bytes. Nothing here knows Raft, the state machine or the wire:
//! the layers above give meaning to the bytes, this one promises that they are still there.
//!
//! - [`disk`]: the small file-system trait that everything but the archive goes through.
//! - [`wal`]: the log, with group commit.
//! - [`snapshot`]: whole states in files, verified before use.
//! - [`identity`]: who this data folder belongs to, and its lock.
//! - [`archive`]: finished records, ordered by key.

pub mod archive;
pub mod disk;
pub mod identity;
pub mod snapshot;
pub mod wal;
