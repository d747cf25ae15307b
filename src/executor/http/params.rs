//! The parameters of an http task.

use std::fmt;
use std::ops::RangeInclusive;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::Value;
use tenure_api::Millis;

use super::target::{MAX_URL_BYTES, Target};
use crate::executor::fields::{Fields, ParamError};

/// The most headers of the job.
const MAX_HEADERS: usize = 64;
/// The longest value of a header, in bytes.
const MAX_HEADER_BYTES: usize = 8 * 1024;
/// The largest body, in bytes. The parameters as a whole have this limit too.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// The most entries of `expected_status`.
const MAX_STATUSES: usize = 32;
/// How long the whole exchange may take when the job does not say.
const DEFAULT_TIMEOUT: Millis = Millis(30_000);
/// The longest it may take.
const MAX_TIMEOUT: Millis = Millis(3_600_000);

const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

/// Headers that the capability sets itself, or that would change what a connection means.
const KEPT_HEADERS: [&str; 11] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "idempotency-key",
];

/// The parameters of an http task, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpParams {
    /// The method. `GET` without a body, `POST` with one, when the job does not say.
    pub method: Method,
    /// Where it goes.
    pub target: Target,
    /// The job's headers.
    pub headers: HeaderMap,
    /// The body, empty for none.
    pub body: Vec<u8>,
    /// Which statuses mean success.
    pub expected: Statuses,
    /// How long the whole exchange may take, redirects included.
    pub timeout: Millis,
    /// Whether redirects are followed.
    pub follow_redirects: bool,
}

/// A set of statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(Vec<RangeInclusive<u16>>);

impl Statuses {
    /// Whether a status is among them.
    pub fn contains(&self, status: StatusCode) -> bool {
        self.0.iter().any(|range| range.contains(&status.as_u16()))
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match (range.start(), range.end()) {
                (from, to) if from == to => write!(f, "{comma}{from}")?,
                (from, to) => write!(f, "{comma}{from}-{to}")?,
            }
        }
        Ok(())
    }
}

impl HttpParams {
    /// Reads `task.params` of an http job.
    ///
    /// # Errors
    /// The first fault, with its path.
    pub fn read(params: &Value) -> Result<Self, ParamError> {
        let mut fields = Fields::of(params)?;
        let target = match fields.text("url", MAX_URL_BYTES)? {
            None => return Err(ParamError::of("url", "is missing")),
            Some(url) => {
                Target::parse(url).map_err(|fault| ParamError::of("url", fault.to_string()))?
            }
        };
        let mut headers = headers(&mut fields)?;
        let body = body(&mut fields, &mut headers)?;
        let method = method(&mut fields, !body.is_empty())?;
        let expected = expected(&mut fields)?;
        let timeout = fields.duration("timeout", Millis(1)..=MAX_TIMEOUT)?;
        let follow_redirects = fields.flag("follow_redirects")?.unwrap_or(false);
        fields.finish()?;
        Ok(Self {
            method,
            target,
            headers,
            body,
            expected,
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
            follow_redirects,
        })
    }
}

fn method(fields: &mut Fields<'_>, has_body: bool) -> Result<Method, ParamError> {
    let Some(text) = fields.text("method", 16)? else {
        return Ok(if has_body { Method::POST } else { Method::GET });
    };
    let found = METHODS
        .into_iter()
        .find(|method| method.as_str().eq_ignore_ascii_case(text));
    found.ok_or_else(|| {
        ParamError::of(
            "method",
            format!("{text:?} is not a method that can be sent"),
        )
        .allowing(METHODS.iter().map(|method| method.to_string()))
    })
}

fn headers(fields: &mut Fields<'_>) -> Result<HeaderMap, ParamError> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields.text_map("headers", MAX_HEADERS, MAX_HEADER_BYTES)? {
        let path = format!("headers.{name}");
        let Ok(known) = name.parse::<HeaderName>() else {
            return Err(ParamError::of(path, "is not the name of a header"));
        };
        if KEPT_HEADERS.contains(&known.as_str()) || known.as_str().starts_with("tenure-") {
            return Err(ParamError::of(path, "is set by the executor"));
        }
        let Ok(value) = HeaderValue::from_str(&value) else {
            return Err(ParamError::of(path, "must be visible text on one line"));
        };
        if headers.insert(known, value).is_some() {
            return Err(ParamError::of(path, "is there twice, in different letters"));
        }
    }
    Ok(headers)
}

