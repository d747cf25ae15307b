//! One member of the cluster: the face of this crate.
//!
//! A [`Node`] puts together log, snapshots, state and peers, and is then asked to commit commands
//! and to read. Nothing of openraft shows.
//!
//! Invariants:
//! - Every entry is appended in the term its stamp was made in, or not at all: each proposal is
//!   tied to the leader this node took itself for. For leader loops the term is in the command too.
//! - At most `max_inflight_proposals` proposals wait; one more is refused at once.
//! - A broken log, a failed snapshot or a panic inside consensus is reported once through
//!   [`Hooks::on_fatal`], whose part it is to end the process. Nothing is acknowledged after that.
//!
//! Absent: forwarding by itself. A follower says who leads; [`Node::forward`] is for the caller.

mod admin;
mod link;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::errors::{ClientWriteError, Fatal, ForwardToLeader, InitializeError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::{Raft, RaftMetrics, ReadPolicy};
use openraft_rt::Instant as _;
use openraft_rt::watch::{Watch, WatchReceiver, WatchSender};
use tenure_machine::{Actor, Command, State};
use tenure_storage::disk::Disk;
use tenure_storage::wal::{Spawn, Wal, WalError, WalHooks, WalOptions, WalReport};
use tokio::sync::Semaphore;

use crate::config::{ConfigError, RaftConfig};
use crate::contacts::PeerContacts;
use crate::fast_failover::FastFailover;
use crate::log_store::LogStore;
use crate::network::Network;
use crate::propose::{
    AdminError, Committed, Draft, LeaderHint, ProposeError, ReadError, Stamper, Unknown,
};
use crate::service::{ForwardHandler, Heard, Installing, RaftService};
use crate::snapshots::Snapshots;
use crate::standing::{Leadership, LeadershipWatch, Role, Standing};
use crate::state_machine::{ApplyObserver, PurgeBarrier, Replica, StateMachine};
use crate::transport::{PeerService, PeerTransport};
use crate::types::{
    AsyncRuntime, CommittedLeader, EncodedEntry, Member, NodeId, StoredMembers, Types, position,
};

/// What the layers above give a node to work with.
pub struct Hooks {
    /// Makes the stamps of proposals.
    pub stamper: Arc<dyn Stamper>,
    /// Hears what is applied.
    pub observer: Arc<dyn ApplyObserver>,
    /// Comes before each purge of the log.
    pub barrier: Arc<dyn PurgeBarrier>,
    /// Serves what other nodes forward to this one.
    pub forward: Arc<dyn ForwardHandler>,
    /// Called once when the node cannot go on; must end the process.
    pub on_fatal: Box<dyn FnOnce(String) + Send>,
}

/// What a node is started with.
pub struct NodeSetup<D> {
    /// Its number.
    pub id: NodeId,
    /// Its cluster, for the log.
    pub cluster: String,
    /// Timers and limits.
    pub config: RaftConfig,
    /// Where its files are.
    pub disk: D,
    /// The folder for `log` and `snapshots`. The caller holds its lock.
    pub dir: PathBuf,
    /// Sizes of the log.
    pub wal: WalOptions,
    /// Starts tasks that work with files: threads on real disks.
    pub spawn: Spawn,
    /// Reaches the peers.
    pub transport: Arc<dyn PeerTransport>,
    /// The layers above.
    pub hooks: Hooks,
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log cannot be opened.
    #[error("log: {0}")]
    Log(#[from] WalError),
    /// The snapshots cannot be opened.
    #[error("snapshots: {0}")]
    Snapshots(std::io::Error),
    /// The log begins after what the newest good snapshot covers: state is missing.
    #[error(
        "the log was purged up to {purged}, but the newest good snapshot covers {covered}: \
         state is missing; replace this node, or restore it from a peer"
    )]
    StateMissing {
        /// Index of the last purged entry.
        purged: u64,
        /// What the snapshot covers, for people.
        covered: String,
    },
    /// Consensus did not start.
    #[error("consensus: {0}")]
    Raft(String),
    /// The runtime or the socket of the node cannot be had.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

type WriteError<R> = RaftError<Types<R>, ClientWriteError<Types<R>>>;
type OnFatal = Arc<Mutex<Option<Box<dyn FnOnce(String) + Send>>>>;

fn report_fatal(hook: &OnFatal, why: String) {
    let hook = hook.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(hook) = hook {
        tracing::error!(why, "consensus cannot go on");
        hook(why);
    }
}

struct Shared<R: AsyncRuntime> {
    id: NodeId,
    config: Arc<RaftConfig>,
    raft: Raft<Types<R>, StateMachine<R>>,
    machine: StateMachine<R>,
    wal: Wal,
    snapshots: Snapshots,
    transport: Arc<dyn PeerTransport>,
    contacts: PeerContacts<R>,
    heard: Heard<R>,
    fast_failover: Option<Arc<FastFailover<R>>>,
    stamper: Arc<dyn Stamper>,
    forward: Arc<dyn ForwardHandler>,
    leadership: LeadershipWatch<R>,
    places: Arc<Semaphore>,
    stopping: Arc<AtomicBool>,
}

/// A running member. Clones are handles of the same node; it may be used from any runtime.
pub struct Node<R: AsyncRuntime> {
    shared: Arc<Shared<R>>,
}

impl<R: AsyncRuntime> Clone for Node<R> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<R: AsyncRuntime> Node<R> {
    /// Opens log and snapshots, applies again what is in the log, and takes part. Its tasks run on
    /// the runtime this is called on, which must be an `R`.
    ///
    /// The node takes part as soon as [`service`](Self::service) is connected to the network.
    pub async fn start<D: Disk>(setup: NodeSetup<D>) -> Result<(Self, WalReport), StartError> {
        let openraft_config = Arc::new(setup.config.for_openraft(&setup.cluster)?);
        check_sizes(&setup.config, &setup.wal)?;
        let config = Arc::new(setup.config);
        let on_fatal: OnFatal = Arc::new(Mutex::new(Some(setup.hooks.on_fatal)));
        let wal_fatal = on_fatal.clone();
        let hooks = WalHooks {
            spawn: setup.spawn.clone(),
            on_fatal: Box::new(move |error| report_fatal(&wal_fatal, error.to_string())),
        };
        let (wal, report) =
            Wal::open(setup.disk.clone(), &setup.dir.join("log"), setup.wal, hooks).await?;
        let dir = setup.dir.join("snapshots");
        let snapshots_fatal = on_fatal.clone();
        let fatal = Arc::new(move |why| report_fatal(&snapshots_fatal, why));
        let snapshots = Snapshots::open(setup.disk, dir, &setup.spawn, fatal)
            .await
            .map_err(StartError::Snapshots)?;
        let machine = StateMachine::open(
            snapshots.clone(),
            setup.hooks.observer,
            setup.hooks.barrier,
            config.snapshot_floor_bytes,
        )
        .await
        .map_err(StartError::Snapshots)?;
        let log = LogStore::new(
            wal.clone(),
            config.entry_cache_bytes,
            config.append_batch_bytes,
        );
        check_nothing_missing(&log, &machine)?;
        let contacts = PeerContacts::default();
        let network = Network {
            me: setup.id,
            config: config.clone(),
            transport: setup.transport.clone(),
            snapshots: snapshots.clone(),
            contacts: contacts.clone(),
            runtime: PhantomData,
        };
        let raft = Raft::new(setup.id, openraft_config, network, log, machine.clone())
            .await
            .map_err(|e| StartError::Raft(e.to_string()))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let leadership = follow_leadership(&raft);
        watch_for_failure(&raft, on_fatal, stopping.clone());
        take_snapshots(&raft, &machine, &leadership);
        let heard = Heard::default();
        let fast_failover = FastFailover::start(
            setup.id,
            &config,
            &raft,
            &setup.transport,
            &heard,
            &leadership,
        );
        let shared = Shared {
            id: setup.id,
            places: Arc::new(Semaphore::new(config.max_inflight_proposals as usize)),
            config,
            raft,
            machine,
            wal,
            snapshots,
            transport: setup.transport,
            contacts,
            heard,
            fast_failover,
            stamper: setup.hooks.stamper,
            forward: setup.hooks.forward,
            leadership,
            stopping,
        };
        let node = Self {
            shared: Arc::new(shared),
        };
        Ok((node, report))
    }

