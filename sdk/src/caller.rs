//! Calls the cluster: finds the leader among any list of nodes, and repeats what is safe to repeat.
//!
//! Invariants:
//! - A request whose outcome is unknown is repeated only if the call says that this is harmless.
//! - No answer of a lower term than the highest seen is ever handed on.
//! - A call ends within its overall deadline.
//!
//! It keeps no queue: each call runs on its caller's task.

use crate::environment::Environment;
use crate::error::{Attempt, BuildError, Error};
use crate::metrics::Counters;
use crate::retry::{Backoff, RetryPolicy};
use crate::transport::{Lane, Method, Request, Response, Transport, TransportError};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tenure_api::error::PROBLEM_JSON;
use tenure_api::{ErrorCode, Problem, paths};

/// The most nodes that are kept, given and learned.
const MAX_NODES: usize = 64;

/// A bearer token that shows itself to nobody.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(token: String) -> Result<Self, BuildError> {
        let token = token.trim().to_owned();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BuildError::new("token", "must be visible ASCII text"));
        }
        Ok(Self(token))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// Checks a node's address and gives back its one form: `http://host:port`, no trailing slash.
pub(crate) fn node_address(text: &str) -> Result<String, BuildError> {
    let text = text.trim().trim_end_matches('/');
    let refuse = |why: &str| {
        Err(BuildError::new(
            "node",
            format!("\"{text}\" {why}; write http://host:port"),
        ))
    };
    if text.len() > 300 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refuse("is not an address");
    }
    let Some((scheme, authority)) = text.split_once("://") else {
        return node_address(&format!("http://{text}"));
    };
    if scheme != "http" {
        return refuse("has a scheme that is not supported");
    }
    let Some((host, port)) = authority.rsplit_once(':') else {
        return refuse("has no port");
    };
    if host.is_empty() || host.contains(['/', '@', '?', '#']) || port.parse::<u16>().is_err() {
        return refuse("is not an address");
    }
    Ok(text.to_owned())
}

/// Whether a call may be repeated when its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Doing it twice is the same as doing it once.
    Harmless,
    /// Only when it is certain that it was not done.
    OnlyIfNotDone,
}

/// One call.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
    pub(crate) lane: Lane,
    pub(crate) repeat: Repeat,
    /// How long one attempt may take. Longer than the policy's for long polls.
    pub(crate) attempt_timeout: Duration,
    /// How long all attempts together may take.
    pub(crate) overall_timeout: Duration,
}

/// Calls a cluster.
pub(crate) struct Caller {
    transport: Arc<dyn Transport>,
    pub(crate) environment: Environment,
    pub(crate) counters: Arc<Counters>,
    pub(crate) policy: RetryPolicy,
    token: Option<Secret>,
    highest_term: AtomicU64,
    nodes: Mutex<Nodes>,
}

/// Where to ask.
#[derive(Debug)]
struct Nodes {
    known: Vec<String>,
    /// The node that is thought to lead.
    leader: Option<String>,
    /// Which node to ask next when no leader is known.
    next: usize,
}

impl Nodes {
    /// The node to ask, and nothing forgotten.
    fn choose(&self) -> String {
        match &self.leader {
            Some(leader) => leader.clone(),
            None => {
                let index = self.next % self.known.len().max(1);
                self.known.get(index).cloned().unwrap_or_default()
            }
        }
    }

    /// `node` gave no good answer: another is asked next.
    fn avoid(&mut self, node: &str) {
        if self.leader.as_deref() == Some(node) {
            self.leader = None;
        }
        if let Some(index) = self.known.iter().position(|known| known == node) {
            self.next = (index + 1) % self.known.len().max(1);
        }
    }

    /// A node said who leads. Tells whether that is news.
    fn learn(&mut self, leader: String) -> bool {
        if self.leader.as_ref() == Some(&leader) {
            return false;
        }
        if !self.known.contains(&leader) && self.known.len() < MAX_NODES {
            self.known.push(leader.clone());
        }
        self.leader = Some(leader);
        true
    }
}

/// What to do after an attempt.
enum Step {
    Done(Response),
    Fail(Error),
    /// Ask another node, or the leader that was just learned.
    Move(Attempt),
    /// Ask the nodes that were not asked yet; if there are none, this is the answer.
    Elsewhere(Box<Problem>),
    /// Wait, at least this long, then ask again.
    Wait(Attempt, Duration),
}

