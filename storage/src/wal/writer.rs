//! The one writer: drains the queue into one write and one sync, then answers.
//!
//! Invariants:
//! - A batch is written only after the batch before is synced. So whatever carries the number of
//!   a batch proves that all earlier ones were durable.
//! - A sector of a batch that was acknowledged is not written again until its file is recycled:
//!   batches start on sector boundaries, and only a marker is overwritten.
//! - A mark claims what was synced before it is written. At most [`MARK_EVERY`] batches have
//!   none, and the request for the next mark is under way as long as there is one.
//! - Memory changes in the order of the queue, and the disk follows in the same order.
//! - After the first failed write or sync nothing is written any more.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::disk::{Disk, DiskFile, SECTOR_BYTES};

use super::command::{Batch, Command, Request};
use super::control::Control;
use super::format::{
    BATCH_HEADER_BYTES, BatchHeader, DATA_START, Kind, MARKS_AT, Record, SegmentHeader, round_up,
    seed,
};
use super::log::Segment;
use super::mark::{Mark, Marks};
use super::segment::{KeeperRequest, Spare, install, live_name};
use super::{LogId, META_BYTES, Shared, WalError, WalOptions};

/// Most requests in one batch.
const MAX_REQUESTS: usize = 4096;

/// A log under load writes a mark with every so many batches. It dirties one more page, which
/// makes a sync of few entries about 15% slower: shared by eight batches, 2%.
const MARK_EVERY: u32 = 8;

/// What a new segment repeats, so that older ones can go. In the order of the disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Meta {
    pub(super) vote: Option<Bytes>,
    pub(super) committed: Option<Bytes>,
    pub(super) purged: Option<LogId>,
    pub(super) next_index: Option<u64>,
}

/// The segment that is written to.
pub(super) struct Current<F> {
    pub(super) sequence: u32,
    pub(super) path: PathBuf,
    pub(super) file: F,
    /// Length of the file.
    pub(super) bytes: u64,
    /// Where the next batch goes; all before is durable.
    pub(super) end: u64,
    pub(super) seed: u32,
    pub(super) marks: Marks,
    /// Batches that no mark covers.
    pub(super) unmarked: u32,
}

/// State of the writer task.
pub(super) struct Writer<D: Disk> {
    pub(super) disk: D,
    pub(super) dir: PathBuf,
    pub(super) options: WalOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) keeper: mpsc::Sender<KeeperRequest>,
    pub(super) spares: mpsc::Receiver<Result<Spare<D::File>, WalError>>,
    pub(super) spare_requested: bool,
    /// Asks for a [`Command::Settle`].
    pub(super) settle: mpsc::Sender<()>,
    pub(super) settle_requested: bool,
    pub(super) control: Control<D::File>,
    pub(super) current: Current<D::File>,
    /// Number of the last batch.
    pub(super) batch: u64,
    pub(super) meta: Meta,
    /// Highest entry index that was ever written in each segment that is still live.
    pub(super) highest: BTreeMap<u32, Option<u64>>,
    pub(super) buf: Vec<u8>,
    /// Entries of the batch at work: append, index, offset.
    pub(super) placed: Vec<(u64, u64, u32)>,
}

impl<D: Disk> Writer<D> {
    /// Works until the log is closed, all handles are gone, or something fails.
    pub(super) async fn run(mut self) {
        let _guard = PanicGuard(Arc::clone(&self.shared));
        let mut batch = Batch::default();
        loop {
            let open = self.gather(&mut batch).await;
            let closing = !open || matches!(batch.commands.last(), Some(Command::Close));
            let seal = closing || batch.commands.iter().any(Command::needs_mark);
            #[cfg(feature = "planted-bugs")]
            if tenure_planted::is(tenure_planted::Bug::AckBeforeSync) {
                batch.waiting.drain(..).for_each(|done| done(Ok(())));
            }
            if let Err(error) = self
                .commit(&batch.commands, batch.encoded_bytes(), seal)
                .await
            {
                self.fail(batch, &error);
                return;
            }
            if closing {
                self.finish(batch).await;
                return;
            }
            batch.answer(&Ok(()));
            if let Err(error) = self.witness().await {
                self.fail(batch, &error);
                return;
            }
        }
    }

