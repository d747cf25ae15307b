//! A cluster that lives in memory, behind the transport trait, on tokio's paused time. It keeps a
//! record of what was done to it, and can be told to misbehave.

#![allow(dead_code, reason = "each test file uses its own part")]

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tenure_sdk::api::protocol::{
    Assignment, CancelNotice, CheckpointRequest, HeartbeatRequest, OutputRequest, PollRequest,
    RegisterRequest, ReleaseRequest, ResultRequest, Resume, StartRequest, TaskKey, Verdict,
};
use tenure_sdk::api::{
    Epoch, ErrorCode, FencingToken, Generation, Problem, Revision, RunId, paths,
};
use tenure_sdk::{
    BoxFuture, Clock, Entropy, Environment, Executor, ExecutorBuilder, Request, Response,
    TokioClock, TokioSpawn, Transport, TransportError,
};
use tokio::sync::Notify;

/// How long a request is under way.
const LATENCY: Duration = Duration::from_millis(1);

/// What a node does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Up,
    /// Refuses connections.
    Down,
    /// Takes requests and never answers.
    Silent,
    /// Has not heard of a cluster yet.
    New,
}

/// What goes wrong with the next request on a route.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is done, but the answer is lost.
    LoseReply,
    /// It is neither done nor answered.
    Hang,
    /// It is not done, and answered with an error.
    Refuse(ErrorCode),
    /// It is done and answered with a term of the past.
    OldTerm(u64),
    /// It is not done, and answered with a bare status and perhaps `Retry-After` seconds.
    Bare(u16, Option<u64>),
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) modes: BTreeMap<String, Mode>,
    pub(crate) leader: Option<String>,
    pub(crate) term: u64,
    pub(crate) session: u64,
    /// What every call of the current session is answered with.
    pub(crate) session_error: Option<ErrorCode>,
    pub(crate) lease_ttl_ms: u64,
    pub(crate) heartbeat_interval_ms: u64,
    pub(crate) draining: bool,
    /// Granted and not started.
    pub(crate) granted: Vec<Assignment>,
    /// Delivered again even if the executor says that it knows it.
    pub(crate) redeliver: bool,
    pub(crate) resume: Resume,
    pub(crate) verdicts: BTreeMap<TaskKey, (Verdict, String)>,
    pub(crate) cancels: Vec<CancelNotice>,
    /// Faults for the next requests whose path ends like this, first come first served.
    pub(crate) faults: Vec<(&'static str, Fault)>,

    pub(crate) registrations: Vec<RegisterRequest>,
    /// The idempotency key of each registration.
    pub(crate) registration_keys: Vec<String>,
    pub(crate) heartbeats: Vec<(Duration, HeartbeatRequest)>,
    pub(crate) polls: Vec<PollRequest>,
    pub(crate) starts: Vec<TaskKey>,
    pub(crate) checkpoints: Vec<CheckpointRequest>,
    pub(crate) outputs: Vec<OutputRequest>,
    pub(crate) results: Vec<ResultRequest>,
    pub(crate) releases: Vec<ReleaseRequest>,
    pub(crate) drains: u32,
    pub(crate) left: u32,
    /// Every request: its node and the end of its path.
    pub(crate) trace: Vec<String>,
    /// Requests of the administration interface, with the answers they get.
    pub(crate) admin: Vec<Request>,
    pub(crate) admin_answers: BTreeMap<String, Value>,
}

pub(crate) struct Cluster {
    state: Mutex<State>,
    changed: Notify,
    clock: TokioClock,
}

pub(crate) const N1: &str = "http://n1:1";
pub(crate) const N2: &str = "http://n2:1";
pub(crate) const N3: &str = "http://n3:1";

