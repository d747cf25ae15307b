//! How a shell task talks to its executor: one request and one answer on a Unix socket in the task's
//! private folder.
//!
//! A message is four bytes of length, most significant first, and that many bytes of JSON. Both
//! directions are bounded, and each side waits a bounded time. Whoever can open the socket is the
//! task: the folder has mode 0700 and the socket 0600.

pub mod client;
pub mod server;

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure_api::Bytes;
use tenure_api::protocol::MAX_CHECKPOINT_BYTES;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::port::{PortError, TaskFacts};

/// The largest message, in bytes: a checkpoint's state in base64 and the parameters fit with room.
pub const MAX_MESSAGE_BYTES: usize = 512 * 1024;

/// What a task asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Commit a checkpoint: the effects up to `offset` are done.
    Checkpoint {
        /// How far the work is durable.
        offset: u64,
        /// The task's own state.
        state: Bytes,
    },
    /// Say how far the work is, without committing it.
    Progress {
        /// How far.
        value: u64,
    },
    /// Read what is fixed for the tenure.
    Context,
}

/// What the executor answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The checkpoint is durable on a majority.
    Committed {
        /// The committed offset.
        offset: u64,
    },
    /// The progress goes with the next heartbeat.
    Noted {
        /// What was noted.
        value: u64,
    },
    /// What is fixed for the tenure.
    Context(Box<Context>),
    /// This tenure is over: the task must stop at once.
    Fenced {
        /// Why.
        detail: String,
    },
    /// The request was refused. The task's tenure goes on.
    Refused {
        /// A stable code.
        code: String,
        /// Why.
        detail: String,
    },
    /// The cluster did not answer. The same request may be made again.
    Unavailable {
        /// What happened.
        detail: String,
    },
}

impl From<PortError> for Answer {
    fn from(fault: PortError) -> Self {
        match fault {
            PortError::Fenced(detail) => Self::Fenced { detail },
            PortError::Refused { code, detail } => Self::Refused { code, detail },
            PortError::Unavailable(detail) => Self::Unavailable { detail },
        }
    }
}

/// What is fixed for one tenure of a task, as a program reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Context {
    /// The run.
    pub run: u64,
    /// The job.
    pub job: String,
    /// The job's revision.
    pub revision: u64,
    /// The instant the run was due, RFC 3339.
    pub scheduled_at: tenure_api::Timestamp,
    /// The shard's index, from zero.
    pub shard: u32,
    /// How many shards the run has.
    pub shard_count: u32,
    /// Which attempt this is, from one.
    pub attempt: u32,
    /// The epoch it was granted under.
    pub epoch: u64,
    /// The highest term seen.
    pub term: u64,
    /// The cluster's generation.
    pub generation: u64,
    /// What downstream systems check.
    pub fencing_token: tenure_api::FencingToken,
    /// What the token is compared within.
    pub fencing_scope: String,
    /// The committed checkpoint the task started from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<ContextCheckpoint>,
    /// How far the last owner said it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress: Option<u64>,
    /// The job's parameters.
    pub params: serde_json::Value,
}

/// A committed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextCheckpoint {
    /// How far the work is durable.
    pub offset: u64,
    /// The task's own state, base64.
    pub state: Bytes,
}

impl Context {
    /// The facts in the form a program reads.
    pub fn new(facts: &TaskFacts, term: u64) -> Self {
        let facts = facts.clone();
        Self {
            run: facts.run,
            job: facts.job,
            revision: facts.revision,
            scheduled_at: tenure_api::Timestamp::from_ms(facts.scheduled_at_ms),
            shard: facts.shard,
            shard_count: facts.shard_count,
            attempt: facts.attempt,
            epoch: facts.epoch,
            term,
            generation: facts.generation,
            fencing_token: facts.fencing_token,
            fencing_scope: facts.fencing_scope,
            checkpoint: facts.checkpoint.map(|resume| ContextCheckpoint {
                offset: resume.offset,
                state: resume.state.into(),
            }),
            last_progress: facts.last_progress,
            params: facts.params,
        }
    }
}

/// Whether a checkpoint's state may be sent at all.
///
/// # Errors
/// It is larger than the cluster takes.
pub fn check_state(state: &[u8]) -> Result<(), PortError> {
    if state.len() <= MAX_CHECKPOINT_BYTES {
        return Ok(());
    }
    Err(PortError::Refused {
        code: "checkpoint_too_large".to_owned(),
        detail: format!(
            "the state has {} bytes, at most {MAX_CHECKPOINT_BYTES} are allowed: keep it elsewhere and commit a reference to it",
            state.len()
        ),
    })
}

/// Reads one message. `None` when the other side closed without one.
///
/// # Errors
/// The connection broke, or what came is no message.
pub async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    let mut got = 0;
    while got < length.len() {
        match from.read(length.get_mut(got..).unwrap_or_default()).await? {
            0 if got == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => got += count,
        }
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE_BYTES {
        return Err(malformed(format!(
            "a message of {length} bytes, at most {MAX_MESSAGE_BYTES} are read"
        )));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    serde_json::from_slice(&body)
        .map(Some)
        .map_err(|fault| malformed(fault.to_string()))
}

/// Writes one message.
///
/// # Errors
/// The connection broke, or the message is too large.
pub async fn write<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(|fault| malformed(fault.to_string()))?;
    let length = u32::try_from(body.len()).ok();
    let Some(length) = length.filter(|_| body.len() <= MAX_MESSAGE_BYTES) else {
        return Err(malformed(format!("a message of {} bytes", body.len())));
    };
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&body);
    to.write_all(&frame).await?;
    to.flush().await
}

fn malformed(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