    /// Waits for work and takes what is there, up to the target size. False when all handles are
    /// gone. `Close` is always the last command of its batch.
    async fn gather(&mut self, batch: &mut Batch) -> bool {
        let mut bytes = 0;
        let mut urgent = false;
        loop {
            let next = if urgent {
                match self.requests.try_recv() {
                    Ok(request) => request,
                    Err(_) => return true,
                }
            } else {
                match self.requests.recv().await {
                    Some(request) => request,
                    None => return false,
                }
            };
            let Request { command, done } = next;
            urgent |= !command.is_lazy();
            if command.is_lazy() && batch.commands.last().is_some_and(Command::is_lazy) {
                batch.commands.pop();
            }
            bytes += command.encoded_bytes();
            if matches!(command, Command::Settle) {
                self.settle_requested = false;
            }
            let last = matches!(command, Command::Close);
            batch.commands.push(command);
            batch.waiting.extend(done);
            let full =
                bytes >= self.options.batch_target_bytes || batch.commands.len() >= MAX_REQUESTS;
            if last || full {
                return true;
            }
        }
    }

    /// Writes the batch, syncs it and makes it known. `seal`: and makes a mark durable that
    /// covers it.
    async fn commit(
        &mut self,
        commands: &[Command],
        body_bytes: usize,
        seal: bool,
    ) -> Result<(), WalError> {
        self.still_alive()?;
        if body_bytes > 0 {
            self.write(commands, body_bytes).await?;
        }
        if seal && self.current.unmarked > 0 {
            self.put_mark().await?;
            self.sync().await?;
        }
        // A sync of the keeper may have failed meanwhile.
        self.still_alive()?;
        if body_bytes > 0 {
            self.publish(commands);
            self.retire().await;
            self.order_spare().await;
        }
        Ok(())
    }

    fn still_alive(&self) -> Result<(), WalError> {
        self.shared.fatal().map_or(Ok(()), Err)
    }

    async fn write(&mut self, commands: &[Command], body_bytes: usize) -> Result<(), WalError> {
        let need = round_up((BATCH_HEADER_BYTES + META_BYTES + body_bytes) as u64);
        if self.current.end + need > self.current.bytes {
            self.roll().await?;
        }
        if self.current.unmarked >= MARK_EVERY {
            self.put_mark().await?;
        }
        self.encode(commands);
        let path = &self.current.path;
        self.current
            .file
            .write_at(self.current.end, &self.buf)
            .await
            .map_err(|e| WalError::io("write", path, e))?;
        self.sync().await?;
        self.current.end += self.buf.len() as u64;
        self.batch += 1;
        self.current.unmarked += 1;
        Ok(())
    }

    async fn sync(&self) -> Result<(), WalError> {
        let path = &self.current.path;
        let synced = self.current.file.sync_data().await;
        #[cfg(feature = "planted-bugs")]
        let synced = match tenure_planted::is(tenure_planted::Bug::FailedSyncReported) {
            true => Ok(()),
            false => synced,
        };
        synced.map_err(|e| WalError::io("sync", path, e))
    }

    /// Writes down that all up to here is durable. The next sync makes it so.
    async fn put_mark(&mut self) -> Result<(), WalError> {
        let mark = Mark {
            sequence: self.current.sequence,
            end: self.current.end,
            batch: self.batch,
        };
        let path = &self.current.path;
        self.current
            .marks
            .write(&self.current.file, &mark)
            .await
            .map_err(|e| WalError::io("write", path, e))?;
        self.current.unmarked = 0;
        Ok(())
    }

    /// Sees to it that the last batch, if no mark covers it, does not go without a witness: for
    /// now a marker, soon a mark.
    async fn witness(&mut self) -> Result<(), WalError> {
        if self.current.unmarked == 0 {
            return Ok(());
        }
        if !self.settle_requested {
            self.settle_requested = self.settle.try_send(()).is_ok();
        }
        if self.requests.is_empty() {
            self.leave_marker().await?;
        }
        Ok(())
    }

