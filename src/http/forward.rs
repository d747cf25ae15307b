//! A request that reaches a node which does not lead goes on to the node that does, once.
//!
//! It travels over the link between nodes, which both ends have authenticated, so the message names the
//! principal and the token stays here. The answer comes back as the leader made it, its term included.
//!
//! Invariant: a forwarded request is never forwarded again. Two nodes that each take the other for the
//! leader answer `no_leader`.

use std::sync::Arc;

use axum::body::Body;
use http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use tenure_api::paths::IDEMPOTENCY_KEY_HEADER;
use tenure_api::{ErrorCode, Problem};
use tenure_machine::codec::{self, Kind};

use super::answer::Answer;
use super::call::Call;
use super::failure::Failure;
use super::gateway::{Gateway, Shared};
use super::serve::{REQUEST_ID_HEADER, no_leader, serve};
use crate::consensus::ConsensusError;
use crate::security::Principal;

/// Marks a request that another node has authenticated. Nothing from outside can set it: it is no header.
#[derive(Clone, Debug)]
pub(crate) struct Forwarded {
    pub(crate) principal: Principal,
}

/// A request on its way between nodes. The form is positional: fields are never moved or taken out.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    principal: String,
    role: String,
    method: String,
    /// Path and query.
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// Its answer.
#[derive(Debug, Serialize, Deserialize)]
struct MessageAnswer {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// Sends a request to the leader and gives back what it answered.
pub(crate) async fn send(
    shared: &Arc<Shared>,
    call: &Call,
    request_id: &str,
) -> Result<Answer, Failure> {
    let message = message(call, request_id)?;
    let bytes = codec::encode(Kind::PeerMessage, &message).map_err(|error| {
        Failure::new(
            ErrorCode::Internal,
            format!("the request cannot be forwarded: {error}"),
        )
    })?;
    shared.meters.forwarded();
    let answer = match shared.consensus.forward(bytes).await {
        Ok(answer) => answer,
        Err(error) => return Err(not_forwarded(shared, call, &error).into()),
    };
    let answer: MessageAnswer = codec::decode(Kind::PeerMessage, &answer).map_err(|error| {
        lost(
            call,
            &format!("the leader's answer cannot be read: {error}"),
        )
    })?;
    if answer.status == ErrorCode::NotLeader.status() {
        return Err(Failure::NotLeader);
    }
    Ok(Answer {
        status: StatusCode::from_u16(answer.status)
            .map_err(|_| lost(call, "the leader's answer has no status"))?,
        headers: headers_of(answer.headers),
        body: answer.body,
    })
}

/// The leader's side: answers a request that another node has authenticated.
///
/// Bytes that are no such request get an answer that says so; nothing from a peer can fail this node.
pub async fn serve_forwarded(gateway: &Gateway, request: &[u8]) -> Vec<u8> {
    let answer = match open(request) {
        Ok(request) => {
            let response = serve(gateway.shared.clone(), request).await;
            let (parts, body) = response.into_parts();
            // The body of an answer is in memory already.
            let body = body.collect().await.map(|body| body.to_bytes().to_vec());
            MessageAnswer {
                status: parts.status.as_u16(),
                headers: pairs_of(&parts.headers),
                body: body.unwrap_or_default(),
            }
        }
        Err(detail) => {
            let problem = Problem::new(ErrorCode::InvalidRequest, detail);
            let Answer {
                status,
                headers,
                body,
            } = Answer::problem(&problem);
            MessageAnswer {
                status: status.as_u16(),
                headers: pairs_of(&headers),
                body,
            }
        }
    };
    // Fails for a body over the limit of an envelope only, which no answer comes near.
    codec::encode(Kind::PeerMessage, &answer).unwrap_or_default()
}

fn message(call: &Call, request_id: &str) -> Result<Message, Failure> {
    let Some(principal) = &call.principal else {
        return Err(Failure::new(
            ErrorCode::Internal,
            "an open route is never forwarded",
        ));
    };
    let mut headers = vec![(REQUEST_ID_HEADER.to_owned(), request_id.as_bytes().to_vec())];
    let idempotency_key = HeaderName::from_static(IDEMPOTENCY_KEY_HEADER);
    for name in [CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH, idempotency_key] {
        for value in call.headers.get_all(&name) {
            headers.push((name.as_str().to_owned(), value.as_bytes().to_vec()));
        }
    }
    Ok(Message {
        principal: principal.name.to_string(),
        role: principal.role.to_string(),
        method: call.route.method.to_string(),
        target: match call.query.as_str() {
            "" => call.path.clone(),
            query => format!("{}?{query}", call.path),
        },
        headers,
        body: call.body.to_vec(),
    })
}

fn open(bytes: &[u8]) -> Result<Request<Body>, String> {
    let message: Message =
        codec::decode(Kind::PeerMessage, bytes).map_err(|error| error.to_string())?;
    let principal = Principal {
        name: message
            .principal
            .parse()
            .map_err(|error| format!("principal: {error}"))?,
        role: message
            .role
            .parse()
            .map_err(|error| format!("role: {error}"))?,
    };
    let method = Method::from_bytes(message.method.as_bytes())
        .map_err(|error| format!("method: {error}"))?;
    let mut request = Request::builder()
        .method(method)
        .uri(message.target)
        .body(Body::from(message.body))
        .map_err(|error| format!("target: {error}"))?;
    *request.headers_mut() = headers_of(message.headers);
    request.extensions_mut().insert(Forwarded { principal });
    Ok(request)
}

fn headers_of(pairs: Vec<(String, Vec<u8>)>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(&value)) {
            headers.append(name, value);
        }
    }
    headers
}

fn pairs_of(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let pairs = headers.iter();
    pairs
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect()
}

/// The request did not get through, or nobody knows whether it did.
fn not_forwarded(shared: &Shared, call: &Call, error: &ConsensusError) -> Problem {
    match error {
        ConsensusError::NotLeader { .. } | ConsensusError::Stopping => no_leader(shared),
        ConsensusError::Overloaded => Problem::new(ErrorCode::Overloaded, error.to_string()),
        ConsensusError::Rejected(why) => Problem::new(ErrorCode::PayloadTooLarge, why.clone()),
        ConsensusError::OutcomeUnknown(why) => lost(call, why),
    }
}

/// The leader may have got the request. For a read that is no matter.
fn lost(call: &Call, why: &str) -> Problem {
    if call.route.changes() {
        return Problem::new(ErrorCode::OutcomeUnknown, why);
    }
    Problem::new(
        ErrorCode::NoLeader,
        format!("the leader did not answer: {why}"),
    )
}
