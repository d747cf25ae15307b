//! From what a handler gives back to what goes over the wire.

use axum::body::Body;
use axum::response::Response;
use http::header::{ALLOW, CONTENT_TYPE, ETAG, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use tenure_api::error::PROBLEM_JSON;
use tenure_api::paths::JSON;
use tenure_api::{ErrorCode, Problem};

/// What a handler gives back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// How many seconds to wait before an election is worth another try. Elections take less than one.
const RETRY_AFTER_SECS: u64 = 1;

impl Answer {
    /// JSON with status 200.
    pub(crate) fn json<T: Serialize>(body: &T) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => Self::of(StatusCode::OK, JSON, body),
            Err(error) => {
                tracing::error!(%error, "an answer cannot be written as JSON");
                let detail = "the answer cannot be written as JSON";
                Self::problem(&Problem::new(ErrorCode::Internal, detail))
            }
        }
    }

    /// Bytes of a media type.
    pub(crate) fn of(status: StatusCode, media: &'static str, body: Vec<u8>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        Self {
            status,
            headers,
            body,
        }
    }

    /// An error. Every code has its status; what a client may wait for says how long.
    pub(crate) fn problem(problem: &Problem) -> Self {
        let status =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // A problem is text and numbers, which JSON can always hold.
        let body = serde_json::to_vec(problem).unwrap_or_default();
        let mut answer = Self::of(status, PROBLEM_JSON, body);
        match problem.code {
            ErrorCode::NoLeader
            | ErrorCode::Overloaded
            | ErrorCode::ArchiveIncomplete
            | ErrorCode::RateLimited
            | ErrorCode::NotInitialized => {
                answer
                    .headers
                    .insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECS));
            }
            ErrorCode::Unauthenticated => {
                let scheme = HeaderValue::from_static("Bearer realm=\"tenure\"");
                answer.headers.insert(WWW_AUTHENTICATE, scheme);
            }
            ErrorCode::MethodNotAllowed => {
                if let Ok(methods) = HeaderValue::from_str(&problem.allowed.join(", ")) {
                    answer.headers.insert(ALLOW, methods);
                }
            }
            _ => {}
        }
        answer
    }

    #[must_use]
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Adds the revision as an entity tag.
    #[must_use]
    pub(crate) fn with_revision(mut self, revision: u64) -> Self {
        if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
            self.headers.insert(ETAG, tag);
        }
        self
    }

    pub(crate) fn set(&mut self, name: &'static str, value: impl ToString) {
        if let Ok(value) = HeaderValue::from_str(&value.to_string()) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
    }

    /// The same, unless the header is there: an answer that came from the leader keeps what it said.
    pub(crate) fn set_if_absent(&mut self, name: &'static str, value: impl ToString) {
        if !self.headers.contains_key(name) {
            self.set(name, value);
        }
    }

    pub(crate) fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}
