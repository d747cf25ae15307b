//! Snapshots of the state as files of the storage.
//!
//! | part of the file | content |
//! | --- | --- |
//! | header | envelope of kind `SnapshotHeader` around [`SnapshotCover`] |
//! | section 1 | the records of the state in their order, each an envelope of kind `SnapshotRecord` |
//!
//! Invariants: a state is written and read as a stream, record by record, so that memory holds
//! one state and one block; a file whose checksums are right but whose records do not make a
//! state is an error that stops the node, because another version of Tenure wrote it.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tenure_machine::codec::{self, Kind};
use tenure_machine::{Record, State, StateBuilder};
use tenure_storage::disk::Disk;
use tenure_storage::snapshot::{SnapshotReader, SnapshotReceiver, SnapshotStore};

use crate::snapshots::{ChunkSource, Image, SnapshotFiles, Stored};
use crate::types::SnapshotMeta;
use crate::wire::SnapshotCover;

/// Section of the records of the state.
const STATE_SECTION: u32 = 1;
/// Complete snapshots that are kept; the log does not reach back to older ones.
const KEEP: usize = 1;

/// The snapshots in one folder, and the one that is being received.
pub(crate) struct StoredSnapshots<D: Disk> {
    store: SnapshotStore<D>,
    receiving: Arc<Mutex<Option<SnapshotReceiver<D>>>>,
}

impl<D: Disk> StoredSnapshots<D> {
    /// Opens the folder and removes what is unfinished.
    pub(crate) async fn open(disk: D, dir: PathBuf) -> io::Result<Self> {
        Ok(Self {
            store: SnapshotStore::open(disk, &dir).await?,
            receiving: Arc::default(),
        })
    }
}

fn bad_data(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

async fn write<D: Disk>(store: &SnapshotStore<D>, image: &Image) -> io::Result<Stored> {
    let cover = SnapshotCover::from(&image.meta);
    let header = codec::encode(Kind::SnapshotHeader, &cover).map_err(bad_data)?;
    let index = image.meta.last_log_id.map_or(0, |id| id.index);
    let mut writer = store.write(index, header).await?;
    writer.section(STATE_SECTION).await?;
    let mut bytes = Vec::new();
    for record in image.state.records() {
        bytes.clear();
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::MapLeftOutOfSnapshot)
            && matches!(record, Record::Shard(_))
        {
            continue;
        }
        codec::encode_into(Kind::SnapshotRecord, &record, &mut bytes).map_err(bad_data)?;
        writer.record(&bytes).await?;
    }
    let info = writer.finish().await?;
    Ok(Stored {
        id: info.id,
        total_bytes: info.file_bytes,
    })
}