    /// This node's number.
    pub fn id(&self) -> NodeId {
        self.shared.id
    }

    /// What answers the peers of this node; to be connected to a network.
    pub fn service(&self) -> Arc<dyn PeerService> {
        Arc::new(RaftService {
            heard: self.shared.heard.clone(),
            raft: self.shared.raft.clone(),
            core: self.shared.machine.core().clone(),
            snapshots: self.shared.snapshots.clone(),
            forward: self.shared.forward.clone(),
            fast_failover: self.shared.fast_failover.clone(),
            installing: Installing::default(),
        })
    }

    /// Makes the cluster, once, on one of its nodes, with these voters.
    pub async fn initialize(&self, members: BTreeMap<NodeId, Member>) -> Result<(), AdminError> {
        match self.shared.raft.initialize(members).await {
            Ok(()) => Ok(()),
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {
                Err(AdminError::AlreadyInitialized)
            }
            Err(RaftError::APIError(InitializeError::NotInMembers(_))) => Err(AdminError::Refused(
                format!("node {} is not among the members", self.shared.id),
            )),
            Err(RaftError::Fatal(_)) => Err(AdminError::Stopped),
        }
    }

    /// Commits and applies one command, and waits for that, at most `timeout`.
    pub async fn propose(
        &self,
        draft: Draft,
        timeout: Duration,
    ) -> Result<Committed, ProposeError> {
        let deadline = deadline::<R>(timeout);
        let outcome = self.submit(draft, deadline).await?;
        self.outcome(outcome, deadline).await
    }

