//! The power fails after every single operation of the disk; what was acknowledged is there.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test or bench may end this way"
)]

mod support;

use support::model::{Model, Outcome, drive};
use support::*;
use tenure_storage::disk::SimDisk;

const OPS: usize = 60;

/// What was found must be what the log held after some operation, not before the last one that
/// was acknowledged.
fn check(found: &Model, outcome: &Outcome, trace: &str) {
    let possible = outcome
        .states
        .iter()
        .skip(outcome.acknowledged)
        .any(|state| state == found);
    assert!(
        possible,
        "{trace}: acknowledged up to {} of {}, expected at least\n{}\nfound\n{}",
        outcome.acknowledged,
        outcome.states.len() - 1,
        outcome.states[outcome.acknowledged].brief(),
        found.brief(),
    );
}

/// Half of the seeds ask for a mark at once when the log falls idle, the others as late as may be.
fn new_disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    if seed.is_multiple_of(2) {
        disk
    } else {
        with_pauses(disk)
    }
}

async fn changes_of_whole_run(seed: u64) -> u64 {
    let disk = new_disk(seed);
    let life = Life::start(&disk, small()).await.unwrap();
    assert!(!drive(&life, Model::default(), seed, OPS).await.failed);
    life.wal.close().await.unwrap();
    disk.changes()
}

/// One life until the power fails, a second one that fails somewhere too, and a third.
async fn crash_twice(seed: u64, after: u64) {
    let trace = format!("seed {seed}, power lost after change {after}");
    let disk = new_disk(seed);
    disk.crash_after(after);
    let mut known = Outcome {
        states: vec![Model::default()],
        acknowledged: 0,
        failed: true,
    };
    if let Ok(life) = Life::start(&disk, small()).await {
        known = drive(&life, Model::default(), seed, OPS).await;
        life.abort();
    }
    let disk = disk.crash(seed ^ after.wrapping_mul(77));
    let life = Life::start(&disk, small())
        .await
        .unwrap_or_else(|e| panic!("{trace}: {e}"));
    let found = Model::of(&life.wal).await.unwrap();
    check(&found, &known, &trace);

    disk.crash_after(disk.changes() + after % 23);
    let known = drive(&life, found, seed + 1, OPS / 2).await;
    life.abort();
    let disk = disk.crash(seed ^ after.wrapping_mul(101));
    let life = Life::start(&disk, small())
        .await
        .unwrap_or_else(|e| panic!("{trace}, again: {e}"));
    check(
        &Model::of(&life.wal).await.unwrap(),
        &known,
        &format!("{trace}, and again"),
    );
    let known = drive(&life, known.states[0].clone(), seed + 2, 0).await;
    assert!(!known.failed, "{trace}: the log works again");
    life.abort();
}

#[test]
fn nothing_acknowledged_is_missing_after_a_crash_at_any_operation() {
    for seed in 1..=12 {
        on_runtime(async {
            let changes = changes_of_whole_run(seed).await;
            assert!(changes > 60, "the workload does disk work: {changes}");
            for after in 1..=changes {
                crash_twice(seed, after).await;
            }
        });
    }
}

/// The process dies first, so that the cache shows what the medium does not have; then the power
/// fails at some operation of the next start.
#[test]
fn a_start_that_the_power_fails_in_makes_nothing_worse() {
    for seed in 1..=4 {
        on_runtime(async {
            let changes = changes_of_whole_run(seed).await;
            for after in (1..=changes).step_by(3) {
                for start in 1..=12 {
                    let trace = format!("seed {seed}, killed after {after}, power after {start}");
                    let disk = new_disk(seed);
                    let Ok(life) = Life::start(&disk, small()).await else {
                        panic!("{trace}")
                    };
                    disk.crash_after(disk.changes() + after);
                    let known = drive(&life, Model::default(), seed, OPS).await;
                    life.abort();
                    let disk = disk.kill(after);
                    disk.crash_after(disk.changes() + start);
                    if let Ok(life) = Life::start(&disk, small()).await {
                        life.abort();
                    }
                    let disk = disk.crash(seed ^ (after * 31 + start));
                    let life = Life::start(&disk, small())
                        .await
                        .unwrap_or_else(|e| panic!("{trace}: {e}"));
                    check(&Model::of(&life.wal).await.unwrap(), &known, &trace);
                    life.abort();
                }
            }
        });
    }
}

/// Crash upon crash without a clean end, on one disk.
#[test]
fn many_lives_in_a_row() {
    for seed in 100..116 {
        on_runtime(async {
            let mut disk = new_disk(seed);
            let mut model = Model::default();
            for life_number in 0..25_u64 {
                let life = Life::start(&disk, small()).await.unwrap();
                let found = Model::of(&life.wal).await.unwrap();
                if life_number > 0 {
                    assert_eq!(model, found, "seed {seed}, life {life_number}");
                }
                disk.crash_after(disk.changes() + (seed * 7 + life_number * 13) % 90 + 1);
                let known = drive(&life, found, seed + life_number, OPS).await;
                life.abort();
                disk = disk.crash(seed + life_number);
                let life = Life::start(&disk, small()).await.unwrap();
                model = Model::of(&life.wal).await.unwrap();
                check(&model, &known, &format!("seed {seed}, life {life_number}"));
                // Die at once: what was seen must not vanish.
                life.abort();
                disk = disk.crash(seed + life_number + 1000);
            }
        });
    }
}
