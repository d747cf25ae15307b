//! Calls of executors and clients to nodes, as HTTP would bring them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use tenure_sdk::{Request, Response, Transport, TransportError};
use tokio::time::sleep;
use tower::ServiceExt as _;

use super::{Network, digest, name, node_of};
use crate::chance;
use crate::scope::{self, Process, WORLD};
use crate::trace;

/// How much of what was said under an epoch is kept: as much as all executors say within a few seconds.
const REMEMBERED: usize = 40;

/// Sees the exchanges of one process with the nodes.
pub trait Witness: Send + Sync + 'static {
    /// A request is sent. What is returned comes back with the answer.
    fn asks(&self) -> u64;
    /// A request was answered.
    fn answered(&self, request: &Request, asked: u64, answer: &Response);
}

/// The way of one executor or client to the nodes.
pub struct HttpLink {
    /// The network.
    pub network: Arc<Network>,
    /// The process that calls.
    pub process: Process,
    /// Who sees what it says and hears.
    pub witness: Option<Arc<dyn Witness>>,
}

impl Transport for HttpLink {
    fn send(
        &self,
        request: Request,
    ) -> tenure_sdk::BoxFuture<'_, Result<Response, TransportError>> {
        Box::pin(async move {
            let asked = self.witness.as_ref().map(|witness| witness.asks());
            let timeout = request.timeout;
            let (network, process) = (self.network.clone(), self.process);
            let freezes = request.path.ends_with("/heartbeat")
                && network.state().frozen_at_heartbeat.remove(&process);
            let message = request.clone();
            let exchange = async move { exchange(network, process, message).await };
            let answer = if freezes {
                // It is on its way, and the answer waits in a buffer, while nobody is there to read it.
                let under_way = scope::spawn_in(WORLD, exchange);
                scope::pause(process);
                tokio::time::timeout(timeout, under_way)
                    .await
                    .map(|ended| ended.unwrap_or(Err(TransportError::Timeout)))
            } else {
                tokio::time::timeout(timeout, exchange).await
            };
            let answer = answer.unwrap_or(Err(TransportError::Timeout));
            if let (Some(witness), Some(asked), Ok(answer)) = (&self.witness, asked, &answer) {
                witness.answered(&request, asked, answer);
            }
            answer
        })
    }
}

/// Sends a request and waits for the answer. What is on the wire when the caller gives up, or dies, may be
/// lost with the connection or arrive all the same.
async fn exchange(
    network: Arc<Network>,
    from: Process,
    request: Request,
) -> Result<Response, TransportError> {
    let carrier = scope::spawn_in(WORLD, async move { convey(network, from, &request).await });
    let mut hang_up = HangUp(chance::happens(500).then(|| carrier.abort_handle()));
    let answer = carrier.await;
    hang_up.0 = None;
    answer.unwrap_or_else(|_| Err(TransportError::Broken("the connection ended".to_owned())))
}

