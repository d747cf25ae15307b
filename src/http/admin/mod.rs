//! The administration interface, one file a thing.

pub(super) mod cluster;
mod cursor;
pub(super) mod executors;
pub(super) mod fires;
pub(super) mod jobs;
pub(super) mod runs;
mod verdicts;
