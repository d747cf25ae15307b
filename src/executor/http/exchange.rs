//! One request and its answer, over a connection of its own to a checked address.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tenure_api::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::target::{Target, TargetError};
use crate::executor::port::TaskFacts;

/// How much of the body is read and kept, in bytes.
pub(super) const MAX_BODY_BYTES: usize = 1024;
/// How long a connection to one address may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// What is sent, but for what the target and the task add.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Message {
    /// With the headers that tell the receiver whose request this is.
    pub(super) fn stamped(&self, facts: &TaskFacts) -> Self {
        let mut message = self.clone();
        let TaskFacts {
            run,
            shard,
            generation,
            ..
        } = facts;
        let mut add = |name: &'static str, value: &dyn fmt::Display| {
            // All of these are numbers, names and instants, which are visible text.
            if let Ok(value) = HeaderValue::from_str(&value.to_string()) {
                message.headers.insert(HeaderName::from_static(name), value);
            }
        };
        add("tenure-fencing-token", &facts.fencing_token);
        add("tenure-fencing-scope", &facts.fencing_scope);
        add("tenure-run-id", run);
        add("tenure-job", &facts.job);
        add("tenure-shard", shard);
        add("tenure-attempt", &facts.attempt);
        add("tenure-epoch", &facts.epoch);
        add(
            "tenure-scheduled-at",
            &Timestamp::from_ms(facts.scheduled_at_ms),
        );
        // The same for each attempt: a repetition is no new request.
        add(
            "idempotency-key",
            &format_args!("tenure-{generation}-{run}-{shard}"),
        );
        message
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Where a redirect leads.
    pub(super) location: Option<String>,
    /// The body's start.
    pub(super) body: Vec<u8>,
    /// Whether there was more.
    pub(super) truncated: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("cannot connect to {target}: {why}")]
    Connect { target: String, why: String },
    #[error("the connection to {target} broke: {why}")]
    Broken { target: String, why: String },
    #[error("redirect refused: {0}")]
    Redirect(String),
}

impl ExchangeError {
    /// Whether another attempt may help.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Target(TargetError::Unresolved { .. })
            | Self::Connect { .. }
            | Self::Broken { .. } => true,
            Self::Target(TargetError::Url(_) | TargetError::Refused { .. }) | Self::Redirect(_) => {
                false
            }
        }
    }
}

/// Makes connections. Clones share the trusted certificates.
#[derive(Clone, Default)]
pub(super) struct Exchange {
    tls: Arc<OnceCell<TlsConnector>>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

impl Exchange {
    /// Sends the message to the first of the addresses that takes a connection.
    pub(super) async fn send(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        message: &Message,
    ) -> Result<Answer, ExchangeError> {
        let request = request(target, message)?;
        let stream = connect(target, addresses).await?;
        if !target.https {
            return converse(target, stream, request).await;
        }
        let refuse = |why: String| ExchangeError::Connect {
            target: target.to_string(),
            why,
        };
        let connector = self.tls.get_or_try_init(tls).await.map_err(refuse)?;
        let name =
            ServerName::try_from(target.host.clone()).map_err(|fault| refuse(fault.to_string()))?;
        let handshake = tokio::time::timeout(CONNECT_LIMIT, connector.connect(name, stream));
        let stream = handshake
            .await
            .map_err(|_| refuse("no TLS handshake in time".to_owned()))?
            .map_err(|fault| refuse(fault.to_string()))?;
        converse(target, stream, request).await
    }
}

fn request(target: &Target, message: &Message) -> Result<Request<Full<Bytes>>, ExchangeError> {
    let mut request = Request::builder()
        .method(message.method.clone())
        .uri(&target.path)
        .header(HOST, target.authority())
        .body(Full::new(message.body.clone()))
        .map_err(|fault| TargetError::Url(fault.to_string()))?;
    let headers = request.headers_mut();
    headers.extend(message.headers.clone());
    headers
        .entry(ACCEPT)
        .or_insert(HeaderValue::from_static("*/*"));
    let agent = HeaderValue::from_static(concat!("tenure/", env!("CARGO_PKG_VERSION")));
    headers.entry(USER_AGENT).or_insert(agent);
    Ok(request)
}

async fn connect(target: &Target, addresses: &[SocketAddr]) -> Result<TcpStream, ExchangeError> {
    let mut why = "it has no address".to_owned();
    for address in addresses {
        match tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(fault)) => why = format!("{address}: {fault}"),
            Err(_) => why = format!("{address}: no connection in time"),
        }
    }
    Err(ExchangeError::Connect {
        target: target.to_string(),
        why,
    })
}

async fn converse<S>(
    target: &Target,
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<Answer, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |fault: hyper::Error| ExchangeError::Broken {
        target: target.to_string(),
        why: fault.to_string(),
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        read(answer).await.map_err(broken)
    };
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    // The connection is driven here, so it ends with this future and never later.
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        _ = &mut connection => exchange.await,
    }
}

/// Reads the head and the body's start. The rest is left with the connection.
async fn read(answer: hyper::Response<Incoming>) -> Result<Answer, hyper::Error> {
    let (head, mut incoming) = answer.into_parts();
    let redirects = matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = head
        .headers
        .get(LOCATION)
        .and_then(|value| value.to_str().ok());
    let mut body = Vec::new();
    let mut truncated = false;
    while let Some(frame) = incoming.frame().await {
        let frame = frame?;
        let data = frame
            .data_ref()
            .map(|data| data.as_ref())
            .unwrap_or_default();
        let room = MAX_BODY_BYTES - body.len();
        body.extend_from_slice(data.get(..room.min(data.len())).unwrap_or_default());
        if data.len() > room {
            truncated = true;
            break;
        }
    }
    Ok(Answer {
        status: head.status,
        location: location.filter(|_| redirects).map(str::to_owned),
        body,
        truncated,
    })
}

/// The certificates that the system trusts. Read once.
async fn tls() -> Result<TlsConnector, String> {
    let read = tokio::task::spawn_blocking(|| {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let faults: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
            return Err(format!(
                "this machine trusts no certificate: {}",
                faults.join("; ")
            ));
        }
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|fault| fault.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    });
    read.await.map_err(|fault| fault.to_string())?
}
