//! Receiving a snapshot in chunks.

use std::path::PathBuf;

use crate::disk::{Disk, DiskFile};

use super::reader::{MIN_FILE_BYTES, verify};
use super::store::SnapshotStore;
use super::{SnapshotError, SnapshotId, SnapshotInfo, io_error};

const SYNC_EVERY_BYTES: u64 = 8 * 1024 * 1024;

/// Takes the bytes of a snapshot file from a peer. Nothing of it counts before
/// [`install`](Self::install).
pub struct SnapshotReceiver<D: Disk> {
    store: SnapshotStore<D>,
    id: SnapshotId,
    unfinished: PathBuf,
    file: D::File,
    limit_bytes: u64,
    received: u64,
    synced: u64,
}

impl<D: Disk> SnapshotReceiver<D> {
    pub(super) async fn begin(
        store: SnapshotStore<D>,
        id: SnapshotId,
        unfinished: PathBuf,
        limit_bytes: u64,
    ) -> Result<Self, SnapshotError> {
        let file = store
            .disk
            .create(&unfinished)
            .await
            .map_err(io_error("create", &unfinished))?;
        Ok(Self {
            store,
            id,
            unfinished,
            file,
            limit_bytes,
            received: 0,
            synced: 0,
        })
    }

    /// Bytes received so far: where the next chunk starts.
    pub fn received_bytes(&self) -> u64 {
        self.received
    }

    /// Takes a chunk. A chunk that was received before is ignored, so a peer may repeat one.
    ///
    /// # Errors
    /// [`SnapshotError::OutOfOrder`] tells where to go on, [`SnapshotError::TooLarge`],
    /// [`SnapshotError::Io`].
    pub async fn chunk(&mut self, offset: u64, bytes: &[u8]) -> Result<(), SnapshotError> {
        let end = offset.saturating_add(bytes.len() as u64);
        if end <= self.received {
            return Ok(());
        }
        if offset != self.received {
            return Err(SnapshotError::OutOfOrder {
                expected: self.received,
                got: offset,
            });
        }
        if end > self.limit_bytes {
            return Err(SnapshotError::TooLarge {
                bytes: end,
                limit_bytes: self.limit_bytes,
            });
        }
        let path = &self.unfinished;
        self.file
            .write_at(offset, bytes)
            .await
            .map_err(io_error("write", path))?;
        self.received = end;
        if self.received - self.synced >= SYNC_EVERY_BYTES {
            self.file
                .sync_data()
                .await
                .map_err(io_error("sync", path))?;
            self.synced = self.received;
        }
        Ok(())
    }

    /// Checks all that was received and makes it a snapshot of this node.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`] if it is not whole and sound: it is then removed, and an older
    /// snapshot stays as it was. [`SnapshotError::Io`].
    pub async fn install(self) -> Result<SnapshotInfo, SnapshotError> {
        let path = &self.unfinished;
        self.file
            .sync_data()
            .await
            .map_err(io_error("sync", path))?;
        let checked = if self.received < MIN_FILE_BYTES {
            let what = "it is too short";
            Err(SnapshotError::Damaged {
                path: path.clone(),
                offset: self.received,
                what,
            })
        } else {
            verify(&self.store.disk, path, self.id).await
        };
        match checked {
            Ok(info) => {
                let path = self.store.publish(path, self.id).await?;
                Ok(SnapshotInfo { path, ..info })
            }
            Err(error) => {
                self.abandon().await?;
                Err(error)
            }
        }
    }

    /// Gives up and removes what was received.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn abandon(self) -> Result<(), SnapshotError> {
        self.store
            .disk
            .remove(&self.unfinished)
            .await
            .map_err(io_error("remove", &self.unfinished))
    }
}