    /// Puts the batch into the buffer, and what it changes into `meta`.
    fn encode(&mut self, commands: &[Command]) {
        self.buf.clear();
        self.placed.clear();
        self.buf.resize(BATCH_HEADER_BYTES, 0);
        let mut records = 0;
        if self.current.end == DATA_START {
            records += self.encode_meta();
        }
        for command in commands {
            records += self.encode_command(command);
        }
        let body = self.buf.get(BATCH_HEADER_BYTES..).unwrap_or_default();
        let header = BatchHeader {
            batch: self.batch + 1,
            durable_end: self.current.end,
            body_bytes: body.len() as u32,
            records,
            body_crc: crc32c::crc32c_append(self.current.seed, body),
        };
        let header = header.encode(self.current.seed);
        if let Some(slot) = self.buf.get_mut(..BATCH_HEADER_BYTES) {
            slot.copy_from_slice(&header);
        }
        self.buf.resize(round_up(self.buf.len() as u64) as usize, 0);
    }

    fn encode_meta(&mut self) -> u32 {
        let meta = self.meta.clone();
        let mut records = 0;
        if let Some(vote) = &meta.vote {
            records += self.push(Kind::Vote, LogId::default(), vote);
        }
        if let Some(committed) = &meta.committed {
            records += self.push(Kind::Committed, LogId::default(), committed);
        }
        if let Some(purged) = meta.purged {
            records += self.push(Kind::Purge, purged, &[]);
        }
        records
    }

    fn push(&mut self, kind: Kind, id: LogId, payload: &[u8]) -> u32 {
        Record { kind, id, payload }.encode(self.current.seed, &mut self.buf);
        1
    }

    fn encode_command(&mut self, command: &Command) -> u32 {
        match command {
            Command::Append {
                append, entries, ..
            } => {
                let highest = self.highest.entry(self.current.sequence).or_default();
                for entry in entries {
                    let offset = self.current.end + self.buf.len() as u64;
                    self.placed.push((*append, entry.id.index, offset as u32));
                    let record = Record {
                        kind: Kind::Entry,
                        id: entry.id,
                        payload: &entry.payload,
                    };
                    record.encode(self.current.seed, &mut self.buf);
                    *highest = (*highest).max(Some(entry.id.index));
                    self.meta.next_index = Some(entry.id.index + 1);
                }
                entries.len() as u32
            }
            Command::Vote(bytes) => {
                self.meta.vote = Some(bytes.clone());
                self.push(Kind::Vote, LogId::default(), bytes)
            }
            Command::Committed(committed) => {
                self.meta.committed.clone_from(committed);
                match committed {
                    Some(bytes) => self.push(Kind::Committed, LogId::default(), bytes),
                    None => self.push(Kind::CommittedCleared, LogId::default(), &[]),
                }
            }
            Command::Truncate(from) => {
                self.meta.next_index = *from;
                match from {
                    Some(index) => {
                        let id = LogId {
                            index: *index,
                            ..LogId::default()
                        };
                        self.push(Kind::Truncate, id, &[])
                    }
                    None => self.push(Kind::TruncateAll, LogId::default(), &[]),
                }
            }
            Command::Purge(upto) => {
                self.meta.purged = Some(*upto);
                self.meta.next_index = self.meta.next_index.max(Some(upto.index + 1));
                self.push(Kind::Purge, *upto, &[])
            }
            Command::Flush | Command::Settle | Command::Close => 0,
        }
    }

    /// Tells readers where the entries lie now, and what else is durable.
    fn publish(&mut self, commands: &[Command]) {
        let mut log = self.shared.log();
        for (append, index, offset) in self.placed.drain(..) {
            log.written(append, index, self.current.sequence, offset);
        }
        for command in commands {
            if let Command::Vote(bytes) = command {
                log.vote = Some(bytes.clone());
            }
        }
        log.evict();
    }

    /// Leaves a note behind the last batch that it was synced. Not synced itself: the note only
    /// narrows down what could be mistaken for a torn write, see the module above.
    async fn leave_marker(&mut self) -> Result<(), WalError> {
        if self.current.end + SECTOR_BYTES as u64 > self.current.bytes {
            return Ok(());
        }
        let header = BatchHeader {
            batch: self.batch + 1,
            durable_end: self.current.end,
            body_bytes: 0,
            records: 0,
            body_crc: 0,
        };
        let mut sector = [0_u8; SECTOR_BYTES];
        for (to, from) in sector.iter_mut().zip(header.encode(self.current.seed)) {
            *to = from;
        }
        let path = &self.current.path;
        self.current
            .file
            .write_at(self.current.end, &sector)
            .await
            .map_err(|e| WalError::io("write", path, e))
    }

