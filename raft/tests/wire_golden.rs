//! The bytes of peer messages are pinned: nodes of different versions talk to each other.
//!
//! `golden/peer_messages.txt` holds one message a line: its name and its bytes in hex. A line is
//! never changed; a new kind of message adds one.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bytes::Bytes;
use tenure_machine::{Actor, Command, LogPosition, Proposal, Stamp};
use tenure_raft::types::{EncodedEntry, Member};
use tenure_raft::wire::*;

fn at(term: u64, index: u64) -> LogPosition {
    LogPosition { term, index }
}

fn vote(committed: bool) -> WireVote {
    WireVote {
        term: 7,
        node: 2,
        committed,
    }
}

fn membership() -> WireMembership {
    let member = |n: u64| Member {
        peer_address: format!("10.0.0.{n}:7401"),
        http_address: format!("http://10.0.0.{n}:7400"),
    };
    WireMembership {
        voters: vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])],
        nodes: BTreeMap::from([(1, member(1)), (2, member(2)), (3, member(3))]),
    }
}

fn command() -> EncodedEntry {
    EncodedEntry::encode(Proposal {
        stamp: Stamp {
            lease_ms: 1_000,
            calendar_ms: 1_790_000_000_000,
        },
        term: Some(7),
        actor: Actor::Scheduler,
        request: None,
        command: Command::TermStarted { grace_ms: 10_000 },
    })
    .expect("encodes")
}

fn requests() -> Vec<(&'static str, PeerRequest)> {
    let question = VoteQuestion {
        vote: vote(false),
        last_log: Some(at(6, 300)),
        leadership_transfer: true,
    };
    let entry = |index, payload| WireEntry {
        at: at(7, index),
        payload,
    };
    vec![
        (
            "request.append",
            PeerRequest::Append(Append {
                vote: vote(true),
                previous: Some(at(6, 300)),
                entries: vec![
                    entry(301, WirePayload::Blank),
                    entry(302, WirePayload::Command(Blob(command().bytes().clone()))),
                    entry(303, WirePayload::Membership(membership())),
                ],
                committed: Some(at(6, 299)),
            }),
        ),
        ("request.vote", PeerRequest::Vote(question.clone())),
        ("request.pre_vote", PeerRequest::PreVote(question)),
        (
            "request.transfer_leader",
            PeerRequest::TransferLeader(Transfer {
                from: vote(true),
                to: 3,
                last_log: Some(at(7, 303)),
            }),
        ),
        (
            "request.snapshot_offer",
            PeerRequest::SnapshotOffer(SnapshotOffer {
                vote: vote(true),
                cover: SnapshotCover {
                    last_log: Some(at(6, 250)),
                    membership_log: Some(at(1, 0)),
                    membership: membership(),
                },
                total_bytes: 5_000_000_000,
            }),
        ),
        (
            "request.snapshot_piece",
            PeerRequest::SnapshotPiece(SnapshotPiece {
                transfer: 9,
                offset: 1 << 20,
                bytes: Blob(Bytes::from_static(&[0, 1, 254, 255])),
            }),
        ),
        ("request.snapshot_install", PeerRequest::SnapshotInstall(9)),
        (
            "request.forward",
            PeerRequest::Forward(Blob(Bytes::from_static(b"GET /v1/jobs"))),
        ),
    ]
}

fn responses() -> Vec<(&'static str, PeerResponse)> {
    vec![
        (
            "response.stored",
            PeerResponse::Append(AppendAnswer::Stored),
        ),
        (
            "response.stored_up_to",
            PeerResponse::Append(AppendAnswer::StoredUpTo(Some(at(7, 302)))),
        ),
        (
            "response.conflict",
            PeerResponse::Append(AppendAnswer::Conflict),
        ),
        (
            "response.higher_vote",
            PeerResponse::Append(AppendAnswer::HigherVote(vote(true))),
        ),
        (
            "response.vote",
            PeerResponse::Vote(VoteAnswer {
                vote: vote(false),
                granted: true,
                last_log: None,
            }),
        ),
        (
            "response.transfer_accepted",
            PeerResponse::TransferLeader(TransferAnswer::Accepted),
        ),
        (
            "response.transfer_vote_changed",
            PeerResponse::TransferLeader(TransferAnswer::VoteChanged(vote(true))),
        ),
        (
            "response.transfer_log_behind",
            PeerResponse::TransferLeader(TransferAnswer::LogBehind(Some(at(6, 1)))),
        ),
        (
            "response.snapshot_accepted",
            PeerResponse::SnapshotAccepted(9),
        ),
        (
            "response.snapshot_held",
            PeerResponse::SnapshotHeld(1 << 21),
        ),
        (
            "response.snapshot_done",
            PeerResponse::SnapshotDone(vote(true)),
        ),
        (
            "response.forward",
            PeerResponse::Forward(Blob(Bytes::from_static(b"200"))),
        ),
        ("response.refused", PeerResponse::Refused("no".to_owned())),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().map(|c| c.to_digit(16).expect("hex")).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect()
}

fn golden() -> BTreeMap<&'static str, &'static str> {
    include_str!("golden/peer_messages.txt")
        .lines()
        .map(|line| line.split_once(' ').expect("a name and bytes"))
        .collect()
}

#[test]
fn messages_have_their_pinned_bytes() {
    let golden = golden();
    let mut written = String::new();
    let mut found = BTreeMap::new();
    let requests = requests().into_iter().map(|(name, m)| (name, m.to_bytes()));
    let responses = responses()
        .into_iter()
        .map(|(name, m)| (name, m.to_bytes()));
    for (name, bytes) in requests.chain(responses) {
        let bytes = hex(&bytes.expect("encodes"));
        let _ = writeln!(written, "{name} {bytes}");
        found.insert(name, bytes);
    }
    let pinned: BTreeMap<_, _> = golden.iter().map(|(n, b)| (*n, (*b).to_owned())).collect();
    assert_eq!(found, pinned, "as written now:\n{written}");
}

#[test]
fn pinned_bytes_are_read() {
    let golden = golden();
    for (name, message) in requests() {
        let read = PeerRequest::from_bytes(&unhex(golden[name])).expect(name);
        assert_eq!(read, message, "{name}");
    }
    for (name, message) in responses() {
        let read = PeerResponse::from_bytes(&unhex(golden[name])).expect(name);
        assert_eq!(read, message, "{name}");
    }
}

#[test]
fn damaged_or_foreign_bytes_are_errors() {
    for (name, message) in requests() {
        let bytes = message.to_bytes().expect("encodes");
        for cut in 0..bytes.len() {
            assert!(
                PeerRequest::from_bytes(&bytes[..cut]).is_err(),
                "{name} cut at {cut}"
            );
        }
        for flip in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[flip] ^= 0x40;
            assert!(
                PeerRequest::from_bytes(&bad).is_err(),
                "{name} flipped at {flip}"
            );
        }
    }
}

#[test]
fn a_later_schema_is_refused_and_named() {
    let mut bytes = PeerResponse::SnapshotAccepted(1)
        .to_bytes()
        .expect("encodes")
        .to_vec();
    bytes[4..6].copy_from_slice(&99_u16.to_le_bytes());
    let crc = crc(&bytes);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let error = PeerResponse::from_bytes(&bytes).expect_err("unknown schema");
    assert!(error.to_string().contains("99"), "{error}");
}

/// CRC32C of the envelope's first 12 bytes and the body, bit by bit.
fn crc(envelope: &[u8]) -> u32 {
    let covered = envelope[..12].iter().chain(&envelope[16..]);
    !covered.fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}
