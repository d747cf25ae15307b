//! The errors of every interface: one table, from which the server takes the status, the SDK its
//! retries, and the documentation its page.
//!
//! Invariants:
//! - A code keeps its name and meaning for ever. New codes are added at the end.
//! - A code that says *no side effect* never follows a change. A client may repeat such a request
//!   without a key.
//! - A client decides by the code alone, never by the text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

/// Media type of an error body.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// What is known of one error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRow {
    /// The name on the wire.
    pub name: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// Whether the same request may succeed later without any change to it, so that a client
    /// repeats it by itself.
    pub retryable: bool,
    /// Whether it is certain that the request changed nothing.
    pub had_no_side_effect: bool,
    /// What went wrong, in a few words.
    pub title: &'static str,
    /// What to do about it.
    pub action: &'static str,
}

/// Makes the enum, the list and the table from one source, so that none can be forgotten.
macro_rules! error_codes {
    ($($variant:ident $name:literal $status:literal $retry:ident $effect:ident
        $title:literal $action:literal;)*) => {
        /// A stable error code.
        ///
        /// `Unknown` is never sent: it stands for a code that a newer server knows and this
        /// client does not.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", $name, "` (", stringify!($status), "): ", $title, ".")]
                $variant,
            )*
            /// A code this version does not know. Treated as not retryable, with a possible side
            /// effect.
            Unknown,
        }

        impl ErrorCode {
            /// Every code that is sent, in the order they were added.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// What is known of this code.
            pub const fn row(self) -> ErrorRow {
                match self {
                    $(
                        ErrorCode::$variant => ErrorRow {
                            name: $name,
                            status: $status,
                            retryable: error_codes!(@retry $retry),
                            had_no_side_effect: error_codes!(@effect $effect),
                            title: $title,
                            action: $action,
                        },
                    )*
                    ErrorCode::Unknown => ErrorRow {
                        name: "unknown",
                        status: 500,
                        retryable: false,
                        had_no_side_effect: false,
                        title: "An error this client does not know",
                        action: "Read the detail. A newer client knows the code.",
                    },
                }
            }
        }
    };
    (@retry retry) => { true };
    (@retry final) => { false };
    (@effect clean) => { true };
    (@effect unsure) => { false };
}