    /// Commits many commands in this order as the leader of `term`; one result each, in order.
    /// When one is refused, those after it may still be accepted.
    pub async fn propose_all(
        &self,
        term: u64,
        commands: Vec<Command>,
        timeout: Duration,
    ) -> Vec<Result<Committed, ProposeError>> {
        let deadline = deadline::<R>(timeout);
        let mut submitted = Vec::with_capacity(commands.len());
        for command in commands {
            let draft = Draft {
                term: Some(term),
                actor: Actor::Scheduler,
                request: None,
                command,
            };
            submitted.push(self.submit(draft, deadline).await);
        }
        let mut results = Vec::with_capacity(submitted.len());
        for outcome in submitted {
            results.push(match outcome {
                Ok(outcome) => self.outcome(outcome, deadline).await,
                Err(error) => Err(error),
            });
        }
        results
    }

    /// Hands an entry to the log. After an error it certainly is not there.
    async fn submit(
        &self,
        draft: Draft,
        deadline: R::Instant,
    ) -> Result<Submitted<R>, ProposeError> {
        if self.shared.stopping.load(Ordering::Relaxed) {
            return Err(ProposeError::Stopped);
        }
        let asked = draft.term;
        #[cfg(feature = "planted-bugs")]
        let asked = asked.filter(|_| !tenure_planted::is(tenure_planted::Bug::TermUnchecked));
        let term = self.leading_term().ok_or_else(|| self.not_leading(asked))?;
        if let Some(asked) = asked
            && asked != term
        {
            return Err(ProposeError::StaleTerm {
                asked,
                present: term,
            });
        }
        let place = self.shared.places.clone().try_acquire_owned();
        let place = place.map_err(|_| ProposeError::Overloaded)?;
        let (responder, outcome) = ProgressResponder::<Types<R>, _>::complete_only();
        let proposal = draft.stamped(self.shared.stamper.stamp(term));
        let entry =
            EncodedEntry::encode(proposal).map_err(|e| ProposeError::Malformed(e.to_string()))?;
        let limit_bytes = self.shared.config.max_command_bytes as usize;
        let bytes = entry.bytes().len();
        if bytes > limit_bytes {
            return Err(ProposeError::TooLarge { bytes, limit_bytes });
        }
        let queued = self
            .shared
            .raft
            .write(entry)
            .with_leader(CommittedLeader::new(term))
            .responder(responder);
        match R::timeout_at(deadline, queued.into_future()).await {
            Ok(Ok(())) => Ok(Submitted {
                asked,
                outcome,
                _place: place,
            }),
            Ok(Err(_)) => Err(ProposeError::Stopped),
            // The queue has been full all the time.
            Err(_) => Err(ProposeError::Overloaded),
        }
    }

