//! Names and numbers that identify things.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A short text that names a job, an executor instance or a capability. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(Arc<str>);

impl Name {
    /// Wraps a text. The rules of a name are checked where it enters (`apply`, the API).
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(Arc::from(text.as_ref()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a valid job name: `[a-z0-9][a-z0-9._-]{0,127}`. A slash stays reserved.
    pub fn is_job_name(&self) -> bool {
        let bytes = self.0.as_bytes();
        let first = bytes
            .first()
            .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        first
            && bytes.len() <= crate::MAX_NAME_BYTES
            && bytes.iter().all(|b| {
                b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
            })
    }

    /// Whether this is a valid instance id, capability or label: 1 to 128 printable characters.
    pub fn is_label(&self) -> bool {
        !self.0.is_empty()
            && self.0.len() <= crate::MAX_NAME_BYTES
            && !self.0.chars().any(char::is_control)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

/// What makes a run the only one of its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RunKey {
    /// A due instant of a job: milliseconds since the Unix epoch on the calendar clock.
    Scheduled(Name, u64),
    /// A manual trigger with its idempotency key. Without a key of the caller's, the log index serves.
    Keyed(Name, Name),
}

impl RunKey {
    /// The job the run belongs to.
    pub fn job(&self) -> &Name {
        match self {
            Self::Scheduled(job, _) | Self::Keyed(job, _) => job,
        }
    }
}

/// The number a downstream resource checks: first the cluster generation, then the epoch.
///
/// As text it sorts as it compares, so either form can be stored and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FencingToken {
    /// Grows with each restore of the cluster from a backup.
    pub generation: u64,
    /// Grows with each grant of the shard.
    pub epoch: u64,
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}.{:020}", self.generation, self.epoch)
    }
}
