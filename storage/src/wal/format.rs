//! The bytes of a segment file. Little-endian, fixed sizes.
//!
//! ```text
//! segment  = header, mark, mark (a page each), batch, batch, …  (each starts on a sector boundary)
//! batch    = batch header (48 bytes), records, zeros up to the sector boundary
//! record   = record header (36 bytes), payload
//! ```
//!
//! Only the marks (see [`super::mark`]) are written again while the segment lives. Header and
//! marks have a page of their own, so that a page that is torn while it is written takes nothing
//! else with it.
//!
//! Every checksum in a segment starts from a seed made of the segment's number and salt. Bytes
//! that an earlier use of a recycled file left behind therefore never pass for live ones.

use crate::disk::SECTOR_BYTES;

use super::LogId;
use super::mark::{MARKS_BYTES, Mark, PAGE_BYTES};

/// First bytes of a segment; the format version follows.
const SEGMENT_MAGIC: [u8; 7] = *b"TENWAL\0";
/// Format that this version writes and reads.
pub(super) const FORMAT_VERSION: u8 = 2;
/// Where the marks of a segment are.
pub(super) const MARKS_AT: u64 = PAGE_BYTES;
/// Where the first batch of a segment is.
pub(super) const DATA_START: u64 = MARKS_AT + MARKS_BYTES;
/// First bytes of a batch.
const BATCH_MAGIC: [u8; 4] = *b"TWB1";
/// Bytes of a batch header.
pub(super) const BATCH_HEADER_BYTES: usize = 48;
/// Bytes of a record header.
pub(super) const RECORD_HEADER_BYTES: usize = 36;
/// Stands for "no index".
const NO_INDEX: u64 = u64::MAX;

/// Rounds up to the sector boundary.
pub(super) fn round_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR_BYTES as u64)
}

/// Where the checksums of a segment start from.
pub(super) fn seed(salt: u64, sequence: u32) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    crc32c::crc32c_append(crc, &sequence.to_le_bytes())
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// What the first sector of a segment says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Number of the segment; the file name says it too.
    pub(super) sequence: u32,
    /// Chosen by the embedder, see `WalOptions::salt`.
    pub(super) salt: u64,
    /// Length of the file.
    pub(super) segment_bytes: u64,
    /// Where the segment before ends; everything before that offset was durable before this
    /// header was written.
    pub(super) previous_end: u64,
    /// Number of the last batch before this segment.
    pub(super) last_batch: u64,
    /// Index that the next entry has here; `None` if it may have any.
    pub(super) next_index: Option<u64>,
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoHeader {
    /// They are not whole.
    Damaged,
    /// They are whole, and of another format version.
    Version(u8),
}

impl SegmentHeader {
    /// All that stands before the first batch: the header, and the mark that nothing follows yet.
    pub(super) fn opening(&self) -> Vec<u8> {
        let mut bytes = self.encode().to_vec();
        bytes.resize(MARKS_AT as usize, 0);
        bytes.extend_from_slice(&self.first_mark().encode(seed(self.salt, self.sequence)));
        bytes.resize(DATA_START as usize, 0);
        bytes
    }

    /// What is durable when the segment gets its name.
    pub(super) fn first_mark(&self) -> Mark {
        Mark {
            sequence: self.sequence,
            end: DATA_START,
            batch: self.last_batch,
        }
    }

    fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut sector = [0_u8; SECTOR_BYTES];
        let mut fields = Vec::with_capacity(SECTOR_BYTES);
        fields.extend_from_slice(&SEGMENT_MAGIC);
        fields.push(FORMAT_VERSION);
        fields.extend_from_slice(&[0; 4]);
        fields.extend_from_slice(&self.sequence.to_le_bytes());
        for field in [
            self.salt,
            self.segment_bytes,
            self.previous_end,
            self.last_batch,
            self.next_index.unwrap_or(NO_INDEX),
        ] {
            fields.extend_from_slice(&field.to_le_bytes());
        }
        for (to, from) in sector.iter_mut().zip(&fields) {
            *to = *from;
        }
        let crc = crc32c::crc32c(&sector);
        for (to, from) in sector.iter_mut().skip(8).zip(crc.to_le_bytes()) {
            *to = from;
        }
        sector
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, NoHeader> {
        let sector = Self::checked(bytes).ok_or(NoHeader::Damaged)?;
        match sector.get(SEGMENT_MAGIC.len()) {
            Some(&FORMAT_VERSION) => Self::fields(&sector).ok_or(NoHeader::Damaged),
            Some(&other) => Err(NoHeader::Version(other)),
            None => Err(NoHeader::Damaged),
        }
    }

