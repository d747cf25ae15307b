//! openraft's state machine over [`tenure_machine::State`].
//!
//! The state is in memory. On disk there are snapshots of it; after a restart the newest good one
//! is loaded and the log after it is applied again. So observers hear of entries again that they
//! heard of before the restart, and must take that well.
//!
//! Invariants:
//! - Entries are applied in runs; the lock is held for one run and never across an `await`.
//! - A snapshot is a clone of the state, which costs nothing, written out elsewhere while `apply`
//!   goes on. It is known to openraft, and thus to the purge of the log, only when it is durable
//!   *and* the [`PurgeBarrier`] has passed.
//! - A snapshot from a leader is verified and decoded before it replaces anything.
//! - Whoever reads gets a clone: a consistent state at one place of the log.

use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use tenure_machine::{Event, LogPosition, Outcome, Proposal, State};

use crate::snapshots::{Image, SnapshotFile, Snapshots};
use crate::types::{
    ApplyReply, AsyncRuntime, LogId, Payload, SnapshotMeta, StoredMembers, Types, position,
};

/// Most entries applied under one hold of the lock.
const RUN_ENTRIES: usize = 64;

/// What came of one entry.
#[derive(Debug, Clone)]
pub struct Applied {
    /// Its place in the log.
    pub at: LogPosition,
    /// What happened, in order.
    pub events: Vec<Event>,
}

/// Hears what is applied on this node, in the order of the log.
pub trait ApplyObserver: Send + Sync + 'static {
    /// The node starts from a snapshot up to `at`; nothing of what it covers will be heard. Called
    /// once, before anything else.
    fn restored(&self, at: LogPosition) {
        let _ = at;
    }

    /// An entry was applied with this outcome; entries without a command come with `None`. Told of each
    /// entry in the order of the log, under the lock of the state: it must be quick. For those that check
    /// what is applied; whoever acts on it takes [`applied`](Self::applied).
    fn checked(&self, at: LogPosition, entry: Option<(&Proposal, &Outcome)>) {
        let _ = (at, entry);
    }

    /// A run of entries that caused events. Applying goes on when the future is done, so an
    /// observer with a full queue holds it up; it must not wait for anything that waits for
    /// applying. After a restart, entries come again that came before it.
    fn applied(&self, run: Vec<Applied>) -> BoxFuture<'_, ()>;

    /// The state was replaced by a snapshot from the leader, up to `at`; the events in between
    /// will not be heard.
    fn replaced(&self, at: LogPosition, state: State) -> BoxFuture<'_, ()>;
}

/// What must be durable before the log may be purged.
pub trait PurgeBarrier: Send + Sync + 'static {
    /// Returns when everything that was derived from the entries up to `upto` is durable. The log
    /// of these entries may be gone afterwards. An error stops the node.
    fn make_durable(&self, upto: LogPosition) -> BoxFuture<'_, io::Result<()>>;
}

/// A consistent state at one place of the log. Cheap to make and to clone.
#[derive(Debug, Clone, Default)]
pub struct Replica {
    /// The state.
    pub state: State,
    /// The last entry in it.
    pub applied: Option<LogPosition>,
}

struct Current {
    state: State,
    last: Option<LogId>,
    members: StoredMembers,
    snapshot: Option<(SnapshotMeta, SnapshotFile)>,
}

/// What the adapter, the snapshot builder and readers share.
pub(crate) struct Core {
    current: Mutex<Current>,
    snapshots: Snapshots,
    observer: Arc<dyn ApplyObserver>,
    barrier: Arc<dyn PurgeBarrier>,
    /// Bytes of log applied since the last snapshot began, and how many call for a new one.
    log_bytes: AtomicU64,
    threshold_bytes: AtomicU64,
    floor_bytes: u64,
    building: AtomicBool,
}

impl Core {
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state as it is now.
    pub(crate) fn replica(&self) -> Replica {
        let current = self.current();
        Replica {
            state: current.state.clone(),
            applied: current.last.map(position),
        }
    }