impl Caller {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        environment: Environment,
        policy: RetryPolicy,
        nodes: &[String],
        token: Option<String>,
    ) -> Result<Self, BuildError> {
        let mut known: Vec<String> = Vec::new();
        for node in nodes {
            let address = node_address(node)?;
            if !known.contains(&address) {
                known.push(address);
            }
        }
        if known.is_empty() || known.len() > MAX_NODES {
            return Err(BuildError::new(
                "node",
                format!("give 1 to {MAX_NODES} nodes"),
            ));
        }
        // Many executors start at once, so each begins at another node.
        let next =
            usize::try_from(environment.entropy.next_u64() % known.len() as u64).unwrap_or(0);
        Ok(Self {
            transport,
            environment,
            counters: Arc::new(Counters::default()),
            policy,
            token: token.map(Secret::new).transpose()?,
            highest_term: AtomicU64::new(0),
            nodes: Mutex::new(Nodes {
                known,
                leader: None,
                next,
            }),
        })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest term any answer has carried. Zero before the first.
    pub(crate) fn highest_term(&self) -> u64 {
        self.highest_term.load(Ordering::Relaxed)
    }

    /// Makes a call with the policy's own times.
    pub(crate) fn call(&self, method: Method, path: String, repeat: Repeat) -> Call {
        Call {
            method,
            path,
            headers: Vec::new(),
            body: Bytes::new(),
            lane: Lane::Call,
            repeat,
            attempt_timeout: self.policy.attempt_timeout,
            overall_timeout: self.policy.overall_timeout,
        }
    }

    /// Makes the call and reads the answer's JSON body.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let response = self.send(call).await?;
        serde_json::from_slice(&response.body).map_err(|fault| Error::Protocol(fault.to_string()))
    }

    /// Makes the call: asks node after node until one answers, nothing more may be tried, or the
    /// time is over.
    pub(crate) async fn send(&self, call: Call) -> Result<Response, Error> {
        let deadline = self.environment.now().saturating_add(call.overall_timeout);
        let mut backoff = Backoff::new(self.policy.initial_backoff, self.policy.max_backoff);
        let mut moves_left = self.nodes().known.len();
        let mut maybe_done = false;
        loop {
            let remaining = deadline.saturating_sub(self.environment.now());
            let node = self.nodes().choose();
            let (attempt, at_least) = match self.attempt(&call, &node, remaining).await {
                Step::Done(response) => return Ok(response),
                Step::Fail(error) => return Err(error),
                Step::Move(attempt) => (attempt, Duration::ZERO),
                Step::Elsewhere(problem) if moves_left > 1 => {
                    (Attempt::Answered(problem), Duration::ZERO)
                }
                Step::Elsewhere(problem) if maybe_done => {
                    let last = format!("{node}: {}", Attempt::Answered(problem));
                    return Err(Error::OutcomeUnknown { last });
                }
                Step::Elsewhere(problem) => return Err(Error::Refused(problem)),
                Step::Wait(attempt, at_least) => (attempt, at_least),
            };
            maybe_done |= call.method.changes() && attempt.maybe_done();
            #[cfg(feature = "planted-bugs")]
            let maybe_done =
                maybe_done && !tenure_planted::is(tenure_planted::Bug::ReplyLostIsFailure);
            // A round through the nodes goes without a pause; the next one waits.
            let mut pause = at_least;
            if moves_left > 1 && at_least.is_zero() {
                moves_left -= 1;
            } else {
                moves_left = self.nodes().known.len();
                pause = pause.max(backoff.pause(&self.environment));
            }
            let left = deadline.saturating_sub(self.environment.now());
            if pause >= left {
                let last = format!("{node}: {attempt}");
                return Err(match attempt {
                    // A clear answer says more than that time is over.
                    Attempt::Answered(problem)
                        if !maybe_done && problem.code.had_no_side_effect() =>
                    {
                        Error::Refused(problem)
                    }
                    _ if maybe_done => Error::OutcomeUnknown { last },
                    _ => Error::Unavailable { last },
                });
            }
            if !pause.is_zero() {
                self.environment.sleep(pause).await;
            }
            self.counters.retries.add();
            tracing::debug!(%node, %attempt, path = %call.path, "asking again");
        }
    }

    /// Asks one node once.
    async fn attempt(&self, call: &Call, node: &str, remaining: Duration) -> Step {
        let timeout = call.attempt_timeout.min(remaining);
        let mut headers = call.headers.clone();
        if let Some(Secret(token)) = &self.token {
            headers.push(("authorization", format!("Bearer {token}")));
        }
        let request = Request {
            node: node.to_owned(),
            method: call.method,
            path: call.path.clone(),
            headers,
            body: call.body.clone(),
            timeout,
            lane: call.lane,
        };
        self.counters.requests.add();
        let sent = self
            .environment
            .within(timeout, self.transport.send(request))
            .await;
        match sent.unwrap_or(Err(TransportError::Timeout)) {
            Err(why) => self.not_answered(call, node, why),
            Ok(response) => self.answered(call, node, response),
        }
    }

    fn not_answered(&self, call: &Call, node: &str, why: TransportError) -> Step {
        self.nodes().avoid(node);
        if why.had_no_side_effect() {
            self.counters.unreachable.add();
            return Step::Move(Attempt::Transport(why));
        }
        self.counters.outcomes_unknown.add();
        match call.repeat {
            Repeat::Harmless => Step::Move(Attempt::Transport(why)),
            Repeat::OnlyIfNotDone => Step::Fail(Error::OutcomeUnknown {
                last: format!("{node}: {why}"),
            }),
        }
    }

    fn answered(&self, call: &Call, node: &str, response: Response) -> Step {
        if let Err(stale) = self.note_term(&response) {
            self.counters.stale_term_answers_dropped.add();
            self.nodes().avoid(node);
            return match call.repeat {
                Repeat::Harmless => Step::Move(stale),
                Repeat::OnlyIfNotDone => Step::Fail(Error::OutcomeUnknown {
                    last: format!("{node}: {stale}"),
                }),
            };
        }
        let told = self.note_leader(&response);
        if (200..300).contains(&response.status) {
            return Step::Done(response);
        }
        let retry_after = retry_after(&response);
        let Some(problem) = problem_of(&response) else {
            return self.foreign(call, node, response.status);
        };
        let code = problem.code;
        // A new member says this until it has heard of its cluster, which the others know.
        if code == ErrorCode::NotInitialized {
            self.nodes().avoid(node);
            return Step::Elsewhere(Box::new(problem));
        }
        if !code.retryable() {
            return Step::Fail(Error::from(problem));
        }
        let attempt = Attempt::Answered(Box::new(problem));
        if !code.had_no_side_effect() && call.repeat == Repeat::OnlyIfNotDone {
            return Step::Fail(Error::OutcomeUnknown {
                last: format!("{node}: {attempt}"),
            });
        }
        match code {
            // The node told who leads: that one is asked at once. Otherwise another may know.
            ErrorCode::NotLeader => {
                if !told {
                    self.nodes().avoid(node);
                }
                Step::Move(attempt)
            }
            // This node is cut off, perhaps alone: another may be with the majority, and is asked at once.
            // `Retry-After` counts whole seconds; a leader is found sooner by the own back-off.
            ErrorCode::NoLeader | ErrorCode::OutcomeUnknown => {
                self.nodes().avoid(node);
                Step::Move(attempt)
            }
            _ => Step::Wait(attempt, retry_after.unwrap_or(self.policy.initial_backoff)),
        }
    }

    /// An error that is not in the cluster's own form, perhaps from a proxy.
    fn foreign(&self, call: &Call, node: &str, status: u16) -> Step {
        self.nodes().avoid(node);
        let passing = matches!(status, 408 | 429 | 502 | 503 | 504);
        match (passing, call.repeat) {
            (true, Repeat::Harmless) => Step::Move(Attempt::Status(status)),
            (true, Repeat::OnlyIfNotDone) => Step::Fail(Error::OutcomeUnknown {
                last: format!("{node}: status {status}"),
            }),
            (false, _) => Step::Fail(Error::Protocol(format!("{node}: status {status}"))),
        }
    }

    /// Keeps the highest term. An answer below it is an error.
    fn note_term(&self, response: &Response) -> Result<(), Attempt> {
        let header = response.header(paths::TERM_HEADER);
        let Some(got) = header.and_then(|text| text.parse::<u64>().ok()) else {
            return Ok(());
        };
        let seen = self.highest_term.fetch_max(got, Ordering::Relaxed);
        if got < seen {
            Err(Attempt::StaleTerm { seen, got })
        } else {
            Ok(())
        }
    }

    /// Remembers the leader that the answer names. Tells whether it names one.
    fn note_leader(&self, response: &Response) -> bool {
        let named = response.header(paths::LEADER_HEADER);
        let Some(leader) = named.and_then(|text| node_address(text).ok()) else {
            return false;
        };
        if self.nodes().learn(leader) {
            self.counters.leader_changes.add();
        }
        true
    }
}