    /// The sector if its checksum is right, which lies in the same place in all versions.
    fn checked(bytes: &[u8]) -> Option<[u8; SECTOR_BYTES]> {
        let mut sector: [u8; SECTOR_BYTES] = bytes.get(..SECTOR_BYTES)?.try_into().ok()?;
        let crc = u32_at(&sector, 8)?;
        sector.get_mut(8..12)?.fill(0);
        (sector.starts_with(&SEGMENT_MAGIC) && crc32c::crc32c(&sector) == crc).then_some(sector)
    }

    fn fields(sector: &[u8]) -> Option<Self> {
        let next_index = u64_at(sector, 48)?;
        Some(Self {
            sequence: u32_at(sector, 12)?,
            salt: u64_at(sector, 16)?,
            segment_bytes: u64_at(sector, 24)?,
            previous_end: u64_at(sector, 32)?,
            last_batch: u64_at(sector, 40)?,
            next_index: (next_index != NO_INDEX).then_some(next_index),
        })
    }
}

/// What is in front of the records of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchHeader {
    /// Number of the batch, growing by one.
    pub(super) batch: u64,
    /// Everything in this segment before this offset was durable when the batch was written.
    pub(super) durable_end: u64,
    /// Bytes of the records. 0: a marker, which only carries `durable_end`; the next batch goes
    /// to the same place.
    pub(super) body_bytes: u32,
    /// Number of records.
    pub(super) records: u32,
    /// Checksum of the records.
    pub(super) body_crc: u32,
}

impl BatchHeader {
    pub(super) fn encode(&self, seed: u32) -> [u8; BATCH_HEADER_BYTES] {
        let mut out = [0_u8; BATCH_HEADER_BYTES];
        let fields = BATCH_MAGIC
            .into_iter()
            .chain([0; 4])
            .chain(self.batch.to_le_bytes())
            .chain(self.durable_end.to_le_bytes())
            .chain(self.body_bytes.to_le_bytes())
            .chain(self.records.to_le_bytes())
            .chain(self.body_crc.to_le_bytes());
        for (to, from) in out.iter_mut().zip(fields) {
            *to = from;
        }
        let crc = crc32c::crc32c_append(seed, &out);
        for (to, from) in out.iter_mut().skip(4).zip(crc.to_le_bytes()) {
            *to = from;
        }
        out
    }

    /// `None` if the bytes are not an undamaged header of the segment with this seed.
    pub(super) fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let mut header: [u8; BATCH_HEADER_BYTES] =
            bytes.get(..BATCH_HEADER_BYTES)?.try_into().ok()?;
        if !header.starts_with(&BATCH_MAGIC) {
            return None;
        }
        let crc = u32_at(&header, 4)?;
        header.get_mut(4..8)?.fill(0);
        if crc32c::crc32c_append(seed, &header) != crc {
            return None;
        }
        Some(Self {
            batch: u64_at(&header, 8)?,
            durable_end: u64_at(&header, 16)?,
            body_bytes: u32_at(&header, 24)?,
            records: u32_at(&header, 28)?,
            body_crc: u32_at(&header, 32)?,
        })
    }

    /// Bytes from the start of this batch to the start of the next.
    pub(super) fn stride(&self) -> u64 {
        round_up(BATCH_HEADER_BYTES as u64 + u64::from(self.body_bytes))
    }
}

/// What a record means. Pinned numbers, append-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    /// A log entry.
    Entry = 1,
    /// The vote; its bytes are the payload.
    Vote = 2,
    /// The committed position; its bytes are the payload.
    Committed = 3,
    /// There is no committed position any more.
    CommittedCleared = 4,
    /// Entries from `id.index` on are gone.
    Truncate = 5,
    /// All entries are gone and the next may have any index.
    TruncateAll = 6,
    /// Entries up to `id` are gone.
    Purge = 7,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Entry,
            2 => Self::Vote,
            3 => Self::Committed,
            4 => Self::CommittedCleared,
            5 => Self::Truncate,
            6 => Self::TruncateAll,
            7 => Self::Purge,
            _ => return None,
        })
    }
}