/// Text is sent as it is. Anything else is sent as JSON.
fn body(fields: &mut Fields<'_>, headers: &mut HeaderMap) -> Result<Vec<u8>, ParamError> {
    let body = match fields.any("body") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.clone().into_bytes(),
        Some(json) => {
            let kind = HeaderValue::from_static("application/json");
            headers.entry(hyper::header::CONTENT_TYPE).or_insert(kind);
            json.to_string().into_bytes()
        }
    };
    if body.len() > MAX_BODY_BYTES {
        return Err(ParamError::of(
            "body",
            format!(
                "must have at most {MAX_BODY_BYTES} bytes, found {}",
                body.len()
            ),
        ));
    }
    Ok(body)
}

fn expected(fields: &mut Fields<'_>) -> Result<Statuses, ParamError> {
    let items = match fields.any("expected_status") {
        None => return Ok(Statuses(vec![200..=299])),
        Some(Value::Array(items)) => items.as_slice(),
        Some(item) => std::slice::from_ref(item),
    };
    if items.is_empty() || items.len() > MAX_STATUSES {
        return Err(ParamError::of(
            "expected_status",
            format!("must have 1 to {MAX_STATUSES} entries"),
        ));
    }
    let ranges = items.iter().enumerate().map(|(index, item)| {
        status_range(item).ok_or_else(|| {
            ParamError::of(
                format_args!("expected_status[{index}]"),
                "must be a status such as 204, or a range such as \"200-299\"",
            )
        })
    });
    ranges.collect::<Result<_, _>>().map(Statuses)
}

fn status_range(item: &Value) -> Option<RangeInclusive<u16>> {
    let (from, to) = match item {
        Value::Number(number) => {
            let status = u16::try_from(number.as_u64()?).ok()?;
            (status, status)
        }
        Value::String(text) => {
            let (from, to) = text.split_once('-').unwrap_or((text, text));
            (from.trim().parse().ok()?, to.trim().parse().ok()?)
        }
        _ => return None,
    };
    (100 <= from && from <= to && to <= 599).then_some(from..=to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_are_the_plain_ones() {
        let params = HttpParams::read(&json!({"url": "http://example.org/"})).unwrap();
        assert_eq!(params.method, Method::GET);
        assert_eq!(params.expected.to_string(), "200-299");
        assert_eq!(params.timeout, DEFAULT_TIMEOUT);
        assert!(!params.follow_redirects && params.body.is_empty());
    }

    #[test]
    fn a_body_that_is_no_text_is_json() {
        let params = HttpParams::read(&json!({
            "url": "https://example.org/", "body": {"a": 1}, "expected_status": [201, "300-399"],
        }))
        .unwrap();
        assert_eq!(params.method, Method::POST);
        assert_eq!(params.body, b"{\"a\":1}");
        assert_eq!(
            params
                .headers
                .get("content-type")
                .map(HeaderValue::as_bytes),
            Some(b"application/json".as_slice())
        );
        assert!(params.expected.contains(StatusCode::CREATED));
        assert!(params.expected.contains(StatusCode::FOUND));
        assert!(!params.expected.contains(StatusCode::OK));
    }

    #[test]
    fn each_fault_names_its_path() {
        let with = |name: &str, value: Value| {
            let mut params = json!({"url": "http://example.org/"});
            params[name] = value;
            params
        };
        for (params, path) in [
            (json!({}), "url"),
            (with("url", json!("file:///etc/passwd")), "url"),
            (with("method", json!("CONNECT")), "method"),
            (with("headers", json!({"Host": "x"})), "headers.Host"),
            (
                with("headers", json!({"Tenure-Run-Id": "x"})),
                "headers.Tenure-Run-Id",
            ),
            (with("headers", json!({"a b": "x"})), "headers.a b"),
            (with("headers", json!({"a": "x\r\ny: z"})), "headers.a"),
            (with("headers", json!({"a": "1", "A": "2"})), "headers.a"),
            (with("expected_status", json!([])), "expected_status"),
            (
                with("expected_status", json!([200, "x"])),
                "expected_status[1]",
            ),
            (
                with("expected_status", json!(["299-200"])),
                "expected_status[0]",
            ),
            (with("expected_status", json!(99)), "expected_status[0]"),
            (with("timeout", json!("2h")), "timeout"),
            (with("timeout", json!(5)), "timeout"),
            (with("follow_redirects", json!("yes")), "follow_redirects"),
            (with("verify", json!(false)), "verify"),
        ] {
            let fault = HttpParams::read(&params).unwrap_err();
            assert_eq!(fault.path, format!("task.params.{path}"), "{params}");
        }
    }
}
