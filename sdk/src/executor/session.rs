//! One session: from its registration to its end.
//!
//! Four things run beside each other: the heartbeat loop, the poll loop, a watch on the lease, and
//! a task for each assignment. Heartbeats have connections of their own and wait for nothing.
//!
//! Invariants:
//! - What is held is never more than the capacity.
//! - The end of a session is decided once and stays.

use super::Core;
use super::cancel::{CancelReason, Cancellation, Lease};
use super::output::Output;
use super::task;
use crate::caller::{Call, Repeat};
use crate::environment::{AbortOnDrop, Environment};
use crate::error::Error;
use crate::retry::Backoff;
use crate::transport::{Lane, Method};
use crate::watched::Watched;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tenure_api::protocol::{
    Assignment, DrainRequest, HeartbeatAnswer, HeartbeatRequest, HeldTask, MAX_POLL_ASSIGNMENTS,
    PollAnswer, PollRequest, RegisterAnswer, TaskKey, Verdict,
};
use tenure_api::{ErrorCode, SessionId, paths};

/// How long a poll waits on the server.
const POLL_WAIT: Duration = Duration::from_secs(20);
/// How much longer than that an answer may take.
const POLL_MARGIN: Duration = Duration::from_secs(5);
/// How long a full executor waits for a free slot before it asks for cancellations only.
const FULL_WAIT: Duration = Duration::from_secs(1);
/// The shortest time from one fruitless poll to the next.
const POLL_FLOOR: Duration = Duration::from_millis(100);
/// How long before a drain's deadline what is left is given back.
const RELEASE_MARGIN: Duration = Duration::from_secs(2);
/// How long the last calls of a drain may take together.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// How a session came to its end.
#[derive(Clone, Debug)]
pub(crate) enum SessionEnd {
    /// Another process registered under the same instance id.
    Replaced,
    /// The cluster knows the session no longer.
    Expired,
    /// The lease ran out by this process's clock.
    LeaseLost,
    /// All work was finished or given back, and the cluster was told.
    Drained,
    /// Someone asked to stop at once.
    Stopped,
}

/// What someone asked the executor to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Run,
    /// Finish by this instant of the clock.
    Drain(Duration),
    Stop,
}

impl Wish {
    /// The wish, if it is one to leave.
    pub(crate) fn leaving(&self) -> Option<Wish> {
        (*self != Wish::Run).then_some(*self)
    }

    /// Asks for a drain, unless something was asked for before. Tells whether that is news.
    pub(crate) fn drain_by(&mut self, deadline: Duration) -> bool {
        let news = *self == Wish::Run;
        if news {
            *self = Wish::Drain(deadline);
        }
        news
    }
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Starting = 0,
    Running = 1,
    Reporting = 2,
}

/// A task that is held.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) key: TaskKey,
    pub(crate) cancellation: Cancellation,
    pub(crate) output: Output,
    phase: AtomicU8,
    /// The progress plus one; zero for none.
    progress: AtomicU64,
    output_seq: AtomicU64,
}