/// One record, borrowed from a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) kind: Kind,
    pub(super) id: LogId,
    pub(super) payload: &'a [u8],
}

impl<'a> Record<'a> {
    /// Bytes on disk.
    pub(super) fn stride(payload_bytes: usize) -> usize {
        RECORD_HEADER_BYTES + payload_bytes
    }

    /// Appends the record to `out`. Payloads are far below 4 GiB by the limits of the log.
    pub(super) fn encode(&self, seed: u32, out: &mut Vec<u8>) {
        let mut header = [0_u8; RECORD_HEADER_BYTES];
        let fields = [0; 4]
            .into_iter()
            .chain((self.payload.len() as u32).to_le_bytes())
            .chain((self.kind as u32).to_le_bytes())
            .chain(self.id.term.to_le_bytes())
            .chain(self.id.node.to_le_bytes())
            .chain(self.id.index.to_le_bytes());
        for (to, from) in header.iter_mut().zip(fields) {
            *to = from;
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &header), self.payload);
        for (to, from) in header.iter_mut().zip(crc.to_le_bytes()) {
            *to = from;
        }
        out.extend_from_slice(&header);
        out.extend_from_slice(self.payload);
    }

    /// Reads the record at the start of `bytes`; `None` if it is cut short or of unknown kind.
    /// Does not look at its checksum.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let payload_bytes = u32_at(bytes, 4)? as usize;
        let end = RECORD_HEADER_BYTES.checked_add(payload_bytes)?;
        Some(Self {
            kind: Kind::from_number(u32_at(bytes, 8)?)?,
            id: LogId {
                term: u64_at(bytes, 12)?,
                node: u64_at(bytes, 20)?,
                index: u64_at(bytes, 28)?,
            },
            payload: bytes.get(RECORD_HEADER_BYTES..end)?,
        })
    }

    /// As [`decode`](Self::decode), and `None` too if the checksum does not fit.
    pub(super) fn decode_checked(bytes: &'a [u8], seed: u32) -> Option<Self> {
        let record = Self::decode(bytes)?;
        let mut header: [u8; RECORD_HEADER_BYTES] =
            bytes.get(..RECORD_HEADER_BYTES)?.try_into().ok()?;
        let crc = u32_at(&header, 0)?;
        header.get_mut(..4)?.fill(0);
        let found = crc32c::crc32c_append(crc32c::crc32c_append(seed, &header), record.payload);
        #[cfg(feature = "planted-bugs")]
        let found = match tenure_planted::is(tenure_planted::Bug::ChecksumUnchecked) {
            true => crc,
            false => found,
        };
        (found == crc).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        sequence: 3,
        salt: 7,
        segment_bytes: 65536,
        previous_end: 50000,
        last_batch: 41,
        next_index: None,
    };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_opening_of_a_segment_keeps_its_bytes() {
        let bytes = HEADER.opening();
        assert_eq!(12288, bytes.len());
        assert_eq!(
            "54454e57414c0002292c7ba0030000000700000000000000000001000000000050c30000000000002900000000000000ffffffffffffffff",
            hex(&bytes[..56])
        );
        assert_eq!(
            "54574d31161b4f04030000000000000000300000000000002900000000000000",
            hex(&bytes[4096..4128])
        );
        let rest = bytes[56..4096].iter().chain(&bytes[4128..]);
        assert!(rest.into_iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_header_of_another_version_is_told_from_a_damaged_one() {
        let mut bytes = HEADER.opening();
        assert_eq!(Ok(HEADER), SegmentHeader::decode(&bytes));
        bytes[7] = 1;
        assert_eq!(Err(NoHeader::Damaged), SegmentHeader::decode(&bytes));
        bytes[8..12].fill(0);
        let crc = crc32c::crc32c(&bytes[..SECTOR_BYTES]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Err(NoHeader::Version(1)), SegmentHeader::decode(&bytes));
    }
}
