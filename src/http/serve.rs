//! The one way in: find the route, authenticate, authorize, admit, read, hand on, answer.
//!
//! Invariants:
//! - A request is authenticated before anything else about it is told, its path included. Who is not
//!   authenticated is told nothing of the cluster: no term, no leader, no count of requests.
//! - The term in the answer is the one from *before* the handler looked at the state. An answer of a leader
//!   that was deposed meanwhile thus carries the old term, and whoever has seen the new one drops it.
//! - Every error is `application/problem+json`, and no panic gets out.
//! - Nothing waits without a bound: neither for a place, nor for the body, nor for the handler.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::FutureExt as _;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tenure_api::paths::{LEADER_HEADER, OPENAPI, TERM_HEADER};
use tenure_api::runs::Consistency;
use tenure_api::{ErrorCode, Problem};

use super::answer::Answer;
use super::call::Call;
use super::failure::Failure;
use super::forward::{self, Forwarded};
use super::gateway::{Gateway, Shared};
use super::routes::{self, Access, Found, Place, Route};
use crate::consensus::Standing;
use crate::listener::Guest;
use crate::security::Principal;

/// Header with the id of a request: the caller's own, or one that the node made.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// Header of a stale answer: the last log index in the state it was made from.
pub const APPLIED_HEADER: &str = "tenure-applied-index";
/// Header of a stale answer: how long ago the leader stamped the last entry in that state, in milliseconds.
/// Without new entries it grows although nothing is missing.
pub const STATE_AGE_HEADER: &str = "tenure-state-age-ms";

const MAX_REQUEST_ID_BYTES: usize = 128;
const MAX_QUERY_BYTES: usize = 8 * 1024;
/// The most of an unknown path that its answer repeats.
const MAX_SHOWN_PATH_CHARS: usize = 200;

/// The interface as a service: hand it to a server, or call it without a socket.
pub fn router(gateway: Gateway) -> Router {
    Router::new().fallback(move |request: Request<Body>| {
        let shared = gateway.shared.clone();
        async move { serve(shared, request).await }
    })
}

/// Answers one request.
pub(crate) async fn serve(shared: Arc<Shared>, request: Request<Body>) -> Response {
    let standing = shared.consensus.standing().borrow().clone();
    let given_id = request_id(request.headers()).map(str::to_owned);
    let own_request_id = given_id.is_some();
    let request_id = given_id.unwrap_or_else(|| shared.next_request_id());
    let head = request.method() == Method::HEAD;
    let began = tokio::time::Instant::now();
    let mut seen = Seen::default();
    let stepping = AssertUnwindSafe(steps(&shared, request, &request_id, &mut seen));
    let mut answer = match stepping.catch_unwind().await {
        Ok(Ok(answer)) => answer,
        Ok(Err(Failure::Problem(problem))) => Answer::problem(&problem),
        Ok(Err(Failure::NotLeader)) => Answer::problem(&no_leader(&shared)),
        Err(_) => {
            let detail = format!("the handler failed; request {request_id}");
            Answer::problem(&Problem::new(ErrorCode::Internal, detail))
        }
    };
    // A cluster without a leader answers many requests with 503. That is told once, where it is noticed.
    if answer.status == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::warn!(%request_id, "request failed");
    }
    if seen.authenticated {
        answer.set_if_absent(TERM_HEADER, standing.term);
        if let Some(leader) = &standing.leader {
            answer.set_if_absent(LEADER_HEADER, &leader.http_url);
        }
    }
    // An id that the node made counts its requests.
    if seen.authenticated || own_request_id {
        answer.set(REQUEST_ID_HEADER, &request_id);
    }
    if answer.status.is_success() && !answer.headers.contains_key(http::header::CACHE_CONTROL) {
        answer.set("cache-control", "no-store");
    }
    shared
        .meters
        .answered(seen.route, answer.status.as_u16(), began.elapsed());
    if head {
        answer.body.clear();
    }
    answer.into_response()
}

/// What is known of a request, however it ends.
#[derive(Default)]
struct Seen {
    authenticated: bool,
    route: Option<&'static Route>,
}

