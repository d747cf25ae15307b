//! The job file: what runs, when, and what happens when things go wrong.
//!
//! There is one schema for YAML and JSON and one reader for it, which walks the
//! document itself: so unknown fields are refused, every fault names its path and what is allowed,
//! and all faults are reported at once. A [`JobSpec`] that was read has every default filled in;
//! written out and read again it is the same.
//!
//! Invariant: no bytes make the reader panic, recurse without bound or allocate much more than the
//! file's own size. The limits are constants of this module.

pub mod check;
mod cron;
mod decode;
mod document;
#[cfg(feature = "job-files")]
mod file;
mod spec;

#[cfg(feature = "job-files")]
pub use file::{MAX_BUNDLE_BYTES, parse_many};
pub use spec::*;
