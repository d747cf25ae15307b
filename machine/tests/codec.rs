//! The byte form: golden bytes of every variant of every enum that is kept or sent, and what damage gives.
//!
//! `golden/codec.hex` has a line a value: its name and its bytes, envelope and all. A line that is there never
//! changes; new variants come behind. `UPDATE_GOLDEN=1` writes the file anew, which is right only while no
//! version has been released or when lines are added.

// A test stops where something is not as it must be.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
// The runner reads and writes the golden files; the machine itself does no I/O.
#![allow(
    clippy::disallowed_methods,
    reason = "a test reads and writes its files"
)]

mod samples;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use proptest::prelude::*;
use tenure_machine::codec::{
    self, CodecError, ENVELOPE_BYTES, Kind, MAX_BODY_BYTES, SCHEMA, decode, decode_prefix, encode,
};
use tenure_machine::{Command, Event, Name, Proposal, Record, Reply};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex digits"))
        .collect()
}

#[test]
fn golden_bytes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/codec.hex");
    let mut found = String::new();
    for (name, bytes) in samples::lines() {
        found.push_str(&format!("{name} {}\n", hex(&bytes)));
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &found).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (expected, found) in golden.lines().zip(found.lines()) {
        assert_eq!(expected, found, "the bytes of a value have changed");
    }
    assert_eq!(
        golden.lines().count(),
        found.lines().count(),
        "a value has no golden line, or a line has no value"
    );
}

#[test]
fn golden_bytes_are_read_as_the_values() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/codec.hex");
    let golden = std::fs::read_to_string(path).unwrap();
    let lines: BTreeMap<&str, Vec<u8>> = golden
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, hex)| (name, unhex(hex)))
        .collect();
    samples::read_all(&lines);
}

/// The ordinal of each variant is its place in the list of names, and each name has a value.
#[test]
fn ordinals_are_pinned() {
    samples::check_ordinals();
}

fn sample() -> Vec<u8> {
    encode(Kind::SnapshotRecord, &Name::new("value")).unwrap()
}

fn read(bytes: &[u8]) -> Result<Name, CodecError> {
    decode(Kind::SnapshotRecord, bytes)
}

/// Sets the checksum right again, so that a test reaches what stands behind it.
fn seal(bytes: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[ENVELOPE_BYTES..]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_later_schema_is_an_error_that_names_it() {
    let mut bytes = sample();
    bytes[4..6].copy_from_slice(&(SCHEMA + 6).to_le_bytes());
    seal(&mut bytes);
    let error = read(&bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "written with schema {0} of kind 4; this version reads schemas 1 to {SCHEMA}: \
             install a version that reads schema {0}",
            SCHEMA + 6
        )
    );
    bytes[4..6].copy_from_slice(&0u16.to_le_bytes());
    seal(&mut bytes);
    assert!(matches!(
        read(&bytes),
        Err(CodecError::UnknownSchema { found: 0, kind: 4 })
    ));
}

#[test]
fn a_later_codec_is_an_error_that_names_it() {
    let mut bytes = sample();
    bytes[3] = 9;
    seal(&mut bytes);
    let error = read(&bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "written with codec 9; this version reads codec 1: install a version that reads codec 9"
    );
}

#[test]
fn another_kind_is_refused() {
    let bytes = sample();
    assert_eq!(
        decode::<Name>(Kind::LogEntry, &bytes),
        Err(CodecError::WrongKind {
            expected: 1,
            found: 4
        })
    );
    let mut unknown = bytes;
    unknown[2] = 200;
    seal(&mut unknown);
    assert_eq!(
        read(&unknown),
        Err(CodecError::WrongKind {
            expected: 4,
            found: 200
        })
    );
}

#[test]
fn reserved_bytes_are_refused() {
    let mut bytes = sample();
    bytes[7] = 1;
    seal(&mut bytes);
    assert!(matches!(read(&bytes), Err(CodecError::Malformed(_))));
}

#[test]
fn each_flipped_bit_is_found() {
    let bytes = sample();
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&damaged).is_err(), "bit {bit}");
    }
}