async fn steps(
    shared: &Arc<Shared>,
    request: Request<Body>,
    request_id: &str,
    seen: &mut Seen,
) -> Result<Answer, Failure> {
    let (parts, body) = request.into_parts();
    let forwarded = parts.extensions.get::<Forwarded>().cloned();
    let hopped = forwarded.is_some();
    let principal = match forwarded {
        Some(Forwarded { principal }) => Some(principal),
        None => authenticate(shared, &parts.headers),
    };
    seen.authenticated = principal.is_some();
    if seen.authenticated
        && let Some(guest) = parts.extensions.get::<Arc<Guest>>()
    {
        guest.welcome();
    }
    let path = parts.uri.path().to_owned();
    let (route, parameters) = find(&parts.method, &path, principal.as_ref())?;
    seen.route = Some(route);
    authorize(route, principal.as_ref())?;
    let _place = shared.admit(route.lane)?;
    let (query, consistency) = split_query(route, parts.uri.query().unwrap_or_default())?;
    let body = read_body(shared, &parts.headers, body).await?;
    let call = Call {
        shared: shared.clone(),
        route,
        principal,
        path,
        parameters,
        query,
        consistency,
        headers: parts.headers,
        body,
    };
    let local = route.place == Place::Here || consistency == Consistency::Stale;
    let handling = async {
        if local {
            return here(call).await;
        }
        through_leader(shared, call, hopped, request_id).await
    };
    match tokio::time::timeout(time_limit(shared, route), handling).await {
        Ok(answer) => answer,
        Err(_) => Err(late(route).into()),
    }
}

/// Answers on this node, whether it leads or not.
async fn here(call: Call) -> Result<Answer, Failure> {
    let stale = (call.consistency == Consistency::Stale).then(|| call.shared.clone());
    // Taken before the handler reads the state: the state is at least as new.
    let applied = stale.as_ref().map(|shared| {
        let standing = shared.consensus.standing().borrow().applied;
        let age_ms = shared
            .consensus
            .now()
            .calendar_ms
            .saturating_sub(shared.consensus.stale().state.clock().calendar_ms);
        (standing, age_ms)
    });
    let mut answer = (call.route.handler)(call).await?;
    if let Some((index, age_ms)) = applied {
        answer.set(APPLIED_HEADER, index);
        answer.set(STATE_AGE_HEADER, age_ms);
    }
    Ok(answer)
}

/// Answers on this node if it leads; otherwise asks the node that does, once.
async fn through_leader(
    shared: &Arc<Shared>,
    call: Call,
    hopped: bool,
    request_id: &str,
) -> Result<Answer, Failure> {
    if shared.consensus.standing().borrow().leads {
        match (call.route.handler)(call.clone()).await {
            // It was deposed before anything happened.
            Err(Failure::NotLeader) => {}
            answered => return answered,
        }
    }
    if hopped {
        let detail = "the request was forwarded to this node, which does not lead";
        return Err(Failure::new(ErrorCode::NotLeader, detail));
    }
    let standing = shared.consensus.standing().borrow().clone();
    match &standing.leader {
        Some(leader) if leader.id != standing.node => {
            forward::send(shared, &call, request_id).await
        }
        _ => Err(Failure::NotLeader),
    }
}

/// What to say where nobody leads: that the cluster is not there yet, or that it has no majority.
pub(crate) fn no_leader(shared: &Shared) -> Problem {
    let standing = shared.consensus.standing().borrow().clone();
    if uninitialized(&standing) {
        return Problem::new(ErrorCode::NotInitialized, "this node belongs to no cluster");
    }
    let detail = format!(
        "node {} knows no leader that a majority follows; its term is {}",
        standing.node, standing.term
    );
    Problem::new(ErrorCode::NoLeader, detail)
}

fn uninitialized(standing: &Standing) -> bool {
    standing.leader.is_none() && standing.members.is_empty()
}

