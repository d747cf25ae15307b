//! What can go wrong with the log.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why an operation of the log failed. Cheap to clone: one failure answers many callers.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// A write or sync failed, or the writer ended. Nothing more is accepted; the process must
    /// end and open the log anew.
    #[error("the log is closed after a failure: {0}")]
    Fatal(Arc<str>),

    /// Bytes that were durable are damaged. Nothing was changed. The node must be replaced.
    #[error("{0}")]
    Corrupt(Corruption),

    /// A segment of another format version. Nothing was changed.
    #[error(
        "{} is of log format {found}, and this version reads format {known}. Start the version \
         that wrote it; there is no way to convert it",
        file.display()
    )]
    Version {
        /// The segment.
        file: PathBuf,
        /// Its format.
        found: u8,
        /// The format that this version reads.
        known: u8,
    },

    /// There is no log where one must be, see [`super::WalOptions::create`]. Nothing was made.
    #[error(
        "{} was in use before, but its log is gone. Do not start this node under its id again: \
         remove it from the cluster and let a new node join under a new id. If the folder is \
         elsewhere, correct its path",
        .0.display()
    )]
    Missing(PathBuf),

    /// The operating system refused something while the log was opened or read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: Arc<io::Error>,
    },

    /// The appended entries do not follow the log; nothing was appended.
    #[error("entry {got} does not follow the log, whose next index is {expected}")]
    Gap {
        /// Index that must come next.
        expected: u64,
        /// Index that came.
        got: u64,
    },

    /// A record is larger than the log takes; nothing was appended.
    #[error("{bytes} bytes are more than the limit of {limit_bytes}")]
    TooLarge {
        /// Bytes that were given.
        bytes: usize,
        /// Most that is taken.
        limit_bytes: usize,
    },

    /// The options contradict each other.
    #[error("bad log options: {0}")]
    Options(&'static str),
}

impl WalError {
    /// Whether the process must end.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Fatal(_))
    }

    /// Whether nothing is known any more of what is durable.
    pub(super) fn is_failed_sync(&self) -> bool {
        matches!(self, Self::Io { action: "sync", .. })
    }

    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source: Arc::new(source),
        }
    }
}

impl From<WalError> for io::Error {
    fn from(error: WalError) -> Self {
        let kind = match &error {
            WalError::Corrupt(_) | WalError::Version { .. } => io::ErrorKind::InvalidData,
            WalError::Missing(_) => io::ErrorKind::NotFound,
            WalError::Gap { .. } | WalError::TooLarge { .. } | WalError::Options(_) => {
                io::ErrorKind::InvalidInput
            }
            WalError::Io { source, .. } => source.kind(),
            WalError::Fatal(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Where damage was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corruption {
    /// The damaged file.
    pub file: PathBuf,
    /// Offset of the damaged piece, in bytes.
    pub offset: u64,
    /// First log index that may be affected, if known.
    pub index: Option<u64>,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the log is damaged: {} at offset {}",
            self.file.display(),
            self.offset
        )?;
        if let Some(index) = self.index {
            write!(f, ", log index {index} and on")?;
        }
        write!(
            f,
            ": {}. What is damaged was durable, so nothing was changed. Keep the folder for study, \
             and replace this node by a new one under a new id",
            self.what
        )
    }
}