error_codes! {
    InvalidJob "invalid_job" 422 final clean
        "The job file is not valid"
        "Correct the field at `path`; `allowed` says what it may hold.";
    InvalidRequest "invalid_request" 400 final clean
        "The request is not valid"
        "Correct the field or parameter at `path`.";
    Unauthenticated "unauthenticated" 401 final clean
        "No valid token was sent"
        "Send `Authorization: Bearer <token>` with a token of this cluster.";
    Forbidden "forbidden" 403 final clean
        "The token's role does not allow this"
        "Use a token with the role named in the detail.";
    NotFound "not_found" 404 final clean
        "There is no such thing"
        "Check the name; it may have been deleted or passed its retention.";
    PreconditionFailed "precondition_failed" 412 final clean
        "The thing is not in the state that the request requires"
        "Read it again, decide again, and send the new revision in `If-Match`.";
    PreconditionRequired "precondition_required" 428 final clean
        "A change to something that exists must say which revision it replaces"
        "Send `If-Match` with the revision, or `If-None-Match: *` to create.";
    IdempotencyConflict "idempotency_conflict" 422 final clean
        "The idempotency key was used for another request"
        "Use a new key for a new request; repeat a request only as it was.";
    StaleTerm "stale_term" 409 final clean
        "The request carries the term of an earlier leader"
        "Nothing to do: a newer leader decides now.";
    StaleSession "stale_session" 409 final clean
        "The session is no longer the current one"
        "Drop the work held under it and register again.";
    SessionReplaced "session_replaced" 409 final clean
        "Another process registered under the same instance id"
        "Stop this process, or give it an instance id of its own.";
    SessionExpired "session_expired" 410 final clean
        "The session's lease ran out"
        "Drop the work held under it and register again.";
    StaleEpoch "stale_epoch" 409 final clean
        "The shard is held under a newer epoch, or by nobody"
        "Stop the work: this owner's tenure is over.";
    UnknownTask "unknown_task" 404 final clean
        "The session holds no such task"
        "Stop the work: it was never granted, or it is finished.";
    CheckpointRegressed "checkpoint_regressed" 409 final clean
        "The checkpoint's offset lies before the committed one"
        "Commit offsets in growing order.";
    CheckpointTooLarge "checkpoint_too_large" 413 final clean
        "The checkpoint's state is larger than the limit"
        "Keep the state elsewhere and put a reference to it into the checkpoint.";
    PayloadTooLarge "payload_too_large" 413 final clean
        "The body is larger than the limit"
        "Send less than the limit named in the detail.";
    LimitExceeded "limit_exceeded" 409 final clean
        "A limit of the cluster is reached"
        "Remove what is no longer needed, or raise the limit named in the detail.";
    Paused "paused" 409 final clean
        "The job is paused"
        "Resume the job first.";
    BacklogFull "backlog_full" 409 final clean
        "The job has as many waiting runs as it may have"
        "Wait for runs to finish, or raise the job's `queue_limit`.";
    AlreadyFinal "already_final" 409 final clean
        "The run or task has already ended"
        "Nothing to do: read its result.";
    NotStarted "not_started" 409 final clean
        "The task was granted but its start was not acknowledged"
        "Call start first.";
    NoLeader "no_leader" 503 retry clean
        "The cluster has no leader that a majority follows"
        "Wait for the time in `Retry-After`; check that a majority of nodes is up.";
    NotLeader "not_leader" 421 retry clean
        "This node does not lead"
        "Ask the node named in `Tenure-Leader`.";
    Overloaded "overloaded" 503 retry clean
        "The node has as much work as it accepts"
        "Wait for the time in `Retry-After`.";
    RateLimited "rate_limited" 429 retry clean
        "Too many requests from this client"
        "Wait for the time in `Retry-After`.";
    RequestTimeout "request_timeout" 408 retry clean
        "The request did not arrive in time"
        "Send it again.";
    OutcomeUnknown "outcome_unknown" 504 retry unsure
        "The request was accepted but its outcome is not known"
        "Repeat it with the same idempotency key, or read the state.";
    MethodNotAllowed "method_not_allowed" 405 final clean
        "The path does not take this method"
        "Use a method named in `Allow`.";
    UnsupportedMediaType "unsupported_media_type" 415 final clean
        "The body's media type is not read here"
        "Send `application/json`, or `application/yaml` for a job file.";
    NotInitialized "not_initialized" 503 final clean
        "The cluster has not been initialized"
        "Initialize it once: `tenure cluster initialize`.";
    AlreadyInitialized "already_initialized" 409 final clean
        "The cluster has been initialized before"
        "Nothing to do.";
    Unsupported "unsupported" 501 final clean
        "The cluster's feature level does not have this yet"
        "Upgrade every node first.";
    Internal "internal" 500 final unsure
        "The node failed in a way that should not happen"
        "Report it with the detail and the node's log.";
    Overlap "overlap" 409 final clean
        "An earlier run of the job is live and the job forbids overlap"
        "Wait for that run to end, cancel it, or change the job's `overlap`.";
    ArchiveIncomplete "archive_incomplete" 503 retry clean
        "The node's archive of what is over misses facts that it is fetching"
        "Wait for the time in `Retry-After`, or ask another node with `consistency=stale`.";
}

impl ErrorCode {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        self.row().name
    }

    /// The HTTP status.
    pub const fn status(self) -> u16 {
        self.row().status
    }

    /// Whether a client repeats the request by itself.
    pub const fn retryable(self) -> bool {
        self.row().retryable
    }

    /// Whether it is certain that the request changed nothing.
    pub const fn had_no_side_effect(self) -> bool {
        self.row().had_no_side_effect
    }

    /// The type URI in a problem body.
    pub fn type_uri(self) -> String {
        format!("urn:tenure:error:{}", self.as_str())
    }

    /// The table as a Markdown page, for the documentation.
    pub fn table_markdown() -> String {
        let mut page = String::from(
            "| code | status | retried | changed nothing | meaning | what to do |\n\
             | --- | --- | --- | --- | --- | --- |\n",
        );
        for code in Self::ALL {
            let row = code.row();
            let yes_no = |fact: bool| if fact { "yes" } else { "no" };
            // Writing to a string cannot fail.
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} | {} |",
                row.name,
                row.status,
                yes_no(row.retryable),
                yes_no(row.had_no_side_effect),
                row.title,
                row.action
            );
        }
        page
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ErrorCode {
    type Err = std::convert::Infallible;

    /// An unknown name is [`ErrorCode::Unknown`].
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().copied().find(|code| code.as_str() == name);
        Ok(found.unwrap_or(Self::Unknown))
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let found = Self::ALL.iter().copied().find(|code| code.as_str() == name);
        Ok(found.unwrap_or(Self::Unknown))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ErrorCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .description(Some("A stable error code. New codes may be added."))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ErrorCode {}

/// The body of every error (`application/problem+json`, RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// `urn:tenure:error:` and the code.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// What went wrong, in a few words; the same for each error of one code.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: ErrorCode,
    /// What went wrong this time.
    pub detail: String,
    /// The field or parameter at fault, such as `retry.max_attempts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What the field may hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
    /// What to do about it.
    pub action: String,
    /// Whether the same request may succeed later without any change to it.
    pub retryable: bool,
    /// Every fault of an invalid job file; the first one is also in `path` and `detail`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// One fault of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// The stable code, `invalid_job` for job files.
    pub code: ErrorCode,
    /// The field at fault, such as `trigger.cron`. Empty for the document as a whole.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
    /// What it may hold, where that can be listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed: Vec<String>,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if !self.allowed.is_empty() {
            write!(f, " (allowed: {})", self.allowed.join(", "))?;
        }
        Ok(())
    }
}

