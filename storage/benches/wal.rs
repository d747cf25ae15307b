//! Entries a second through the log: `cargo bench -p tenure-storage`.
//!
//! Uses a real disk and real `fdatasync`, in the folder that `TENURE_BENCH_DIR` names (default:
//! cargo's; one in memory would measure nothing). Each line is the median of three runs.
//! `plain` is the floor to compare with, taken in the same minute: bare writes of as many bytes
//! to a file full of zeros, each synced, by one thread without a log. `waits` appends a batch and
//! waits until it is durable; `pipelined` keeps four batches in flight, as Raft does under load.
//! `cargo test` runs it small, so that it cannot rot.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test or bench may end this way"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_storage::disk::{Disk, DiskFile, RealDisk};
use tenure_storage::wal::{Entry, LogId, Wal, WalHooks, WalOptions, spawn_threads};

const PAYLOAD_BYTES: usize = 256;
const RUNS: usize = 3;
/// Entries that stay in the log behind the purge.
const KEEP_ENTRIES: u64 = 50_000;

fn main() {
    // Cargo says `--bench` when it measures, and nothing when it tests.
    let small = !std::env::args().any(|arg| arg == "--bench");
    let run_for = Duration::from_millis(if small { 30 } else { 1500 });
    let base = std::env::var_os("TENURE_BENCH_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let options = if small {
        small_options()
    } else {
        WalOptions::default()
    };
    let dir = base.join(format!("wal-bench-{}", std::process::id()));
    println!("batch  mode       entries/s    spread   batches/s");
    for batch in [1, 16, 128, 1024] {
        for (mode, in_flight) in [("plain", 0), ("waits", 1), ("pipelined", 4)] {
            let mut rates: Vec<f64> = (0..RUNS)
                .map(|_| match in_flight {
                    0 => measure_plain(&dir, &options, batch, run_for),
                    _ => measure(&dir, &options, batch, in_flight, run_for),
                })
                .collect();
            rates.sort_by(f64::total_cmp);
            let [low, median, high] = rates[..] else {
                unreachable!("three runs")
            };
            assert!(low > 0.0, "entries became durable");
            let spread = (high - low) / median * 100.0;
            let batches = median / batch as f64;
            println!("{batch:5}  {mode:9}  {median:9.0}  {spread:6.0}%  {batches:9.0}");
        }
    }
    std::fs::remove_dir_all(&dir).ok();
}

/// Little to fill with zeros.
fn small_options() -> WalOptions {
    WalOptions {
        segment_bytes: 4 * 1024 * 1024,
        batch_target_bytes: 512 * 1024,
        max_record_bytes: 1024 * 1024,
        ..WalOptions::default()
    }
}

/// Entries a second that bare synced writes reach.
fn measure_plain(dir: &Path, options: &WalOptions, batch: u64, run_for: Duration) -> f64 {
    std::fs::remove_dir_all(dir).ok();
    std::fs::create_dir_all(dir).unwrap();
    pollster::block_on(async {
        let file = RealDisk.create(&dir.join("plain")).await.unwrap();
        let file_bytes = options.segment_bytes;
        file.allocate(file_bytes).await.unwrap();
        file.sync_data().await.unwrap();
        let bytes = vec![7_u8; (batch as usize * (PAYLOAD_BYTES + 36)).next_multiple_of(512)];
        let (mut offset, mut entries) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < run_for {
            if offset + bytes.len() as u64 > file_bytes {
                offset = 0;
            }
            file.write_at(offset, &bytes).await.unwrap();
            file.sync_data().await.unwrap();
            offset += bytes.len() as u64;
            entries += batch;
        }
        entries as f64 / start.elapsed().as_secs_f64()
    })
}

/// Entries a second that became durable.
fn measure(
    dir: &Path,
    options: &WalOptions,
    batch: u64,
    in_flight: usize,
    run_for: Duration,
) -> f64 {
    std::fs::remove_dir_all(dir).ok();
    let hooks = WalHooks {
        spawn: spawn_threads(),
        on_fatal: Box::new(|e| panic!("{e}")),
    };
    pollster::block_on(async {
        let (wal, _) = Wal::open(RealDisk, dir, options.clone(), hooks)
            .await
            .unwrap();
        let durable = Arc::new(AtomicU64::new(0));
        let gate = Arc::new(tokio::sync::Semaphore::new(in_flight));
        let payload = Bytes::from(vec![7_u8; PAYLOAD_BYTES]);
        let mut next = 0;
        // Fill the first segments, so that the runs write to files that are used again.
        let warm_up = run_for / 2;
        let mut start = Instant::now();
        let mut warm = true;
        loop {
            if warm && start.elapsed() > warm_up {
                (warm, start) = (false, Instant::now());
                durable.store(0, Ordering::Relaxed);
            } else if start.elapsed() > run_for {
                break;
            }
            let permit = Arc::clone(&gate).acquire_owned().await.unwrap();
            let entries = (next..next + batch)
                .map(|index| Entry {
                    id: LogId {
                        term: 1,
                        node: 1,
                        index,
                    },
                    payload: payload.clone(),
                })
                .collect();
            let count = Arc::clone(&durable);
            let done = Box::new(move |result: Result<(), _>| {
                result.unwrap();
                count.fetch_add(batch, Ordering::Relaxed);
                drop(permit);
            });
            wal.append(entries, done).await.unwrap();
            next += batch;
            if next % 8192 < batch && next > KEEP_ENTRIES {
                let index = next - KEEP_ENTRIES;
                wal.purge(LogId {
                    term: 1,
                    node: 1,
                    index,
                })
                .await
                .unwrap();
            }
        }
        let rate = durable.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        wal.close().await.unwrap();
        rate
    })
}
