//! A fixed set of seeds, small enough for each change. More: `scripts/sim`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its own functions too"
)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_machine::{Event, FireDecision, LogPosition, Outcome, Reply, SkipReason, State};
use tenure_raft::wire::{Append, Blob, PeerRequest, WireEntry, WirePayload, WireVote};
use tenure_sim::faults::KINDS;
use tenure_sim::invariants;
use tenure_sim::judge::{self, Findings, Seen};
use tenure_sim::run::{Report, run};
use tenure_storage::archive::MemArchive;

/// How many seeds each change has to stand.
const SEEDS: u64 = 120;

/// Seeds that once found something, with what it was. A change of the workload or of the faults gives a seed
/// another story; then it is one more seed, and `docs/testing.md` still says what was found.
const REGRESSIONS: &[(u64, &str)] = &[
    (111, "a leader whose archive missed facts never filled it"),
    (147, "a leader whose archive missed facts never filled it"),
    (
        40,
        "a failed sync of a snapshot that was received did not end the node",
    ),
    (
        186,
        "time without a leader counted where the loops of the next leader stood still",
    ),
    (
        1174,
        "an archive that missed facts waited for ever for entries without facts",
    ),
];

/// Runs seeds on all cores and fails with the story of the first that fails.
fn all(seeds: &[u64]) -> Vec<Report> {
    let next = AtomicU64::new(0);
    let reports = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let report = run(*seed, false);
                    reports.lock().unwrap().push(report);
                }
            });
        }
    });
    reports.into_inner().unwrap()
}

/// What does not happen in every set of seeds.
const RARE: &[&str] = &[
    "commands of stale terms refused",
    "second decisions refused",
];

/// What the machines counted in all runs: an invariant about something that never happened shows nothing.
fn counters(reports: &[Report]) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in reports.iter().flat_map(|report| &report.counters) {
        *sums.entry(*name).or_default() += count;
    }
    sums
}

fn check(reports: &[Report]) {
    let failed = reports.iter().find(|report| !report.violations.is_empty());
    if let Some(report) = failed {
        let first = &report.violations[0];
        panic!(
            "seed {}: not true: {}\n{}\n{}",
            report.seed,
            first.sentence,
            first.what,
            first.story.join("\n")
        );
    }
}

#[test]
fn every_promise_is_kept_under_these_seeds() {
    let reports = all(&(1..=SEEDS).collect::<Vec<_>>());
    check(&reports);
    let virtual_ms: u64 = reports.iter().map(|report| report.virtual_ms).sum();
    let faults: u64 = reports
        .iter()
        .flat_map(|report| report.faults.values())
        .sum();
    println!(
        "{:.2} simulated hours, {faults} faults",
        virtual_ms as f64 / 3_600_000.0
    );
    assert!(virtual_ms > 9_000_000, "{virtual_ms} ms");
    // A trap counts when it strikes, and not when it is set.
    assert!(faults > 5_000, "{faults} faults");
    for kind in KINDS {
        let seen = reports
            .iter()
            .any(|report| report.faults.contains_key(kind));
        assert!(seen, "{kind}: never");
    }
    for (what, count) in counters(&reports) {
        assert!(count > 0 || RARE.contains(&what), "{what}: never");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 5, 22, 61] {
        let [first, second] = [run(seed, true), run(seed, true)].map(|report| report.trace.text);
        let (first, second) = (first.unwrap(), second.unwrap());
        let differs = first.lines().zip(second.lines()).find(|(a, b)| a != b);
        assert_eq!(differs, None, "seed {seed}");
        assert!(first == second, "seed {seed}: one trace is longer");
    }
}

#[test]
fn what_was_found_once_is_not_found_again() {
    check(&all(&REGRESSIONS
        .iter()
        .map(|(seed, _)| *seed)
        .collect::<Vec<_>>()));
}

