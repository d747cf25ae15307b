//! What the handlers work with, and the bounds they keep.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_api::ErrorCode;
use tenure_machine::plan::Planner;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::Failure;
use super::history::History;
use super::metrics::Meters;
use crate::blocking::Blocking;
use crate::consensus::Consensus;
use crate::security::{Entropy, EntropyError, Tokens};
use crate::wakeups::Wakeups;

/// Bounds of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub body_bytes: usize,
    /// Administration requests under way at once.
    pub admin_requests: usize,
    /// Executor calls under way at once, long polls not counted. A class of their own, so that lists and
    /// exports cannot starve heartbeats.
    pub executor_requests: usize,
    /// Long polls under way at once: one an executor, and some for those that come back.
    pub polls: usize,
    /// How long the body of a request may take to arrive.
    pub receive: Duration,
    /// How long a request may take from then on, the wait of a long poll not counted.
    pub handle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1024 * 1024,
            admin_requests: 256,
            executor_requests: 4096,
            polls: 24_000,
            receive: Duration::from_secs(10),
            handle: Duration::from_secs(15),
        }
    }
}

/// Which requests share a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// No bound: the health check.
    Free,
    /// People and programs that administer.
    Admin,
    /// Calls of executors.
    Executor,
    /// Long polls of executors.
    Poll,
}

/// What a gateway is made of.
pub struct Parts {
    /// Consensus.
    pub consensus: Arc<dyn Consensus>,
    /// The archive.
    pub history: Arc<dyn History>,
    /// Who is woken when.
    pub wakeups: Arc<Wakeups>,
    /// Who may do what.
    pub tokens: Arc<Tokens>,
    /// What was measured on this node.
    pub meters: Arc<Meters>,
    /// Bounds.
    pub limits: Limits,
    /// Where long computations are done.
    pub blocking: Blocking,
}

/// The way from HTTP to the node. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    pub(crate) shared: Arc<Shared>,
}

/// A gateway that is there as long as somebody else holds it.
pub(crate) struct WeakGateway(Weak<Shared>);

impl WeakGateway {
    pub(crate) fn upgrade(&self) -> Option<Gateway> {
        self.0.upgrade().map(|shared| Gateway { shared })
    }
}

/// What the clones of a gateway share.
pub(crate) struct Shared {
    pub(crate) consensus: Arc<dyn Consensus>,
    pub(crate) history: Arc<dyn History>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) limits: Limits,
    pub(crate) blocking: Blocking,
    admin: Arc<Semaphore>,
    executor: Arc<Semaphore>,
    polls: Arc<Semaphore>,
    planner: Mutex<Planner>,
    request_prefix: String,
    requests: AtomicU64,
}

impl Gateway {
    pub(crate) fn downgrade(&self) -> WeakGateway {
        WeakGateway(Arc::downgrade(&self.shared))
    }

    /// A gateway of these parts. The entropy makes the ids of its requests differ from those before a
    /// restart.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn new(parts: Parts, entropy: &dyn Entropy) -> Result<Self, EntropyError> {
        let mut prefix = [0; 6];
        entropy.fill(&mut prefix)?;
        let Parts {
            consensus,
            history,
            wakeups,
            tokens,
            meters,
            limits,
            blocking,
        } = parts;
        Ok(Self {
            shared: Arc::new(Shared {
                consensus,
                history,
                wakeups,
                tokens,
                meters,
                limits,
                blocking,
                admin: Arc::new(Semaphore::new(limits.admin_requests)),
                executor: Arc::new(Semaphore::new(limits.executor_requests)),
                polls: Arc::new(Semaphore::new(limits.polls)),
                planner: Mutex::new(Planner::default()),
                request_prefix: prefix.iter().map(|b| format!("{b:02x}")).collect(),
                requests: AtomicU64::new(0),
            }),
        })
    }
}

impl Shared {
    /// A place among the requests under way, or a refusal. Nobody waits: a queue would only hide the load.
    pub(crate) fn admit(&self, lane: Lane) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let places = match lane {
            Lane::Free => return Ok(None),
            Lane::Admin => &self.admin,
            Lane::Executor => &self.executor,
            Lane::Poll => &self.polls,
        };
        match places.clone().try_acquire_owned() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) => {
                let detail = "as many requests of this kind are under way as the node accepts";
                Err(Failure::new(ErrorCode::Overloaded, detail))
            }
        }
    }

    /// An id for a request that came without one.
    pub(crate) fn next_request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.request_prefix)
    }

    /// The parsed schedules. Never held over an await.
    pub(crate) fn planner(&self) -> MutexGuard<'_, Planner> {
        self.planner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