/// Brings a request to its node, and the answer back.
async fn convey(
    network: Arc<Network>,
    from: Process,
    request: &Request,
) -> Result<Response, TransportError> {
    let to = node_of(&request.node)
        .ok_or_else(|| TransportError::Unreachable("no such host".to_owned()))?;
    network.state().traffic.http += 1;
    sleep(network.delay()).await;
    stay_on_the_wire(&network, from, &request.path).await;
    let life = network.life(to);
    let (router, silent) = {
        let state = network.state();
        (state.http.get(&to).cloned(), state.off.contains(&to))
    };
    let Some(router) = router else {
        if silent || network.is_cut(from, to) || network.is_cut(to, from) {
            return std::future::pending().await;
        }
        return Err(TransportError::Unreachable("connection refused".to_owned()));
    };
    if !network.passes(from, to).await {
        return std::future::pending().await;
    }
    if network.breaks() || network.life(to) != life {
        return Err(TransportError::Broken("before it arrived".to_owned()));
    }
    trace!(
        "{} > {} {} {} {} bytes {:08x}",
        name(from),
        name(to),
        request.method.as_str(),
        request.path,
        request.body.len(),
        digest(&request.body)
    );
    let message = to_http(request);
    let serving = scope::spawn_in(to, async move {
        // A router of axum never fails: its errors are answers.
        let answer = router.oneshot(message).await.unwrap_or_default();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes());
        (head, body.unwrap_or_default())
    });
    // A server notices, sooner or later, that its client is gone; or it has done the work by then.
    let mut hang_up = HangUp(chance::happens(500).then(|| serving.abort_handle()));
    let served = serving.await;
    hang_up.0 = None;
    let (head, body) = served.map_err(|_| TransportError::Broken("the node died".to_owned()))?;
    if head.status.is_success() {
        remember(&network, from, request);
        if network.copies() {
            let longest_ms = chance::one_of(&[50, 3_000, 20_000]);
            let copy = copy(network.clone(), from, to, request.clone(), longest_ms);
            scope::spawn_in(WORLD, copy);
        }
    }
    sleep(network.delay()).await;
    if !network.passes(to, from).await {
        return std::future::pending().await;
    }
    if network.breaks() {
        return Err(TransportError::Broken("before the answer came".to_owned()));
    }
    trace!(
        "{} < {} {} {} bytes {:08x}",
        name(from),
        name(to),
        head.status.as_u16(),
        body.len(),
        digest(&body)
    );
    let text = |value: &http::HeaderValue| value.to_str().ok().map(str::to_owned);
    Ok(Response {
        status: head.status.as_u16(),
        headers: head
            .headers
            .iter()
            .filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)))
            .collect(),
        body,
    })
}

async fn stay_on_the_wire(network: &Network, from: Process, path: &str) {
    let is_held = |network: &Network, more| {
        let mut state = network.state();
        let held = state.held.get_mut(&from);
        held.filter(|(end, _)| path.ends_with(*end))
            .map(|(_, count)| *count += more)
            .is_some()
    };
    let mut more = 1;
    while is_held(network, more) {
        more = 0;
        sleep(Duration::from_millis(1)).await;
    }
}

/// Keeps what is said under an epoch, for [`Network::say_again`].
fn remember(network: &Network, from: Process, request: &Request) {
    let epochal = ["/checkpoint", "/start", "/result"];
    if epochal.iter().any(|end| request.path.ends_with(end)) {
        let said = &mut network.state().said;
        if said.len() == REMEMBERED {
            said.pop_front();
        }
        said.push_back((from, request.clone()));
    }
}

/// Something between the two sends a request that was answered once more, maybe after the lease that it was
/// sent under is over. Nobody hears the answer.
pub(super) async fn copy(
    network: Arc<Network>,
    from: Process,
    to: Process,
    request: Request,
    longest_ms: u64,
) {
    sleep(Duration::from_millis(chance::between(1, longest_ms))).await;
    let router = network.state().http.get(&to).cloned();
    let Some(router) = router.filter(|_| !network.is_cut(from, to)) else {
        return;
    };
    network.state().traffic.copied += 1;
    trace!(
        "{} > {} again {} {}",
        name(from),
        name(to),
        request.method.as_str(),
        request.path,
    );
    let message = to_http(&request);
    scope::spawn_in(to, async move {
        let _ = router.oneshot(message).await;
    });
}

struct HangUp(Option<tokio::task::AbortHandle>);

impl Drop for HangUp {
    fn drop(&mut self) {
        if let Some(serving) = self.0.take() {
            serving.abort();
        }
    }
}

fn to_http(request: &Request) -> http::Request<Body> {
    let mut message = http::Request::builder()
        .method(request.method.as_str())
        .uri(&request.path);
    for (name, value) in &request.headers {
        message = message.header(*name, value);
    }
    message
        .body(Body::from(request.body.clone()))
        .expect("the SDK makes requests that are well formed")
}
