//! Snapshots: whole states in files that are either complete and sound or not there.
//!
//! # File
//! ```text
//! file   = magic (8), header length (4), header checksum (4), header, block, …, footer
//! block  = kind, section, records, body length, checksum (4 bytes each), body
//! body   = records: length (4), bytes
//! footer = a block of its own kind: SHA-256 of all before it, length, blocks, records
//! ```
//! Each block has a CRC32C, so damage is found where it is, while streaming. The footer has a
//! SHA-256 rather than another CRC, because a snapshot may be put together from chunks that came
//! over the network: it must not pass if blocks of two snapshots, each sound, were mixed, and its
//! value tells people at once whether two nodes hold the same bytes.
//!
//! # Rules
//! - A snapshot is written or received under a temporary name, synced, renamed, and the folder is
//!   synced. A name that ends in [`SUFFIX`] was therefore complete once.
//! - Before anything is handed out, the whole file is read and checked
//!   ([`SnapshotStore::open_verified`]).
//! - Memory use is bounded by one block, which is bounded by the largest record.
//! - A damaged file is never deleted, only set aside.
//!
//! Calls do disk work in the calling task: with real files, make them from a thread that may
//! block. Absent on purpose: compression, deltas, what the sections mean.

mod format;
mod reader;
mod receive;
mod store;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use reader::SnapshotReader;
pub use receive::SnapshotReceiver;
pub use store::{Newest, SnapshotStore};
pub use writer::SnapshotWriter;

/// End of the name of a complete snapshot.
pub const SUFFIX: &str = ".snap";
/// Most bytes of the opaque header.
pub const MAX_HEADER_BYTES: usize = 1024 * 1024;
/// Most bytes of one record.
pub const MAX_RECORD_BYTES: usize = 64 * 1024 * 1024;

/// Which snapshot. Ordered by age of the state, then of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// Index of the last log entry that it contains.
    pub index: u64,
    /// Tells apart snapshots of the same index in one folder.
    pub number: u64,
}

impl SnapshotId {
    fn file_name(self) -> String {
        format!("{:020}-{:010}{SUFFIX}", self.index, self.number)
    }

    fn from_file_name(name: &str) -> Option<Self> {
        let (index, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        let id = Self {
            index: index.parse().ok()?,
            number: number.parse().ok()?,
        };
        (id.file_name() == name).then_some(id)
    }
}

/// A complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Which one.
    pub id: SnapshotId,
    /// Its file.
    pub path: PathBuf,
    /// What the writer put in front.
    pub header: Vec<u8>,
    /// Length of the file.
    pub file_bytes: u64,
    /// Number of records in all sections.
    pub records: u64,
    /// SHA-256 of all before the footer.
    pub sha256: [u8; 32],
}

/// Why a snapshot cannot be written, read or received.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file is not what was written.
    #[error(
        "snapshot {} is damaged at offset {offset}: {what}. Set it aside and use an older one \
         with the log, or get one from a peer",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A chunk does not continue what was received.
    #[error("the chunk starts at {got}, but {expected} bytes were received; send from there")]
    OutOfOrder {
        /// Where the next chunk must start.
        expected: u64,
        /// Where it started.
        got: u64,
    },
    /// The header or a record is larger than the format takes.
    #[error("{bytes} bytes are more than the limit of {limit_bytes}")]
    TooLarge {
        /// Bytes that were given.
        bytes: u64,
        /// Most that is taken.
        limit_bytes: u64,
    },
    /// There is no such snapshot.
    #[error("there is no snapshot {}", path.display())]
    NotFound {
        /// The file that was looked for.
        path: PathBuf,
    },
    /// The system refused something.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Why not.
        source: Arc<io::Error>,
    },
}

impl SnapshotError {
    /// Whether the bytes are bad, rather than the system unwilling.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. })
    }

    /// Whether a sync failed. Then nothing is known of what is durable, and the process must end.
    pub fn is_failed_sync(&self) -> bool {
        matches!(self, Self::Io { action: "sync", .. })
    }
}

impl From<SnapshotError> for io::Error {
    fn from(error: SnapshotError) -> Self {
        let kind = match &error {
            SnapshotError::Damaged { .. } => io::ErrorKind::InvalidData,
            SnapshotError::OutOfOrder { .. } | SnapshotError::TooLarge { .. } => {
                io::ErrorKind::InvalidInput
            }
            SnapshotError::NotFound { .. } => io::ErrorKind::NotFound,
            SnapshotError::Io { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_owned();
    move |source| SnapshotError::Io {
        action,
        path,
        source: Arc::new(source),
    }
}
