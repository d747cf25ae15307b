//! Writing a snapshot, one block at a time.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::disk::{Disk, DiskFile};

use super::format::{
    BLOCK_HEADER_BYTES, BLOCK_TARGET_BYTES, BlockKind, FOOTER_BYTES, Footer, encode_prefix,
    seal_block,
};
use super::store::SnapshotStore;
use super::{
    MAX_HEADER_BYTES, MAX_RECORD_BYTES, SnapshotError, SnapshotId, SnapshotInfo, io_error,
};

/// What is written is synced each time so much has gathered, so that the last sync is short and
/// the log beside it is not held up by a flood.
const SYNC_EVERY_BYTES: u64 = 8 * 1024 * 1024;

/// Writes one snapshot. Nothing of it counts before [`finish`](Self::finish).
pub struct SnapshotWriter<D: Disk> {
    store: SnapshotStore<D>,
    id: SnapshotId,
    unfinished: PathBuf,
    file: D::File,
    header: Vec<u8>,
    hash: Sha256,
    block: Vec<u8>,
    block_records: u32,
    section: u32,
    written: u64,
    synced: u64,
    blocks: u64,
    records: u64,
}

impl<D: Disk> SnapshotWriter<D> {
    pub(super) async fn begin(
        store: SnapshotStore<D>,
        id: SnapshotId,
        unfinished: PathBuf,
        header: Vec<u8>,
    ) -> Result<Self, SnapshotError> {
        check_size(header.len(), MAX_HEADER_BYTES)?;
        let file = store
            .disk
            .create(&unfinished)
            .await
            .map_err(io_error("create", &unfinished))?;
        let mut writer = Self {
            store,
            id,
            unfinished,
            file,
            hash: Sha256::new(),
            block: vec![0; BLOCK_HEADER_BYTES],
            block_records: 0,
            section: 0,
            written: 0,
            synced: 0,
            blocks: 0,
            records: 0,
            header,
        };
        let prefix = encode_prefix(&writer.header);
        writer.write(&prefix).await?;
        Ok(writer)
    }

    /// Starts a section; records that follow belong to it. Before the first call: section 0.
    ///
    /// # Errors
    /// [`SnapshotError::Io`].
    pub async fn section(&mut self, section: u32) -> Result<(), SnapshotError> {
        if section != self.section {
            self.close_block().await?;
            self.section = section;
        }
        Ok(())
    }

    /// Adds a record to the section. At most [`MAX_RECORD_BYTES`].
    ///
    /// # Errors
    /// [`SnapshotError::TooLarge`], [`SnapshotError::Io`].
    pub async fn record(&mut self, record: &[u8]) -> Result<(), SnapshotError> {
        check_size(record.len(), MAX_RECORD_BYTES)?;
        self.block
            .extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.block.extend_from_slice(record);
        self.block_records += 1;
        self.records += 1;
        if self.block.len() >= BLOCK_TARGET_BYTES {
            self.close_block().await?;
        }
        Ok(())
    }

    /// Completes the file: from now on it is found under its name, after a crash too.
    ///
    /// # Errors
    /// [`SnapshotError::Io`]; the snapshot then does not exist.
    pub async fn finish(mut self) -> Result<SnapshotInfo, SnapshotError> {
        self.close_block().await?;
        let footer = Footer {
            sha256: self.hash.clone().finalize().into(),
            bytes: self.written,
            blocks: self.blocks,
            records: self.records,
        };
        let file_bytes = self.written + FOOTER_BYTES as u64;
        self.write(&footer.encode()).await?;
        let synced = self.file.sync_data();
        #[cfg(feature = "planted-bugs")]
        let synced = async {
            match tenure_planted::is(tenure_planted::Bug::PurgeBeforeSnapshot) {
                true => Ok(()),
                false => synced.await,
            }
        };
        synced.await.map_err(io_error("sync", &self.unfinished))?;
        let path = self.store.publish(&self.unfinished, self.id).await?;
        Ok(SnapshotInfo {
            id: self.id,
            path,
            header: self.header,
            file_bytes,
            records: footer.records,
            sha256: footer.sha256,
        })
    }

    /// Gives up and removes the file. Without it, opening the store removes it.
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

    async fn close_block(&mut self) -> Result<(), SnapshotError> {
        if self.block_records == 0 {
            return Ok(());
        }
        seal_block(
            &mut self.block,
            BlockKind::Data,
            self.section,
            self.block_records,
        );
        let block = std::mem::take(&mut self.block);
        self.write(&block).await?;
        self.block = block;
        self.block.truncate(BLOCK_HEADER_BYTES);
        self.block.shrink_to(BLOCK_TARGET_BYTES);
        self.block_records = 0;
        self.blocks += 1;
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let path = &self.unfinished;
        self.file
            .write_at(self.written, bytes)
            .await
            .map_err(io_error("write", path))?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        if self.written - self.synced >= SYNC_EVERY_BYTES {
            self.file
                .sync_data()
                .await
                .map_err(io_error("sync", path))?;
            self.synced = self.written;
        }
        Ok(())
    }
}

fn check_size(bytes: usize, limit: usize) -> Result<(), SnapshotError> {
    if bytes > limit {
        return Err(SnapshotError::TooLarge {
            bytes: bytes as u64,
            limit_bytes: limit as u64,
        });
    }
    Ok(())
}