    async fn outcome(
        &self,
        submitted: Submitted<R>,
        deadline: R::Instant,
    ) -> Result<Committed, ProposeError> {
        let unknown = |why| Err(ProposeError::OutcomeUnknown(why));
        match R::timeout_at(deadline, submitted.outcome).await {
            Err(_) => unknown(Unknown::Timeout),
            Ok(Err(_)) => unknown(Unknown::Stopped),
            Ok(Ok(Ok(done))) => match done.data {
                Some(reply) => Ok(Committed {
                    at: position(done.log_id),
                    reply,
                }),
                None => Err(ProposeError::Malformed("an entry without a command".into())),
            },
            Ok(Ok(Err(ClientWriteError::ForwardToLeader(forward)))) => {
                Err(self.refused(submitted.asked, forward))
            }
            Ok(Ok(Err(ClientWriteError::LogEntryDiscarded(_)))) => unknown(Unknown::LeadLost),
            Ok(Ok(Err(
                error @ (ClientWriteError::ChangeMembershipError(_)
                | ClientWriteError::PreconditionFailed(_)),
            ))) => Err(ProposeError::Malformed(error.to_string())),
        }
    }

    /// openraft refused the entry before it was appended: the leader is not the one we stamped for.
    fn refused(&self, asked: Option<u64>, forward: ForwardToLeader<Types<R>>) -> ProposeError {
        match asked {
            Some(asked) => ProposeError::StaleTerm {
                asked,
                present: self.metrics(|m| m.current_term),
            },
            None => ProposeError::NotLeader {
                leader: hint(forward),
            },
        }
    }

    /// A state that holds everything that was acknowledged before this call. Confirmed by a
    /// majority; only on the leader.
    pub async fn read(&self, timeout: Duration) -> Result<Replica, ReadError> {
        let policy = ReadPolicy::ReadIndex;
        #[cfg(feature = "planted-bugs")]
        let policy = match tenure_planted::is(tenure_planted::Bug::ReadUnderALease) {
            true => ReadPolicy::LeaseRead,
            false => policy,
        };
        let option = openraft::LinearizerOption::from(policy).with_wait_timeout(timeout);
        let confirmed = self.shared.raft.ensure_linearizable(option);
        match R::timeout(timeout, confirmed).await {
            Err(_) => Err(ReadError::Timeout),
            Ok(Ok(_)) => Ok(self.shared.machine.core().replica()),
            Ok(Err(RaftError::Fatal(_))) => Err(ReadError::Stopped),
            Ok(Err(RaftError::APIError(error))) => Err(match error {
                openraft::errors::LinearizableReadError::ForwardToLeader(forward) => {
                    ReadError::NotLeader {
                        leader: hint(forward),
                    }
                }
                openraft::errors::LinearizableReadError::QuorumNotEnough(_) => ReadError::NoQuorum,
            }),
        }
    }

    /// This node's state as it is, which may be behind.
    pub fn stale(&self) -> Replica {
        self.shared.machine.core().replica()
    }

    /// As [`stale`](Self::stale), the state alone.
    pub fn state(&self) -> State {
        self.stale().state
    }