impl Cluster {
    /// Three nodes, the first of which leads term 1.
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            modes: [N1, N2, N3].map(|node| (node.to_owned(), Mode::Up)).into(),
            leader: Some(N1.to_owned()),
            term: 1,
            lease_ttl_ms: 35_000,
            heartbeat_interval_ms: 10_000,
            ..State::default()
        };
        let clock = TokioClock::default();
        clock.now();
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            clock,
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes the state and wakes waiting polls.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Waits until the state is as wanted. Fails when that takes an hour of virtual time.
    pub(crate) async fn wait(&self, what: &str, wanted: impl Fn(&State) -> bool) {
        for _ in 0..360_000 {
            if wanted(&self.state()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "never: {what}; trace: {:#?}",
            self.state().trace.iter().rev().take(20).collect::<Vec<_>>()
        );
    }

    /// Virtual time since the cluster was made.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Grants a task under the given epoch.
    pub(crate) fn grant(&self, run: u64, epoch: u64) -> TaskKey {
        self.grant_with(run, epoch, |_| {})
    }

    pub(crate) fn grant_with(
        &self,
        run: u64,
        epoch: u64,
        edit: impl FnOnce(&mut Assignment),
    ) -> TaskKey {
        let key = TaskKey {
            run: RunId(run),
            shard: 0,
            epoch: Epoch(epoch),
        };
        let mut assignment = Assignment {
            key,
            shard_count: 1,
            attempt: 1,
            job: "nightly".parse().unwrap(),
            revision: Revision(3),
            scheduled_at_ms: 1_764_554_400_000,
            capability: "work".parse().unwrap(),
            params: json!({"rows": 5}),
            timeout_ms: None,
            fencing_token: FencingToken::new(Generation(1), Epoch(epoch)),
            fencing_scope: "nightly/0".into(),
            generation: Generation(1),
            checkpoint: None,
            trigger: tenure_sdk::api::protocol::TriggerKind::Scheduled,
            deadline_in_ms: 35_000,
        };
        edit(&mut assignment);
        self.change(|state| state.granted.push(assignment));
        key
    }

    async fn answer(&self, request: Request) -> Result<Response, TransportError> {
        tokio::time::sleep(LATENCY).await;
        let end = end_of(&request.path);
        let fault = match self.state().arrive(&request.node, &end) {
            Arrival::Served(fault) => fault,
            Arrival::Redirected(response) => return Ok(response),
            Arrival::Refused => return Err(TransportError::Unreachable("refused".into())),
            Arrival::Swallowed => Some(Fault::Hang),
        };
        match fault {
            None => Ok(self.act(&request).await),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Refuse(code)) => Ok(self.state().problem(code)),
            Some(Fault::Bare(status, after)) => {
                let headers = after.map(|secs| ("retry-after".into(), secs.to_string()));
                Ok(Response {
                    status,
                    headers: headers.into_iter().collect(),
                    body: Bytes::new(),
                })
            }
            Some(Fault::LoseReply) => {
                self.act(&request).await;
                Err(TransportError::Broken("reset".into()))
            }
            Some(Fault::OldTerm(term)) => {
                let mut response = self.act(&request).await;
                response
                    .headers
                    .retain(|(name, _)| name != paths::TERM_HEADER);
                response
                    .headers
                    .push((paths::TERM_HEADER.into(), term.to_string()));
                Ok(response)
            }
        }
    }

    async fn act(&self, request: &Request) -> Response {
        if !request.path.starts_with("/v1/executor/") {
            return self.state().administer(request);
        }
        if end_of(&request.path) == "poll" {
            return self.poll(request).await;
        }
        let now = self.now();
        self.state().execute(request, now)
    }

    async fn poll(&self, request: &Request) -> Response {
        let poll: PollRequest = read(request);
        let until = tokio::time::Instant::now() + Duration::from_millis(poll.wait_ms);
        self.state().polls.push(poll.clone());
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                if let Some(refused) = state.session_refusal(request) {
                    return refused;
                }
                let redeliver = state.redeliver;
                let fits = usize::try_from(poll.max).unwrap();
                let news =
                    |assignment: &&Assignment| redeliver || !poll.known.contains(&assignment.key);
                let assignments: Vec<_> = state
                    .granted
                    .iter()
                    .filter(news)
                    .take(fits)
                    .cloned()
                    .collect();
                let cancels = std::mem::take(&mut state.cancels);
                if !assignments.is_empty() || !cancels.is_empty() || state.draining {
                    let draining = state.draining;
                    return state.ok(&json!({
                        "assignments": assignments, "cancels": cancels, "draining": draining,
                    }));
                }
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => {
                    return self.state().ok(&json!({"assignments": [], "cancels": []}));
                }
            }
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(request: &Request) -> T {
    serde_json::from_slice(&request.body).unwrap()
}

