//! The whole content in chunks, for a peer.
//!
//! ```text
//! chunk  = checksum (4), number (8), flags (1), applied index (8), records
//! record = key length (4), value length (4), key with its table, value
//! ```
//! Numbers count from 0, so that a lost, doubled or swapped chunk is noticed. The applied index is
//! that of the start of the export, in every chunk.

use super::engine::{Batch, Engine};
use super::records::{IMPORT_KEY, Records, seal, unseal};
use super::{Archive, ArchiveError, Change, Chunk, Table};

const HEADER_BYTES: usize = 4 + 8 + 1 + 8;
const FLAG_LAST: u8 = 1;
const FLAG_INDEX: u8 = 2;

/// Where an export stands; what the opaque cursor holds.
struct Position {
    number: u64,
    index: Option<u64>,
    /// Last key that was sent.
    behind: Vec<u8>,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Position {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.number.to_le_bytes().to_vec();
        out.push(u8::from(self.index.is_some()));
        out.extend_from_slice(&self.index.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.behind);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let index = u64_at(bytes, 9)?;
        Some(Self {
            number: u64_at(bytes, 0)?,
            index: (*bytes.get(8)? == 1).then_some(index),
            behind: bytes.get(17..)?.to_vec(),
        })
    }
}

fn table_of(key: &[u8]) -> Option<Table> {
    let first = *key.first()?;
    Table::ALL.into_iter().find(|table| *table as u8 == first)
}

impl<E: Engine> Records<E> {
    pub(super) fn export_chunk(
        &self,
        cursor: Option<&[u8]>,
        max_bytes: usize,
    ) -> Result<Chunk, ArchiveError> {
        let mut position = match cursor {
            Some(bytes) => {
                Position::decode(bytes).ok_or(ArchiveError::BadChunk("its cursor is not one"))?
            }
            None => Position {
                number: 0,
                index: self.applied_index()?,
                behind: Vec::new(),
            },
        };
        let from = if position.behind.is_empty() {
            vec![1]
        } else {
            [position.behind.as_slice(), &[0]].concat()
        };
        let mut bytes = vec![0; HEADER_BYTES];
        let mut last = true;
        self.engine
            .range(&from, &[u8::MAX], false, &mut |key, stored| {
                let value = unseal(key, stored)?;
                let more = 8 + key.len() + value.len();
                if bytes.len() > HEADER_BYTES && bytes.len() + more > max_bytes {
                    last = false;
                    return Ok(false);
                }
                bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
                bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(value);
                position.behind = key.to_vec();
                Ok(true)
            })?;
        let flags =
            (u8::from(last) * FLAG_LAST) | (u8::from(position.index.is_some()) * FLAG_INDEX);
        let header = position
            .number
            .to_le_bytes()
            .into_iter()
            .chain([flags])
            .chain(position.index.unwrap_or(0).to_le_bytes());
        for (to, from) in bytes.iter_mut().skip(4).zip(header) {
            *to = from;
        }
        let crc = crc32c::crc32c(bytes.get(4..).unwrap_or_default());
        for (to, from) in bytes.iter_mut().zip(crc.to_le_bytes()) {
            *to = from;
        }
        position.number += 1;
        Ok(Chunk {
            bytes,
            cursor: (!last).then(|| position.encode()),
        })
    }

    pub(super) fn import_chunk(&self, chunk: &[u8]) -> Result<bool, ArchiveError> {
        let _writing = self.lock();
        let short = ArchiveError::BadChunk("it is too short");
        let (Some(crc), Some(number), Some(flags), Some(index)) = (
            u32_at(chunk, 0),
            u64_at(chunk, 4),
            chunk.get(12).copied(),
            u64_at(chunk, 13),
        ) else {
            return Err(short);
        };
        if crc32c::crc32c(chunk.get(4..).unwrap_or_default()) != crc {
            return Err(ArchiveError::BadChunk("it does not match its checksum"));
        }
        let changes = decode_changes(chunk.get(HEADER_BYTES..).unwrap_or_default())
            .ok_or(ArchiveError::BadChunk("its records make no sense"))?;
        if number == 0 {
            self.begin_import()?;
        }
        let expected = self.read(IMPORT_KEY)?.and_then(|value| u64_at(&value, 0));
        if expected != Some(number) {
            return Err(ArchiveError::BadChunk(
                "it is not the one that must come next",
            ));
        }
        let mut batch = Batch::new();
        self.stage(&changes, &mut batch)?;
        let last = flags & FLAG_LAST != 0;
        if last {
            Self::stage_index((flags & FLAG_INDEX != 0).then_some(index), &mut batch);
            batch.push((IMPORT_KEY.to_vec(), None));
        } else {
            let next = seal(IMPORT_KEY, &(number + 1).to_le_bytes());
            batch.push((IMPORT_KEY.to_vec(), Some(next)));
        }
        self.engine.write(batch)?;
        Ok(last)
    }

    /// Leaves the mark of an import durably before anything is removed.
    fn begin_import(&self) -> Result<(), ArchiveError> {
        let mark = seal(IMPORT_KEY, &0_u64.to_le_bytes());
        self.engine.write(vec![(IMPORT_KEY.to_vec(), Some(mark))])?;
        self.engine.barrier(None)?;
        self.engine.clear_but(IMPORT_KEY)
    }
}

fn decode_changes(mut bytes: &[u8]) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let key_bytes = u32_at(bytes, 0)? as usize;
        let value_bytes = u32_at(bytes, 4)? as usize;
        let (key, rest) = bytes.get(8..)?.split_at_checked(key_bytes)?;
        let (value, rest) = rest.split_at_checked(value_bytes)?;
        let table = table_of(key)?;
        let key = key.get(1..)?.to_vec();
        changes.push(Change::Put {
            table,
            key,
            value: value.to_vec(),
        });
        bytes = rest;
    }
    Some(changes)
}
