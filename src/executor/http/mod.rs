//! The capability `http`: sends one request and judges its answer by its status.
//!
//! The request carries the fencing token, the run and an idempotency key, so that the receiver can
//! refuse an owner from the past and can tell a repetition from a new request.
//!
//! Invariants:
//! - A connection goes to an address that was checked, and to that very one (see [`addresses`]).
//!   Each redirect is checked in the same way.
//! - Of the answer's body, no more than its first part is read.

pub mod addresses;
mod exchange;
pub mod params;
pub mod target;

use std::sync::Arc;
use std::time::Instant;

use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use serde_json::json;

use self::exchange::{Answer, Exchange, ExchangeError, Message};
use self::params::HttpParams;
use self::target::{HttpRules, Target};
use super::port::{Ending, TaskPort};

/// The capability's name.
pub const CAPABILITY: &str = "http";

/// The most redirects that are followed.
const MAX_REDIRECTS: usize = 5;

/// The most of the body that goes into a failure's message, in bytes.
const MAX_REASON_BYTES: usize = 256;

/// Headers of the job that go along when a redirect leads to another server. Others may hold
/// credentials for the first one.
const HEADERS_FOR_ANYONE: [&str; 4] = ["accept", "accept-language", "content-type", "user-agent"];

/// Runs http tasks.
#[derive(Clone, Debug)]
pub struct Http {
    rules: Arc<HttpRules>,
    exchange: Exchange,
}

impl Http {
    /// A capability under these rules.
    pub fn new(rules: HttpRules) -> Self {
        Self {
            rules: Arc::new(rules),
            exchange: Exchange::default(),
        }
    }

    /// Runs one task to its end.
    pub async fn run(&self, port: Arc<dyn TaskPort>) -> Ending {
        let params = match HttpParams::read(&port.facts().params) {
            Ok(params) => params,
            Err(fault) => return Ending::refused(fault),
        };
        let started = Instant::now();
        let limit = params.timeout;
        let work = tokio::time::timeout(limit.to_duration(), self.follow(port.as_ref(), &params));
        let outcome = tokio::select! {
            biased;
            reason = port.stopped() => return Ending::Stopped(reason),
            outcome = work => outcome,
        };
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        match outcome {
            Err(_) => Ending::Failed {
                message: format!("no answer from {} in {limit}", params.target),
                retryable: true,
            },
            Ok(Err(fault)) => Ending::Failed {
                retryable: fault.is_passing(),
                message: fault.to_string(),
            },
            Ok(Ok((target, answer))) => {
                let status = answer.status;
                port.log(&format!(
                    "{} {target}: {status} after {took_ms} ms",
                    params.method
                ));
                judge(&params, &target, &answer, took_ms)
            }
        }
    }

    /// Sends the request, and follows redirects if the job wants that.
    async fn follow(
        &self,
        port: &dyn TaskPort,
        params: &HttpParams,
    ) -> Result<(Target, Answer), ExchangeError> {
        let mut target = params.target.clone();
        let mut message = Message {
            method: params.method.clone(),
            headers: params.headers.clone(),
            body: params.body.clone().into(),
        };
        for _ in 0..=MAX_REDIRECTS {
            let addresses = target.resolve(&self.rules).await?;
            let stamped = message.stamped(port.facts());
            let answer = self.exchange.send(&target, &addresses, &stamped).await?;
            let location = match &answer.location {
                Some(location) if params.follow_redirects => location,
                _ => return Ok((target, answer)),
            };
            let next = target.join(location)?;
            if target.https && !next.https {
                return Err(ExchangeError::Redirect(format!(
                    "{target} leads to {next}, which is not encrypted"
                )));
            }
            message = redirected(message, answer.status, target.same_origin(&next));
            target = next;
        }
        Err(ExchangeError::Redirect(format!(
            "{} leads to more than {MAX_REDIRECTS} redirects",
            params.target
        )))
    }
}

/// The message for the place that a redirect names (RFC 9110, section 15.4).
fn redirected(mut message: Message, status: StatusCode, same_origin: bool) -> Message {
    let becomes_get = match status {
        StatusCode::SEE_OTHER => message.method != Method::HEAD,
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => message.method == Method::POST,
        _ => false,
    };
    if becomes_get {
        message.method = Method::GET;
        message.body = Default::default();
        message.headers.remove(hyper::header::CONTENT_TYPE);
    }
    if !same_origin {
        let mut kept = HeaderMap::new();
        for name in HEADERS_FOR_ANYONE {
            if let Some(value) = message.headers.remove(name) {
                kept.insert(name, value);
            }
        }
        message.headers = kept;
    }
    message
}

fn judge(params: &HttpParams, target: &Target, answer: &Answer, took_ms: u64) -> Ending {
    let body = String::from_utf8_lossy(&answer.body);
    if params.expected.contains(answer.status) {
        return Ending::Succeeded(json!({
            "status": answer.status.as_u16(),
            "url": target.to_string(),
            "duration_ms": took_ms,
            "body": body,
            "body_truncated": answer.truncated,
        }));
    }
    let line = body
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    let line = line
        .get(..line.floor_char_boundary(MAX_REASON_BYTES))
        .unwrap_or_default();
    let because = if line.is_empty() {
        String::new()
    } else {
        format!(": {}", line.trim())
    };
    Ending::Failed {
        message: format!(
            "{target} answered {}, expected {}{because}",
            answer.status, params.expected
        ),
        retryable: answer.status.is_server_error()
            || matches!(
                answer.status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
            ),
    }
}

#[cfg(test)]
mod tests;
