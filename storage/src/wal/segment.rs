//! Segment files: their names, and the keeper that prepares new ones and puts old ones away.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::disk::{Disk, DiskFile};

use super::log::Segment;
use super::{Shared, WalError};

/// Spare files that are kept for later use; more are removed.
const MAX_SPARES: usize = 2;

/// Name of a live segment.
pub(super) fn live_name(sequence: u32) -> String {
    format!("wal-{sequence:010}.log")
}

/// Number of a live segment by its name.
pub(super) fn live_sequence(name: &str) -> Option<u32> {
    name.strip_prefix("wal-")?
        .strip_suffix(".log")?
        .parse()
        .ok()
}

fn spare_name(number: u64) -> String {
    format!("spare-{number:010}.log")
}

/// Number of a spare file by its name.
pub(super) fn spare_number(name: &str) -> Option<u64> {
    name.strip_prefix("spare-")?
        .strip_suffix(".log")?
        .parse()
        .ok()
}

/// Creates a file full of zeros and makes its bytes durable, but not yet its name.
pub(super) async fn create_zeroed<D: Disk>(
    disk: &D,
    path: &Path,
    bytes: u64,
) -> Result<D::File, WalError> {
    let file = disk
        .create(path)
        .await
        .map_err(|e| WalError::io("create", path, e))?;
    file.allocate(bytes)
        .await
        .map_err(|e| WalError::io("fill with zeros", path, e))?;
    file.sync_data()
        .await
        .map_err(|e| WalError::io("sync", path, e))?;
    Ok(file)
}

/// Makes the bytes of a file durable, and then that it is there under its name.
pub(super) async fn install<D: Disk>(
    disk: &D,
    file: &D::File,
    from: &Path,
    to: &Path,
) -> Result<(), WalError> {
    file.sync_data()
        .await
        .map_err(|e| WalError::io("sync", from, e))?;
    disk.rename(from, to)
        .await
        .map_err(|e| WalError::io("rename", from, e))?;
    let dir = to.parent().unwrap_or(Path::new("."));
    disk.sync_dir(dir)
        .await
        .map_err(|e| WalError::io("sync", dir, e))
}

/// What the writer asks of the keeper.
pub(super) enum KeeperRequest {
    /// Prepare one spare file and send it.
    Prepare,
    /// Everything in this segment is purged, durably: remove it or keep it as a spare.
    Retire(Arc<Segment>),
}

/// A file of full size that can become a segment.
pub(super) struct Spare<F> {
    pub(super) path: PathBuf,
    pub(super) file: F,
}

/// Prepares and retires segment files beside the writer, so that it never waits for a file to be
/// filled with zeros unless it is faster than the disk.
pub(super) struct Keeper<D: Disk> {
    disk: D,
    dir: PathBuf,
    segment_bytes: u64,
    spares: Vec<PathBuf>,
    next_spare: u64,
    retired: VecDeque<Arc<Segment>>,
}

impl<D: Disk> Keeper<D> {
    /// `spares`: numbers of the spare files that exist.
    pub(super) fn new(disk: D, dir: &Path, segment_bytes: u64, spares: &[u64]) -> Self {
        Self {
            disk,
            dir: dir.to_owned(),
            segment_bytes,
            spares: spares
                .iter()
                .map(|number| dir.join(spare_name(*number)))
                .collect(),
            next_spare: spares.iter().max().map_or(1, |max| max + 1),
            retired: VecDeque::new(),
        }
    }

    /// Serves until the writer is gone. A sync that fails ends the log here too, although no entry is in
    /// these files: what the disk says of the next sync of the folder cannot be believed.
    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<KeeperRequest>,
        ready: mpsc::Sender<Result<Spare<D::File>, WalError>>,
        shared: Arc<Shared>,
    ) {
        while let Some(request) = requests.recv().await {
            match request {
                KeeperRequest::Prepare => {
                    let spare = self.prepare().await;
                    end_if_unsynced(&shared, spare.as_ref().err());
                    if ready.send(spare).await.is_err() {
                        return;
                    }
                }
                KeeperRequest::Retire(segment) => self.retired.push_back(segment),
            }
            let kept = self.put_away_retired().await;
            end_if_unsynced(&shared, kept.as_ref().err());
        }
    }

    async fn prepare(&mut self) -> Result<Spare<D::File>, WalError> {
        while let Some(path) = self.spares.pop() {
            let file = self
                .disk
                .open(&path)
                .await
                .map_err(|e| WalError::io("open", &path, e))?;
            let len = file
                .len_bytes()
                .await
                .map_err(|e| WalError::io("measure", &path, e))?;
            if len == self.segment_bytes {
                return Ok(Spare { path, file });
            }
            // Of another size, or cut short by a crash.
            self.disk
                .remove(&path)
                .await
                .map_err(|e| WalError::io("remove", &path, e))?;
        }
        let path = self.new_spare_path();
        match create_zeroed(&self.disk, &path, self.segment_bytes).await {
            Ok(file) => Ok(Spare { path, file }),
            Err(error) => {
                // Give the space back to what still runs; the next attempt uses a new name.
                let _ = self.disk.remove(&path).await;
                Err(error)
            }
        }
    }

    fn new_spare_path(&mut self) -> PathBuf {
        let path = self.dir.join(spare_name(self.next_spare));
        self.next_spare += 1;
        path
    }

    /// Puts away retired segments, oldest first, up to the first that a reader still holds. The last fault.
    async fn put_away_retired(&mut self) -> Result<(), WalError> {
        let mut kept = Ok(());
        while let Some(segment) = self.retired.pop_front() {
            if Arc::strong_count(&segment) > 1 {
                self.retired.push_front(segment);
                break;
            }
            if let Err(error) = self.put_away(&segment.path).await {
                // Harmless unless a sync failed: the next start finds the file, and that all of it is purged.
                tracing::warn!(file = %segment.path.display(), %error, "old log segment stays");
                kept = Err(error);
            }
        }
        kept
    }

    async fn put_away(&mut self, path: &Path) -> Result<(), WalError> {
        let failed = |action| move |error| WalError::io(action, path, error);
        let file = self.disk.open(path).await.map_err(failed("open"))?;
        let len = file.len_bytes().await.map_err(failed("measure"))?;
        drop(file);
        let spare = (self.spares.len() < MAX_SPARES && len == self.segment_bytes)
            .then(|| self.new_spare_path());
        match &spare {
            Some(spare) => self.disk.rename(path, spare).await,
            None => self.disk.remove(path).await,
        }
        .map_err(failed("put away"))?;
        self.disk
            .sync_dir(&self.dir)
            .await
            .map_err(|e| WalError::io("sync", &self.dir, e))?;
        // Only now: before the file is used again its old name must be gone for good.
        self.spares.extend(spare);
        Ok(())
    }
}

/// Ends the log if that is what failed.
fn end_if_unsynced(shared: &Shared, error: Option<&WalError>) {
    if let Some(error) = error.filter(|error| error.is_failed_sync()) {
        let fatal = shared.poison(error);
        shared.call_on_fatal(fatal);
    }
}
