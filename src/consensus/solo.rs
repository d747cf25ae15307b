//! A cluster of one in memory.

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tenure_machine::{Actor, Command, Event, LogPosition, Stamp, State};
use tenure_raft::state_machine::Replica;

use super::{
    Committed, Consensus, ConsensusError, Draft, MemberStanding, NewMember, NodeHint, Standing,
};
use crate::watch;

/// A single replica in memory that leads itself, for tests of handlers and loops.
pub struct Solo {
    inner: Mutex<SoloInner>,
    standing: watch::Sender<Standing>,
    observe: Observe,
}

type Observe = Arc<dyn Fn(LogPosition, &[Event]) + Send + Sync>;

struct SoloInner {
    state: State,
    at: LogPosition,
    now: Stamp,
}

impl Solo {
    /// A cluster of one at the given time. `observe` is told of every entry's events.
    pub fn new(
        now: Stamp,
        observe: impl Fn(LogPosition, &[Event]) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let at = LogPosition { term: 1, index: 0 };
        let hint = NodeHint {
            id: 1,
            http_url: "http://127.0.0.1:1".into(),
        };
        let standing = Standing {
            node: 1,
            term: 1,
            leads: true,
            leader: Some(hint.clone()),
            members: vec![MemberStanding {
                id: 1,
                http_url: hint.http_url,
                voter: true,
                ..MemberStanding::default()
            }],
            ..Standing::default()
        };
        let solo = Arc::new(Self {
            inner: Mutex::new(SoloInner {
                state: State::new(),
                at,
                now,
            }),
            standing: watch::channel(standing).0,
            observe: Arc::new(observe),
        });
        solo.apply(Draft {
            term: None,
            actor: Actor::Scheduler,
            request: None,
            command: Command::Bootstrap {
                cluster_id: "solo".into(),
                generation: 1,
            },
        });
        solo
    }

    /// Lets both clocks run.
    pub fn advance(&self, by_ms: u64) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.now.lease_ms += by_ms;
        inner.now.calendar_ms += by_ms;
    }

    /// Takes the lead away, or gives it back.
    pub fn set_leads(&self, leads: bool) {
        self.standing.send_modify(|standing| {
            standing.leads = leads;
            if !leads {
                standing.leader = None;
            }
        });
    }

    /// How long the majority has been silent.
    pub fn set_quorum_age_ms(&self, age_ms: u64) {
        self.standing
            .send_modify(|standing| standing.quorum_age_ms = Some(age_ms));
    }

    fn apply(&self, draft: Draft) -> Committed {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.at.index += 1;
        let (at, now) = (inner.at, inner.now);
        let outcome = inner.state.apply(at, &draft.stamped(now));
        drop(inner);
        (self.observe)(at, &outcome.events);
        self.standing.send_modify(|standing| {
            standing.last_log = at.index;
            standing.applied = at.index;
            standing.committed = at.index;
        });
        Committed {
            at,
            reply: outcome.reply,
        }
    }

    fn lead(&self) -> Result<(), ConsensusError> {
        if self.standing.borrow().leads {
            return Ok(());
        }
        Err(ConsensusError::NotLeader { leader: None })
    }
}

impl Consensus for Solo {
    fn propose(&self, draft: Draft) -> BoxFuture<'_, Result<Committed, ConsensusError>> {
        Box::pin(async move { self.lead().map(|()| self.apply(draft)) })
    }

    fn propose_all(
        &self,
        term: u64,
        commands: Vec<Command>,
    ) -> BoxFuture<'_, Vec<Result<Committed, ConsensusError>>> {
        let drafts = commands.into_iter().map(move |command| Draft {
            term: Some(term),
            actor: Actor::Scheduler,
            request: None,
            command,
        });
        let results = drafts
            .map(|draft| self.lead().map(|()| self.apply(draft)))
            .collect();
        Box::pin(std::future::ready(results))
    }

    fn read(&self) -> BoxFuture<'_, Result<Replica, ConsensusError>> {
        Box::pin(async move { self.lead().map(|()| self.stale()) })
    }

    fn stale(&self) -> Replica {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Replica {
            state: inner.state.clone(),
            applied: Some(inner.at),
        }
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    fn now(&self) -> Stamp {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .now
    }

    fn forward(&self, _request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
        Box::pin(std::future::ready(Err(ConsensusError::NotLeader {
            leader: None,
        })))
    }

    fn ask_archive(
        &self,
        _member: u64,
        _question: Vec<u8>,
    ) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
        Box::pin(std::future::ready(Err(ConsensusError::NotLeader {
            leader: None,
        })))
    }

    fn initialize(&self, _members: Vec<NewMember>) -> BoxFuture<'_, Result<(), ConsensusError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
