//! The bytes of a snapshot file. Little-endian.

/// First bytes; the last one is the format version.
pub(super) const MAGIC: [u8; 8] = *b"TENSNP\0\x01";
/// Magic, header length, header checksum.
pub(super) const PREFIX_BYTES: usize = 16;
/// Bytes in front of the body of a block.
pub(super) const BLOCK_HEADER_BYTES: usize = 20;
/// Bytes of the body of the footer.
pub(super) const FOOTER_BODY_BYTES: usize = 32 + 8 + 8 + 8;
/// Bytes of the whole footer.
pub(super) const FOOTER_BYTES: usize = BLOCK_HEADER_BYTES + FOOTER_BODY_BYTES;
/// A block is closed when its body has this size.
pub(super) const BLOCK_TARGET_BYTES: usize = 256 * 1024;
/// Bytes in front of a record.
pub(super) const RECORD_HEADER_BYTES: usize = 4;

const KIND_DATA: u32 = 1;
const KIND_FOOTER: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    Data,
    Footer,
}

/// What is in front of a block's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockHeader {
    pub(super) kind: BlockKind,
    pub(super) section: u32,
    pub(super) records: u32,
    pub(super) body_bytes: u32,
    crc: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Magic, length and checksum in front of the opaque header.
pub(super) fn encode_prefix(header: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES + header.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&(header.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(header).to_le_bytes());
    out.extend_from_slice(header);
    out
}

/// Length and checksum of the opaque header.
pub(super) fn decode_prefix(bytes: &[u8]) -> Option<(u32, u32)> {
    if !bytes.starts_with(&MAGIC) {
        return None;
    }
    Some((u32_at(bytes, 8)?, u32_at(bytes, 12)?))
}

/// Writes a block header into the space that was left for it at the start of `block`.
pub(super) fn seal_block(block: &mut [u8], kind: BlockKind, section: u32, records: u32) {
    let body_bytes = block.len().saturating_sub(BLOCK_HEADER_BYTES) as u32;
    let kind = match kind {
        BlockKind::Data => KIND_DATA,
        BlockKind::Footer => KIND_FOOTER,
    };
    let fields = [kind, section, records, body_bytes];
    for (to, from) in block
        .iter_mut()
        .zip(fields.into_iter().flat_map(u32::to_le_bytes))
    {
        *to = from;
    }
    let crc = block_crc(block);
    for (to, from) in block.iter_mut().skip(16).zip(crc.to_le_bytes()) {
        *to = from;
    }
}

/// Checksum of the fields and the body of a block.
fn block_crc(block: &[u8]) -> u32 {
    let crc = crc32c::crc32c(block.get(..16).unwrap_or_default());
    crc32c::crc32c_append(crc, block.get(BLOCK_HEADER_BYTES..).unwrap_or_default())
}

impl BlockHeader {
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = match u32_at(bytes, 0)? {
            KIND_DATA => BlockKind::Data,
            KIND_FOOTER => BlockKind::Footer,
            _ => return None,
        };
        Some(Self {
            kind,
            section: u32_at(bytes, 4)?,
            records: u32_at(bytes, 8)?,
            body_bytes: u32_at(bytes, 12)?,
            crc: u32_at(bytes, 16)?,
        })
    }

    /// Whether a whole block, header and body, is as it was written.
    pub(super) fn fits(&self, block: &[u8]) -> bool {
        block.len() == BLOCK_HEADER_BYTES + self.body_bytes as usize && block_crc(block) == self.crc
    }
}

/// What the footer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) sha256: [u8; 32],
    /// Bytes before the footer.
    pub(super) bytes: u64,
    pub(super) blocks: u64,
    pub(super) records: u64,
}

impl Footer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; BLOCK_HEADER_BYTES];
        out.extend_from_slice(&self.sha256);
        for field in [self.bytes, self.blocks, self.records] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        seal_block(&mut out, BlockKind::Footer, 0, 0);
        out
    }

    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        if body.len() != FOOTER_BODY_BYTES {
            return None;
        }
        Some(Self {
            sha256: body.get(..32)?.try_into().ok()?,
            bytes: u64_at(body, 32)?,
            blocks: u64_at(body, 40)?,
            records: u64_at(body, 48)?,
        })
    }
}

/// Splits the first record off a body.
pub(super) fn split_record(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32_at(body, 0)? as usize;
    body.get(RECORD_HEADER_BYTES..)?.split_at_checked(len)
}