/// The last part of a path, without its query; `leave` for the end of a session.
fn end_of(path: &str) -> String {
    let path = path.split('?').next().unwrap_or_default();
    let end = path.rsplit('/').next().unwrap_or_default();
    if end.bytes().all(|byte| byte.is_ascii_digit()) {
        "leave".into()
    } else {
        end.into()
    }
}

/// What becomes of a request at a node's door.
enum Arrival {
    Served(Option<Fault>),
    Redirected(Response),
    Refused,
    Swallowed,
}

impl State {
    fn arrive(&mut self, node: &str, end: &str) -> Arrival {
        self.trace
            .push(format!("{} {end}", node.trim_start_matches("http://")));
        match self.modes.get(node).copied().unwrap_or(Mode::Down) {
            Mode::Up => {}
            Mode::Down => return Arrival::Refused,
            Mode::Silent => return Arrival::Swallowed,
            Mode::New => {
                let mut answer = self.problem(ErrorCode::NotInitialized);
                answer.headers.retain(|(name, _)| name == "content-type");
                return Arrival::Redirected(answer);
            }
        }
        if self.leader.as_deref() != Some(node) {
            return Arrival::Redirected(self.redirect());
        }
        let found = self.faults.iter().position(|(route, _)| *route == end);
        Arrival::Served(found.map(|index| self.faults.remove(index).1))
    }

    fn headers(&self, kind: &str) -> Vec<(String, String)> {
        let mut headers = vec![
            ("content-type".to_owned(), kind.to_owned()),
            (paths::TERM_HEADER.to_owned(), self.term.to_string()),
        ];
        if let Some(leader) = &self.leader {
            headers.push((paths::LEADER_HEADER.to_owned(), leader.clone()));
        }
        headers
    }

    pub(crate) fn ok(&self, body: &impl Serialize) -> Response {
        let body = Bytes::from(serde_json::to_vec(body).unwrap());
        Response {
            status: 200,
            headers: self.headers(paths::JSON),
            body,
        }
    }

    pub(crate) fn problem(&self, code: ErrorCode) -> Response {
        let problem = Problem::new(code, "by the test");
        let body = Bytes::from(serde_json::to_vec(&problem).unwrap());
        let headers = self.headers("application/problem+json");
        Response {
            status: code.status(),
            headers,
            body,
        }
    }

    /// What a node says that does not lead.
    fn redirect(&self) -> Response {
        if self.leader.is_some() {
            return self.problem(ErrorCode::NotLeader);
        }
        let mut response = self.problem(ErrorCode::NoLeader);
        response.headers.push(("retry-after".into(), "1".into()));
        response
    }

    fn session_refusal(&self, request: &Request) -> Option<Response> {
        let mut parts = request.path.split('/').skip(4);
        let named: u64 = parts.next()?.parse().ok()?;
        if named != self.session {
            return Some(self.problem(ErrorCode::StaleSession));
        }
        self.session_error.map(|code| self.problem(code))
    }