    /// Waits until a snapshot is due.
    pub(crate) async fn snapshot_wanted(&self) {
        self.snapshots.one_wanted().await;
    }

    /// Takes a snapshot as the current one, unless there is a newer one.
    fn adopt(&self, meta: &SnapshotMeta, file: SnapshotFile) -> bool {
        let mut current = self.current();
        let newest = current.snapshot.as_ref().map(|(meta, _)| meta.last_log_id);
        let newer = newest.is_none_or(|newest| newest <= meta.last_log_id);
        if newer {
            current.snapshot = Some((meta.clone(), file));
        }
        newer
    }

    /// Whether this is the current snapshot.
    pub(crate) fn uses(&self, file: &SnapshotFile) -> bool {
        let current = self.current();
        current.snapshot.as_ref().is_some_and(|(_, f)| f == file)
    }

    fn set_threshold(&self, snapshot_bytes: u64) {
        let threshold = snapshot_bytes.max(self.floor_bytes);
        self.threshold_bytes.store(threshold, Ordering::Relaxed);
    }

    fn count_log_bytes(&self, bytes: u64) {
        let total = self.log_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if total >= self.threshold_bytes.load(Ordering::Relaxed)
            && !self.building.load(Ordering::Relaxed)
        {
            self.snapshots.want_one();
        }
    }
}

/// The adapter. Clones share the state.
pub struct StateMachine<R> {
    core: Arc<Core>,
    runtime: PhantomData<fn() -> R>,
}

impl<R> Clone for StateMachine<R> {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            runtime: PhantomData,
        }
    }
}

