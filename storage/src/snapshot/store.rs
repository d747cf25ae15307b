//! The folder of a node's snapshots.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::Disk;

use super::reader::{SnapshotReader, verify};
use super::receive::SnapshotReceiver;
use super::writer::SnapshotWriter;
use super::{SUFFIX, SnapshotError, SnapshotId, SnapshotInfo, io_error};

const UNFINISHED_SUFFIX: &str = ".part";
const DAMAGED_SUFFIX: &str = ".damaged";

/// The snapshots in one folder. Clones share it; the caller holds the lock of the data folder.
#[derive(Clone)]
pub struct SnapshotStore<D: Disk> {
    pub(super) disk: D,
    dir: PathBuf,
    next_number: Arc<AtomicU64>,
}

impl<D: Disk> SnapshotStore<D> {
    /// Opens the folder, creates it if it is missing, and removes what an interrupted writer or
    /// receiver left behind.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn open(disk: D, dir: &Path) -> Result<Self, SnapshotError> {
        disk.create_dir_all(dir)
            .await
            .map_err(io_error("create", dir))?;
        let mut next = 1;
        for name in disk.list(dir).await.map_err(io_error("list", dir))? {
            if name.ends_with(UNFINISHED_SUFFIX) {
                let path = dir.join(name);
                disk.remove(&path)
                    .await
                    .map_err(io_error("remove", &path))?;
            } else {
                let complete = name.strip_suffix(DAMAGED_SUFFIX).unwrap_or(&name);
                if let Some(id) = SnapshotId::from_file_name(complete) {
                    next = next.max(id.number + 1);
                }
            }
        }
        // What is listed must be there after a crash too.
        disk.sync_dir(dir).await.map_err(io_error("sync", dir))?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            disk.sync_dir(parent)
                .await
                .map_err(io_error("sync", parent))?;
        }
        Ok(Self {
            disk,
            dir: dir.to_owned(),
            next_number: Arc::new(AtomicU64::new(next)),
        })
    }

    fn path(&self, id: SnapshotId) -> PathBuf {
        self.dir.join(id.file_name())
    }

    fn new_id(&self, index: u64) -> (SnapshotId, PathBuf) {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let id = SnapshotId { index, number };
        let name = id.file_name();
        let stem = name.strip_suffix(SUFFIX).unwrap_or(&name);
        (id, self.dir.join(format!("{stem}{UNFINISHED_SUFFIX}")))
    }

    /// Starts to write a snapshot of the state after log entry `index`. The header is opaque and
    /// at most [`MAX_HEADER_BYTES`](super::MAX_HEADER_BYTES) long.
    ///
    /// # Errors
    /// [`SnapshotError::TooLarge`], [`SnapshotError::Io`].
    pub async fn write(
        &self,
        index: u64,
        header: Vec<u8>,
    ) -> Result<SnapshotWriter<D>, SnapshotError> {
        let (id, unfinished) = self.new_id(index);
        SnapshotWriter::begin(self.clone(), id, unfinished, header).await
    }

    /// Starts to receive a snapshot of the state after log entry `index`, of at most
    /// `limit_bytes`.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn receive(
        &self,
        index: u64,
        limit_bytes: u64,
    ) -> Result<SnapshotReceiver<D>, SnapshotError> {
        let (id, unfinished) = self.new_id(index);
        SnapshotReceiver::begin(self.clone(), id, unfinished, limit_bytes).await
    }

    /// Gives a synced file its name, durably.
    pub(super) async fn publish(
        &self,
        unfinished: &Path,
        id: SnapshotId,
    ) -> Result<PathBuf, SnapshotError> {
        let path = self.path(id);
        self.disk
            .rename(unfinished, &path)
            .await
            .map_err(io_error("rename", unfinished))?;
        self.disk
            .sync_dir(&self.dir)
            .await
            .map_err(io_error("sync", &self.dir))?;
        Ok(path)
    }

    /// The complete snapshots, newest first; not checked.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn list(&self) -> Result<Vec<SnapshotId>, SnapshotError> {
        let names = self
            .disk
            .list(&self.dir)
            .await
            .map_err(io_error("list", &self.dir))?;
        let mut ids: Vec<_> = names
            .iter()
            .filter_map(|name| SnapshotId::from_file_name(name))
            .collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        Ok(ids)
    }

    /// Reads the whole file and checks it.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`], [`SnapshotError::NotFound`], [`SnapshotError::Io`].
    pub async fn verify(&self, id: SnapshotId) -> Result<SnapshotInfo, SnapshotError> {
        verify(&self.disk, &self.path(id), id).await
    }

    /// Checks the whole file and then hands out its records.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub async fn open_verified(&self, id: SnapshotId) -> Result<SnapshotReader<D>, SnapshotError> {
        SnapshotReader::open(&self.disk, &self.path(id), id).await
    }

    /// The newest snapshot that is sound. Newer ones that are damaged are set aside and reported;
    /// the caller must see that its log reaches back to what it gets.
    ///
    /// # Errors
    /// [`SnapshotError::Io`]. Damage is in the answer.
    pub async fn newest(&self) -> Result<Newest<D>, SnapshotError> {
        let mut damaged = Vec::new();
        for id in self.list().await? {
            match self.open_verified(id).await {
                Ok(reader) => {
                    return Ok(Newest {
                        reader: Some(reader),
                        damaged,
                    });
                }
                Err(error) if error.is_damage() => {
                    self.set_aside(id).await?;
                    damaged.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Newest {
            reader: None,
            damaged,
        })
    }

    /// Renames a damaged snapshot, so that it is kept for study but not used.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn set_aside(&self, id: SnapshotId) -> Result<(), SnapshotError> {
        let path = self.path(id);
        let aside = self.dir.join(format!("{}{DAMAGED_SUFFIX}", id.file_name()));
        self.disk
            .rename(&path, &aside)
            .await
            .map_err(io_error("rename", &path))?;
        self.disk
            .sync_dir(&self.dir)
            .await
            .map_err(io_error("sync", &self.dir))
    }

    /// Deletes a snapshot. A reader that is open goes on.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn delete(&self, id: SnapshotId) -> Result<(), SnapshotError> {
        let path = self.path(id);
        self.disk
            .remove(&path)
            .await
            .map_err(io_error("remove", &path))?;
        self.disk
            .sync_dir(&self.dir)
            .await
            .map_err(io_error("sync", &self.dir))
    }

    /// Deletes all but the newest `keep` snapshots, at least one stays. Returns what is gone.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn retain(&self, keep: usize) -> Result<Vec<SnapshotId>, SnapshotError> {
        let old: Vec<_> = self.list().await?.into_iter().skip(keep.max(1)).collect();
        for id in &old {
            self.delete(*id).await?;
        }
        Ok(old)
    }
}

/// The newest sound snapshot, and what was wrong with newer ones.
pub struct Newest<D: Disk> {
    /// Ready to stream; `None` if there is no sound snapshot.
    pub reader: Option<SnapshotReader<D>>,
    /// Damage that was found and set aside on the way, newest first.
    pub damaged: Vec<SnapshotError>,
}
