//! The write-ahead log: entries, the vote and the committed position, as opaque bytes.
//!
//! # Shape
//! The log is a row of segment files, filled with zeros beforehand and used again once all their
//! entries are purged. One writer drains a bounded queue into one write and one `fdatasync`, and
//! then calls back: that is the group commit. [`Wal::append`] returns as soon as the entries can
//! be read (from memory); it does not wait for the disk.
//!
//! # Tasks
//! [`Wal::open`] starts four futures through [`WalHooks::spawn`]: the writer, the keeper (makes
//! spare segments, puts old ones away), the settler (asks for a mark when one is due) and the
//! reader (entries that left the memory). With [`crate::disk::RealDisk`] they block, so give each
//! a thread ([`spawn_threads`]); a simulation spawns them on its runtime. The methods of [`Wal`]
//! never touch the disk themselves.
//!
//! # Torn tail or corruption
//! Both look like bytes that do not match their checksum. Cutting the first is duty, cutting the
//! second loses acknowledged entries. They are told apart like this:
//! 1. A batch is one write, with one checksum over all of it: it counts whole or not at all. It
//!    is acknowledged only after its sync, and the next is written only after that. So at most
//!    one batch, the last, is not durable.
//! 2. The control file says which segment is the newest, durably, before the first batch goes
//!    into it.
//! 3. Each segment header carries where the segment before ends. It is durable before the
//!    segment gets its name. A segment that is not the newest is thus known to the byte.
//! 4. In the newest segment a *mark* behind the header says up to where the log was durable when
//!    it was written. It goes with every eighth batch into the same sync. After a vote it is
//!    synced before the vote is answered. A batch that has none for 100 ms gets one, under load
//!    or not, and then an idle log is quiet.
//! 5. For what no mark covers yet there are lesser witnesses, which lie where the damage may be:
//!    each batch says where it begins, so that all before was durable; and when the queue is
//!    empty the writer leaves a *marker* behind the last batch, an empty batch that is not synced
//!    and that the next batch overwrites.
//! 6. Checksums start from a seed of segment number and salt: what an earlier life of a recycled
//!    file, or a payload, contains never passes for a batch or a mark of this one.
//!
//! On opening, a missing file, or a bad batch that any of these says was durable, is corruption.
//! Then opening fails, names file, offset and index, and changes nothing. Otherwise nothing
//! acknowledged can follow, and the tail is cut. Nothing is written or removed before all of the
//! log was read and checked.
//!
//! **The start of the log** needs no record. A segment goes when all its entries are purged, and
//! one whose removal failed may stay, before a gap. The row of segments behind the last gap is
//! accepted, and what lies before it removed, only if that row alone gives the whole state: its
//! first batch repeats vote and committed position, and its entries begin at the latest behind
//! what it says is purged. A lost file that held more than that is therefore missed.
//!
//! **The control file** is written again with every new segment, in one of two slots, so a crash
//! leaves a whole one. If it is missing, damaged or older than the segments allow, opening fails:
//! nothing else tells how much of the log there should be. Only a first segment without a batch
//! may lack it, in a log that may be created: the first start was interrupted.
//!
//! **What remains:** until a mark covers them, the last batches have only the lesser witnesses.
//! If all of them from some point on are lost at once, with what lies behind them, it looks like
//! a torn tail. These are at most eight batches (each at most `batch_target_bytes` and one
//! record), acknowledged within about the last 100 ms; never a vote. And a folder that was put
//! back from an older copy is a log of that time. Raft's majority is what protects against these.
//!
//! # Crash safety
//! - What opening found is written and synced again (the last batch, the last mark, the number of
//!   the newest segment) before anyone may rely on it: the last life may have died before the
//!   sync, or because the sync failed, and then the page cache shows bytes that the medium does
//!   not have.
//! - Truncation, purge, vote and entries are records of the same sequence, so their order on disk
//!   is their order in memory. A truncation followed by appends can lose both, or the appends, but
//!   never only the truncation.
//! - A segment repeats vote, committed position and purge point in its first batch, so older
//!   segments can go. They go oldest first, after the purge is durable.
//! - An acknowledged sector is never rewritten with other bytes: batches start on sector
//!   boundaries. On media whose physical sector is larger, the file system's pages protect it as
//!   far as they protect anyone. Marks are rewritten, and have pages of their own.
//! - The first failed write or sync ends the log: nothing is retried, all callers get
//!   [`WalError::Fatal`], and [`WalHooks::on_fatal`] is called once.
//!
//! Absent on purpose: compression, encryption, more than one log in a folder, entries with gaps.
//! The caller holds the folder's lock ([`crate::identity`]).

