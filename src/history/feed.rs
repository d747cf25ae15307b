//! From events into the archive.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use serde::Serialize;
use tenure_machine::codec::{self, CodecError, Kind};
use tenure_machine::{Event, LogPosition, Outcome, Proposal, State};
use tenure_raft::state_machine::{Applied, ApplyObserver, PurgeBarrier};
use tenure_storage::archive::{Archive, ArchiveError, Change, SledArchive, Table, move_aside};
use tenure_storage::wal::Spawn;
use tokio::sync::{mpsc, oneshot};

use super::keys;
use super::retain::Retention;
use crate::http::Meters;
use crate::wakeups::Wakeups;
use crate::watch;

/// Runs of entries that wait for the archive before applying is held up.
const QUEUE_RUNS: usize = 1_024;

/// Why the archive cannot go on. The process ends: what is over must not be lost without a word.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The archive failed.
    #[error("archive: {0}")]
    Archive(#[from] ArchiveError),
    /// A fact cannot be written down.
    #[error("archive: {0}")]
    Codec(#[from] CodecError),
}

/// Opens the archive of a node. One that is damaged or incomplete is moved aside, and an empty one takes
/// its place; the node fills it again.
///
/// # Errors
/// The folder cannot be read or written.
pub fn open_or_rebuild(dir: &Path, cache_bytes: u64) -> Result<SledArchive, ArchiveError> {
    match SledArchive::open_dir(dir, cache_bytes) {
        Err(error) if error.heals_by_rebuild() => {
            let aside = move_aside(dir)?;
            tracing::error!(
                %error,
                moved_to = %aside.display(),
                "the archive is damaged: it is moved aside and filled again from the log and the leader"
            );
            SledArchive::open_dir(dir, cache_bytes)
        }
        opened => opened,
    }
}

/// Writes facts into an archive, in log order. Blocks; no threads, no channels.
pub struct Feeder {
    archive: Arc<dyn Archive>,
    retention: Retention,
    applied: Option<u64>,
}

impl Feeder {
    /// A feeder that goes on where the archive is.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn new(archive: Arc<dyn Archive>) -> Result<Self, FeedError> {
        let applied = archive.applied_index()?;
        Ok(Self {
            archive,
            retention: Retention::default(),
            applied,
        })
    }

    /// Writes what came of these entries. Those that are in already change nothing.
    ///
    /// # Errors
    /// The archive failed, or a fact is too large for it.
    pub fn take(&mut self, run: &[Applied]) -> Result<(), FeedError> {
        let mut changes = Vec::new();
        let mut last = None;
        for entry in run
            .iter()
            .filter(|entry| Some(entry.at.index) > self.applied)
        {
            for event in &entry.events {
                record(event, &mut changes)?;
                self.retention.note(event);
            }
            last = Some(entry.at.index);
        }
        match last {
            Some(index) => self.apply(index, changes),
            None => Ok(()),
        }
    }

    fn apply(&mut self, index: u64, mut changes: Vec<Change>) -> Result<(), FeedError> {
        changes.append(&mut self.retention.due(&*self.archive)?);
        self.archive.apply(index, &changes)?;
        self.applied = Some(index);
        Ok(())
    }

    /// Makes everything durable that follows from the entries up to `upto`.
    ///
    /// # Errors
    /// The archive failed.
    pub fn make_durable(&mut self, upto: u64) -> Result<(), FeedError> {
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::ArchiveNotDurable) {
            return Ok(());
        }
        if Some(upto) > self.applied {
            self.apply(upto, Vec::new())?;
        }
        self.archive.barrier()?;
        Ok(())
    }

    /// Takes over that the archive was filled by other means.
    fn refresh(&mut self) -> Result<(), FeedError> {
        self.applied = self.archive.applied_index()?;
        Ok(())
    }
}

fn put<T: Serialize>(table: Table, key: Vec<u8>, value: &T) -> Result<Change, CodecError> {
    Ok(Change::Put {
        table,
        key,
        value: codec::encode(Kind::ArchiveRecord, value)?,
    })
}