impl Held {
    fn new(key: TaskKey) -> Self {
        Self {
            key,
            cancellation: Cancellation::new(),
            output: Output::default(),
            phase: AtomicU8::new(Phase::Starting as u8),
            progress: AtomicU64::new(0),
            output_seq: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    fn is_starting(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Starting as u8
    }

    pub(crate) fn set_progress(&self, offset: u64) {
        self.progress
            .fetch_max(offset.saturating_add(1), Ordering::AcqRel);
    }

    pub(crate) fn progress(&self) -> Option<u64> {
        self.progress.load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn next_output_seq(&self) -> u64 {
        self.output_seq.fetch_add(1, Ordering::AcqRel)
    }
}

/// A held task and what runs it.
struct Slot {
    held: Arc<Held>,
    /// Absent for the moment between the slot's making and the task's.
    running: Option<AbortOnDrop>,
}

/// A session.
pub(crate) struct Session {
    pub(crate) core: Arc<Core>,
    pub(crate) lease: Lease,
    id: SessionId,
    heartbeat_interval: Duration,
    slots: Mutex<BTreeMap<TaskKey, Slot>>,
    /// How many tasks are held. Changes wake those who wait for room or for the end.
    count: Watched<usize>,
    end: Watched<Option<SessionEnd>>,
    /// What an operator or this process asked for, with the deadline.
    wish: Watched<Wish>,
    /// How long a handler may take to stop when the drain's deadline comes.
    drain_grace: Watched<Duration>,
}

impl Session {
    pub(crate) fn new(core: Arc<Core>, sent_at: Duration, answer: &RegisterAnswer) -> Arc<Self> {
        let ttl = Duration::from_millis(answer.lease_ttl_ms);
        let interval = Duration::from_millis(answer.heartbeat_interval_ms);
        Arc::new(Self {
            core,
            lease: Lease::granted(sent_at, ttl),
            id: answer.session,
            // An interval longer than the lease would lose it.
            heartbeat_interval: interval.clamp(Duration::from_millis(1), (ttl / 3).max(POLL_FLOOR)),
            slots: Mutex::new(BTreeMap::new()),
            count: Watched::new(0),
            end: Watched::new(None),
            wish: Watched::new(Wish::Run),
            drain_grace: Watched::new(Duration::ZERO),
        })
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.core.caller.environment
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<TaskKey, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> Vec<Arc<Held>> {
        self.slots()
            .values()
            .map(|slot| Arc::clone(&slot.held))
            .collect()
    }

    fn find(&self, key: &TaskKey) -> Option<Arc<Held>> {
        self.slots().get(key).map(|slot| Arc::clone(&slot.held))
    }

    /// A call below this session's path.
    pub(crate) fn call(&self, route: &str, repeat: Repeat) -> Call {
        let path = paths::session(route, self.id);
        let mut call = self.core.caller.call(Method::Post, path, repeat);
        call.headers.push(("content-type", paths::JSON.to_owned()));
        call
    }

    /// Ends the session. The first reason stays.
    fn finish(&self, end: SessionEnd) {
        self.end.update(|state| {
            let first = state.is_none();
            if first {
                *state = Some(end);
            }
            first
        });
    }

    /// The cluster refused something about a task: what that says of the task and the session.
    pub(crate) fn note_refusal(&self, code: ErrorCode, held: &Held) {
        match code {
            ErrorCode::SessionReplaced => self.finish(SessionEnd::Replaced),
            ErrorCode::SessionExpired | ErrorCode::StaleSession => {
                self.finish(SessionEnd::Expired);
            }
            ErrorCode::StaleEpoch | ErrorCode::UnknownTask | ErrorCode::AlreadyFinal => {
                held.cancellation.cancel(CancelReason::LeaseLost);
            }
            _ => {}
        }
    }

    /// The same for a refusal that is about no task. Tells whether it ends the session.
    fn note_session_refusal(&self, error: &Error) -> bool {
        match error.code() {
            Some(ErrorCode::SessionReplaced) => self.finish(SessionEnd::Replaced),
            Some(ErrorCode::SessionExpired | ErrorCode::StaleSession | ErrorCode::NotFound) => {
                self.finish(SessionEnd::Expired);
            }
            _ => return false,
        }
        true
    }

    /// Runs the session to its end. Whatever still runs then is stopped.
    pub(crate) async fn run(self: Arc<Self>) -> SessionEnd {
        let environment = self.environment().clone();
        // Work ends with the session, also when this future is dropped.
        let _closing = Closing(Arc::clone(&self));
        let loops = [
            environment.spawn(heartbeats(Arc::clone(&self))),
            environment.spawn(polls(Arc::clone(&self))),
            environment.spawn(watch_lease(Arc::clone(&self))),
        ];
        let end = tokio::select! {
            biased;
            end = self.ended() => end,
            end = self.leave_when_asked() => end,
        };
        self.lose_everything();
        if matches!(end, SessionEnd::LeaseLost | SessionEnd::Expired) {
            // A result may have been on its way. The cluster alone knows whether it still counts.
            let limit = self.core.config.lost_results_limit;
            environment.within(limit, self.emptied()).await;
        }
        drop(loops);
        end
    }

    /// Nothing that is held may go on.
    fn lose_everything(&self) {
        self.lease.end();
        for held in self.held() {
            held.cancellation.cancel(CancelReason::LeaseLost);
        }
    }

    async fn ended(&self) -> SessionEnd {
        self.end.wait_for(Clone::clone).await
    }

    /// Waits until nothing is held.
    async fn emptied(&self) {
        self.count
            .wait_for(|count| (*count == 0).then_some(()))
            .await;
    }

    fn set_count(&self, held: usize) {
        self.count.update(|count| {
            *count = held;
            true
        });
    }

    /// A task is done with: its slot is free.
    pub(crate) fn finished(&self, key: TaskKey) {
        let slot = {
            let mut slots = self.slots();
            let slot = slots.remove(&key);
            self.set_count(slots.len());
            slot
        };
        // This may be the task's own handle. It aborts nothing: the task has no wait left.
        drop(slot);
    }

    // Leaving.

    /// Waits for a wish to drain or stop, and carries it out.
    async fn leave_when_asked(&self) -> SessionEnd {
        let wish = tokio::select! {
            biased;
            wish = self.core.wish.wait_for(Wish::leaving) => wish,
            wish = self.wish.wait_for(Wish::leaving) => wish,
        };
        if let Wish::Drain(deadline) = wish {
            tokio::select! {
                biased;
                // A second wish cuts the drain short.
                () = self.core.wish.wait_for(|wish| (*wish == Wish::Stop).then_some(())) => {}
                () = self.drain(deadline) => return SessionEnd::Drained,
            }
        }
        self.deregister().await;
        SessionEnd::Stopped
    }

    async fn drain(&self, deadline: Duration) {
        // The poll loop sees this and ends.
        self.wish.update(|wish| wish.drain_by(deadline));
        let left = deadline.saturating_sub(self.environment().now());
        tracing::info!(left_ms = left.as_millis(), "draining");
        let told = async {
            let deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let mut call = self.call(paths::SESSION_DRAIN, Repeat::Harmless);
            call.body = json(&DrainRequest { deadline_ms });
            if let Err(error) = self.core.caller.send(call).await {
                tracing::debug!(%error, "the drain was not announced");
            }
            std::future::pending::<()>().await;
        };
        // What does not finish by itself is asked to save what it has, early enough that it can
        // be given back before the deadline.
        let grace = self.core.config.cancel_grace.min(left / 4);
        let margin = RELEASE_MARGIN.min(left / 4);
        let finish = async {
            let quiet = left.saturating_sub(grace + margin);
            if self
                .environment()
                .within(quiet, self.emptied())
                .await
                .is_none()
            {
                self.drain_grace.update(|known| {
                    *known = grace;
                    true
                });
                for held in self.held() {
                    held.cancellation.cancel(CancelReason::Draining);
                }
                let limit = grace + margin + LEAVE_LIMIT;
                self.environment().within(limit, self.emptied()).await;
            }
        };
        tokio::select! {
            biased;
            () = finish => {}
            () = told => {}
        }
        self.deregister().await;
    }

    /// Tells the cluster that the executor leaves. Not waited for long: the lease ends anyway.
    async fn deregister(&self) {
        let path = paths::session(paths::SESSION, self.id);
        let mut call = self
            .core
            .caller
            .call(Method::Delete, path, Repeat::Harmless);
        call.overall_timeout = LEAVE_LIMIT;
        if let Err(error) = self.core.caller.send(call).await {
            tracing::debug!(%error, "the session was not ended; its lease will run out");
        }
    }

    fn is_draining(&self) -> bool {
        self.wish.get() != Wish::Run || self.core.wish.get() != Wish::Run
    }

    // Heartbeats.

    /// Renews the lease once.
    async fn heartbeat(&self) -> Result<(), Error> {
        let held = self.held();
        let request = HeartbeatRequest {
            slots_used: u32::try_from(held.len()).unwrap_or(u32::MAX),
            healthy: self.is_healthy(),
            tasks: held
                .iter()
                .map(|held| HeldTask {
                    key: held.key,
                    progress: held.progress(),
                })
                .collect(),
        };
        let mut call = self.call(paths::SESSION_HEARTBEAT, Repeat::Harmless);
        call.lane = Lane::Heartbeat;
        call.body = json(&request);
        call.attempt_timeout =
            (self.heartbeat_interval / 2).min(self.core.caller.policy.attempt_timeout);
        call.overall_timeout = self.heartbeat_interval;
        // The lease counts from before the first attempt, whichever of them is granted.
        let sent_at = self.environment().now();
        let answer: HeartbeatAnswer = self.core.caller.json(call).await?;
        #[cfg(feature = "planted-bugs")]
        let sent_at = match tenure_planted::is(tenure_planted::Bug::LeaseLongerAtTheExecutor) {
            true => self.environment().now(),
            false => sent_at,
        };
        self.lease
            .renew(sent_at, Duration::from_millis(answer.lease_ttl_ms));
        self.core.counters().heartbeats_granted.add();
        for task in &answer.tasks {
            let reason = match task.verdict {
                Verdict::Keep => continue,
                Verdict::Lost => CancelReason::LeaseLost,
                Verdict::Cancel => CancelReason::Requested(task.reason.clone().unwrap_or_default()),
            };
            self.cancel(&task.key, reason);
        }
        if answer.draining {
            self.drain_for_operator(answer.drain_deadline_in_ms.map(Duration::from_millis));
        }
        Ok(())
    }

    fn cancel(&self, key: &TaskKey, reason: CancelReason) {
        if let Some(held) = self.find(key) {
            held.cancellation.cancel(reason);
        }
    }

    fn drain_for_operator(&self, deadline_in: Option<Duration>) {
        let left = deadline_in.unwrap_or(self.core.config.drain_timeout);
        let deadline = self.environment().now().saturating_add(left);
        self.wish.update(|wish| wish.drain_by(deadline));
    }

    /// What the probe says. A probe that panics says no.
    fn is_healthy(&self) -> bool {
        match &self.core.config.health {
            None => true,
            Some(probe) => catch_unwind(AssertUnwindSafe(|| probe())).unwrap_or(false),
        }
    }

    // Polls.

    /// How many more tasks fit.
    fn room(&self) -> u32 {
        let held = u32::try_from(self.count.get()).unwrap_or(u32::MAX);
        self.core.config.capacity.saturating_sub(held)
    }

    async fn wait_for_room(&self) {
        let capacity = usize::try_from(self.core.config.capacity).unwrap_or(usize::MAX);
        self.count
            .wait_for(|count| (*count < capacity).then_some(()))
            .await;
    }

    async fn wait_for_drain(&self) {
        tokio::select! {
            biased;
            _ = self.core.wish.wait_for(Wish::leaving) => {}
            _ = self.wish.wait_for(Wish::leaving) => {}
        }
    }

    /// How long a handler may take to stop, for this reason.
    pub(crate) fn grace(&self, reason: &CancelReason) -> Duration {
        match reason {
            CancelReason::Draining => self.drain_grace.get(),
            CancelReason::Requested(_) | CancelReason::TimedOut => self.core.config.cancel_grace,
            CancelReason::LeaseLost => Duration::ZERO,
        }
    }

    async fn poll(&self, max: u32) -> Result<PollAnswer, Error> {
        let starting = self.held().into_iter().filter(|held| held.is_starting());
        let request = PollRequest {
            max,
            wait_ms: u64::try_from(POLL_WAIT.as_millis()).unwrap_or(u64::MAX),
            known: starting.map(|held| held.key).collect(),
        };
        let mut call = self.call(paths::SESSION_POLL, Repeat::Harmless);
        call.lane = Lane::Poll;
        call.body = json(&request);
        call.attempt_timeout = POLL_WAIT + POLL_MARGIN;
        call.overall_timeout = POLL_WAIT + POLL_MARGIN;
        self.core.caller.json(call).await
    }

    /// Takes what a poll brought. Tells whether there was anything new.
    fn take(self: &Arc<Self>, answer: PollAnswer) -> bool {
        for cancel in answer.cancels {
            self.cancel(&cancel.key, CancelReason::Requested(cancel.reason));
        }
        if answer.draining {
            self.drain_for_operator(None);
        }
        let mut news = false;
        for assignment in answer.assignments {
            news |= self.accept(assignment);
        }
        news
    }

    /// Starts work on an assignment, unless it is held already or does not fit. What does not fit
    /// is delivered again.
    fn accept(self: &Arc<Self>, assignment: Assignment) -> bool {
        let counters = self.core.counters();
        let key = assignment.key;
        if self.lease.is_over(self.environment()) || self.room() == 0 {
            return false;
        }
        let held = Arc::new(Held::new(key));
        {
            let mut slots = self.slots();
            match slots.entry(key) {
                Entry::Occupied(_) => {
                    counters.assignments_repeated.add();
                    return false;
                }
                Entry::Vacant(vacant) => {
                    vacant.insert(Slot {
                        held: Arc::clone(&held),
                        running: None,
                    });
                }
            }
            self.set_count(slots.len());
        }
        counters.assignments_received.add();
        let work = task::run(Arc::clone(self), held, assignment);
        let running = self.environment().spawn(work);
        // It may be done already; then its handle has nothing to stop.
        if let Some(slot) = self.slots().get_mut(&key) {
            slot.running = Some(running);
        }
        true
    }
}

/// Stops all work of a session when dropped.
struct Closing(Arc<Session>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.lose_everything();
        let rest = std::mem::take(&mut *self.0.slots());
        // Aborts outside of the lock: a task that ends takes it, too.
        drop(rest);
    }
}

/// Renews the lease until the session ends.
async fn heartbeats(session: Arc<Session>) {
    let environment = session.environment().clone();
    let interval = session.heartbeat_interval;
    let mut backoff = Backoff::new(interval / 20, interval / 2);
    // A little earlier than asked, by chance, so that executors spread out.
    let jittered = || interval.mul_f64(1.0 - environment.fraction() / 10.0);
    let mut pause = jittered();
    loop {
        environment.sleep(pause).await;
        match session.heartbeat().await {
            Ok(()) => {
                backoff = Backoff::new(interval / 20, interval / 2);
                pause = jittered();
            }
            Err(error) => {
                session.core.counters().heartbeats_failed.add();
                if session.note_session_refusal(&error) {
                    return;
                }
                tracing::warn!(%error, "a heartbeat was not granted");
                pause = backoff.pause(&environment);
            }
        }
    }
}

/// Asks for work until the session drains or ends.
async fn polls(session: Arc<Session>) {
    let environment = session.environment().clone();
    let mut backoff = Backoff::new(POLL_FLOOR, Duration::from_secs(5));
    while !session.is_draining() {
        if session.room() == 0 {
            // Full: first wait for room, then ask for cancellations only.
            environment.within(FULL_WAIT, session.wait_for_room()).await;
        }
        let max = session.room().min(MAX_POLL_ASSIGNMENTS);
        let asked_at = environment.now();
        let answer = tokio::select! {
            biased;
            () = session.wait_for_drain() => return,
            () = session.wait_for_room(), if max == 0 => continue,
            answer = session.poll(max) => answer,
        };
        match answer {
            Ok(answer) => {
                backoff = Backoff::new(POLL_FLOOR, Duration::from_secs(5));
                let fruitless = !session.take(answer);
                let took = environment.now().saturating_sub(asked_at);
                if fruitless && took < POLL_FLOOR {
                    environment.sleep(POLL_FLOOR - took).await;
                }
            }
            Err(error) => {
                if session.note_session_refusal(&error) {
                    return;
                }
                tracing::debug!(%error, "a poll was not answered");
                environment.sleep(backoff.pause(&environment)).await;
            }
        }
    }
}

/// Ends the session when its lease is over.
async fn watch_lease(session: Arc<Session>) {
    let environment = session.environment().clone();
    loop {
        let remaining = session.lease.remaining(&environment);
        if remaining.is_zero() {
            break;
        }
        environment.sleep(remaining).await;
    }
    session.core.counters().leases_lost.add();
    session.lose_everything();
    session.finish(SessionEnd::LeaseLost);
}

/// A request's body. The protocol's own types always have one.
fn json<T: serde::Serialize>(body: &T) -> Bytes {
    Bytes::from(serde_json::to_vec(body).unwrap_or_default())
}