/// The route of a request. Without a principal nothing is told about what there is.
fn find(
    method: &Method,
    path: &str,
    principal: Option<&Principal>,
) -> Result<(&'static Route, Vec<String>), Failure> {
    // A HEAD is a GET without its body.
    let wanted = if method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    match routes::find(wanted, path) {
        Found::Route(route, parameters) => Ok((route, parameters)),
        Found::Path(_) | Found::Nothing if principal.is_none() => Err(unauthenticated().into()),
        Found::Path(methods) => {
            let detail = format!("{method} is not a method of this path");
            Err(Problem::new(ErrorCode::MethodNotAllowed, detail)
                .at("method")
                .allowing(methods.iter().map(|known| known.as_str()))
                .into())
        }
        Found::Nothing => {
            let shown: String = path.chars().take(MAX_SHOWN_PATH_CHARS).collect();
            let detail = format!("there is no path {shown}; GET {OPENAPI} names all of them");
            Err(Problem::new(ErrorCode::NotFound, detail).at("path").into())
        }
    }
}

fn authenticate(shared: &Shared, headers: &HeaderMap) -> Option<Principal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    shared.tokens.authenticate(token.trim())
}

fn authorize(route: &Route, principal: Option<&Principal>) -> Result<(), Failure> {
    let needed = match route.access {
        Access::Open => return Ok(()),
        Access::Role(needed) => needed,
    };
    let Some(principal) = principal else {
        return Err(unauthenticated().into());
    };
    if principal.role.allows(needed) {
        return Ok(());
    }
    let detail = format!(
        "{} has role {}; this needs role {needed}",
        principal.name, principal.role
    );
    Err(Failure::new(ErrorCode::Forbidden, detail))
}

fn unauthenticated() -> Problem {
    Problem::new(
        ErrorCode::Unauthenticated,
        "the request carries no token that this node knows",
    )
}

/// Takes `consistency` out of the query, where the route can be answered by any node.
fn split_query(route: &Route, query: &str) -> Result<(String, Consistency), Failure> {
    if query.len() > MAX_QUERY_BYTES {
        let detail = format!("a query has at most {MAX_QUERY_BYTES} bytes");
        return Err(Failure::invalid("query", detail));
    }
    if route.place != Place::Read {
        return Ok((query.to_owned(), Consistency::Linearizable));
    }
    let mut consistency = None;
    let mut rest = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "consistency" {
            rest.append_pair(&name, &value);
            continue;
        }
        let asked: Option<Consistency> = value.parse().ok();
        if asked.is_none() || consistency.is_some() {
            let detail = "consistency is given once, as one of the allowed values";
            return Err(Problem::new(ErrorCode::InvalidRequest, detail)
                .at("consistency")
                .allowing(Consistency::ALL.iter().map(|value| value.as_str()))
                .into());
        }
        consistency = asked;
    }
    Ok((
        rest.finish(),
        consistency.unwrap_or(Consistency::Linearizable),
    ))
}

async fn read_body(shared: &Shared, headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
    let limit = shared.limits.body_bytes;
    let too_large = || {
        let detail = format!("a request body has at most {limit} bytes");
        Failure::new(ErrorCode::PayloadTooLarge, detail)
    };
    let announced = headers
        .get(http::header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > limit as u64) {
        return Err(too_large());
    }
    let reading = Limited::new(body, limit).collect();
    match tokio::time::timeout(shared.limits.receive, reading).await {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => {
            let detail = "the connection broke while the body arrived";
            Err(Failure::invalid("body", detail))
        }
        Err(_) => {
            let detail = format!("the body did not arrive within {:?}", shared.limits.receive);
            Err(Failure::new(ErrorCode::RequestTimeout, detail))
        }
    }
}

fn time_limit(shared: &Shared, route: &Route) -> Duration {
    let wait = match route.place {
        Place::Poll => Duration::from_millis(tenure_api::protocol::MAX_POLL_WAIT_MS),
        Place::Here | Place::Read | Place::Change => Duration::ZERO,
    };
    shared.limits.handle + wait
}

/// The handler took too long. A change may have been proposed by then.
fn late(route: &Route) -> Problem {
    if route.changes() {
        return Problem::new(
            ErrorCode::OutcomeUnknown,
            "the change was not acknowledged in time",
        );
    }
    Problem::new(ErrorCode::Overloaded, "the node could not answer in time")
}

/// The caller's own id of a request, if it gave one that can be repeated.
fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers
        .get(REQUEST_ID_HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES)
        .filter(|id| id.bytes().all(|b| b.is_ascii_graphic()))
}