fn record(event: &Event, changes: &mut Vec<Change>) -> Result<(), CodecError> {
    match event {
        Event::Decided(decision) => {
            let key = keys::decision(&decision.job, decision.first_ms);
            changes.push(put(Table::FireLedger, key, decision)?);
        }
        Event::RunFinished { run, tasks } => {
            let key = keys::run_of_job(run.key.job(), run.id);
            changes.push(put(Table::Runs, keys::run(run.id), &(run, tasks))?);
            changes.push(Change::Put {
                table: Table::Runs,
                key,
                value: Vec::new(),
            });
        }
        Event::Output {
            run,
            shard,
            epoch,
            position_bytes,
            text,
        } => {
            let key = keys::output(*run, *shard, *position_bytes);
            changes.push(put(Table::RunOutput, key, &(*epoch, text))?);
        }
        Event::Audited(link) => changes.push(put(Table::Audit, keys::audit(link.seq), link)?),
        Event::RunCreated(_)
        | Event::TasksQueued { .. }
        | Event::Assigned { .. }
        | Event::CancelRequested { .. }
        | Event::Orphaned { .. }
        | Event::Replayed { .. }
        | Event::SessionOpened(_)
        | Event::SessionEnded { .. }
        | Event::JobChanged { .. }
        | Event::Refused { .. } => {}
    }
    Ok(())
}

enum Message {
    Run(Vec<Applied>),
    Durable {
        upto: u64,
        done: oneshot::Sender<io::Result<()>>,
    },
    Fill(Fill),
    AcceptGap(oneshot::Sender<u64>),
    Done(oneshot::Sender<()>),
}

/// Fills the archive anew from the chunks of another one's export.
struct Fill {
    /// Told the index that the export must reach at least: what came until then was dropped.
    started: oneshot::Sender<u64>,
    chunks: mpsc::Receiver<Vec<u8>>,
    done: oneshot::Sender<Result<(), String>>,
}

/// A filling that has begun.
pub(super) struct Filling {
    /// The index that the export must reach at least.
    pub(super) at_least: u64,
    /// Takes the chunks in order. Dropping it ends the attempt.
    pub(super) chunks: mpsc::Sender<Vec<u8>>,
    /// Told how it ended.
    pub(super) done: oneshot::Receiver<Result<(), String>>,
}

/// The feed of a node: a queue and the task behind it.
pub struct Feed {
    queue: mpsc::Sender<Message>,
    /// The index of the last entry with facts that is in a state that can be read.
    owed: AtomicU64,
    /// The index of the last entry in a state that can be read, with facts or without.
    seen: AtomicU64,
    /// The index up to which entries with facts have come through the queue.
    written: watch::Receiver<u64>,
    /// Whether the archive has every fact it should have.
    complete: watch::Sender<bool>,
    /// The highest index that a snapshot covered: entries up to it never come here.
    covered: Arc<AtomicU64>,
    fed_at_start: Option<u64>,
    wakeups: Arc<Wakeups>,
    meters: Arc<Meters>,
}

impl Feed {
    /// Starts the task. It blocks in its polls, so `spawn` gives it a thread of its own where the archive is
    /// on a real disk. `on_fatal` must end the process.
    ///
    /// # Errors
    /// The archive cannot be read or the task cannot be started.
    pub fn start(
        archive: Arc<dyn Archive>,
        wakeups: Arc<Wakeups>,
        meters: Arc<Meters>,
        spawn: &Spawn,
        on_fatal: impl FnOnce(String) + Send + 'static,
    ) -> Result<Arc<Self>, FeedError> {
        let feeder = Feeder::new(archive.clone())?;
        let fed_at_start = feeder.applied;
        let (queue, messages) = mpsc::channel(QUEUE_RUNS);
        let (progress, written) = watch::channel(0);
        let (complete, _) = watch::channel(true);
        let covered = Arc::new(AtomicU64::new(0));
        let worker = Worker {
            archive,
            feeder,
            progress,
            complete: complete.clone(),
            covered: covered.clone(),
            dropped: 0,
        };
        let work = async move {
            if let Err(error) = worker.work(messages).await {
                tracing::error!(%error, "the archive cannot go on");
                on_fatal(error.to_string());
            }
        };
        spawn("tenure-archive", Box::pin(work)).map_err(|source| ArchiveError::Io {
            action: "start a task for",
            path: "archive".into(),
            source,
        })?;
        Ok(Arc::new(Self {
            queue,
            owed: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            written,
            complete,
            covered,
            fed_at_start,
            wakeups,
            meters,
        }))
    }

