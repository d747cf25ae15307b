//! The executor: a process that runs handlers for a cluster.
//!
//! It registers, keeps its lease, asks for work, runs it, and reports. It dials out only; it opens
//! no port. One executor has one session at a time; when the session ends, so does all work under
//! it, and a new one is registered, unless another process has taken the instance id.

mod builder;
mod cancel;
mod context;
mod handler;
mod output;
mod session;
mod task;

pub use builder::ExecutorBuilder;
pub use cancel::CancelReason;
pub use context::TaskContext;
pub use handler::{ContextError, ReturnValue, TaskError};

use crate::caller::{Caller, Repeat};
use crate::error::Error;
use crate::metrics::{Counters, MetricsSnapshot};
use crate::retry::Backoff;
use crate::transport::{Lane, Method};
use crate::watched::Watched;
use bytes::Bytes;
use handler::Handler;
use session::{Session, SessionEnd, Wish};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tenure_api::protocol::{DEFAULT_LEASE_TTL_MS, RegisterAnswer, RegisterRequest};
use tenure_api::{ErrorCode, InstanceId, paths};

/// The shortest and longest pause between registrations.
const REGISTER_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(200), Duration::from_secs(30));

/// What asks an executor's health: returns at once.
pub(crate) type HealthProbe = Arc<dyn Fn() -> bool + Send + Sync>;

/// An executor's settings that its sessions use.
pub(crate) struct Config {
    pub(crate) register: RegisterRequest,
    pub(crate) capacity: u32,
    pub(crate) health: Option<HealthProbe>,
    /// How long a handler that was told to stop may take to do so.
    pub(crate) cancel_grace: Duration,
    /// How long a drain takes at most when its asker does not say.
    pub(crate) drain_timeout: Duration,
    /// How long results of a lost session are still offered.
    pub(crate) lost_results_limit: Duration,
}

/// What all sessions of one executor share.
pub(crate) struct Core {
    pub(crate) caller: Caller,
    pub(crate) config: Config,
    pub(crate) handlers: BTreeMap<String, Handler>,
    pub(crate) wish: Watched<Wish>,
}

impl Core {
    pub(crate) fn counters(&self) -> &Counters {
        &self.caller.counters
    }
}

/// How an executor came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// All work was finished or given back.
    Drained,
    /// It was told to stop at once.
    Stopped,
    /// Another process registered under the same instance id. Starting again would take the id
    /// back, so give each process one of its own.
    Replaced,
}

/// An executor that was built and not yet run.
pub struct Executor {
    core: Arc<Core>,
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executor({})", self.core.config.register.instance_id)
    }
}

/// Steers a running executor. Cheap to clone.
#[derive(Clone)]
pub struct ExecutorHandle {
    core: Arc<Core>,
}

impl fmt::Debug for ExecutorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ExecutorHandle({})",
            self.core.config.register.instance_id
        )
    }
}

impl ExecutorHandle {
    /// Takes no more work, lets running work finish for up to `deadline`, gives the rest back with
    /// its checkpoints, and leaves. The first drain's deadline stays.
    pub fn drain(&self, deadline: Duration) {
        let by = self.core.caller.environment.now().saturating_add(deadline);
        self.core.wish.update(|wish| wish.drain_by(by));
    }

    /// Stops at once. Whatever runs is dropped; the cluster gives it to others.
    pub fn stop(&self) {
        self.core.wish.update(|wish| {
            *wish = Wish::Stop;
            true
        });
    }

    /// Counters of this executor.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.core.caller.counters.snapshot()
    }

    /// The instance id it registers under.
    pub fn instance_id(&self) -> &InstanceId {
        &self.core.config.register.instance_id
    }
}

impl Executor {
    /// Starts the settings of an executor.
    pub fn builder() -> ExecutorBuilder {
        ExecutorBuilder::default()
    }

    /// A handle to steer it with, now and while it runs.
    pub fn handle(&self) -> ExecutorHandle {
        ExecutorHandle {
            core: Arc::clone(&self.core),
        }
    }