mod command;
mod control;
mod error;
mod format;
mod log;
mod mark;
mod opened;
mod reader;
mod recover;
mod segment;
mod settle;
mod writer;

use std::future::Future;
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::disk::{Disk, SECTOR_BYTES};

pub use error::{Corruption, WalError};
pub use recover::{TornTail, WalReport};

use command::{Command, Request};
use format::{BATCH_HEADER_BYTES, DATA_START, RECORD_HEADER_BYTES, Record};
use log::Log;
use reader::ReadRequest;

/// Most bytes of a vote, and of a committed position.
pub const MAX_META_BYTES: usize = 256;

/// Room for what the first batch of a segment repeats.
const META_BYTES: usize = 3 * (RECORD_HEADER_BYTES + MAX_META_BYTES);

/// Requests that may wait for the writer.
const QUEUE_REQUESTS: usize = 1024;

/// Cold reads that may wait.
const QUEUE_READS: usize = 64;

/// Position of an entry and the leader that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogId {
    /// Term of the leader.
    pub term: u64,
    /// Node id of the leader.
    pub node: u64,
    /// Index in the log.
    pub index: u64,
}

/// A log entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub id: LogId,
    /// What the layer above put into it.
    pub payload: Bytes,
}

/// Both ends of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogState {
    /// Last entry that was purged.
    pub purged: Option<LogId>,
    /// Last entry; the purged one if none is left.
    pub last: Option<LogId>,
}

/// Sizes of the log.
#[derive(Debug, Clone)]
pub struct WalOptions {
    /// Length of a segment file. At most 4 GiB, and room for two of the largest batches.
    pub segment_bytes: u64,
    /// The writer stops collecting when a batch has this size.
    pub batch_target_bytes: usize,
    /// Most bytes of one entry with its header, and of what one queue slot takes.
    pub max_record_bytes: usize,
    /// Payload bytes of the newest entries that are kept in memory.
    pub cache_bytes: usize,
    /// Payload bytes that may wait for the disk; `append` waits for room beyond it.
    pub queue_bytes: u32,
    /// Mixed into all checksums. A random number (or a hash of the node's identity) keeps bytes
    /// that a user put into a payload from passing for records. Each segment keeps its own.
    pub salt: u64,
    /// Whether a log is created if there is none. If not, opening fails with
    /// [`WalError::Missing`] and makes nothing. A node that has run before must not get a new
    /// log: it would have forgotten what it voted for.
    pub create: bool,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 32 * 1024 * 1024,
            batch_target_bytes: 1024 * 1024,
            max_record_bytes: 8 * 1024 * 1024,
            cache_bytes: 64 * 1024 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            salt: 0,
            create: true,
        }
    }
}

impl WalOptions {
    /// Bytes of the largest batch.
    fn max_batch_bytes(&self) -> usize {
        BATCH_HEADER_BYTES + META_BYTES + self.batch_target_bytes + self.max_record_bytes
    }

    fn check(&self) -> Result<(), WalError> {
        let two_batches = 2 * format::round_up(self.max_batch_bytes() as u64);
        if self.segment_bytes > u64::from(u32::MAX) {
            Err(WalError::Options("segment_bytes is more than 4 GiB"))
        } else if !self.segment_bytes.is_multiple_of(SECTOR_BYTES as u64) {
            Err(WalError::Options(
                "segment_bytes is not a multiple of the sector size",
            ))
        } else if self.segment_bytes < DATA_START + two_batches {
            Err(WalError::Options(
                "segment_bytes has no room for two of the largest batches",
            ))
        } else if self.queue_bytes == 0 {
            Err(WalError::Options("queue_bytes is 0"))
        } else {
            Ok(())
        }
    }
}

/// Called once the operation is durable, or with the reason why it never will be.
pub type Callback = Box<dyn FnOnce(Result<(), WalError>) + Send>;