    /// Whether the archive has every fact it should have.
    pub fn complete(&self) -> bool {
        *self.complete.borrow()
    }

    /// Waits until the archive misses facts.
    pub(super) async fn gap(&self) {
        // An error is not possible: this holds the sender.
        let _ = self
            .complete
            .subscribe()
            .wait_for(|complete| !complete)
            .await;
    }

    /// Waits until all facts are written, or dropped if the archive misses earlier ones, that belong to a
    /// state read before this call.
    pub async fn settled(&self) {
        let owed = self.owed.load(Ordering::Acquire);
        // An error means that the task has ended, and the process with it.
        let _ = self
            .written
            .clone()
            .wait_for(|written| *written >= owed)
            .await;
    }

    /// Lets the archive say up to where this node has come, also where the last entries had no facts: else another
    /// one that misses facts up to there would wait for facts that never come.
    ///
    /// # Errors
    /// The archive has stopped.
    pub async fn catch_up(&self) -> io::Result<()> {
        // In this order: what is owed up to `seen` is written before that is claimed.
        let upto = self.seen.load(Ordering::Acquire);
        self.settled().await;
        self.durable(upto).await
    }

    async fn durable(&self, upto: u64) -> io::Result<()> {
        // While facts are missing the archive must not claim this index: it is filled first.
        if !self.complete() {
            return Ok(());
        }
        let (done, answer) = oneshot::channel();
        let message = Message::Durable { upto, done };
        let stopped = || io::Error::other("the archive has stopped");
        self.queue.send(message).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Begins to fill the archive anew from another one's export. From now on what is applied waits in the
    /// queue, so nothing falls between the export and it.
    pub(super) async fn fill(&self) -> Option<Filling> {
        let (started, at_least) = oneshot::channel();
        let (chunks, receiver) = mpsc::channel(2);
        let (done, ended) = oneshot::channel();
        let fill = Fill {
            started,
            chunks: receiver,
            done,
        };
        self.queue.send(Message::Fill(fill)).await.ok()?;
        Some(Filling {
            at_least: at_least.await.ok()?,
            chunks,
            done: ended,
        })
    }

    /// Goes on without the facts that are missing. Says up to which index they are.
    pub(super) async fn accept_gap(&self) -> Option<u64> {
        let (done, answer) = oneshot::channel();
        self.queue.send(Message::AcceptGap(done)).await.ok()?;
        answer.await.ok()
    }

    /// The entries up to here came as a snapshot, without what came of them.
    fn misses(&self, upto: u64) {
        self.covered.fetch_max(upto, Ordering::AcqRel);
        self.complete.send_replace(false);
    }

    /// Writes what waits, and returns.
    pub async fn flush(&self) {
        let (done, answer) = oneshot::channel();
        if self.queue.send(Message::Done(done)).await.is_ok() {
            let _ = answer.await;
        }
    }
}

impl ApplyObserver for Feed {
    fn restored(&self, at: LogPosition) {
        if self.fed_at_start < Some(at.index) {
            tracing::warn!(
                fed = self.fed_at_start,
                covered = at.index,
                "the archive misses facts that the snapshot covers: it is filled from another member"
            );
            self.misses(at.index);
        }
    }

    /// Notes under the lock of the state that facts are on their way. Whoever reads a state in which a run is
    /// over knows so that it has to wait for the archive, even before the events are handed over.
    fn checked(&self, at: LogPosition, entry: Option<(&Proposal, &Outcome)>) {
        if entry.is_some_and(|(_, outcome)| !outcome.events.is_empty()) {
            self.owed.fetch_max(at.index, Ordering::AcqRel);
        }
        self.seen.fetch_max(at.index, Ordering::AcqRel);
    }

    fn applied(&self, run: Vec<Applied>) -> BoxFuture<'_, ()> {
        for entry in &run {
            self.wakeups.tell(&entry.events);
            // What comes again after a restart was measured when it happened.
            if Some(entry.at.index) > self.fed_at_start {
                self.meters.tell(&entry.events);
            }
        }
        Box::pin(async move {
            // An error means that the task has ended, and the process with it.
            let _ = self.queue.send(Message::Run(run)).await;
        })
    }

