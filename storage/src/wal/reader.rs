//! Reads of entries that are no longer in memory, away from the caller's thread.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::disk::{Disk, DiskFile};

use super::format::{RECORD_HEADER_BYTES, Record};
use super::log::ColdRun;
use super::{Corruption, Entry, WalError};

/// Most bytes that one call reads, unless a single record is larger.
pub(super) const RUN_BYTES: u64 = 1024 * 1024;

/// A run to read and where the answer goes.
pub(super) struct ReadRequest {
    pub(super) run: ColdRun,
    pub(super) reply: oneshot::Sender<Result<Vec<Entry>, WalError>>,
}

/// Answers requests until all senders are gone.
pub(super) async fn serve<D: Disk>(disk: D, mut requests: mpsc::Receiver<ReadRequest>) {
    while let Some(ReadRequest { run, reply }) = requests.recv().await {
        let answer = read_run(&disk, &run).await;
        // A caller that went away needs no answer.
        let _ = reply.send(answer);
    }
}

async fn read_run<D: Disk>(disk: &D, run: &ColdRun) -> Result<Vec<Entry>, WalError> {
    let (Some(head), Some(tail)) = (run.records.first(), run.records.last()) else {
        return Ok(Vec::new());
    };
    let path = &run.segment.path;
    let start = u64::from(head.offset);
    let tail_bytes = RECORD_HEADER_BYTES + tail.payload_bytes as usize;
    let mut buf = vec![0_u8; (tail.offset - head.offset) as usize + tail_bytes];
    let file = disk
        .open(path)
        .await
        .map_err(|e| WalError::io("open", path, e))?;
    let got = file
        .read_at(start, &mut buf)
        .await
        .map_err(|e| WalError::io("read", path, e))?;
    buf.truncate(got);
    let buf = Bytes::from(buf);
    let mut entries = Vec::with_capacity(run.records.len());
    for cold in &run.records {
        let at = (cold.offset - head.offset) as usize;
        let record = buf
            .get(at..)
            .and_then(|b| Record::decode_checked(b, run.segment.seed));
        match record {
            Some(record)
                if record.id == cold.id && record.payload.len() == cold.payload_bytes as usize =>
            {
                entries.push(Entry {
                    id: cold.id,
                    payload: buf.slice_ref(record.payload),
                });
            }
            _ => {
                return Err(WalError::Corrupt(Corruption {
                    file: path.clone(),
                    offset: u64::from(cold.offset),
                    index: Some(cold.id.index),
                    what: "a record does not match its checksum",
                }));
            }
        }
    }
    Ok(entries)
}