async fn decode<D: Disk>(mut reader: SnapshotReader<D>) -> io::Result<(Image, Stored)> {
    let file = Stored {
        id: reader.info().id,
        total_bytes: reader.info().file_bytes,
    };
    let cover: SnapshotCover =
        codec::decode(Kind::SnapshotHeader, &reader.info().header).map_err(bad_data)?;
    let mut builder = StateBuilder::new();
    while let Some((section, bytes)) = reader.next().await? {
        if section != STATE_SECTION {
            let what = format!("section {section} of a snapshot is unknown to this version");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let record: Record = codec::decode(Kind::SnapshotRecord, &bytes).map_err(bad_data)?;
        builder.push(record);
    }
    let state: State = builder.finish().map_err(bad_data)?;
    let meta = SnapshotMeta::try_from(cover).map_err(bad_data)?;
    Ok((Image { state, meta }, file))
}

impl<D: Disk> SnapshotFiles for StoredSnapshots<D> {
    fn write(&self, image: Image) -> BoxFuture<'static, io::Result<Stored>> {
        let store = self.store.clone();
        async move { write(&store, &image).await }.boxed()
    }

    fn newest(&self) -> BoxFuture<'static, io::Result<Option<(Image, Stored)>>> {
        let store = self.store.clone();
        async move {
            let newest = store.newest().await?;
            for damage in &newest.damaged {
                tracing::error!(%damage, "a snapshot is damaged and was set aside");
            }
            match newest.reader {
                Some(reader) => decode(reader).await.map(Some),
                None => Ok(None),
            }
        }
        .boxed()
    }

    fn load(&self, file: Stored) -> BoxFuture<'static, io::Result<Image>> {
        let store = self.store.clone();
        async move {
            let reader = store.open_verified(file.id).await?;
            Ok(decode(reader).await?.0)
        }
        .boxed()
    }

    fn open(&self, file: Stored) -> BoxFuture<'static, io::Result<Arc<dyn ChunkSource>>> {
        let store = self.store.clone();
        async move {
            let opened = store.open_verified(file.id).await;
            if let Err(damage) = &opened
                && damage.is_damage()
            {
                tracing::error!(%damage, "a snapshot is damaged and is set aside; another one is written");
                store.set_aside(file.id).await?;
            }
            let reader = opened?;
            let source: Arc<dyn ChunkSource> = Arc::new(OpenSnapshot(Arc::new(reader)));
            Ok(source)
        }
        .boxed()
    }

    fn begin(&self, index: u64, total_bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        let (store, receiving) = (self.store.clone(), self.receiving.clone());
        async move {
            if let Some(old) = take(&receiving) {
                old.abandon().await?;
            }
            put_back(&receiving, store.receive(index, total_bytes).await?);
            Ok(())
        }
        .boxed()
    }

    fn put(&self, offset: u64, bytes: Bytes) -> BoxFuture<'static, io::Result<()>> {
        let receiving = self.receiving.clone();
        async move {
            let mut receiver = take(&receiving).ok_or(io::ErrorKind::NotFound)?;
            let taken = receiver.chunk(offset, &bytes).await;
            put_back(&receiving, receiver);
            Ok(taken?)
        }
        .boxed()
    }

    fn finish(&self) -> BoxFuture<'static, io::Result<Stored>> {
        let receiving = self.receiving.clone();
        async move {
            let receiver = take(&receiving).ok_or(io::ErrorKind::NotFound)?;
            let info = receiver.install().await?;
            Ok(Stored {
                id: info.id,
                total_bytes: info.file_bytes,
            })
        }
        .boxed()
    }

    fn discard(&self, file: Stored) -> BoxFuture<'static, io::Result<()>> {
        let store = self.store.clone();
        async move { Ok(store.delete(file.id).await?) }.boxed()
    }

    fn drop_older(&self, than: Stored) -> BoxFuture<'static, io::Result<()>> {
        let store = self.store.clone();
        async move {
            let mut older = store.list().await?;
            older.retain(|id| *id < than.id);
            for id in older.into_iter().skip(KEEP - 1) {
                store.delete(id).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// Only the receiving runner uses the receiver, one job after the other; the lock is for sharing,
/// not for waiting.
fn take<D: Disk>(receiving: &Mutex<Option<SnapshotReceiver<D>>>) -> Option<SnapshotReceiver<D>> {
    receiving
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
}

fn put_back<D: Disk>(
    receiving: &Mutex<Option<SnapshotReceiver<D>>>,
    receiver: SnapshotReceiver<D>,
) {
    *receiving.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
}

/// An open file: it can be sent to its end even if it is deleted meanwhile.
struct OpenSnapshot<D: Disk>(Arc<SnapshotReader<D>>);

impl<D: Disk> ChunkSource for OpenSnapshot<D> {
    fn read(&self, offset: u64, max_bytes: u32) -> BoxFuture<'static, io::Result<Bytes>> {
        let reader = self.0.clone();
        async move {
            let chunk = reader.read_chunk(offset, max_bytes as usize).await?;
            Ok(Bytes::from(chunk))
        }
        .boxed()
    }
}