    fn replaced(&self, at: LogPosition, _state: State) -> BoxFuture<'_, ()> {
        tracing::info!(
            index = at.index,
            "the state came from the leader; the archive is behind it"
        );
        self.misses(at.index);
        Box::pin(std::future::ready(()))
    }
}

impl PurgeBarrier for Feed {
    fn make_durable(&self, upto: LogPosition) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(self.durable(upto.index))
    }
}

struct Worker {
    archive: Arc<dyn Archive>,
    feeder: Feeder,
    progress: watch::Sender<u64>,
    complete: watch::Sender<bool>,
    covered: Arc<AtomicU64>,
    /// The last index whose facts were dropped because the archive misses earlier ones.
    dropped: u64,
}

impl Worker {
    async fn work(mut self, mut messages: mpsc::Receiver<Message>) -> Result<(), FeedError> {
        while let Some(message) = messages.recv().await {
            match message {
                Message::Run(run) => {
                    self.run(&run)?;
                    if let Some(last) = run.last() {
                        self.progress.send_replace(last.at.index);
                    }
                }
                // A gap may have opened since it was asked; only here it is known for certain.
                Message::Durable { done, .. } if !*self.complete.borrow() => {
                    let _ = done.send(Ok(()));
                }
                Message::Durable { upto, done } => {
                    let result = self.feeder.make_durable(upto);
                    let failed = result.is_err();
                    let _ = done.send(result.map_err(io::Error::other));
                    if failed {
                        // The archive may be behind what it says: it must be opened anew.
                        return Err(ArchiveError::Io {
                            action: "make durable",
                            path: "archive".into(),
                            source: io::Error::other("a barrier failed"),
                        }
                        .into());
                    }
                }
                Message::Fill(fill) => self.fill(fill).await?,
                Message::AcceptGap(done) => {
                    let upto = self.missing_upto();
                    self.feeder.make_durable(upto)?;
                    self.close_gap(upto);
                    let _ = done.send(upto);
                }
                Message::Done(done) => {
                    self.archive.barrier()?;
                    let _ = done.send(());
                }
            }
        }
        Ok(())
    }

    /// While facts are missing nothing is written: the archive must not get past the gap, or a restart
    /// would not see it. What is dropped here comes with the export.
    fn run(&mut self, run: &[Applied]) -> Result<(), FeedError> {
        if *self.complete.borrow() {
            return self.feeder.take(run);
        }
        if let Some(last) = run.last() {
            self.dropped = self.dropped.max(last.at.index);
        }
        Ok(())
    }

    /// Says that nothing is missing, if nothing is beyond `upto`. Another thread may open a gap at any moment: it
    /// says first up to where, then that there is one, so a gap that opens meanwhile is seen afterwards.
    fn close_gap(&self, upto: u64) -> bool {
        if self.missing_upto() > upto {
            return false;
        }
        self.complete.send_replace(true);
        let closed = self.missing_upto() <= upto;
        if !closed {
            self.complete.send_replace(false);
        }
        closed
    }

    /// The last index whose facts did not come here.
    fn missing_upto(&self) -> u64 {
        self.dropped.max(self.covered.load(Ordering::Acquire))
    }

    /// A bad or missing chunk ends this attempt; a failing archive ends the process.
    async fn fill(&mut self, fill: Fill) -> Result<(), FeedError> {
        let Fill {
            started,
            mut chunks,
            done,
        } = fill;
        let at_least = self.missing_upto();
        let _ = started.send(at_least);
        let ended = loop {
            let Some(chunk) = chunks.recv().await else {
                break Err("the export ended early".to_owned());
            };
            match self.archive.import(&chunk) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error @ ArchiveError::BadChunk(_)) => break Err(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        };
        let ended = match ended {
            Ok(()) => {
                self.archive.barrier()?;
                self.feeder.refresh()?;
                let reached = self.feeder.applied.unwrap_or(0);
                if self.close_gap(reached) {
                    Ok(())
                } else {
                    Err(format!(
                        "the export reaches to {reached}, not to {at_least}"
                    ))
                }
            }
            Err(why) => Err(why),
        };
        let _ = done.send(ended);
        Ok(())
    }
}
