//! The real transport: HTTP/1.1 over TCP, with connections that are kept open.
//!
//! Each request has a connection to itself while it runs. Idle connections are kept for each node
//! and lane, bounded in number and in age. A body larger than the limit is refused while it
//! arrives.

use crate::transport::{BoxFuture, Lane, Request, Response, Transport, TransportError};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// The largest answer that is read, in bytes.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// Idle connections kept for one node and lane.
const MAX_IDLE_PER_LANE: usize = 8;
/// How long an idle connection is kept. Shorter than what servers and middleboxes allow.
const MAX_IDLE_AGE: Duration = Duration::from_secs(45);
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

type Sender = SendRequest<Full<Bytes>>;

/// HTTP/1.1 over TCP.
#[derive(Default)]
pub struct HttpTransport {
    idle: Mutex<HashMap<(String, Lane), Vec<Idle>>>,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpTransport")
    }
}

impl HttpTransport {
    /// A transport without connections.
    pub fn new() -> Self {
        Self::default()
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<(String, Lane), Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection used last, if one is left that is young and open.
    fn take_idle(&self, key: &(String, Lane)) -> Option<Sender> {
        let mut idle = self.idle();
        let kept = idle.get_mut(key)?;
        while let Some(connection) = kept.pop() {
            let young = connection.since.elapsed() < MAX_IDLE_AGE;
            if young && connection.sender.is_ready() {
                return Some(connection.sender);
            }
        }
        idle.remove(key);
        None
    }

    fn keep(&self, key: (String, Lane), sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle();
        let kept = idle.entry(key).or_default();
        if kept.len() < MAX_IDLE_PER_LANE {
            kept.push(Idle {
                sender,
                since: Instant::now(),
            });
        }
    }

    async fn exchange(&self, request: Request) -> Result<Response, TransportError> {
        let key = (request.node.clone(), request.lane);
        let authority = request
            .node
            .strip_prefix("http://")
            .unwrap_or(&request.node)
            .to_owned();
        let mut message = to_http(&request, &authority)?;
        if let Some(mut sender) = self.take_idle(&key) {
            match sender.try_send_request(message).await {
                Ok(answer) => return self.finish(key, sender, answer).await,
                // The server closed the idle connection before anything was sent: a new one is
                // safe. What comes back whole was never written.
                Err(mut fault) => match fault.take_message() {
                    Some(unsent) => message = unsent,
                    None => return Err(TransportError::Broken(fault.into_error().to_string())),
                },
            }
        }
        let mut sender = connect(&authority).await?;
        match sender.try_send_request(message).await {
            Ok(answer) => self.finish(key, sender, answer).await,
            Err(mut fault) => match fault.take_message() {
                Some(_) => Err(TransportError::Unreachable(fault.into_error().to_string())),
                None => Err(TransportError::Broken(fault.into_error().to_string())),
            },
        }
    }

    async fn finish(
        &self,
        key: (String, Lane),
        sender: Sender,
        answer: hyper::Response<Incoming>,
    ) -> Result<Response, TransportError> {
        let (head, mut incoming) = answer.into_parts();
        let mut body = BytesMut::new();
        while let Some(frame) = incoming.frame().await {
            let frame = frame.map_err(|fault| TransportError::Broken(fault.to_string()))?;
            if let Some(data) = frame.data_ref() {
                if body.len() + data.len() > MAX_RESPONSE_BYTES {
                    let message = format!("the body has more than {MAX_RESPONSE_BYTES} bytes");
                    return Err(TransportError::Malformed(message));
                }
                body.extend_from_slice(data);
            }
        }
        self.keep(key, sender);
        let text = |value: &hyper::header::HeaderValue| value.to_str().ok().map(str::to_owned);
        Ok(Response {
            status: head.status.as_u16(),
            headers: head
                .headers
                .iter()
                .filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)))
                .collect(),
            body: body.freeze(),
        })
    }
}

impl Transport for HttpTransport {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        Box::pin(async move {
            let timeout = request.timeout;
            match tokio::time::timeout(timeout, self.exchange(request)).await {
                Ok(result) => result,
                Err(_) => Err(TransportError::Timeout),
            }
        })
    }
}

fn to_http(
    request: &Request,
    authority: &str,
) -> Result<hyper::Request<Full<Bytes>>, TransportError> {
    let mut builder = hyper::Request::builder()
        .method(request.method.as_str())
        .uri(&request.path)
        .header(hyper::header::HOST, authority)
        .header(hyper::header::ACCEPT, "application/json");
    for (name, value) in &request.headers {
        builder = builder.header(*name, value);
    }
    // A request that cannot be written was not sent.
    builder
        .body(Full::new(request.body.clone()))
        .map_err(|fault| TransportError::Unreachable(format!("cannot be sent: {fault}")))
}

/// Opens a connection and lets it run until both sides are done with it.
async fn connect(authority: &str) -> Result<Sender, TransportError> {
    let unreachable = |why: String| TransportError::Unreachable(why);
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(authority))
        .await
        .map_err(|_| unreachable("no connection in time".to_owned()))?
        .map_err(|fault| unreachable(fault.to_string()))?;
    stream
        .set_nodelay(true)
        .map_err(|fault| unreachable(fault.to_string()))?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|fault| unreachable(fault.to_string()))?;
    tokio::spawn(async move {
        if let Err(fault) = connection.await {
            tracing::debug!(%fault, "a connection ended");
        }
    });
    Ok(sender)
}
