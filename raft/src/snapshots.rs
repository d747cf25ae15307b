//! Snapshots of the state: written, loaded, sent and received.
//!
//! What is in the files is a `SnapshotCover` and the records of the state, each in its envelope;
//! how they lie on disk is the storage's part.
//!
//! Invariants:
//! - Work on files happens on three runners, so that writing a snapshot, sending one and receiving
//!   one never wait for each other.
//! - At most one snapshot is being received. A new offer replaces the one before; pieces come in
//!   order and never exceed what was offered.
//! - A received snapshot is verified whole before anybody hears of it, and deleted if openraft does
//!   not take it.
//! - A snapshot that is being sent can be deleted; it is sent to its end all the same.
//! - A snapshot that turns out to be damaged when it is to be sent is set aside, and another one is wanted.
//! - A sync that failed ends the node, also one of a file that is only being received.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use tenure_machine::State;
use tenure_storage::disk::Disk;
use tenure_storage::snapshot::SnapshotId;
use tenure_storage::wal::Spawn;
use tokio::sync::Notify;

use crate::runner::Runner;
use crate::snapshot_files::StoredSnapshots;
use crate::types::{NodeId, SnapshotMeta};
use crate::wire::{SnapshotOffer, WireVote};

/// Bytes of one piece when a snapshot is copied from one folder to another.
const COPY_PIECE_BYTES: u32 = 1 << 20;

/// A state and what it covers.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) state: State,
    pub(crate) meta: SnapshotMeta,
}

/// Which file of a folder, and how long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) id: SnapshotId,
    pub(crate) total_bytes: u64,
}

/// A snapshot on disk, with the folder it is in. Cheap to clone.
#[derive(Clone)]
pub struct SnapshotFile {
    stored: Stored,
    files: Arc<dyn SnapshotFiles>,
}

impl SnapshotFile {
    /// Its length.
    pub fn total_bytes(&self) -> u64 {
        self.stored.total_bytes
    }
}

impl PartialEq for SnapshotFile {
    fn eq(&self, other: &Self) -> bool {
        self.stored == other.stored && Arc::ptr_eq(&self.files, &other.files)
    }
}

impl fmt::Debug for SnapshotFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stored.fmt(f)
    }
}

/// The files, whatever disk they are on. The futures do the work where they are polled.
pub(crate) trait SnapshotFiles: Send + Sync + 'static {
    /// Writes a snapshot and makes it durable.
    fn write(&self, image: Image) -> BoxFuture<'static, io::Result<Stored>>;
    /// The newest good one.
    fn newest(&self) -> BoxFuture<'static, io::Result<Option<(Image, Stored)>>>;
    /// Reads and checks all of it.
    fn load(&self, file: Stored) -> BoxFuture<'static, io::Result<Image>>;
    /// Checks all of it and opens it for sending.
    fn open(&self, file: Stored) -> BoxFuture<'static, io::Result<Arc<dyn ChunkSource>>>;
    /// Starts to receive one of the state after entry `index`; gives up the one before.
    fn begin(&self, index: u64, total_bytes: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Adds to it.
    fn put(&self, offset: u64, bytes: Bytes) -> BoxFuture<'static, io::Result<()>>;
    /// Checks all of it and makes it durable.
    fn finish(&self) -> BoxFuture<'static, io::Result<Stored>>;
    /// Deletes it.
    fn discard(&self, file: Stored) -> BoxFuture<'static, io::Result<()>>;
    /// Deletes those before it.
    fn drop_older(&self, than: Stored) -> BoxFuture<'static, io::Result<()>>;
}

/// A snapshot that is open for sending.
pub(crate) trait ChunkSource: Send + Sync + 'static {
    /// At most `max_bytes` from `offset`; fewer at the end only.
    fn read(&self, offset: u64, max_bytes: u32) -> BoxFuture<'static, io::Result<Bytes>>;
}