impl Problem {
    /// A problem with the code's own status, title and action.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        let row = code.row();
        Self {
            type_uri: code.type_uri(),
            title: row.title.to_owned(),
            status: row.status,
            code,
            detail: detail.into(),
            path: None,
            allowed: Vec::new(),
            action: row.action.to_owned(),
            retryable: row.retryable,
            errors: Vec::new(),
        }
    }

    /// Names the field or parameter at fault.
    #[must_use]
    pub fn at(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Lists what the field may hold.
    #[must_use]
    pub fn allowing<I, T>(mut self, allowed: I) -> Self
    where
        I: IntoIterator<Item = T>,
        T: Into<String>,
    {
        self.allowed = allowed.into_iter().map(Into::into).collect();
        self
    }

    /// A problem for a document with several faults; the first stands for all in `path`.
    pub fn of_fields(code: ErrorCode, errors: Vec<FieldError>) -> Self {
        let mut problem = Self::new(code, "the document has no listed fault");
        if let Some(first) = errors.first() {
            problem.detail = match errors.len() {
                1 => first.to_string(),
                count => format!("{first}; {} more", count - 1),
            };
            problem.path = Some(first.path.clone());
            problem.allowed = first.allowed.clone();
        }
        problem.errors = errors;
        problem
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_round_trip() {
        let names: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse::<ErrorCode>(), Ok(*code));
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(serde_json::from_str::<ErrorCode>(&json).unwrap(), *code);
        }
        assert_eq!("from_the_future".parse(), Ok(ErrorCode::Unknown));
    }

    #[test]
    fn the_table_is_whole() {
        for code in ErrorCode::ALL {
            let row = code.row();
            assert!((400..600).contains(&row.status), "{code}");
            assert!(!row.title.is_empty() && !row.title.ends_with('.'), "{code}");
            assert!(row.action.ends_with('.'), "{code}");
            // What a client cannot be sure about is either retried under a key or given up.
            assert!(
                row.had_no_side_effect
                    || matches!(code, ErrorCode::OutcomeUnknown | ErrorCode::Internal),
                "{code}"
            );
        }
    }

    /// Renaming a code, or changing what a client does on it, breaks clients in the field. This
    /// list is append-only.
    #[test]
    fn codes_never_change() {
        let pinned: Vec<String> = ErrorCode::ALL
            .iter()
            .map(|code| {
                let row = code.row();
                let retry = if row.retryable { "retry" } else { "final" };
                let effect = if row.had_no_side_effect {
                    "clean"
                } else {
                    "unsure"
                };
                format!("{} {} {retry} {effect}", row.name, row.status)
            })
            .collect();
        let golden: Vec<&str> = include_str!("error_codes.txt").lines().collect();
        assert_eq!(pinned, golden);
    }

    #[test]
    fn the_page_lists_every_code() {
        let page = ErrorCode::table_markdown();
        assert_eq!(page.lines().count(), ErrorCode::ALL.len() + 2);
        for (line, code) in page.lines().skip(2).zip(ErrorCode::ALL) {
            let row = code.row();
            assert!(
                line.starts_with(&format!("| `{}` | {} |", row.name, row.status)),
                "{line}"
            );
            assert!(
                line.contains(row.title) && line.contains(row.action),
                "{line}"
            );
            assert_eq!(line.matches('|').count(), 7, "{line}");
        }
    }

    #[test]
    fn a_problem_reads_as_rfc_9457() {
        let problem = Problem::new(ErrorCode::NoLeader, "two of three nodes are down");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["type"], "urn:tenure:error:no_leader");
        assert_eq!(json["status"], 503);
        assert_eq!(json["retryable"], true);
        assert_eq!(serde_json::from_value::<Problem>(json).unwrap(), problem);
    }
}
