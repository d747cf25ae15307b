//! The one byte form of everything that is kept or sent between nodes.
//!
//! bincode's encoding names neither types nor fields, so each value stands in an envelope that says what
//! it is and how to read it. The envelope is 16 bytes, little endian:
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0..2 | magic | `TN` |
//! | 2 | kind | [`Kind`]: what the body is |
//! | 3 | codec | how the body is written; 1 is bincode 2, standard configuration |
//! | 4..6 | schema | which version of the kind's types the body has |
//! | 6..8 | reserved | zero |
//! | 8..12 | length | bytes of the body |
//! | 12..16 | checksum | CRC32C of bytes 0..12 and the body |
//!
//! Invariants: this module alone names bincode; enums in a body are append-only; a value that this version
//! cannot read is an error that says which schema is needed, never a guess.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a body is. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// An entry of the Raft log.
    LogEntry = 1,
    /// The Raft vote of a node.
    Vote = 2,
    /// A header of a snapshot.
    SnapshotHeader = 3,
    /// One record of a snapshot.
    SnapshotRecord = 4,
    /// A message between nodes.
    PeerMessage = 5,
    /// A record of the archive.
    ArchiveRecord = 6,
    /// Something small that a node keeps for itself.
    NodeRecord = 7,
}

/// The schema this version writes. It reads this one and all before it.
pub const SCHEMA: u16 = 1;
/// Bytes in front of each body.
pub const ENVELOPE_BYTES: usize = 16;
/// The largest body that is written or read, in bytes.
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

const MAGIC: [u8; 2] = *b"TN";
const CODEC_BINCODE: u8 = 1;

/// Why bytes could not be read, or a value could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// There are fewer bytes than an envelope and its body need.
    #[error("truncated: {have} bytes of {need}")]
    Truncated {
        /// Bytes that are there.
        have: usize,
        /// Bytes that are needed.
        need: usize,
    },
    /// There are bytes behind the body.
    #[error("{extra} bytes behind the end of the value")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// The bytes do not begin with the magic.
    #[error("not a Tenure envelope")]
    NotAnEnvelope,
    /// The envelope holds another kind of value.
    #[error("expected a value of kind {expected}, found kind {found}")]
    WrongKind {
        /// What was asked for.
        expected: u8,
        /// What the envelope says.
        found: u8,
    },
    /// The body is written in a way this version does not know.
    #[error(
        "written with codec {found}; this version reads codec {CODEC_BINCODE}: install a version that reads codec {found}"
    )]
    UnknownCodec {
        /// What the envelope says.
        found: u8,
    },
    /// The types are of a later version.
    #[error(
        "written with schema {found} of kind {kind}; this version reads schemas 1 to {SCHEMA}: install a version that reads schema {found}"
    )]
    UnknownSchema {
        /// What the envelope says.
        found: u16,
        /// The kind of value.
        kind: u8,
    },
    /// The checksum does not match: the bytes are damaged.
    #[error("checksum mismatch: stored {stored:#010x}, computed {computed:#010x}")]
    Damaged {
        /// What the envelope says.
        stored: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// The body is longer than allowed.
    #[error("a body of {bytes} bytes is over the limit of {MAX_BODY_BYTES}")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// The checksum is right but the body does not fit the types: a fault in Tenure.
    #[error("the body does not fit its schema: {0}")]
    Malformed(String),
}

/// Appends the envelope and the body of `value` to `out`. Reuse `out`: a fresh buffer costs more than the encoding.
pub fn encode_into<T: Serialize>(
    kind: Kind,
    value: &T,
    out: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.push(kind as u8);
    out.push(CODEC_BINCODE);
    out.extend_from_slice(&SCHEMA.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&[0; 8]);
    if let Err(error) =
        bincode::serde::encode_into_std_write(value, &mut *out, bincode::config::standard())
    {
        out.truncate(start);
        return Err(CodecError::Malformed(error.to_string()));
    }
    let body_bytes = out.len() - start - ENVELOPE_BYTES;
    let length = match u32::try_from(body_bytes) {
        Ok(length) if body_bytes <= MAX_BODY_BYTES => length,
        _ => {
            out.truncate(start);
            return Err(CodecError::TooLarge { bytes: body_bytes });
        }
    };
    out[start + 8..start + 12].copy_from_slice(&length.to_le_bytes());
    let crc = checksum(&out[start..start + 12], &out[start + ENVELOPE_BYTES..]);
    out[start + 12..start + 16].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// The envelope and the body of `value` in a buffer of their own.
pub fn encode<T: Serialize>(kind: Kind, value: &T) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::with_capacity(256);
    encode_into(kind, value, &mut out)?;
    Ok(out)
}

/// Reads a value that fills `bytes` exactly.
pub fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, CodecError> {
    let (value, used) = decode_prefix(kind, bytes)?;
    match bytes.len() - used {
        0 => Ok(value),
        extra => Err(CodecError::Trailing { extra }),
    }
}

/// Reads the value at the beginning of `bytes` and says how many bytes it took.
pub fn decode_prefix<T: DeserializeOwned>(
    kind: Kind,
    bytes: &[u8],
) -> Result<(T, usize), CodecError> {
    let body = verify(kind, bytes)?;
    let config = bincode::config::standard().with_limit::<MAX_BODY_BYTES>();
    let (value, used) = bincode::serde::decode_from_slice(body, config)
        .map_err(|error| CodecError::Malformed(error.to_string()))?;
    if used != body.len() {
        return Err(CodecError::Trailing {
            extra: body.len() - used,
        });
    }
    Ok((value, ENVELOPE_BYTES + body.len()))
}

/// Checks the envelope at the beginning of `bytes` and gives its body, without reading it.
pub fn verify(kind: Kind, bytes: &[u8]) -> Result<&[u8], CodecError> {
    let Some((header, rest)) = bytes.split_at_checked(ENVELOPE_BYTES) else {
        return Err(CodecError::Truncated {
            have: bytes.len(),
            need: ENVELOPE_BYTES,
        });
    };
    if header[..2] != MAGIC {
        return Err(CodecError::NotAnEnvelope);
    }
    let length = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
    if length > MAX_BODY_BYTES {
        return Err(CodecError::TooLarge { bytes: length });
    }
    let Some(body) = rest.get(..length) else {
        return Err(CodecError::Truncated {
            have: bytes.len(),
            need: ENVELOPE_BYTES + length,
        });
    };
    let stored = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
    let computed = checksum(&header[..12], body);
    #[cfg(feature = "planted-bugs")]
    let computed = match tenure_planted::is(tenure_planted::Bug::ChecksumUnchecked) {
        true => stored,
        false => computed,
    };
    if stored != computed {
        return Err(CodecError::Damaged { stored, computed });
    }
    if header[2] != kind as u8 {
        return Err(CodecError::WrongKind {
            expected: kind as u8,
            found: header[2],
        });
    }
    if header[3] != CODEC_BINCODE {
        return Err(CodecError::UnknownCodec { found: header[3] });
    }
    if header[6..8] != [0; 2] {
        return Err(CodecError::Malformed(
            "reserved bytes of the envelope are set: a later version wrote it".to_owned(),
        ));
    }
    let schema = u16::from_le_bytes([header[4], header[5]]);
    if schema == 0 || schema > SCHEMA {
        return Err(CodecError::UnknownSchema {
            found: schema,
            kind: header[2],
        });
    }
    Ok(body)
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header), body)
}