/// A snapshot that came from the leader, verified.
pub(crate) struct Received {
    pub(crate) vote: WireVote,
    pub(crate) meta: SnapshotMeta,
    pub(crate) file: SnapshotFile,
}

/// A snapshot on its way to a peer.
pub(crate) struct Outgoing {
    source: Arc<dyn ChunkSource>,
    total_bytes: u64,
    sender: Runner,
}

impl Outgoing {
    /// The piece at `offset`, at most `max_bytes` long.
    pub(crate) async fn piece(&self, offset: u64, max_bytes: u32) -> io::Result<Bytes> {
        let bytes = self.sender.run(self.source.read(offset, max_bytes)).await?;
        if bytes.is_empty() && offset < self.total_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(bytes)
    }
}

struct Incoming {
    transfer: u64,
    from: NodeId,
    offer: SnapshotOffer,
    meta: SnapshotMeta,
    next: u64,
}

/// All that is done with snapshots on one node. Clones share it.
#[derive(Clone)]
pub struct Snapshots {
    files: Arc<dyn SnapshotFiles>,
    writer: Runner,
    sender: Runner,
    receiver: Runner,
    incoming: Arc<Mutex<(u64, Option<Incoming>)>>,
    /// Another snapshot is wanted.
    wanted: Arc<Notify>,
}

/// Whether a snapshot that was there is none any more.
fn is_lost(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::NotFound
    )
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

impl Snapshots {
    /// Opens the folder `dir`; file work is done by tasks started with `spawn`.
    pub async fn open<D: Disk>(
        disk: D,
        dir: PathBuf,
        spawn: &Spawn,
        on_failed_sync: Arc<dyn Fn(String) + Send + Sync>,
    ) -> io::Result<Self> {
        let start = |name| Runner::start(name, spawn, on_failed_sync.clone());
        let writer = start("snapshot-writer")?;
        let files = writer.run(StoredSnapshots::open(disk, dir)).await?;
        let snapshots = Self {
            files: Arc::new(files),
            writer,
            sender: start("snapshot-sender")?,
            receiver: start("snapshot-receiver")?,
            incoming: Arc::default(),
            wanted: Arc::default(),
        };
        Ok(snapshots)
    }

    /// Says that a snapshot is due.
    pub(crate) fn want_one(&self) {
        self.wanted.notify_one();
    }

    /// Waits until one is due.
    pub(crate) async fn one_wanted(&self) {
        self.wanted.notified().await;
    }

