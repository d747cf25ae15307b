//! The control file: which segment is the newest.
//!
//! A segment that is gone leaves no trace in the others: without this file, a log whose newest
//! segments were lost would look like a shorter one.
//!
//! Order at a roll: the new segment with its name, durably; then its number here, durably; then
//! the first batch in it. So what was acknowledged lies in segments up to the number found here,
//! and only a crash in between leaves a segment that is one ahead, with no batch in it. Order at
//! the very beginning: the first segment, then this file under a name for unfinished ones, then
//! its own name.
//!
//! Absent on purpose: the oldest segment. That nothing before the oldest is missing follows from
//! what the segments say, see [`super::recover`].

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile};

use super::mark::{MARKS_BYTES, Mark, Marks};
use super::segment::install;
use super::{Corruption, WalError};

/// Name of the file.
const CONTROL_FILE: &str = "control";
/// Name under which a crash may leave it without harm.
const UNFINISHED_FILE: &str = "control.new";
/// The file is never recycled: its checksums need no seed.
const SEED: u32 = 0;

/// The open control file.
pub(super) struct Control<F> {
    path: PathBuf,
    file: F,
    marks: Marks,
    newest: Mark,
}

/// The file, for an error that names it.
pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(CONTROL_FILE)
}

impl<F: DiskFile> Control<F> {
    /// Opens the file; `None` if there is none.
    pub(super) async fn open<D: Disk<File = F>>(
        disk: &D,
        dir: &Path,
    ) -> Result<Option<Self>, WalError> {
        let path = path(dir);
        let file = match disk.open(&path).await {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(WalError::io("open", &path, e)),
        };
        let len = file
            .len_bytes()
            .await
            .map_err(|e| WalError::io("measure", &path, e))?;
        let found = Marks::find(&file, 0, SEED)
            .await
            .map_err(|e| WalError::io("read", &path, e))?;
        match found {
            Some((marks, newest)) if len == MARKS_BYTES => Ok(Some(Self {
                path,
                file,
                marks,
                newest,
            })),
            _ => Err(WalError::Corrupt(Corruption {
                file: path,
                offset: 0,
                index: None,
                what: "the file that notes the newest segment is damaged",
            })),
        }
    }

    /// Creates the file, durably.
    pub(super) async fn create<D: Disk<File = F>>(
        disk: &D,
        dir: &Path,
        newest: Mark,
    ) -> Result<Self, WalError> {
        let unfinished = dir.join(UNFINISHED_FILE);
        let path = path(dir);
        match disk.remove(&unfinished).await {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(WalError::io("remove", &unfinished, e));
            }
            _ => {}
        }
        let file = disk
            .create(&unfinished)
            .await
            .map_err(|e| WalError::io("create", &unfinished, e))?;
        let mut bytes = newest.encode(SEED).to_vec();
        bytes.resize(MARKS_BYTES as usize, 0);
        file.write_at(0, &bytes)
            .await
            .map_err(|e| WalError::io("write", &unfinished, e))?;
        install(disk, &file, &unfinished, &path).await?;
        Ok(Self {
            path,
            file,
            marks: Marks::new(0, SEED),
            newest,
        })
    }

    /// Number of the newest segment.
    pub(super) fn newest(&self) -> u32 {
        self.newest.sequence
    }

    /// Notes the newest segment when the log is opened, durably: it may be what was found, which
    /// the process before perhaps did not sync.
    pub(super) async fn confirm(&mut self, newest: Mark) -> Result<(), WalError> {
        self.marks
            .confirm(&self.file, &self.newest, &newest)
            .await
            .map_err(|e| WalError::io("write and sync", &self.path, e))?;
        self.newest = newest;
        Ok(())
    }

    /// Notes a new segment, durably.
    pub(super) async fn record(&mut self, newest: Mark) -> Result<(), WalError> {
        self.marks
            .write(&self.file, &newest)
            .await
            .map_err(|e| WalError::io("write", &self.path, e))?;
        self.file
            .sync_data()
            .await
            .map_err(|e| WalError::io("sync", &self.path, e))?;
        self.newest = newest;
        Ok(())
    }
}