    /// Goes on in a new segment. All batches of the old one are synced.
    async fn roll(&mut self) -> Result<(), WalError> {
        let sequence = self
            .current
            .sequence
            .checked_add(1)
            .ok_or_else(|| WalError::Fatal("segment numbers are used up".into()))?;
        let Spare { path: spare, file } = self.take_spare().await?;
        let header = SegmentHeader {
            sequence,
            salt: self.options.salt,
            segment_bytes: self.options.segment_bytes,
            previous_end: self.current.end,
            last_batch: self.batch,
            next_index: self.meta.next_index,
        };
        let path = self.dir.join(live_name(sequence));
        file.write_at(0, &header.opening())
            .await
            .map_err(|e| WalError::io("write", &spare, e))?;
        install(&self.disk, &file, &spare, &path).await?;
        self.control.record(header.first_mark()).await?;
        let seed = seed(self.options.salt, sequence);
        let segment = Segment {
            sequence,
            path: path.clone(),
            seed,
        };
        self.shared
            .log()
            .segments
            .insert(sequence, Arc::new(segment));
        self.highest.insert(sequence, None);
        let bytes = self.options.segment_bytes;
        self.current = Current {
            sequence,
            path,
            file,
            bytes,
            end: DATA_START,
            seed,
            marks: Marks::new(MARKS_AT, seed),
            unmarked: 0,
        };
        Ok(())
    }

    /// Takes the spare file, and tries once more if preparing it failed: space may have been
    /// freed since.
    async fn take_spare(&mut self) -> Result<Spare<D::File>, WalError> {
        let gone = || WalError::Fatal("the segment keeper ended".into());
        if self.spare_requested {
            self.spare_requested = false;
            if let Ok(spare) = self.spares.recv().await.ok_or_else(gone)? {
                return Ok(spare);
            }
        }
        self.keeper
            .send(KeeperRequest::Prepare)
            .await
            .map_err(|_| gone())?;
        self.spares.recv().await.ok_or_else(gone)?
    }

    /// Orders the next spare when half of the current segment is used.
    async fn order_spare(&mut self) {
        if !self.spare_requested && self.current.end >= self.current.bytes / 2 {
            self.spare_requested = self.keeper.send(KeeperRequest::Prepare).await.is_ok();
        }
    }

    /// Hands over the oldest segments in which every entry is purged. The purge is durable.
    async fn retire(&mut self) {
        let Some(purged) = self.meta.purged.map(|id| id.index) else {
            return;
        };
        let mut keep_from = self.current.sequence;
        for (sequence, highest) in &self.highest {
            if *sequence == self.current.sequence || highest.is_some_and(|index| index > purged) {
                keep_from = *sequence;
                break;
            }
        }
        self.highest = self.highest.split_off(&keep_from);
        let released = self.shared.log().release_segments(keep_from);
        for segment in released {
            // Without a keeper the file stays until the next start.
            let _ = self.keeper.send(KeeperRequest::Retire(segment)).await;
        }
    }

    /// Answers the last batch once nothing touches the folder any more.
    async fn finish(mut self, mut batch: Batch) {
        drop(self.keeper);
        while self.spares.recv().await.is_some() {}
        self.shared.close();
        batch.answer(&Ok(()));
        self.requests.close();
        refuse(&mut self.requests, &self.shared.closed());
    }

    /// Tells everybody that the log is dead.
    fn fail(mut self, mut batch: Batch, error: &WalError) {
        let fatal = self.shared.poison(error);
        batch.answer(&Err(fatal.clone()));
        self.requests.close();
        refuse(&mut self.requests, &fatal);
        self.shared.call_on_fatal(fatal);
    }
}

/// Answers what is still in the queue. Nothing comes in any more: senders look at the reason of
/// the end under the same lock under which they send.
fn refuse(requests: &mut mpsc::Receiver<Request>, error: &WalError) {
    while let Ok(request) = requests.try_recv() {
        if let Some(done) = request.done {
            done(Err(error.clone()));
        }
    }
}

/// Closes the log if the writer panics, so that nobody waits for it.
struct PanicGuard(Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = WalError::Fatal("the log writer panicked".into());
            let fatal = self.0.poison(&error);
            self.0.call_on_fatal(fatal);
        }
    }
}
