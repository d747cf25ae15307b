//! Fills an archive that misses facts from another member's, over the authenticated link between nodes.
//!
//! Any member whose archive is complete and reaches far enough will do; the leader itself, too, fills its own
//! from a follower's. When every other member answers that its own misses facts as well, what is missing is
//! nowhere any more: the archive says so once, aloud, and goes on from here, so that what happens from now on is
//! kept.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_machine::codec::{self, Kind};
use tenure_storage::archive::Archive;

use super::Feed;
use crate::consensus::{Consensus, Standing};

const CHUNK_BYTES: u32 = 512 * 1024;
const RETRY: Duration = Duration::from_secs(2);
/// How often a member is asked again that does not reach far enough yet.
const WAITS: usize = 10;
const WAIT: Duration = Duration::from_millis(200);

/// What a node asks another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveQuestion {
    /// The first chunk must come from an archive that is fed up to this log index.
    pub at_least: u64,
    /// Where the chunk before ended; `None` for the first.
    pub cursor: Option<Vec<u8>>,
    /// About how large the chunk may be.
    pub max_bytes: u32,
}

/// What the other one answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveAnswer {
    /// A chunk, and where the next one begins; `None` for the last.
    Chunk {
        /// Opaque.
        bytes: Vec<u8>,
        /// Pass it to the next question.
        cursor: Option<Vec<u8>>,
    },
    /// The archive cannot be exported now.
    Refused(String),
    /// The archive misses facts itself.
    Incomplete,
    /// The archive is not fed far enough yet.
    Behind,
}

/// Answers a question. Blocks: call it on a thread of its own.
pub fn serve_export(
    archive: &dyn Archive,
    complete: bool,
    question: &ArchiveQuestion,
) -> ArchiveAnswer {
    if !complete {
        return ArchiveAnswer::Incomplete;
    }
    match archive.applied_index() {
        Ok(fed) if question.cursor.is_none() && fed.unwrap_or(0) < question.at_least => {
            return ArchiveAnswer::Behind;
        }
        Ok(_) => {}
        Err(error) => return ArchiveAnswer::Refused(error.to_string()),
    }
    let max_bytes = question.max_bytes.clamp(1024, 4 * CHUNK_BYTES) as usize;
    match archive.export(question.cursor.as_deref(), max_bytes) {
        Ok(chunk) => ArchiveAnswer::Chunk {
            bytes: chunk.bytes,
            cursor: chunk.cursor,
        },
        Err(error) => ArchiveAnswer::Refused(error.to_string()),
    }
}

/// Why an archive was not filled.
#[derive(Debug, PartialEq, Eq)]
enum Unfilled {
    /// The other one misses facts itself.
    Incomplete,
    /// Anything else: another attempt may do better.
    Failed(String),
}

/// Fills the archive whenever it misses facts, for as long as the node runs.
pub async fn heal(consensus: Arc<dyn Consensus>, feed: Arc<Feed>) {
    loop {
        feed.gap().await;
        let standing = consensus.standing().borrow().clone();
        round(&*consensus, &feed, &standing).await;
        if !feed.complete() {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Asks every other member once, the leader first.
async fn round(consensus: &dyn Consensus, feed: &Feed, standing: &Standing) {
    let leader = standing.leader.as_ref().map(|leader| leader.id);
    let mut others: Vec<u64> = standing.members.iter().map(|member| member.id).collect();
    let member = others.contains(&standing.node);
    others.retain(|other| *other != standing.node);
    others.sort_by_key(|other| Some(*other) != leader);
    let mut nowhere = member;
    for other in others {
        match fetch(consensus, feed, other).await {
            Ok(()) => {
                tracing::info!(from = other, "the archive has every fact again");
                return;
            }
            Err(Unfilled::Incomplete) => {}
            Err(Unfilled::Failed(why)) => {
                nowhere = false;
                tracing::warn!(from = other, why, "the archive could not be filled yet");
            }
        }
    }
    if nowhere && let Some(upto) = feed.accept_gap().await {
        tracing::error!(
            upto,
            "finished runs, decisions and audit records up to this index are in no archive any more: the archive \
             goes on without them"
        );
    }
}

async fn fetch(consensus: &dyn Consensus, feed: &Feed, member: u64) -> Result<(), Unfilled> {
    let failed = |why: &str| Unfilled::Failed(why.to_owned());
    // While it is filled nothing else is written, so one that will not answer is found out before.
    ask(consensus, member, &question(0, None, 1024)).await?;
    let filling = feed.fill().await;
    let filling = filling.ok_or_else(|| failed("the archive has stopped"))?;
    let mut cursor = None;
    loop {
        let question = question(filling.at_least, cursor, CHUNK_BYTES);
        let (bytes, next) = ask(consensus, member, &question).await?;
        let sent = filling.chunks.send(bytes).await;
        sent.map_err(|_| failed("the archive does not take the chunk"))?;
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    let done = filling.done.await;
    done.map_err(|_| failed("the archive has stopped"))?
        .map_err(Unfilled::Failed)
}

fn question(at_least: u64, cursor: Option<Vec<u8>>, max_bytes: u32) -> ArchiveQuestion {
    ArchiveQuestion {
        at_least,
        cursor,
        max_bytes,
    }
}

async fn ask(
    consensus: &dyn Consensus,
    member: u64,
    question: &ArchiveQuestion,
) -> Result<(Vec<u8>, Option<Vec<u8>>), Unfilled> {
    let failed = |why: String| Unfilled::Failed(why);
    let question = codec::encode(Kind::PeerMessage, question).map_err(|e| failed(e.to_string()))?;
    for _ in 0..WAITS {
        let answer = consensus.ask_archive(member, question.clone()).await;
        let answer = answer.map_err(|e| failed(e.to_string()))?;
        match codec::decode(Kind::PeerMessage, &answer) {
            Ok(ArchiveAnswer::Chunk { bytes, cursor }) => return Ok((bytes, cursor)),
            Ok(ArchiveAnswer::Incomplete) => return Err(Unfilled::Incomplete),
            Ok(ArchiveAnswer::Behind) => tokio::time::sleep(WAIT).await,
            Ok(ArchiveAnswer::Refused(why)) => return Err(failed(why)),
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    Err(failed("its archive is not fed far enough".to_owned()))
}
