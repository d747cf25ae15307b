//! How a request reaches a node. Real: HTTP. In tests and simulations: anything that takes a
//! request and gives a response.

use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A future that can be held and moved between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The methods of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Does something.
    Post,
    /// Stores something under its name.
    Put,
    /// Removes something.
    Delete,
}

impl Method {
    /// Whether a call by this method may change something.
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Get)
    }

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// What a request is about. Each lane has connections of its own, so that a heartbeat never waits
/// behind a poll or a large result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Lease renewals.
    Heartbeat,
    /// Long polls.
    Poll,
    /// Everything else.
    Call,
}

/// A request to one node.
#[derive(Clone)]
pub struct Request {
    /// The node: `http://host:port`.
    pub node: String,
    /// The method.
    pub method: Method,
    /// The path with its query.
    pub path: String,
    /// Header names (lower case) and values. May hold the bearer token.
    pub headers: Vec<(&'static str, String)>,
    /// The body, empty for none.
    pub body: Bytes,
    /// How long the whole exchange may take. The caller enforces it too.
    pub timeout: Duration,
    /// Which connections it may use.
    pub lane: Lane,
}

impl Request {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for Request {
    /// Leaves out headers and body: they hold the token and other people's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}{} ({} bytes)",
            self.method.as_str(),
            self.node,
            self.path,
            self.body.len()
        )
    }
}

/// A node's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// Header names (lower case) and values.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Bytes,
}

impl Response {
    /// The value of a header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Why there is no answer. What matters is whether the node may have acted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// No connection: the request was not sent, so it had no effect.
    Unreachable(String),
    /// No answer in time. The outcome is unknown.
    Timeout,
    /// The connection broke after something was sent. The outcome is unknown.
    Broken(String),
    /// The answer cannot be read: too large or malformed. The outcome is unknown.
    Malformed(String),
}

impl TransportError {
    /// Whether it is certain that the node did not act.
    pub const fn had_no_side_effect(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Timeout | Self::Broken(_) | Self::Malformed(_) => false,
        }
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "not reachable: {why}"),
            Self::Timeout => f.write_str("no answer in time"),
            Self::Broken(why) => write!(f, "the connection broke: {why}"),
            Self::Malformed(why) => write!(f, "the answer cannot be read: {why}"),
        }
    }
}

impl std::error::Error for TransportError {}

/// Carries requests to nodes.
///
/// Dropping the future gives the request up; its outcome is then unknown.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request to the node it names and gives back that node's answer, whatever its
    /// status.
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>>;
}