/// The error in an answer, if it is in the cluster's own form.
fn problem_of(response: &Response) -> Option<Problem> {
    let kind = response.header("content-type").unwrap_or_default();
    if !kind.starts_with(PROBLEM_JSON) {
        return None;
    }
    serde_json::from_slice(&response.body).ok()
}

/// How long the node asks to wait, at most a minute.
fn retry_after(response: &Response) -> Option<Duration> {
    let secs: u64 = response.header("retry-after")?.trim().parse().ok()?;
    Some(Duration::from_secs(secs.min(60)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form() {
        for (text, form) in [
            ("127.0.0.1:7001", "http://127.0.0.1:7001"),
            ("http://n1:7001/", "http://n1:7001"),
            ("http://[::1]:7001", "http://[::1]:7001"),
        ] {
            assert_eq!(node_address(text).unwrap(), form);
        }
        for bad in [
            "",
            "n1",
            "https://n1:1",
            "http://u@n1:1",
            "http://n1:1/x",
            "http://n1:99999",
        ] {
            assert!(node_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_token_is_never_shown() {
        let secret = Secret::new("hunter2".into()).unwrap();
        assert_eq!(format!("{secret:?}"), "<redacted>");
        assert!(Secret::new(" ".into()).is_err());
        assert!(Secret::new("a\r\nb".into()).is_err());
    }
}