/// A future that runs by itself.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts a task under a name. See [`spawn_threads`].
pub type Spawn = Arc<dyn Fn(&'static str, Task) -> io::Result<()> + Send + Sync>;

/// Told why the log is dead.
pub type OnFatal = Box<dyn FnOnce(WalError) + Send>;

/// What the log needs from the process that embeds it.
pub struct WalHooks {
    /// Starts the tasks of the log.
    pub spawn: Spawn,
    /// Called once when the log is dead; the process must end. The log never ends it itself.
    pub on_fatal: OnFatal,
}

/// Starts each task on an operating-system thread of its own: for real files.
pub fn spawn_threads() -> Spawn {
    Arc::new(|name, task| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || pollster::block_on(task))
            .map(drop)
    })
}

/// What the handles and the tasks share.
struct Shared {
    log: Mutex<Log>,
    on_fatal: Mutex<Option<OnFatal>>,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fatal(&self) -> Option<WalError> {
        self.log().fatal.clone().map(WalError::Fatal)
    }

    /// Refuses everything from now on; returns what callers are told.
    fn poison(&self, error: &WalError) -> WalError {
        let reason: Arc<str> = match error {
            WalError::Fatal(reason) => Arc::clone(reason),
            other => other.to_string().into(),
        };
        WalError::Fatal(Arc::clone(self.log().fatal.get_or_insert(reason)))
    }

    fn close(&self) {
        self.log()
            .fatal
            .get_or_insert_with(|| "the log was closed".into());
    }

    fn closed(&self) -> WalError {
        self.fatal()
            .unwrap_or_else(|| WalError::Fatal("the log writer ended".into()))
    }

    fn call_on_fatal(&self, error: WalError) {
        let hook = self
            .on_fatal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(hook) = hook {
            hook(error);
        }
    }
}

/// A handle of the log. Clones share it; the writer ends when the last one is gone.
#[derive(Clone)]
pub struct Wal {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
    reads: mpsc::Sender<ReadRequest>,
    budget: Arc<Semaphore>,
    options: Arc<WalOptions>,
}

impl Wal {
    /// Opens the log in `dir`, or creates it. Reads all of it once, cuts a torn tail, and starts
    /// the tasks. Does disk work in the calling task: with real files, call it from a thread that
    /// may block.
    ///
    /// # Errors
    /// [`WalError::Corrupt`] if something durable is damaged or gone, [`WalError::Version`],
    /// [`WalError::Missing`], [`WalError::Io`] if the system refuses something,
    /// [`WalError::Options`].
    pub async fn open<D: Disk>(
        disk: D,
        dir: &Path,
        options: WalOptions,
        hooks: WalHooks,
    ) -> Result<(Self, WalReport), WalError> {
        options.check()?;
        let recovered = recover::recover(&disk, dir, &options).await?;
        let report = recovered.report.clone();
        let shared = Arc::new(Shared {
            log: Mutex::new(recovered.log),
            on_fatal: Mutex::new(Some(hooks.on_fatal)),
        });
        let (requests, request_queue) = mpsc::channel(QUEUE_REQUESTS);
        let (reads, read_queue) = mpsc::channel(QUEUE_READS);
        let (keeper, keeper_queue) = mpsc::channel(QUEUE_READS);
        let (ready, spares) = mpsc::channel(1);
        let (settle, unmarked) = mpsc::channel(1);
        let settler = settle::serve(disk.clone(), unmarked, requests.downgrade());
        let keeper_task =
            segment::Keeper::new(disk.clone(), dir, options.segment_bytes, &recovered.spares);
        let keeper_task = keeper_task.run(keeper_queue, ready, Arc::clone(&shared));
        let writer = writer::Writer {
            disk: disk.clone(),
            dir: dir.to_owned(),
            options: options.clone(),
            shared: Arc::clone(&shared),
            requests: request_queue,
            keeper,
            spares,
            spare_requested: false,
            settle,
            settle_requested: false,
            control: recovered.control,
            current: recovered.current,
            batch: recovered.batch,
            meta: recovered.meta,
            highest: recovered.highest,
            buf: Vec::with_capacity(options.batch_target_bytes),
            placed: Vec::new(),
        };
        let spawn = |name, task| {
            (hooks.spawn)(name, task).map_err(|e| WalError::io("start a task for", dir, e))
        };
        spawn("wal-keeper", Box::pin(keeper_task))?;
        spawn("wal-settler", Box::pin(settler))?;
        spawn("wal-reader", Box::pin(reader::serve(disk, read_queue)))?;
        spawn("wal-writer", Box::pin(writer.run()))?;
        let budget = Arc::new(Semaphore::new(options.queue_bytes as usize));
        Ok((
            Self {
                shared,
                requests,
                reads,
                budget,
                options: Arc::new(options),
            },
            report,
        ))
    }