    fn incoming(&self) -> MutexGuard<'_, (u64, Option<Incoming>)> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, stored: Stored) -> SnapshotFile {
        SnapshotFile {
            stored,
            files: self.files.clone(),
        }
    }

    /// Writes a snapshot and makes it durable.
    pub(crate) async fn write(&self, image: Image) -> io::Result<SnapshotFile> {
        let stored = self.writer.run(self.files.write(image)).await?;
        Ok(self.file(stored))
    }

    /// The newest good one, decoded.
    pub(crate) async fn load_newest(&self) -> io::Result<Option<(Image, SnapshotFile)>> {
        let newest = self.writer.run(self.files.newest()).await?;
        Ok(newest.map(|(image, stored)| (image, self.file(stored))))
    }

    /// Checks and decodes it.
    pub(crate) async fn load(&self, file: &SnapshotFile) -> io::Result<Image> {
        self.receiver.run(file.files.load(file.stored)).await
    }

    /// The same snapshot in this folder: itself, or a checked copy if it is in another one.
    pub(crate) async fn bring_in(
        &self,
        file: SnapshotFile,
        index: u64,
    ) -> io::Result<SnapshotFile> {
        if Arc::ptr_eq(&file.files, &self.files) {
            return Ok(file);
        }
        let total_bytes = file.total_bytes();
        let outgoing = self.open_to_send(file).await?;
        let begin = self.files.begin(index, total_bytes);
        self.receiver.run(begin).await?;
        let mut offset = 0;
        while offset < total_bytes {
            let piece = outgoing.piece(offset, COPY_PIECE_BYTES).await?;
            let next = offset + piece.len() as u64;
            self.receiver.run(self.files.put(offset, piece)).await?;
            offset = next;
        }
        let stored = self.receiver.run(self.files.finish()).await?;
        Ok(self.file(stored))
    }

    /// Deletes a snapshot that nobody needs.
    pub(crate) async fn discard(&self, file: &SnapshotFile) -> io::Result<()> {
        self.writer.run(file.files.discard(file.stored)).await
    }

    /// Deletes the snapshots before this one.
    pub(crate) async fn drop_older(&self, than: &SnapshotFile) -> io::Result<()> {
        self.writer.run(than.files.drop_older(than.stored)).await
    }

    /// Checks a snapshot and opens it for sending.
    pub(crate) async fn open_to_send(&self, file: SnapshotFile) -> io::Result<Outgoing> {
        let source = self.sender.run(file.files.open(file.stored)).await;
        if source.as_ref().is_err_and(is_lost) {
            // The state that it held is in memory. Until there is another file, nobody who needs one can be
            // brought up to date, and a restart finds nothing.
            self.want_one();
        }
        Ok(Outgoing {
            source: source?,
            total_bytes: file.total_bytes(),
            sender: self.sender.clone(),
        })
    }

    /// Makes ready for a snapshot; returns the number of the transfer.
    pub(crate) async fn expect(&self, from: NodeId, offer: SnapshotOffer) -> io::Result<u64> {
        let meta = SnapshotMeta::try_from(offer.cover.clone())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let transfer = {
            let mut incoming = self.incoming();
            incoming.0 += 1;
            incoming.1 = None;
            incoming.0
        };
        let index = meta.last_log_id.map_or(0, |id| id.index);
        let begin = self.files.begin(index, offer.total_bytes);
        self.receiver.run(begin).await?;
        let mut incoming = self.incoming();
        if incoming.0 != transfer {
            return Err(refused("another snapshot was offered"));
        }
        incoming.1 = Some(Incoming {
            transfer,
            from,
            offer,
            meta,
            next: 0,
        });
        Ok(transfer)
    }

    /// Takes one piece; returns where the next one begins.
    pub(crate) async fn receive(
        &self,
        from: NodeId,
        transfer: u64,
        offset: u64,
        bytes: Bytes,
    ) -> io::Result<u64> {
        let end = {
            let mut incoming = self.incoming();
            let expected = expected(&mut incoming, from, transfer)?;
            let end = offset.saturating_add(bytes.len() as u64);
            if offset != expected.next || end > expected.offer.total_bytes {
                return Err(refused("the piece is out of place"));
            }
            end
        };
        let put = self.files.put(offset, bytes);
        self.receiver.run(put).await?;
        expected(&mut self.incoming(), from, transfer)?.next = end;
        Ok(end)
    }

    /// Ends a transfer: all has come, and it is a whole, undamaged snapshot.
    pub(crate) async fn verify(&self, from: NodeId, transfer: u64) -> io::Result<Received> {
        let received = {
            let mut incoming = self.incoming();
            let expected = expected(&mut incoming, from, transfer)?;
            if expected.next != expected.offer.total_bytes {
                return Err(refused("the snapshot is not complete"));
            }
            let taken = incoming.1.take();
            taken.ok_or_else(|| refused("no such transfer"))?
        };
        let stored = self.receiver.run(self.files.finish()).await?;
        Ok(Received {
            vote: received.offer.vote,
            meta: received.meta,
            file: self.file(stored),
        })
    }
}

fn expected<'a>(
    incoming: &'a mut MutexGuard<'_, (u64, Option<Incoming>)>,
    from: NodeId,
    transfer: u64,
) -> io::Result<&'a mut Incoming> {
    match &mut incoming.1 {
        Some(expected) if expected.transfer == transfer && expected.from == from => Ok(expected),
        _ => Err(refused("no such transfer")),
    }
}