    /// Follows who leads.
    pub fn leadership(&self) -> LeadershipWatch<R> {
        self.shared.leadership.clone()
    }

    /// Everything this node knows now.
    pub fn standing(&self) -> Standing {
        let contacts = self.shared.contacts.all();
        let watch = self.shared.fast_failover.as_ref();
        self.metrics(|m| Standing {
            node: m.id,
            leadership: leadership_of(
                m.state,
                m.current_term,
                m.current_leader,
                &m.membership_config,
            ),
            last_log: m.last_log_index,
            committed: m.local_committed.map(position),
            applied: m.last_applied.map(position),
            snapshot: m.snapshot.map(position),
            purged: m.purged.map(position),
            quorum_age: m.last_quorum_acked.as_ref().map(|at| at.elapsed()),
            leader_age: match m.state {
                openraft::ServerState::Leader => None,
                _ => self.shared.heard.age(),
            },
            matched: m
                .replication
                .iter()
                .flatten()
                .map(|(id, at)| (*id, at.map(position)))
                .collect(),
            contacts,
            fast_failovers: watch.map_or(0, |watch| watch.elections()),
        })
    }

    /// Stops taking part, writes what waits and closes the log. What is under way ends with an
    /// unknown outcome.
    pub async fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Err(error) = self.shared.raft.shutdown().await {
            tracing::warn!(%error, "consensus did not stop cleanly");
        }
        self.close_log().await;
    }

    /// Writes what waits and closes the log, whatever consensus does.
    pub(crate) async fn close_log(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        if let Err(error) = self.shared.wal.close().await {
            tracing::warn!(%error, "the log did not close cleanly");
        }
    }

    fn metrics<T>(&self, look: impl FnOnce(&RaftMetrics<Types<R>>) -> T) -> T {
        look(&self.shared.raft.metrics().borrow_watched())
    }

    /// The term this node leads, if it does as far as it knows.
    fn leading_term(&self) -> Option<u64> {
        self.metrics(|m| {
            let leads = m.vote.committed && m.vote.leader_id.voted_for == m.id;
            leads.then_some(m.vote.leader_id.term)
        })
    }

    fn leader_hint(&self) -> Option<LeaderHint> {
        self.metrics(|m| {
            let id = m.current_leader.filter(|id| *id != m.id)?;
            let member = m.membership_config.membership().get_node(&id).cloned();
            Some(LeaderHint { id, member })
        })
    }

    /// Why this node takes nothing: the term that was asked for is over, or it does not lead.
    fn not_leading(&self, asked: Option<u64>) -> ProposeError {
        let present = self.metrics(|m| m.current_term);
        match asked.filter(|asked| *asked < present) {
            Some(asked) => ProposeError::StaleTerm { asked, present },
            None => self.not_leader(),
        }
    }

    fn not_leader(&self) -> ProposeError {
        ProposeError::NotLeader {
            leader: self.leader_hint(),
        }
    }
}

/// An entry that openraft has, and the way to learn what becomes of it.
struct Submitted<R: AsyncRuntime> {
    asked: Option<u64>,
    outcome: openraft::alias::OneshotReceiverOf<Types<R>, ClientWriteResult<Types<R>>>,
    _place: tokio::sync::OwnedSemaphorePermit,
}

fn deadline<R: AsyncRuntime>(timeout: Duration) -> R::Instant {
    R::Instant::now() + timeout
}

fn hint<R: AsyncRuntime>(forward: ForwardToLeader<Types<R>>) -> Option<LeaderHint> {
    forward.leader_id.map(|id| LeaderHint {
        id,
        member: forward.leader_node,
    })
}

/// An entry that is accepted must fit the log.
fn check_sizes(config: &RaftConfig, wal: &WalOptions) -> Result<(), ConfigError> {
    const RECORD_OVERHEAD_BYTES: usize = 1024;
    let largest = config.max_command_bytes as usize + RECORD_OVERHEAD_BYTES;
    if wal.max_record_bytes >= largest {
        return Ok(());
    }
    Err(ConfigError {
        field: "max_command_bytes",
        problem: format!(
            "is {}, but the log takes records of {} bytes with their overhead",
            config.max_command_bytes, wal.max_record_bytes
        ),
    })
}

