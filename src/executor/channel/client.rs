//! The task's side of the task socket: what `tenure task …` does.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use super::{Answer, Request, read, write};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Nobody listens: the task's executor is gone, or this is no task of its.
    #[error("cannot reach the executor at {path}: {fault}")]
    Unreachable {
        /// The socket.
        path: String,
        /// The system's reason.
        fault: io::Error,
    },
    /// The answer did not come in time, or broke off.
    #[error("the executor did not answer: {0}")]
    NoAnswer(io::Error),
}

/// Asks once, and waits at most `limit`.
///
/// # Errors
/// There is no answer.
pub async fn ask(
    socket: &Path,
    request: &Request,
    limit: Duration,
) -> Result<Answer, ChannelError> {
    let exchange = async {
        let mut stream =
            UnixStream::connect(socket)
                .await
                .map_err(|fault| ChannelError::Unreachable {
                    path: socket.display().to_string(),
                    fault,
                })?;
        write(&mut stream, request)
            .await
            .map_err(ChannelError::NoAnswer)?;
        match read(&mut stream).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(ChannelError::NoAnswer(io::ErrorKind::UnexpectedEof.into())),
            Err(fault) => Err(ChannelError::NoAnswer(fault)),
        }
    };
    tokio::time::timeout(limit, exchange)
        .await
        .unwrap_or_else(|_| Err(ChannelError::NoAnswer(io::ErrorKind::TimedOut.into())))
}
