//! The executor's side of the task socket.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Answer, Context, Request, check_state, read, write};
use crate::executor::port::TaskPort;

/// How many connections of one task are served at once. More wait in the listen queue.
const MAX_CONNECTIONS: usize = 8;
/// How long a task may take to send its request or to take its answer.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(10);
/// The pause after the system could not accept a connection, for example without free handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes a task's socket with mode 0600, in a folder that nobody but the executor's own user can enter: so
/// nobody comes in before the mode is set, and nothing else stands at the path by then.
///
/// # Errors
/// The system's.
pub fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves a task until it is dropped.
pub async fn serve(listener: UnixListener, port: Arc<dyn TaskPort>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Dropped with this future, and every conversation with it.
    let mut conversations = JoinSet::new();
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        while conversations.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let port = Arc::clone(&port);
                conversations.spawn(async move {
                    let _slot = slot;
                    if let Err(fault) = converse(stream, port.as_ref()).await {
                        tracing::debug!(%fault, "a task's request broke off");
                    }
                });
            }
            Err(fault) => {
                tracing::warn!(%fault, "cannot accept a task's connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers one connection's requests, one after another.
async fn converse(mut stream: UnixStream, port: &dyn TaskPort) -> io::Result<()> {
    loop {
        let request = match within(read(&mut stream)).await {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(fault) if fault.kind() == io::ErrorKind::InvalidData => {
                let refusal = Answer::Refused {
                    code: "invalid_request".to_owned(),
                    detail: fault.to_string(),
                };
                // The next message cannot be found after one that could not be read.
                return within(write(&mut stream, &refusal)).await;
            }
            Err(fault) => return Err(fault),
        };
        // The lease bounds how long a commit can take.
        let answer = answer(port, request).await;
        within(write(&mut stream, &answer)).await?;
    }
}

async fn within<T>(exchange: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(EXCHANGE_LIMIT, exchange)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn answer(port: &dyn TaskPort, request: Request) -> Answer {
    match request {
        Request::Context => Answer::Context(Box::new(Context::new(port.facts(), port.term()))),
        Request::Progress { value } => match port.progress(value) {
            Ok(()) => Answer::Noted { value },
            Err(fault) => fault.into(),
        },
        Request::Checkpoint { offset, state } => {
            if let Err(fault) = check_state(state.as_slice()) {
                return fault.into();
            }
            match port.checkpoint(offset, state.0).await {
                Ok(offset) => Answer::Committed { offset },
                Err(fault) => fault.into(),
            }
        }
    }
}
