//! A small asynchronous file system, so that everything above it runs on real files and on a
//! simulated disk alike.
//!
//! [`RealDisk`] makes blocking calls *inside* its futures: they finish on the first poll. Drive
//! it from a thread of its own (the write-ahead log does), never from an async runtime thread.
//! [`SimDisk`] keeps everything in memory, forgets what was not synced and fails on request.
//!
//! What a caller may rely on, on both:
//! - Bytes are durable once [`DiskFile::sync_data`] returned `Ok` after the write returned.
//!   Before that, a crash may keep any part of them, down to single sectors.
//! - A name (create, rename, remove) is durable once [`Disk::sync_dir`] of its folder returned
//!   `Ok`. Before that, a crash may keep the old or the new name. Operations in one folder become
//!   durable in order.
//! - After a failed sync nothing may be assumed about what was written since the last good one.
//!
//! Absent on purpose: permissions, links, locks, memory maps, directories that are removed.

mod faults;
mod real;
mod sim;

use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

pub use real::{RealDisk, RealFile};
pub use sim::{DelayHook, DiskOp, SimDisk, SimFile, Struck};

/// Bytes in the smallest piece that a crash keeps or loses whole.
pub const SECTOR_BYTES: usize = 512;

/// A folder tree with files.
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;

    /// Opens an existing file to read and write. `NotFound` if there is none.
    fn open(&self, path: &Path) -> impl Future<Output = io::Result<Self::File>> + Send;

    /// Creates a new, empty file to read and write. `AlreadyExists` if there is one.
    fn create(&self, path: &Path) -> impl Future<Output = io::Result<Self::File>> + Send;

    /// Renames a file and replaces what has the new name.
    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>> + Send;

    /// Removes a file. `NotFound` if there is none.
    fn remove(&self, path: &Path) -> impl Future<Output = io::Result<()>> + Send;

    /// Names of the files in a folder, sorted. Sub-folders and names that are not UTF-8 are left
    /// out.
    fn list(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<String>>> + Send;

    /// Names of the folders in a folder, sorted.
    fn list_dirs(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<String>>> + Send;

    /// Creates a folder and its parents. No error if it exists.
    fn create_dir_all(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>> + Send;

    /// Lets time pass, without touching anything: for work that waits until the disk is quiet.
    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// An open file. Offsets and lengths are in bytes.
pub trait DiskFile: Send + Sync + 'static {
    /// Reads into `buf` from `offset`; returns how many bytes there were before the end of file.
    fn read_at(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> impl Future<Output = io::Result<usize>> + Send;

    /// Writes all of `data` at `offset`, and grows the file if needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Length of the file.
    fn len_bytes(&self) -> impl Future<Output = io::Result<u64>> + Send;

    /// Grows (with zeros) or shrinks the file.
    fn set_len(&self, len: u64) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes the file at least `len` long by writing zeros, so that later writes change no
    /// metadata. Not synced.
    fn allocate(&self, len: u64) -> impl Future<Output = io::Result<()>> + Send;

    /// Makes the bytes and the length durable (`fdatasync`).
    fn sync_data(&self) -> impl Future<Output = io::Result<()>> + Send;
}

/// Reads exactly `buf.len()` bytes; `UnexpectedEof` if the file ends before.
pub async fn read_exact_at<F: DiskFile>(file: &F, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    let got = file.read_at(offset, buf).await?;
    if got < buf.len() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!(
                "file ends {} bytes early, at offset {}",
                buf.len() - got,
                offset + got as u64
            ),
        ));
    }
    Ok(())
}