/// What no planted bug breaks, because consensus and the sink of the handlers would have to be wrong, or because
/// something else is noticed before, is seen too when it is shown.
#[test]
fn what_no_planted_bug_breaks_would_be_seen() {
    let shown = |name: &str, all: &[Seen<'_>]| {
        let mut invariants = invariants::all();
        let about =
            |invariant: &&mut Box<dyn invariants::Invariant>| invariant.sentence().contains(name);
        let invariant = invariants.iter_mut().find(about).unwrap();
        let mut findings = Findings::default();
        all.iter()
            .for_each(|seen| invariant.see(seen, &mut findings));
        findings.said().len()
    };
    let append = |index, node, bytes: &'static [u8]| {
        let at = LogPosition { term: 3, index };
        let vote = WireVote {
            term: 3,
            node,
            committed: true,
        };
        PeerRequest::Append(Append {
            vote,
            previous: None,
            entries: vec![WireEntry {
                at,
                payload: WirePayload::Command(Blob(bytes.into())),
            }],
            committed: None,
        })
    };
    let (one, other) = (append(7, 1, b"one"), append(7, 2, b"other"));
    let sent = |from, request| Seen::Message { from, request };
    let same_place = "the same place and the same term";
    assert_eq!(shown(same_place, &[sent(1, &one), sent(2, &one)]), 0);
    assert_eq!(shown(same_place, &[sent(1, &one), sent(2, &other)]), 1);

    // A blank entry is committed where a damaged node has a command.
    let state = State::default();
    let blank = judge::Entry {
        at: LogPosition { term: 3, index: 0 },
        proposal: None,
        outcome: None,
        before: &state,
        after: &state,
    };
    let first = append(0, 1, b"one");
    let damage = "a damaged disk";
    let told = |node| {
        [
            Seen::Damaged { node },
            Seen::Committed(&blank),
            sent(1, &first),
        ]
    };
    assert_eq!(shown(damage, &told(2)), 0);
    assert_eq!(shown(damage, &told(1)), 1);

    // Another entry was committed there, in an earlier term.
    let earlier = judge::Entry {
        at: LogPosition { term: 2, index: 0 },
        ..blank
    };
    let complete = "a leader's log has at each place";
    let led = |committed| [Seen::Committed(committed), sent(1, &first)];
    assert_eq!(shown(complete, &led(&blank)), 0);
    assert_eq!(shown(complete, &led(&earlier)), 1);

    let told = |fires| judge::Call {
        committed: 0,
        ack: judge::Ack::Ledger {
            job: "a".into(),
            fires,
            whole: true,
            current: true,
        },
    };
    let ledger = "the ledger of a job";
    let none = told(vec![]);
    assert_eq!(shown(ledger, &[Seen::Acknowledged(&none)]), 0);
    let never = told(vec![(5, 5, None)]);
    assert_eq!(shown(ledger, &[Seen::Acknowledged(&never)]), 1);

    // A decision that an archive which says that it has every fact does not have.
    let decision = FireDecision {
        job: "a".into(),
        revision: 1,
        first_ms: 5,
        last_ms: 5,
        count: 1,
        run: None,
        skipped: Some(SkipReason::Paused),
        decided_at_ms: 5,
        index: 0,
        term: 3,
    };
    let outcome = Outcome {
        reply: Ok(Reply::Done),
        events: vec![Event::Decided(decision)],
    };
    let decided = judge::Entry {
        outcome: Some(&outcome),
        ..blank
    };
    let archive = MemArchive::empty();
    let archived = |committed| {
        let (node, archive) = (1, &archive);
        [Seen::Committed(committed), Seen::Archived { node, archive }]
    };
    let whole = "a complete archive";
    assert_eq!(shown(whole, &archived(&blank)), 0);
    assert_eq!(shown(whole, &archived(&decided)), 1);

    let stored = |epoch| Seen::Stored {
        scope: "job/0",
        token: (1, epoch),
        run: 1,
        shard: 0,
        record: 0,
        accepted: true,
    };
    let sink = "a checking sink";
    assert_eq!(shown(sink, &[stored(0), stored(0)]), 0);
    // Neither was granted, and the second is below the first.
    assert_eq!(shown(sink, &[stored(2), stored(1)]), 3);
}
