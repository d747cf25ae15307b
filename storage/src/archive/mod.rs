//! The archive: records that the replicated state no longer needs, ordered by key, in tables.
//!
//! It is fed by the state machine and can always be fed again from a snapshot and the log, or by
//! a peer. So it may lag behind the log, but it must know how far it is and must not lie:
//! - A batch carries the index of the log entry that caused it. It is applied whole, together
//!   with that index, or not at all; a batch at or below the stored index changes nothing.
//! - [`Archive::barrier`] makes all of it durable. **Only what is behind a barrier may lose its
//!   log entries**: the order is snapshot, barrier, purge.
//! - Each value has a CRC32C over its key and bytes. Damage is an error that says how to heal,
//!   never a missing or a wrong record.
//!
//! [`SledArchive`] is on disk, [`MemArchive`] in memory for simulations. They differ only in
//! their engine; everything promised above is in code that both share.
//!
//! **All calls block.** Make them from a thread of your own, not from an async runtime. Batches
//! are applied one after the other; reads go on meanwhile.
//!
//! Absent on purpose: transactions over several batches, secondary indexes, expiry.

mod engine;
mod memory;
mod records;
mod sled_engine;
mod transfer;

use std::io;
use std::path::PathBuf;

pub use memory::{MemArchive, MemEngine};
pub use records::Records;
pub use sled_engine::{SledArchive, SledEngine, move_aside};

/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 1024;
/// Most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 16 * 1024 * 1024;

/// A table of the archive. Pinned numbers, append-only: they are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Finished runs.
    Runs = 1,
    /// Output of runs.
    RunOutput = 2,
    /// What was decided for each fire, and why.
    FireLedger = 3,
    /// Audit entries.
    Audit = 4,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 4] = [Self::Runs, Self::RunOutput, Self::FireLedger, Self::Audit];
}

/// One change of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets a record.
    Put {
        /// Where.
        table: Table,
        /// At most [`MAX_KEY_BYTES`].
        key: Vec<u8>,
        /// At most [`MAX_VALUE_BYTES`].
        value: Vec<u8>,
    },
    /// Removes a record; no error if there is none.
    Delete {
        /// Where.
        table: Table,
        /// The key.
        key: Vec<u8>,
    },
}

/// Which records a scan wants, and in which order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// First key that may come; `None`: from the start of the table.
    pub from: Option<Vec<u8>>,
    /// First key that does not come any more; `None`: to the end of the table.
    pub until: Option<Vec<u8>>,
    /// Largest key first.
    pub backward: bool,
    /// Where the page before ended ([`Page::cursor`]); it goes on behind that key.
    pub cursor: Option<Vec<u8>>,
    /// Most records of a page; 0 gives an empty page.
    pub limit: usize,
}

/// Some records, in the order of the scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Key and value of each.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Pass it to the next scan; `None` if this was all.
    pub cursor: Option<Vec<u8>>,
}

/// A piece of the whole content, for a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Opaque, with a checksum.
    pub bytes: Vec<u8>,
    /// Pass it to the next call; `None` if this was the last.
    pub cursor: Option<Vec<u8>>,
}

/// Why an operation on the archive failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// What is stored is not what was written.
    #[error(
        "the archive is damaged: {what}. It heals by itself from other copies: move it aside and \
         let the node rebuild it from its snapshot and log, or from a peer"
    )]
    Damaged {
        /// What is wrong.
        what: String,
    },
    /// It holds less than was made durable once, or an import did not come to its end.
    #[error(
        "the archive is incomplete: it reaches to log index {found:?}, but must reach to \
         {required}. Move it aside and let the node rebuild it from its snapshot and log, or from \
         a peer"
    )]
    Incomplete {
        /// How far it is.
        found: Option<u64>,
        /// How far it must be at least.
        required: u64,
    },
    /// A chunk of an import is damaged or not the one that must come next.
    #[error("the chunk cannot be imported: {0}. Start the import again")]
    BadChunk(&'static str),
    /// A key or value is larger than the archive takes; nothing was applied.
    #[error("{bytes} bytes are more than the limit of {limit_bytes}")]
    TooLarge {
        /// Bytes that were given.
        bytes: usize,
        /// Most that is taken.
        limit_bytes: usize,
    },
    /// The system refused something. The process must end: the archive may be behind what it
    /// says.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl ArchiveError {
    /// Whether moving the archive aside and building it again is the way out.
    pub fn heals_by_rebuild(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Incomplete { .. })
    }
}

/// An archive. All calls block.
pub trait Archive: Send + Sync + 'static {
    /// Applies a batch whole, and notes that log entry `index` is in. Does nothing and returns
    /// false if `index` is not above [`applied_index`](Self::applied_index). Not durable before
    /// the next [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// [`ArchiveError::TooLarge`]: nothing was applied. Otherwise the archive is unusable.
    fn apply(&self, index: u64, changes: &[Change]) -> Result<bool, ArchiveError>;

    /// One value.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`], [`ArchiveError::Io`].
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError>;

    /// A page of records.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn scan(&self, table: Table, scan: &Scan) -> Result<Page, ArchiveError>;

    /// Number of records in a table, without counting them.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn count(&self, table: Table) -> Result<u64, ArchiveError>;

    /// Highest log index that was applied.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn applied_index(&self) -> Result<Option<u64>, ArchiveError>;

    /// Makes durable all that was applied before. Returns the index that is now durable.
    ///
    /// # Errors
    /// [`ArchiveError::Io`]: the process must end.
    fn barrier(&self) -> Result<Option<u64>, ArchiveError>;

    /// Reads everything and checks it.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`].
    fn verify(&self) -> Result<(), ArchiveError>;

    /// A chunk of all content, of about `max_bytes` (at least one record). Start without a
    /// cursor. Batches may be applied between the calls: the importer applies the log again from
    /// the index that the first chunk carries, which makes both the same.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn export(&self, cursor: Option<&[u8]>, max_bytes: usize) -> Result<Chunk, ArchiveError>;

    /// Takes the chunks of an export in order. The first one empties the archive; until the last
    /// one is in, the archive is incomplete and says so when it is opened. Returns true after the
    /// last. Call [`barrier`](Self::barrier) then.
    ///
    /// # Errors
    /// [`ArchiveError::BadChunk`], [`ArchiveError::Io`].
    fn import(&self, chunk: &[u8]) -> Result<bool, ArchiveError>;
}