    fn execute(&mut self, request: &Request, now: Duration) -> Response {
        let end = end_of(&request.path);
        if end == "sessions" {
            self.registrations.push(read(request));
            let mut headers = request.headers.iter();
            let key = headers.find(|(name, _)| *name == paths::IDEMPOTENCY_KEY_HEADER);
            let key = key.map(|(_, key)| key.clone()).unwrap_or_default();
            // A key that was used makes no second session.
            self.session += u64::from(!self.registration_keys.contains(&key));
            self.registration_keys.push(key);
            self.session_error = None;
            return self.ok(&json!({
                "session": self.session,
                "lease_ttl_ms": self.lease_ttl_ms,
                "heartbeat_interval_ms": self.heartbeat_interval_ms,
                "generation": 1,
            }));
        }
        if let Some(refused) = self.session_refusal(request) {
            return refused;
        }
        match end.as_str() {
            "heartbeat" => self.heartbeat(read(request), now),
            "start" => {
                let key = read::<StartRequest>(request).key();
                self.granted.retain(|assignment| assignment.key != key);
                self.starts.push(key);
                self.ok(&json!({"attempt": 1, "resume": self.resume}))
            }
            "checkpoint" => {
                let checkpoint: CheckpointRequest = read(request);
                let last = self.checkpoints.last().map_or(0, |last| last.offset);
                if checkpoint.offset < last {
                    return self.problem(ErrorCode::CheckpointRegressed);
                }
                let offset = checkpoint.offset;
                self.checkpoints.push(checkpoint);
                self.ok(&json!({ "offset": offset }))
            }
            "output" => {
                let output: OutputRequest = read(request);
                let accepted = output.text.len();
                self.outputs.push(output);
                self.ok(&json!({"accepted_bytes": accepted, "truncated": false}))
            }
            "result" => {
                self.results.push(read(request));
                self.ok(&json!({"state": "succeeded"}))
            }
            "release" => {
                self.releases.push(read(request));
                self.ok(&json!({}))
            }
            "drain" => {
                self.drains += 1;
                self.ok(&json!({}))
            }
            "leave" => {
                self.left += 1;
                self.ok(&json!({}))
            }
            other => panic!("no such route: {other}"),
        }
    }

    fn heartbeat(&mut self, heartbeat: HeartbeatRequest, now: Duration) -> Response {
        let tasks: Vec<Value> = heartbeat
            .tasks
            .iter()
            .map(|held| {
                let key = held.key;
                let keep = (Verdict::Keep, String::new());
                let (verdict, reason) = self.verdicts.get(&key).unwrap_or(&keep);
                json!({
                    "run": key.run, "shard": key.shard, "epoch": key.epoch,
                    "verdict": verdict, "reason": reason,
                })
            })
            .collect();
        self.heartbeats.push((now, heartbeat));
        self.ok(&json!({
            "lease_ttl_ms": self.lease_ttl_ms, "tasks": tasks, "draining": self.draining,
        }))
    }

    fn administer(&mut self, request: &Request) -> Response {
        self.admin.push(request.clone());
        let key = format!("{} {}", request.method.as_str(), request.path);
        match self.admin_answers.get(&key) {
            Some(body) => self.ok(body),
            None => self.problem(ErrorCode::NotFound),
        }
    }
}

/// The transport of one executor or client to the cluster.
pub(crate) struct Wire(pub(crate) Arc<Cluster>);

impl Transport for Wire {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        Box::pin(self.0.answer(request))
    }
}

/// tokio's clock, moved ahead by the test: what a process sees that was stopped and goes on.
#[derive(Default)]
pub(crate) struct Leaping {
    tokio: TokioClock,
    ahead_ms: AtomicU64,
}

impl Leaping {
    pub(crate) fn leap(&self, by: Duration) {
        self.ahead_ms
            .fetch_add(u64::try_from(by.as_millis()).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for Leaping {
    fn now(&self) -> Duration {
        self.tokio.now() + Duration::from_millis(self.ahead_ms.load(Ordering::Relaxed))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.tokio.sleep(duration)
    }
}

/// Numbers from a fixed seed (splitmix64).
pub(crate) struct Seeded(AtomicU64);

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        let seed = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

pub(crate) fn environment() -> Environment {
    environment_with(Arc::new(TokioClock::default()))
}

pub(crate) fn environment_with(clock: Arc<dyn Clock>) -> Environment {
    Environment {
        clock,
        entropy: Arc::new(Seeded(AtomicU64::new(7))),
        spawn: Arc::new(TokioSpawn),
    }
}

/// An executor of the cluster, without handlers.
pub(crate) fn executor(cluster: &Arc<Cluster>) -> ExecutorBuilder {
    Executor::builder()
        .nodes([N1, N2, N3])
        .token("t")
        .instance_id("worker-1")
        .version("1.0.0")
        .capacity(4)
        .transport(Arc::new(Wire(Arc::clone(cluster))))
        .environment(environment())
}