#[test]
fn each_truncation_is_found() {
    let bytes = sample();
    for length in 0..bytes.len() {
        assert!(
            matches!(read(&bytes[..length]), Err(CodecError::Truncated { .. })),
            "{length} bytes"
        );
    }
}

#[test]
fn what_stands_behind_is_found() {
    let mut bytes = sample();
    bytes.push(0);
    assert_eq!(read(&bytes), Err(CodecError::Trailing { extra: 1 }));
    let (name, used): (Name, usize) = decode_prefix(Kind::SnapshotRecord, &bytes).unwrap();
    assert_eq!((name.as_str(), used), ("value", bytes.len() - 1));
    // A body that is longer than its value.
    let mut long = sample();
    long.push(0);
    let length = u32::try_from(long.len() - ENVELOPE_BYTES).unwrap();
    long[8..12].copy_from_slice(&length.to_le_bytes());
    seal(&mut long);
    assert_eq!(read(&long), Err(CodecError::Trailing { extra: 1 }));
}

#[test]
fn an_oversize_body_is_neither_written_nor_read() {
    let big = "x".repeat(MAX_BODY_BYTES);
    assert!(matches!(
        encode(Kind::SnapshotRecord, &big),
        Err(CodecError::TooLarge { .. })
    ));
    let mut out = vec![1, 2, 3];
    assert!(codec::encode_into(Kind::SnapshotRecord, &big, &mut out).is_err());
    assert_eq!(out, [1, 2, 3], "nothing is left of a failed write");
    let mut bytes = sample();
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        read(&bytes),
        Err(CodecError::TooLarge {
            bytes: u32::MAX as usize
        })
    );
}

/// A body that claims a huge collection is refused before room is made for it.
#[test]
fn a_claimed_length_is_not_believed() {
    for claim in [0xfc, 0xfd] {
        let mut bytes = sample();
        bytes.truncate(ENVELOPE_BYTES);
        bytes.push(claim);
        bytes.extend([0xff; 8]);
        let length = u32::try_from(bytes.len() - ENVELOPE_BYTES).unwrap();
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        seal(&mut bytes);
        assert!(read(&bytes).is_err());
        assert!(decode::<Vec<u64>>(Kind::SnapshotRecord, &bytes).is_err());
        assert!(decode::<std::sync::Arc<[u8]>>(Kind::SnapshotRecord, &bytes).is_err());
    }
}

fn body(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut bytes = encode(kind, &()).unwrap();
    bytes.extend_from_slice(body);
    bytes[8..12].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    seal(&mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random bytes, bare and in a right envelope, are a value or an error, never a panic. A value that was
    /// read is written as bytes that are read as the same value.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<Proposal>(Kind::LogEntry, &bytes);
        let entry = body(Kind::LogEntry, &bytes);
        if let Ok(value) = decode_prefix::<Proposal>(Kind::LogEntry, &entry) {
            let again = encode(Kind::LogEntry, &value.0).unwrap();
            prop_assert_eq!(decode::<Proposal>(Kind::LogEntry, &again).unwrap(), value.0);
        }
        let _ = decode::<Command>(Kind::LogEntry, &entry);
        let record = body(Kind::SnapshotRecord, &bytes);
        let _ = decode::<Record>(Kind::SnapshotRecord, &record);
        let _ = decode::<Event>(Kind::SnapshotRecord, &record);
        let _ = decode::<Reply>(Kind::SnapshotRecord, &record);
    }

    /// A value whose bytes were changed under a right checksum is another value or an error.
    #[test]
    fn changed_values_never_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        static LINES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(samples::lines);
        let (_, mut bytes) = LINES[which.index(LINES.len())].clone();
        if bytes.len() > ENVELOPE_BYTES {
            let at = ENVELOPE_BYTES + at.index(bytes.len() - ENVELOPE_BYTES);
            bytes[at] = to;
            seal(&mut bytes);
            let _ = decode::<Command>(Kind::LogEntry, &bytes);
            let _ = decode::<Record>(Kind::SnapshotRecord, &bytes);
            let _ = decode::<Event>(Kind::ArchiveRecord, &bytes);
        }
    }
}
