//! The parts of a node that are the same wherever it runs: the feed of the archive, the gateway, the
//! leader's loop, and what serves the other nodes. A process puts real clocks, files and sockets around
//! them, a simulation its own.
//!
//! In two steps, because consensus needs some of the parts and the others need consensus: [`Frame::new`],
//! then the caller starts its consensus with [`Frame::hooks`], then [`Frame::complete`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tenure_machine::codec::{self, Kind};
use tenure_raft::node::{Hooks, Node};
use tenure_raft::service::ForwardHandler;
use tenure_raft::state_machine::ApplyObserver;
use tenure_raft::types::AsyncRuntime;
use tenure_storage::archive::Archive;
use tenure_storage::wal::Spawn;

use crate::blocking::Blocking;
use crate::clock::{Clock, Stamper};
use crate::consensus::{LinkMessage, RaftConsensus, Timeouts};
use crate::history::{ArchiveHistory, ArchiveQuestion, Feed, FeedError, heal, serve_export};
use crate::http::{self, Gateway, Limits, Meters, Parts, WeakGateway};
use crate::leader::{self, LeaderConfig};
use crate::security::{Entropy, EntropyError, Tokens};
use crate::wakeups::Wakeups;

/// Told once or more often why a node cannot go on; must end it.
pub type OnFatal = Arc<dyn Fn(String) + Send + Sync>;

/// What a node takes from the world around it.
pub struct Surroundings {
    /// The machine's clocks.
    pub clock: Arc<dyn Clock>,
    /// Random numbers.
    pub entropy: Arc<dyn Entropy>,
    /// What is over.
    pub archive: Arc<dyn Archive>,
    /// Starts tasks that work with files.
    pub spawn: Spawn,
    /// Where other work that blocks is done.
    pub blocking: Blocking,
    /// Ends the node.
    pub on_fatal: OnFatal,
}

/// The parts of a node that are there before consensus.
pub struct Frame {
    surroundings: Surroundings,
    wakeups: Arc<Wakeups>,
    meters: Arc<Meters>,
    stamper: Arc<Stamper>,
    feed: Arc<Feed>,
    forwarded: Arc<Forwarded>,
}

/// What a node is told about itself.
pub struct Settings {
    /// Its cluster.
    pub cluster_id: String,
    /// Who may do what.
    pub tokens: Arc<Tokens>,
    /// Bounds of the interface.
    pub limits: Limits,
    /// How it leads.
    pub leader: LeaderConfig,
    /// Raft's longest election timeout, in milliseconds.
    pub election_timeout_max_ms: u64,
}

/// A node's parts, put together.
pub struct Assembly<R: AsyncRuntime> {
    /// Consensus as handlers and loops see it.
    pub consensus: Arc<RaftConsensus<R>>,
    /// The feed of the archive.
    pub feed: Arc<Feed>,
    /// The way in.
    pub gateway: Gateway,
    /// What must run beside them for as long as the node runs.
    pub loops: Vec<BoxFuture<'static, ()>>,
}

impl Frame {
    /// Starts the feed of the archive and makes the clocks.
    ///
    /// # Errors
    /// The archive cannot be read, or its task cannot be started.
    pub fn new(surroundings: Surroundings) -> Result<Self, FeedError> {
        let wakeups = Wakeups::new();
        let meters = Arc::new(Meters::default());
        let stamper = Stamper::new(surroundings.clock.clone());
        let fatal = surroundings.on_fatal.clone();
        let feed = Feed::start(
            surroundings.archive.clone(),
            wakeups.clone(),
            meters.clone(),
            &surroundings.spawn,
            move |why| fatal(why),
        )?;
        let forwarded = Arc::new(Forwarded {
            gateway: OnceLock::new(),
            archive: surroundings.archive.clone(),
            feed: feed.clone(),
            blocking: surroundings.blocking,
        });
        Ok(Self {
            surroundings,
            wakeups,
            meters,
            stamper,
            feed,
            forwarded,
        })
    }

