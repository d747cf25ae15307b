//! Requests to one node and no other: no leader is looked for, nothing is repeated.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_api::paths;
use tenure_sdk::{
    BoxFuture, HttpTransport, Lane, Method, Request, Response, Transport, TransportError,
};

/// One node's interface, with a token.
#[derive(Clone)]
pub(crate) struct Wire {
    transport: Arc<HttpTransport>,
    pub(crate) node: String,
    token: String,
}

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// What a node answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) response: Response,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.response.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.response.body).into_owned()
    }

    pub(crate) fn read<T: DeserializeOwned>(&self) -> T {
        assert!(
            (200..300).contains(&self.status),
            "{} {}",
            self.status,
            self.text()
        );
        serde_json::from_slice(&self.response.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The stable code of an error.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Wire {
    pub(crate) fn new(node: String, token: &str) -> Self {
        Self {
            transport: Arc::new(HttpTransport::new()),
            node,
            token: token.to_owned(),
        }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    ) -> Result<Answer, TransportError> {
        let mut headers = headers;
        headers.push(("authorization", format!("Bearer {}", self.token)));
        if !body.is_empty() && !headers.iter().any(|(name, _)| *name == "content-type") {
            headers.push(("content-type", paths::JSON.to_owned()));
        }
        let request = Request {
            node: self.node.clone(),
            method,
            path: path.to_owned(),
            headers,
            body: body.into(),
            timeout: TIMEOUT,
            lane: Lane::Call,
        };
        let sent = tokio::time::timeout(TIMEOUT, self.transport.send(request)).await;
        let response = sent.unwrap_or(Err(TransportError::Timeout))?;
        Ok(Answer {
            status: response.status,
            response,
        })
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, TransportError> {
        self.send(Method::Get, path, Vec::new(), Vec::new()).await
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer, TransportError> {
        let body = serde_json::to_vec(body).expect("JSON");
        self.send(Method::Post, path, Vec::new(), body).await
    }

    /// A metric of this node. With labels, they are part of the name.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64, String> {
        let answer = self
            .get(paths::METRICS)
            .await
            .map_err(|error| error.to_string())?;
        if answer.status != 200 {
            return Err(format!("{} {}", answer.status, answer.text()));
        }
        let name = format!("tenure_{name}");
        let text = answer.text();
        let value = text.lines().find_map(|line| {
            let (found, value) = line.rsplit_once(' ')?;
            (found == name).then_some(value)
        });
        value
            .and_then(|value| value.parse().ok())
            .ok_or(format!("{name} is not there"))
    }
}

/// A transport that reaches one node only, whatever others a client hears of.
pub(crate) struct Pinned {
    inner: HttpTransport,
    node: String,
}

impl Pinned {
    pub(crate) fn to(node: String) -> Arc<Self> {
        Arc::new(Self {
            inner: HttpTransport::new(),
            node,
        })
    }
}

impl Transport for Pinned {
    fn send(&self, mut request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        request.node.clone_from(&self.node);
        self.inner.send(request)
    }
}