    /// Adds entries. They must follow the log and each other; a log that is empty and was never
    /// purged takes any first index. Returns when they are readable; `on_durable` is called once
    /// they, and all that was asked before, are on disk, or with the error that ends the log.
    /// Waits only for room in the queue.
    ///
    /// # Errors
    /// [`WalError::Gap`], [`WalError::TooLarge`], [`WalError::Fatal`]: nothing was added, and
    /// `on_durable` is dropped without being called.
    pub async fn append(&self, entries: Vec<Entry>, on_durable: Callback) -> Result<(), WalError> {
        let mut total_bytes = 0_usize;
        for entry in &entries {
            let bytes = Record::stride(entry.payload.len());
            self.check_size(bytes, self.options.max_record_bytes)?;
            total_bytes += bytes;
        }
        let groups = self.split(entries);
        if groups.len() > QUEUE_REQUESTS {
            let limit_bytes = self
                .options
                .max_record_bytes
                .saturating_mul(QUEUE_REQUESTS / 2);
            return Err(WalError::TooLarge {
                bytes: total_bytes,
                limit_bytes,
            });
        }
        let want = u32::try_from(total_bytes)
            .unwrap_or(u32::MAX)
            .min(self.options.queue_bytes);
        let mut budget = Arc::clone(&self.budget)
            .acquire_many_owned(want)
            .await
            .map_err(|_| self.shared.closed())?;
        let permits = self
            .requests
            .reserve_many(groups.len())
            .await
            .map_err(|_| self.shared.closed())?;
        let mut log = self.shared.log();
        log.usable()?;
        log.check_follows(&groups)?;
        let last = groups.len() - 1;
        let mut on_durable = Some(on_durable);
        for (at, (permit, entries)) in permits.zip(groups).enumerate() {
            let append = log.append(&entries);
            let share = if at == last {
                budget.num_permits()
            } else {
                let bytes: usize = entries
                    .iter()
                    .map(|e| Record::stride(e.payload.len()))
                    .sum();
                bytes.min(budget.num_permits())
            };
            let command = Command::Append {
                append,
                entries,
                _budget: budget.split(share),
            };
            let done = if at == last { on_durable.take() } else { None };
            permit.send(Request { command, done });
        }
        Ok(())
    }

    /// Cuts entries into groups that each fit one queue slot; at least one group.
    fn split(&self, entries: Vec<Entry>) -> Vec<Vec<Entry>> {
        let mut groups = Vec::with_capacity(1);
        let mut group = Vec::with_capacity(entries.len());
        let mut bytes = 0;
        for entry in entries {
            let more = Record::stride(entry.payload.len());
            if bytes + more > self.options.max_record_bytes {
                groups.push(std::mem::take(&mut group));
                bytes = 0;
            }
            bytes += more;
            group.push(entry);
        }
        groups.push(group);
        groups
    }

    fn check_size(&self, bytes: usize, limit_bytes: usize) -> Result<(), WalError> {
        if bytes > limit_bytes {
            return Err(WalError::TooLarge { bytes, limit_bytes });
        }
        Ok(())
    }

    /// Puts a command into the queue, together with its change of memory.
    async fn submit(
        &self,
        done: Option<Callback>,
        change: impl FnOnce(&mut Log) -> Option<Command>,
    ) -> Result<bool, WalError> {
        let permit = self
            .requests
            .reserve()
            .await
            .map_err(|_| self.shared.closed())?;
        let mut log = self.shared.log();
        log.usable()?;
        let command = change(&mut log);
        let submitted = command.is_some();
        if let Some(command) = command {
            permit.send(Request { command, done });
        }
        Ok(submitted)
    }

    /// As `submit`, and waits until it is durable.
    async fn submit_durable(
        &self,
        change: impl FnOnce(&mut Log) -> Option<Command>,
    ) -> Result<(), WalError> {
        let (tx, rx) = oneshot::channel();
        let done: Callback = Box::new(move |result| {
            // A caller that went away needs no answer.
            let _ = tx.send(result);
        });
        if !self.submit(Some(done), change).await? {
            return Ok(());
        }
        rx.await.unwrap_or_else(|_| Err(self.shared.closed()))
    }