    /// Runs until it is drained or stopped, or another process takes its instance id.
    ///
    /// Without a reachable cluster it waits for one. It fails only when the cluster refuses to
    /// register it, for example for a wrong token.
    pub async fn run(self) -> Result<Stopped, Error> {
        let environment = &self.core.caller.environment;
        let wish = &self.core.wish;
        let mut backoff = Backoff::new(REGISTER_BACKOFF.0, REGISTER_BACKOFF.1);
        loop {
            let sent_at = environment.now();
            let registered = tokio::select! {
                biased;
                _ = wish.wait_for(Wish::leaving) => {
                    return Ok(self.stopped_without_session());
                }
                registered = self.register() => registered,
            };
            let answer = match registered {
                Ok(answer) => answer,
                Err(error) if may_pass(&error) => {
                    tracing::warn!(%error, "not registered yet");
                    let pause = backoff.pause(environment);
                    environment
                        .within(pause, wish.wait_for(Wish::leaving))
                        .await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.core.counters().sessions_registered.add();
            tracing::info!(session = %answer.session, "registered");
            let end = Session::new(Arc::clone(&self.core), sent_at, &answer)
                .run()
                .await;
            match end {
                SessionEnd::Drained => return Ok(Stopped::Drained),
                SessionEnd::Stopped => return Ok(Stopped::Stopped),
                SessionEnd::Replaced => {
                    self.core.counters().sessions_replaced.add();
                    tracing::error!("another process registered under this instance id");
                    return Ok(Stopped::Replaced);
                }
                SessionEnd::Expired => self.core.counters().sessions_expired.add(),
                SessionEnd::LeaseLost => {}
            }
            tracing::warn!(?end, "the session is over; registering again");
            // A session that lasted has nothing to do with the one before it. One that ended at
            // once may be a fight over the instance id, which must slow down.
            let interval = Duration::from_millis(answer.heartbeat_interval_ms);
            if environment.now().saturating_sub(sent_at) > interval.saturating_mul(3) {
                backoff = Backoff::new(REGISTER_BACKOFF.0, REGISTER_BACKOFF.1);
            }
            let pause = backoff.pause(environment);
            environment
                .within(pause, wish.wait_for(Wish::leaving))
                .await;
        }
    }

    /// Runs, and drains when the process gets SIGTERM or SIGINT. A second signal stops at once.
    pub async fn run_until_signal(self) -> Result<Stopped, Error> {
        let handle = self.handle();
        let drain_timeout = self.core.config.drain_timeout;
        let signals = async move {
            next_signal().await;
            tracing::info!("draining after a signal");
            handle.drain(drain_timeout);
            next_signal().await;
            tracing::warn!("stopping after a second signal");
            handle.stop();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            end = self.run() => end,
            () = signals => Ok(Stopped::Stopped),
        }
    }

    fn stopped_without_session(&self) -> Stopped {
        match self.core.wish.get() {
            Wish::Stop => Stopped::Stopped,
            Wish::Run | Wish::Drain(_) => Stopped::Drained,
        }
    }

    async fn register(&self) -> Result<RegisterAnswer, Error> {
        let path = paths::SESSIONS.to_owned();
        let caller = &self.core.caller;
        let mut call = caller.call(Method::Post, path, Repeat::Harmless);
        call.lane = Lane::Heartbeat;
        // Repeated under one key, so that an attempt that arrives late makes no second session, which would
        // replace the one that is in use.
        let key = caller.environment.unique_key();
        call.headers.push((paths::IDEMPOTENCY_KEY_HEADER, key));
        // The lease counts from the first attempt. One that is answered when it is nearly over is of no
        // use; the next call asks for a new one.
        let ttl_ms = self.core.config.register.lease_ttl_ms;
        let ttl = Duration::from_millis(ttl_ms.unwrap_or(DEFAULT_LEASE_TTL_MS));
        call.overall_timeout = call.overall_timeout.min(ttl / 2);
        call.attempt_timeout = call.attempt_timeout.min(ttl / 4);
        call.headers.push(("content-type", paths::JSON.to_owned()));
        let body = serde_json::to_vec(&self.core.config.register);
        call.body = Bytes::from(body.map_err(|fault| Error::Protocol(fault.to_string()))?);
        self.core.caller.json(call).await
    }
}

/// Whether registering may succeed later without a change.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Unavailable { .. } | Error::OutcomeUnknown { .. } | Error::Protocol(_) => true,
        Error::Refused(problem) => {
            problem.code.retryable()
                || matches!(
                    problem.code,
                    ErrorCode::NotInitialized | ErrorCode::Internal | ErrorCode::LimitExceeded
                )
        }
    }
}

#[cfg(unix)]
async fn next_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    match (terminate, interrupt) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "signals cannot be watched");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(not(unix))]
async fn next_signal() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!(%error, "signals cannot be watched");
        std::future::pending::<()>().await;
    }
}
