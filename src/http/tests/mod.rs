//! Tests of the interface: the router as a service over a single replica in memory. No socket, no real time.

mod errors;
mod executor;
mod fires;
mod forwarding;
mod fuzz;
mod invalid_jobs;
mod jobs;
mod limits;
mod polling;
mod routes;
mod runs;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tenure_api::cluster::Role;
use tenure_api::error::PROBLEM_JSON;
use tenure_machine::Stamp;
use tenure_machine::plan::Planner;
use tower::ServiceExt as _;

use super::history::MemoryHistory;
use super::{Gateway, Limits, Meters, Parts, router};
use crate::blocking::Blocking;
use crate::consensus::{Consensus, Solo};
use crate::security::{OsEntropy, Principal, TokenEntry, Tokens, issue_token};
use crate::wakeups::Wakeups;

/// 2026-09-21T14:13:20Z, a Monday.
pub(super) const START_MS: u64 = 1_790_000_000_000;

/// A cluster of one and everything around it.
pub(super) struct World {
    pub(super) solo: Arc<Solo>,
    pub(super) history: Arc<MemoryHistory>,
    pub(super) gateway: Gateway,
    pub(super) router: Router,
    pub(super) tokens: Arc<Tokens>,
    secrets: BTreeMap<String, String>,
    planner: Mutex<Planner>,
}

/// An answer that was read to its end.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Answered {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body of a success.
    #[track_caller]
    pub(super) fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.json()
    }

    /// The problem of a failure: its code, after a look at its form.
    #[track_caller]
    pub(super) fn code(&self) -> String {
        assert!(self.status >= 400, "{self:?}");
        assert_eq!(self.header("content-type"), PROBLEM_JSON, "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{self:?}");
        let code = problem["code"].as_str().unwrap().to_owned();
        assert_eq!(problem["type"], format!("urn:tenure:error:{code}"));
        code
    }

    /// Status and code of a failure.
    #[track_caller]
    pub(super) fn failed(&self) -> (u16, String) {
        (self.status, self.code())
    }

    pub(super) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }
}

/// A request in the making.
pub(super) struct Asking {
    router: Router,
    builder: http::request::Builder,
    body: Vec<u8>,
}

impl Asking {
    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    pub(super) fn extension(mut self, value: impl Clone + Send + Sync + 'static) -> Self {
        self.builder = self.builder.extension(value);
        self
    }

    pub(super) fn json(self, body: &Value) -> Self {
        self.text("application/json", &body.to_string())
    }

    pub(super) fn yaml(self, body: &str) -> Self {
        self.text("application/yaml", body)
    }

    pub(super) fn text(self, media: &str, body: &str) -> Self {
        self.bytes(media, body.as_bytes())
    }

    pub(super) fn bytes(mut self, media: &str, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self.header("content-type", media)
    }

    pub(super) async fn send(self) -> Answered {
        let request = self.builder.body(Body::from(self.body)).unwrap();
        send(self.router, request).await
    }
}

pub(super) async fn send(router: Router, request: Request<Body>) -> Answered {
    let response = router.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answered {
        status: parts.status.as_u16(),
        headers: parts.headers,
        text: String::from_utf8(body.to_vec()).unwrap(),
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(super) fn with_limits(limits: Limits) -> Self {
        let history = MemoryHistory::new();
        let wakeups = Wakeups::new();
        let meters = Meters::new();
        let told = (history.clone(), wakeups.clone(), meters.clone());
        let now = Stamp {
            lease_ms: 0,
            calendar_ms: START_MS,
        };
        let solo = Solo::new(now, move |_, events| {
            let (history, wakeups, meters) = &told;
            history.record(events);
            meters.tell(events);
            wakeups.tell(events);
        });
        let (tokens, secrets) = tokens();
        let parts = Parts {
            consensus: solo.clone(),
            history: history.clone(),
            wakeups,
            tokens: tokens.clone(),
            meters,
            limits,
            blocking: Blocking::Threads,
        };
        let gateway = Gateway::new(parts, &OsEntropy).unwrap();
        Self {
            solo,
            history,
            router: router(gateway.clone()),
            gateway,
            tokens,
            secrets,
            planner: Mutex::new(Planner::default()),
        }
    }

    /// A request of the named principal; nobody's for an empty name.
    pub(super) fn ask_as(&self, who: &str, method: &str, path: &str) -> Asking {
        self.ask_at(&self.router, who, method, path)
    }

    pub(super) fn ask_at(&self, router: &Router, who: &str, method: &str, path: &str) -> Asking {
        let mut builder = Request::builder().method(method).uri(path);
        if !who.is_empty() {
            builder = builder.header("authorization", format!("Bearer {}", self.secrets[who]));
        }
        Asking {
            router: router.clone(),
            builder,
            body: Vec::new(),
        }
    }

    /// A request of the administrator.
    pub(super) fn ask(&self, method: &str, path: &str) -> Asking {
        self.ask_as("admin", method, path)
    }

    /// A request of the executor, which is always a POST.
    pub(super) async fn tell(&self, path: &str, body: Value) -> Answered {
        let path = format!("/v1/executor/sessions{path}");
        self.ask_as("executor", "POST", &path)
            .json(&body)
            .send()
            .await
    }

    pub(super) async fn get(&self, path: &str) -> Answered {
        self.ask_as("viewer", "GET", path).send().await
    }

    /// Puts a job that must be accepted.
    pub(super) async fn put(&self, name: &str, yaml: &str) -> Value {
        let text = format!("name: {name}\n{yaml}");
        self.ask("PUT", &format!("/v1/jobs/{name}"))
            .yaml(&text)
            .send()
            .await
            .ok()
    }

    /// Registers an executor with the capability `work` and gives back its session.
    pub(super) async fn register(&self, instance: &str) -> u64 {
        let body = serde_json::json!({
            "instance_id": instance, "version": "2.4.0", "capabilities": ["work"], "capacity": 4,
        });
        self.tell("", body).await.ok()["session"].as_u64().unwrap()
    }

    /// One round of the leader's loop.
    pub(super) async fn plan(&self) {
        let commands = {
            let mut planner = self.planner.lock().unwrap();
            planner.plan(&self.solo.stale().state, self.solo.now())
        };
        for committed in self.solo.propose_all(1, commands).await {
            committed.unwrap().reply.unwrap();
        }
    }

    /// Lets time pass, then plans until nothing is left to do.
    pub(super) async fn after(&self, ms: u64) {
        self.solo.advance(ms);
        self.plan().await;
        self.plan().await;
    }
}

fn tokens() -> (Arc<Tokens>, BTreeMap<String, String>) {
    let mut secrets = BTreeMap::new();
    let mut entries: Vec<TokenEntry> = Vec::new();
    for (name, role) in [
        ("admin", Role::Admin),
        ("operator", Role::Operator),
        ("viewer", Role::Viewer),
        ("executor", Role::Executor),
        ("stranger", Role::Executor),
    ] {
        let principal = Principal {
            name: name.parse().unwrap(),
            role,
        };
        let (text, entry) = issue_token(&OsEntropy, principal).unwrap();
        secrets.insert(name.to_owned(), text.expose().to_owned());
        entries.push(entry);
    }
    (Arc::new(Tokens::new(entries).unwrap()), secrets)
}

/// A job that an executor with the capability `work` runs when asked.
pub(super) const MANUAL: &str = "trigger: {manual: true}\ntask: {capability: work}\n";
