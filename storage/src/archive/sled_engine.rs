//! The archive on disk.
//!
//! sled's own flush is `sync_file_range` on Linux: it asks the disk to write, not to keep. So a
//! barrier flushes, then syncs every file and folder of the database, then notes beside it,
//! durably, how far it is. sled cuts what it cannot read at the end of its log; without that note
//! a loss there would go unseen.

use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::ArchiveError;
use super::engine::{Batch, Engine, Visit};
use super::records::{Records, seal, unseal};

/// Folder of the database in the archive's folder.
const DATABASE_DIR: &str = "sled";
/// File that says how far the last barrier came.
const BARRIER_FILE: &str = "barrier";
const UNFINISHED_FILE: &str = "barrier.new";
/// Writes that are put into one removal when everything goes.
const CLEAR_STEP: usize = 1024;

/// An archive in a folder.
pub type SledArchive = Records<SledEngine>;

/// A sled database.
pub struct SledEngine {
    dir: PathBuf,
    tree: sled::Db,
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ArchiveError {
    let path = path.to_owned();
    move |source| ArchiveError::Io {
        action,
        path,
        source,
    }
}

impl SledArchive {
    /// Opens the archive in `dir`, or creates it. `cache_bytes` bounds the memory of sled's page
    /// cache.
    ///
    /// # Errors
    /// [`ArchiveError::Damaged`] and [`ArchiveError::Incomplete`]: move it aside
    /// ([`move_aside`]) and build it again. [`ArchiveError::Io`].
    pub fn open_dir(dir: &Path, cache_bytes: u64) -> Result<Self, ArchiveError> {
        std::fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let required = read_barrier(dir)?;
        let database = dir.join(DATABASE_DIR);
        // sled may panic on files that it cannot make sense of.
        let opened = catch_unwind(|| {
            sled::Config::new()
                .path(&database)
                .cache_capacity(cache_bytes)
                .mode(sled::Mode::HighThroughput)
                .flush_every_ms(Some(1_000))
                .open()
        });
        let tree = match opened {
            Ok(result) => result.map_err(|e| sled_error("open", &database, e))?,
            Err(_) => {
                let what = "the database cannot be read at all".to_owned();
                return Err(ArchiveError::Damaged { what });
            }
        };
        Self::open(
            SledEngine {
                dir: dir.to_owned(),
                tree,
            },
            required,
        )
    }
}

/// Renames the folder of a damaged archive to a free name beside it, durably, and returns that
/// name. The archive must be closed. The next open starts empty.
///
/// # Errors
/// [`ArchiveError::Io`].
pub fn move_aside(dir: &Path) -> Result<PathBuf, ArchiveError> {
    let name = dir
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut number = 1_u32;
    let aside = loop {
        let aside = dir.with_file_name(format!("{name}.damaged-{number}"));
        if !aside.try_exists().map_err(io_error("look for", &aside))? {
            break aside;
        }
        number += 1;
    };
    std::fs::rename(dir, &aside).map_err(io_error("rename", dir))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        sync(parent)?;
    }
    Ok(aside)
}

fn sled_error(action: &'static str, path: &Path, error: sled::Error) -> ArchiveError {
    match error {
        sled::Error::Io(source) => ArchiveError::Io {
            action,
            path: path.to_owned(),
            source,
        },
        other => ArchiveError::Damaged {
            what: other.to_string(),
        },
    }
}

/// Syncs a file or folder.
fn sync(path: &Path) -> Result<(), ArchiveError> {
    File::open(path)
        .and_then(|file| file.sync_data())
        .map_err(io_error("sync", path))
}

/// Syncs all files below a folder, then the folder.
fn sync_tree(dir: &Path) -> Result<(), ArchiveError> {
    for entry in std::fs::read_dir(dir).map_err(io_error("list", dir))? {
        let entry = entry.map_err(io_error("list", dir))?;
        let path = entry.path();
        let kind = match entry.file_type() {
            Ok(kind) => kind,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(io_error("look at", &path)(e)),
        };
        let synced = if kind.is_dir() {
            sync_tree(&path)
        } else {
            sync(&path)
        };
        match synced {
            // sled removes files of its own accord.
            Err(ArchiveError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    sync(dir)
}

fn read_barrier(dir: &Path) -> Result<Option<u64>, ArchiveError> {
    let path = dir.join(BARRIER_FILE);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error("read", &path)(e)),
    };
    let value = unseal(BARRIER_FILE.as_bytes(), &bytes)?;
    let damaged = || ArchiveError::Damaged {
        what: "the barrier note has a wrong length".into(),
    };
    Ok(Some(
        value
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| damaged())?,
    ))
}

fn write_barrier(dir: &Path, index: u64) -> Result<(), ArchiveError> {
    let unfinished = dir.join(UNFINISHED_FILE);
    let bytes = seal(BARRIER_FILE.as_bytes(), &index.to_le_bytes());
    let written = File::create(&unfinished)
        .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_data()));
    written.map_err(io_error("write", &unfinished))?;
    std::fs::rename(&unfinished, dir.join(BARRIER_FILE))
        .map_err(io_error("rename", &unfinished))?;
    sync(dir)
}

impl SledEngine {
    /// Runs a call into sled; a panic in there is damage.
    fn call<T>(
        &self,
        action: &'static str,
        call: impl FnOnce(&sled::Db) -> sled::Result<T>,
    ) -> Result<T, ArchiveError> {
        match catch_unwind(AssertUnwindSafe(|| call(&self.tree))) {
            Ok(result) => result.map_err(|e| sled_error(action, &self.dir, e)),
            Err(_) => {
                let what = format!("the database failed while it was asked to {action}");
                Err(ArchiveError::Damaged { what })
            }
        }
    }
}

impl Engine for SledEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
        Ok(self
            .call("read from", |tree| tree.get(key))?
            .map(|value| value.to_vec()))
    }

    fn range(
        &self,
        from: &[u8],
        until: &[u8],
        backward: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), ArchiveError> {
        let mut pairs = self.tree.range(from..until);
        loop {
            let next = self.call("scan", |_| {
                if backward {
                    pairs.next_back()
                } else {
                    pairs.next()
                }
                .transpose()
            })?;
            let Some((key, value)) = next else {
                return Ok(());
            };
            if !visit(&key, &value)? {
                return Ok(());
            }
        }
    }

    fn write(&self, batch: Batch) -> Result<(), ArchiveError> {
        let mut writes = sled::Batch::default();
        for (key, value) in batch {
            match value {
                Some(value) => writes.insert(key, value),
                None => writes.remove(key),
            }
        }
        self.call("write to", |tree| tree.apply_batch(writes))
    }

    fn clear_but(&self, keep: &[u8]) -> Result<(), ArchiveError> {
        loop {
            let mut batch = Batch::new();
            self.range(&[], &[u8::MAX], false, &mut |key, _| {
                if key != keep {
                    batch.push((key.to_vec(), None));
                }
                Ok(batch.len() < CLEAR_STEP)
            })?;
            if batch.is_empty() {
                return Ok(());
            }
            self.write(batch)?;
        }
    }

    fn barrier(&self, index: Option<u64>) -> Result<(), ArchiveError> {
        self.call("flush", |tree| tree.flush())?;
        sync_tree(&self.dir.join(DATABASE_DIR))?;
        match index {
            Some(index) => write_barrier(&self.dir, index),
            None => sync(&self.dir),
        }
    }
}
