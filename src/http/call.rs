//! A request as a handler sees it: authenticated, read, and with its parts checked when they are asked for.

use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tenure_api::cluster::Role;
use tenure_api::paths::{IDEMPOTENCY_KEY_HEADER, JSON, MAX_IDEMPOTENCY_KEY_BYTES, YAML};
use tenure_api::runs::Consistency;
use tenure_api::{ErrorCode, JobSpec, Problem};
use tenure_machine::{Actor, Command, Expect, Name, Refusal, Reply, RequestKey, State};
use tenure_raft::state_machine::Replica;

use super::failure::Failure;
use super::gateway::Shared;
use super::routes::Route;
use crate::consensus::{Committed, Draft};
use crate::security::Principal;

/// A request on its way through a handler.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) shared: Arc<Shared>,
    pub(crate) route: &'static Route,
    /// Who asks; nobody on an open route.
    pub(crate) principal: Option<Principal>,
    pub(crate) path: String,
    /// The values of the pattern's placeholders, in order, decoded.
    pub(crate) parameters: Vec<String>,
    /// The query without `consistency`.
    pub(crate) query: String,
    pub(crate) consistency: Consistency,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A job file's precondition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    /// None was given.
    None,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match: *`.
    Exists,
    /// `If-Match: "revision"`.
    Revision(u64),
}

impl Call {
    /// Who asks.
    pub(crate) fn principal(&self) -> Result<&Principal, Failure> {
        self.principal
            .as_ref()
            .ok_or_else(|| Failure::new(ErrorCode::Unauthenticated, "no principal"))
    }

    pub(crate) fn principal_name(&self) -> Result<Name, Failure> {
        Ok(Name::new(self.principal()?.name.as_str()))
    }

    /// The placeholder at `position`, read as a `T`.
    pub(crate) fn parameter<T: FromStr>(&self, position: usize, name: &str) -> Result<T, Failure>
    where
        T::Err: std::fmt::Display,
    {
        let text = self.parameters.get(position).map_or("", String::as_str);
        text.parse()
            .map_err(|error: T::Err| Failure::invalid(name, format!("{name}: {error}")))
    }

    /// The query as a `T`.
    pub(crate) fn query<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let pairs = form_urlencoded::parse(self.query.as_bytes());
        let from = serde_urlencoded::Deserializer::new(pairs);
        serde_path_to_error::deserialize(from).map_err(|error| {
            let path = parameter_path(&error);
            Failure::invalid(&path, format!("query: {}", error.inner()))
        })
    }

    /// Refuses any query.
    pub(crate) fn no_query(&self) -> Result<(), Failure> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        self.query::<Nothing>().map(|_| ())
    }

    /// The JSON body as a `T`.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        self.expect_media(&[JSON])?;
        let mut from = serde_json::Deserializer::from_slice(&self.body);
        let read: T = serde_path_to_error::deserialize(&mut from).map_err(|error| {
            let path = error.path().to_string();
            let path = if path == "." { "$" } else { &path };
            Failure::invalid(path, format!("body: {}", error.inner()))
        })?;
        from.end()
            .map_err(|error| Failure::invalid("$", format!("body: {error}")))?;
        Ok(read)
    }

    /// The JSON body as a `T`; no body at all stands for all defaults.
    pub(crate) fn json_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, Failure> {
        if self.body.is_empty() {
            return Ok(T::default());
        }
        self.json()
    }

    /// Refuses any body, but for an empty object.
    pub(crate) fn no_body(&self) -> Result<(), Failure> {
        #[derive(Default, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        self.json_or_default::<Nothing>().map(|_| ())
    }

    /// The job file in the body, YAML or JSON.
    pub(crate) fn job_file(&self) -> Result<JobSpec, Failure> {
        let read = match self.media() {
            media if media == JSON => JobSpec::from_json(&self.body),
            media if is_yaml(&media) => JobSpec::from_yaml_bytes(&self.body),
            media => return Err(unsupported(&media, &[JSON, YAML])),
        };
        read.map_err(|errors| errors.into_problem().into())
    }

    /// The media type of the body, in lower case and without its parameters.
    fn media(&self) -> String {
        let value = self.headers.get(http::header::CONTENT_TYPE);
        let text = value.and_then(|value| value.to_str().ok()).unwrap_or("");
        let media = text.split(';').next().unwrap_or_default().trim();
        media.to_ascii_lowercase()
    }

    fn expect_media(&self, allowed: &[&str]) -> Result<(), Failure> {
        let media = self.media();
        if allowed.contains(&media.as_str()) {
            return Ok(());
        }
        Err(unsupported(&media, allowed))
    }

    /// What the request requires of a job's revision.
    pub(crate) fn precondition(&self) -> Result<Precondition, Failure> {
        let text = |name: http::header::HeaderName| match self.headers.get(&name) {
            None => Ok(None),
            Some(value) => match value.to_str() {
                Ok(text) => Ok(Some(text.trim().to_owned())),
                Err(_) => Err(Failure::invalid(name.as_str(), "the header is not text")),
            },
        };
        let wanted = text(IF_MATCH)?;
        let unwanted = text(IF_NONE_MATCH)?;
        match (wanted.as_deref(), unwanted.as_deref()) {
            (None, None) => Ok(Precondition::None),
            (None, Some("*")) => Ok(Precondition::Absent),
            (Some("*"), None) => Ok(Precondition::Exists),
            (Some(tag), None) => {
                let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
                let revision = inner.and_then(|digits| digits.parse().ok());
                revision.map(Precondition::Revision).ok_or_else(|| {
                    Failure::invalid("If-Match", "If-Match is a revision in quotes, or *")
                })
            }
            (None, Some(_)) => Err(Failure::invalid(
                "If-None-Match",
                "the only If-None-Match that a change takes is *",
            )),
            (Some(_), Some(_)) => Err(Failure::invalid(
                "If-Match",
                "If-Match and If-None-Match exclude each other",
            )),
        }
    }

    /// What `If-Match` requires, where a job must exist anyway.
    pub(crate) fn expected_revision(&self) -> Result<Expect, Failure> {
        match self.precondition()? {
            Precondition::None | Precondition::Exists => Ok(Expect::Any),
            Precondition::Revision(revision) => Ok(Expect::Revision(revision)),
            Precondition::Absent => Err(Failure::invalid(
                "If-None-Match",
                "this request takes If-Match only",
            )),
        }
    }

    /// The idempotency key, if there is one, with its principal in front: nobody meets another's keys.
    pub(crate) fn idempotency_key(&self) -> Result<Option<Name>, Failure> {
        let Some(value) = self.headers.get(IDEMPOTENCY_KEY_HEADER) else {
            return Ok(None);
        };
        let key = value.to_str().unwrap_or_default();
        let visible = key.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
        if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES || !visible {
            return Err(Failure::invalid(
                "Idempotency-Key",
                format!("Idempotency-Key is 1 to {MAX_IDEMPOTENCY_KEY_BYTES} visible characters"),
            ));
        }
        Ok(Some(Name::new(format!("{}:{key}", self.principal()?.name))))
    }

    fn request_key(&self) -> Result<Option<RequestKey>, Failure> {
        Ok(self.idempotency_key()?.map(|key| RequestKey {
            key,
            fingerprint: self.fingerprint(),
        }))
    }

    /// A digest of all that says what the request asks for, so that a key stands for one request only. Not in
    /// it: who asks, which is in the key, and what only accompanies a request (its id, its token).
    fn fingerprint(&self) -> [u8; 16] {
        let mut parts = vec![
            self.route.method.as_str().as_bytes(),
            self.path.as_bytes(),
            self.query.as_bytes(),
            &self.body,
        ];
        for name in [IF_MATCH, IF_NONE_MATCH] {
            // Where one header ends and the next begins is seen from the count in between.
            let values: Vec<&[u8]> = self
                .headers
                .get_all(&name)
                .iter()
                .map(|value| value.as_bytes().trim_ascii())
                .collect();
            parts.push(if values.is_empty() {
                b"without"
            } else {
                b"with"
            });
            parts.extend(values);
        }
        digest(&parts)
    }

    /// Who asks, as the log names them.
    pub(crate) fn actor(&self) -> Result<Actor, Failure> {
        let principal = self.principal()?;
        let role = match principal.role {
            Role::Admin => tenure_machine::Role::Admin,
            Role::Operator => tenure_machine::Role::Operator,
            Role::Viewer => tenure_machine::Role::Viewer,
            Role::Executor => tenure_machine::Role::Executor,
        };
        Ok(Actor::Principal {
            name: self.principal_name()?,
            role,
        })
    }

    /// Commits a command under the caller's idempotency key. A refusal is an answer too.
    pub(crate) async fn propose(
        &self,
        command: Command,
    ) -> Result<Result<Reply, Refusal>, Failure> {
        let request = self.request_key()?;
        Ok(self.commit(command, request).await?.reply)
    }

    /// The same, for those to whom a refusal is a failure.
    pub(crate) async fn change(&self, command: Command) -> Result<Reply, Failure> {
        Ok(self.propose(command).await??)
    }

    /// Commits a command that needs no key: repeating it is harmless by what it is.
    pub(crate) async fn tell(&self, command: Command) -> Result<Reply, Failure> {
        Ok(self.commit(command, None).await?.reply?)
    }

    async fn commit(
        &self,
        command: Command,
        request: Option<RequestKey>,
    ) -> Result<Committed, Failure> {
        let draft = Draft {
            term: None,
            actor: self.actor()?,
            request,
            command,
        };
        Ok(self.shared.consensus.propose(draft).await?)
    }

    /// The state to answer from, by the consistency that was asked for.
    pub(crate) async fn state(&self) -> Result<State, Failure> {
        Ok(self.replica().await?.state)
    }

    /// As [`state`](Self::state), with its place in the log.
    pub(crate) async fn replica(&self) -> Result<Replica, Failure> {
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::ReadWithoutQuorum) {
            return Ok(self.shared.consensus.stale());
        }
        match self.consistency {
            Consistency::Linearizable => Ok(self.shared.consensus.read().await?),
            Consistency::Stale => Ok(self.shared.consensus.stale()),
        }
    }

    /// The calendar clock as it stands, never behind the state's.
    pub(crate) fn calendar_ms(&self, state: &State) -> u64 {
        let now = self.shared.consensus.now();
        now.calendar_ms.max(state.clock().calendar_ms)
    }
}

/// A digest of some parts, each with its length in front.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut short = [0; 16];
    for (to, from) in short.iter_mut().zip(digest) {
        *to = from;
    }
    short
}

fn is_yaml(media: &str) -> bool {
    matches!(
        media,
        YAML | "application/x-yaml" | "text/yaml" | "text/x-yaml"
    )
}

fn unsupported(media: &str, allowed: &[&str]) -> Failure {
    let found = if media.is_empty() {
        "the request has no Content-Type".to_owned()
    } else {
        let shown: String = media.chars().take(64).collect();
        format!("the request's Content-Type is {shown:?}")
    };
    Problem::new(ErrorCode::UnsupportedMediaType, found)
        .at("Content-Type")
        .allowing(allowed.iter().copied())
        .into()
}

/// The query parameter at fault. An unknown or repeated one has no path; then its name is in the message.
fn parameter_path(error: &serde_path_to_error::Error<serde_urlencoded::de::Error>) -> String {
    let path = error.path().to_string();
    if path != "." {
        return path;
    }
    let message = error.inner().to_string();
    let named = message.split('`').nth(1).unwrap_or("query");
    named.to_owned()
}