impl<R> StateMachine<R> {
    /// Starts from the newest good snapshot in `snapshots`, or from nothing.
    pub async fn open(
        snapshots: Snapshots,
        observer: Arc<dyn ApplyObserver>,
        barrier: Arc<dyn PurgeBarrier>,
        floor_bytes: u64,
    ) -> io::Result<Self> {
        let newest = snapshots.load_newest().await?;
        let (state, snapshot) = match newest {
            Some((image, file)) => (image.state, Some((image.meta, file))),
            None => (State::default(), None),
        };
        let meta = snapshot.as_ref().map(|(meta, _)| meta.clone());
        if let Some(last) = meta.as_ref().and_then(|meta| meta.last_log_id) {
            observer.restored(position(last));
        }
        let snapshot_bytes = snapshot.as_ref().map_or(0, |(_, file)| file.total_bytes());
        let core = Core {
            current: Mutex::new(Current {
                state,
                last: meta.as_ref().and_then(|meta| meta.last_log_id),
                members: meta.map(|meta| meta.last_membership).unwrap_or_default(),
                snapshot,
            }),
            snapshots,
            observer,
            barrier,
            log_bytes: AtomicU64::new(0),
            threshold_bytes: AtomicU64::new(0),
            floor_bytes,
            building: AtomicBool::new(false),
        };
        core.set_threshold(snapshot_bytes);
        Ok(Self {
            core: Arc::new(core),
            runtime: PhantomData,
        })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

/// What a run of entries comes to.
struct Run<R: AsyncRuntime> {
    replies: Vec<(ApplyResponder<Types<R>>, ApplyReply)>,
    heard: Vec<Applied>,
    bytes: u64,
}

impl<R: AsyncRuntime> StateMachine<R> {
    fn apply_run(&self, entries: Vec<EntryResponder<Types<R>>>) -> Run<R> {
        let mut run = Run {
            replies: Vec::with_capacity(entries.len()),
            heard: Vec::new(),
            bytes: 0,
        };
        let mut current = self.core.current();
        for (entry, responder) in entries {
            current.last = Some(entry.log_id);
            let reply = match entry.payload {
                Payload::Blank => {
                    self.core.observer.checked(position(entry.log_id), None);
                    None
                }
                Payload::Membership(members) => {
                    current.members = StoredMembers::new(Some(entry.log_id), members);
                    self.core.observer.checked(position(entry.log_id), None);
                    None
                }
                Payload::Normal(command) => {
                    let at = position(entry.log_id);
                    run.bytes += command.bytes().len() as u64;
                    let outcome = current.state.apply(at, command.proposal());
                    let entry = Some((command.proposal(), &outcome));
                    self.core.observer.checked(at, entry);
                    if !outcome.events.is_empty() {
                        let events = outcome.events;
                        run.heard.push(Applied { at, events });
                    }
                    Some(outcome.reply)
                }
            };
            if let Some(responder) = responder {
                run.replies.push((responder, reply));
            }
        }
        run
    }
}

impl<R: AsyncRuntime> RaftStateMachine<Types<R>> for StateMachine<R> {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder<R>;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembers)> {
        let current = self.core.current();
        Ok((current.last, current.members.clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<R>>>> + Unpin + OptionalSend,
    {
        let mut runs = entries.ready_chunks(RUN_ENTRIES);
        while let Some(run) = runs.next().await {
            let run = self.apply_run(run.into_iter().collect::<io::Result<_>>()?);
            for (responder, reply) in run.replies {
                responder.send(reply);
            }
            self.core.count_log_bytes(run.bytes);
            if !run.heard.is_empty() {
                self.core.observer.applied(run.heard).await;
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<R> {
        let core = self.core.clone();
        core.building.store(true, Ordering::Relaxed);
        core.log_bytes.store(0, Ordering::Relaxed);
        let current = core.current();
        let image = Image {
            state: current.state.clone(),
            meta: SnapshotMeta {
                last_log_id: current.last,
                last_membership: current.members.clone(),
            },
        };
        drop(current);
        SnapshotBuilder {
            core,
            image,
            runtime: PhantomData,
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotFile,
    ) -> io::Result<()> {
        let index = meta.last_log_id.map_or(0, |id| id.index);
        let snapshot = self.core.snapshots.bring_in(snapshot, index).await?;
        let image = self.core.snapshots.load(&snapshot).await?;
        if image.meta != *meta {
            let what = "the snapshot does not cover what its sender said";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        if let Some(last) = meta.last_log_id {
            let (at, state) = (position(last), image.state.clone());
            self.core.observer.replaced(at, state).await;
            self.core.barrier.make_durable(at).await?;
        }
        self.core.set_threshold(snapshot.total_bytes());
        self.core.log_bytes.store(0, Ordering::Relaxed);
        *self.core.current() = Current {
            state: image.state,
            last: meta.last_log_id,
            members: meta.last_membership.clone(),
            snapshot: Some((meta.clone(), snapshot.clone())),
        };
        self.core.snapshots.drop_older(&snapshot).await
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<openraft::alias::SnapshotOf<Types<R>, SnapshotFile>>> {
        let current = self.core.current();
        let snapshot = current.snapshot.clone();
        Ok(snapshot.map(|(meta, snapshot)| openraft::Snapshot { meta, snapshot }))
    }
}

/// Writes out one clone of the state.
pub struct SnapshotBuilder<R> {
    core: Arc<Core>,
    image: Image,
    runtime: PhantomData<fn() -> R>,
}

impl<R: AsyncRuntime> RaftSnapshotBuilder<Types<R>> for SnapshotBuilder<R> {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(
        &mut self,
    ) -> io::Result<openraft::alias::SnapshotOf<Types<R>, SnapshotFile>> {
        let meta = self.image.meta.clone();
        // A restart begins from the newest snapshot and hears nothing of what it covers. So whatever was
        // derived from that must be durable before the snapshot can be found.
        if let Some(last) = meta.last_log_id {
            self.core.barrier.make_durable(position(last)).await?;
        }
        let file = self.core.snapshots.write(self.image.clone()).await?;
        self.core.set_threshold(file.total_bytes());
        if self.core.adopt(&meta, file.clone()) {
            self.core.snapshots.drop_older(&file).await?;
        }
        Ok(openraft::Snapshot {
            meta,
            snapshot: file,
        })
    }
}

impl<R> Drop for SnapshotBuilder<R> {
    fn drop(&mut self) {
        self.core.building.store(false, Ordering::Relaxed);
    }
}