    /// Saves the vote; returns when it is durable and its loss would be noticed. At most [`MAX_META_BYTES`].
    ///
    /// # Errors
    /// [`WalError::TooLarge`], [`WalError::Fatal`].
    pub async fn save_vote(&self, vote: Bytes) -> Result<(), WalError> {
        self.check_size(vote.len(), MAX_META_BYTES)?;
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::VoteNotSynced) {
            return self
                .submit(None, |_| Some(Command::Vote(vote)))
                .await
                .map(drop);
        }
        self.submit_durable(|_| Some(Command::Vote(vote))).await
    }

    /// The last vote that is durable.
    pub fn vote(&self) -> Option<Bytes> {
        self.shared.log().vote.clone()
    }

    /// Saves the committed position. Does not wait for the disk and causes no write of its own:
    /// it rides along with the next one, or with the mark of a log that falls idle. At most [`MAX_META_BYTES`].
    ///
    /// # Errors
    /// [`WalError::TooLarge`], [`WalError::Fatal`].
    pub async fn save_committed(&self, committed: Option<Bytes>) -> Result<(), WalError> {
        self.check_size(committed.as_ref().map_or(0, Bytes::len), MAX_META_BYTES)?;
        let change = |log: &mut Log| {
            log.committed.clone_from(&committed);
            Some(Command::Committed(committed))
        };
        self.submit(None, change).await.map(drop)
    }

    /// The last committed position that was saved.
    pub fn committed(&self) -> Option<Bytes> {
        self.shared.log().committed.clone()
    }

    /// Removes the entries after index `after`, all if `None`; what is purged stays purged.
    /// Readers see it at once; returns when it is durable.
    ///
    /// # Errors
    /// [`WalError::Fatal`].
    pub async fn truncate_after(&self, after: Option<u64>) -> Result<(), WalError> {
        self.submit_durable(|log| Some(Command::Truncate(log.truncate_after(after))))
            .await
    }

    /// Removes the entries up to and including `upto`, which may lie beyond the last entry (the
    /// log is then empty, as after a snapshot from the leader). Readers see it at once; it becomes
    /// durable with the next write and the space is free after that. Call it only when the
    /// snapshot that replaces the entries is durable.
    ///
    /// # Errors
    /// [`WalError::Fatal`].
    pub async fn purge(&self, upto: LogId) -> Result<(), WalError> {
        self.submit(None, |log| log.purge(upto).then_some(Command::Purge(upto)))
            .await
            .map(drop)
    }

    /// Waits until all that was asked before is durable.
    ///
    /// # Errors
    /// [`WalError::Fatal`].
    pub async fn flush(&self) -> Result<(), WalError> {
        self.submit_durable(|_| Some(Command::Flush)).await
    }

    /// Writes what waits, leaves a durable mark of the end, and ends the tasks. All handles refuse
    /// from then on. Returns when nothing touches the folder any more.
    ///
    /// # Errors
    /// [`WalError::Fatal`].
    pub async fn close(&self) -> Result<(), WalError> {
        self.submit_durable(|_| Some(Command::Close)).await
    }

    /// Both ends of the log, as readers see it.
    pub fn log_state(&self) -> LogState {
        self.shared.log().state()
    }

    /// Reads the entries that are present in `range`, in order and without gaps. Stops before the
    /// payloads exceed `max_bytes`, but returns at least one entry if there is one. New entries
    /// come from memory; older ones are read by the reader task.
    ///
    /// # Errors
    /// [`WalError::Corrupt`] names the damaged entry, [`WalError::Io`], [`WalError::Fatal`].
    pub async fn read(
        &self,
        range: impl RangeBounds<u64>,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, WalError> {
        let plan = {
            let log = self.shared.log();
            log.usable()?;
            log.plan_read(&range, max_bytes, reader::RUN_BYTES)
        };
        if plan.cold.is_empty() {
            return Ok(plan.hot);
        }
        let mut entries = Vec::new();
        for run in plan.cold {
            let (reply, answer) = oneshot::channel();
            let request = ReadRequest { run, reply };
            self.reads
                .send(request)
                .await
                .map_err(|_| self.shared.closed())?;
            entries.extend(answer.await.map_err(|_| self.shared.closed())??);
        }
        entries.extend(plan.hot);
        Ok(entries)
    }
}