    /// Hears what is applied. Whoever puts something in its place must pass everything on.
    pub fn observer(&self) -> Arc<dyn ApplyObserver> {
        self.feed.clone()
    }

    /// What consensus is started with.
    pub fn hooks(&self) -> Hooks {
        let fatal = self.surroundings.on_fatal.clone();
        Hooks {
            stamper: self.stamper.clone(),
            observer: self.observer(),
            barrier: self.feed.clone(),
            forward: self.forwarded.clone(),
            on_fatal: Box::new(move |why| fatal(why)),
        }
    }

    /// Puts the rest around consensus.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn complete<R: AsyncRuntime>(
        self,
        node: Node<R>,
        settings: Settings,
    ) -> Result<Assembly<R>, EntropyError> {
        let timeouts = Timeouts {
            quorum: Duration::from_millis(2 * settings.election_timeout_max_ms),
            ..Timeouts::default()
        };
        let consensus = RaftConsensus::new(node, self.stamper.clone(), timeouts);
        let blocking = self.surroundings.blocking;
        let archive = self.surroundings.archive;
        let parts = Parts {
            consensus: consensus.clone(),
            history: ArchiveHistory::new(archive, self.feed.clone(), blocking),
            wakeups: self.wakeups.clone(),
            tokens: settings.tokens,
            meters: self.meters,
            limits: settings.limits,
            blocking,
        };
        let gateway = Gateway::new(parts, &*self.surroundings.entropy)?;
        // Nothing was forwarded to this node before: it is set once.
        let _ = self.forwarded.gateway.set(gateway.downgrade());
        let loops: Vec<BoxFuture<'static, ()>> = vec![
            Box::pin(consensus.clone().watch()),
            Box::pin(leader::lead(
                consensus.clone(),
                self.stamper,
                self.wakeups,
                settings.cluster_id.as_str().into(),
                settings.leader,
            )),
            Box::pin(heal(consensus.clone(), self.feed.clone())),
        ];
        Ok(Assembly {
            consensus,
            feed: self.feed,
            gateway,
            loops,
        })
    }
}

/// Serves what the other nodes forward to this one.
struct Forwarded {
    /// Not held: it holds consensus, which holds this.
    gateway: OnceLock<WeakGateway>,
    archive: Arc<dyn Archive>,
    feed: Arc<Feed>,
    blocking: Blocking,
}

impl ForwardHandler for Forwarded {
    fn forwarded(&self, _from: u64, request: Bytes) -> BoxFuture<'static, Bytes> {
        let gateway = self.gateway.get().and_then(WeakGateway::upgrade);
        let (archive, blocking) = (self.archive.clone(), self.blocking);
        let feed = self.feed.clone();
        Box::pin(async move {
            match (LinkMessage::unwrap(&request), gateway) {
                (Some((LinkMessage::Http, request)), Some(gateway)) => {
                    http::serve_forwarded(&gateway, request).await.into()
                }
                (Some((LinkMessage::Archive, question)), _) => {
                    let answer = answer_archive(archive, &feed, blocking, question).await;
                    answer.unwrap_or_default().into()
                }
                // Nothing that looks like an answer: the other side reports it as such.
                (Some((LinkMessage::Http, _)), None) | (None, _) => Bytes::new(),
            }
        })
    }
}

/// `None` where there is nothing to answer: the other side reports it as such.
async fn answer_archive(
    archive: Arc<dyn Archive>,
    feed: &Feed,
    blocking: Blocking,
    question: &[u8],
) -> Option<Vec<u8>> {
    let question: ArchiveQuestion = codec::decode(Kind::PeerMessage, question).ok()?;
    // An export begins: it says up to where it reaches.
    if question.cursor.is_none() && question.at_least > 0 {
        feed.catch_up().await.ok()?;
    }
    let complete = feed.complete();
    let answer = blocking.run(move || serve_export(&*archive, complete, &question));
    codec::encode(Kind::PeerMessage, &answer.await.ok()?).ok()
}