/// The log must begin where the state ends, or before.
fn check_nothing_missing<R: AsyncRuntime>(
    log: &LogStore<R>,
    machine: &StateMachine<R>,
) -> Result<(), StartError> {
    let Some(purged) = log.purged() else {
        return Ok(());
    };
    let applied = machine.core().replica().applied;
    if applied.is_some_and(|applied| applied.index >= purged.index) {
        return Ok(());
    }
    Err(StartError::StateMissing {
        purged: purged.index,
        covered: applied.map_or("nothing".to_owned(), |at| format!("only {}", at.index)),
    })
}

fn leadership_of(
    state: openraft::ServerState,
    term: u64,
    leader: Option<NodeId>,
    members: &StoredMembers,
) -> Leadership {
    let membership = members.membership();
    Leadership {
        role: Role::from(state),
        term,
        leader: leader.map(|id| LeaderHint {
            id,
            member: membership.get_node(&id).cloned(),
        }),
        members: membership
            .nodes()
            .map(|(id, member)| (*id, member.clone()))
            .collect(),
        voters: membership.voter_ids().collect(),
    }
}

/// Publishes who leads, whenever that changes.
fn follow_leadership<R: AsyncRuntime>(
    raft: &Raft<Types<R>, StateMachine<R>>,
) -> LeadershipWatch<R> {
    let mut server = raft.server_metrics();
    let look = |server: &openraft::alias::WatchReceiverOf<
        Types<R>,
        openraft::metrics::RaftServerMetrics<Types<R>>,
    >| {
        let m = server.borrow_watched();
        leadership_of(
            m.state,
            m.vote.leader_id.term,
            m.current_leader,
            &m.membership_config,
        )
    };
    let (publish, receiver) = R::Watch::channel(look(&server));
    drop(R::spawn(async move {
        while server.changed().await.is_ok() {
            publish.send_if_different(look(&server));
        }
        publish.send_if_modified(|leadership| {
            leadership.role = Role::Stopped;
            leadership.leader = None;
            true
        });
    }));
    LeadershipWatch { receiver }
}

/// Reports the end of openraft's core, unless it was asked for.
fn watch_for_failure<R: AsyncRuntime>(
    raft: &Raft<Types<R>, StateMachine<R>>,
    on_fatal: OnFatal,
    stopping: Arc<AtomicBool>,
) {
    let mut metrics = raft.metrics();
    drop(R::spawn(async move {
        loop {
            let failure = match &metrics.borrow_and_update().running_state {
                Ok(()) => None,
                Err(Fatal::Stopped) => Some("consensus stopped by itself".to_owned()),
                Err(fatal) => Some(fatal.to_string()),
            };
            let ended = failure.is_none() && metrics.changed().await.is_err();
            let why = match failure {
                Some(why) => why,
                None if ended => "consensus ended".to_owned(),
                None => continue,
            };
            if !stopping.load(Ordering::Relaxed) {
                report_fatal(&on_fatal, why);
            }
            return;
        }
    }));
}

/// Asks openraft for a snapshot whenever the log has grown enough.
fn take_snapshots<R: AsyncRuntime>(
    raft: &Raft<Types<R>, StateMachine<R>>,
    machine: &StateMachine<R>,
    leadership: &LeadershipWatch<R>,
) {
    let (raft, core) = (raft.clone(), machine.core().clone());
    let mut leadership = leadership.clone();
    drop(R::spawn(async move {
        let stopped = async { drop(leadership.until(|l| l.role == Role::Stopped).await) };
        let asking = async {
            loop {
                core.snapshot_wanted().await;
                if raft.trigger().snapshot().await.is_err() {
                    return;
                }
            }
        };
        R::select2(stopped, asking).await;
    }));
}
