//! What the tests of the log share.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test file uses its part"
)]

pub mod model;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tenure_storage::disk::{Disk, DiskFile, DiskOp, SimDisk};
use tenure_storage::wal::{
    Corruption, Entry, LogId, Wal, WalError, WalHooks, WalOptions, WalReport,
};

pub const DIR: &str = "/data/wal";

pub fn dir() -> PathBuf {
    PathBuf::from(DIR)
}

/// Small sizes, so that segments roll over and cold reads happen all the time.
pub fn small() -> WalOptions {
    WalOptions {
        segment_bytes: 28 * 1024,
        batch_target_bytes: 1024,
        max_record_bytes: 2048,
        cache_bytes: 1024,
        queue_bytes: 64 * 1024,
        salt: 7,
        create: true,
    }
}

/// A log and the tasks and failures of one life of the process.
pub struct Life {
    pub wal: Wal,
    pub report: WalReport,
    pub tasks: Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>,
    pub fatal: Arc<Mutex<Vec<WalError>>>,
}

impl Life {
    pub async fn start(disk: &SimDisk, options: WalOptions) -> Result<Life, WalError> {
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let fatal = Arc::new(Mutex::new(Vec::new()));
        let (spawned, failures) = (Arc::clone(&tasks), Arc::clone(&fatal));
        let hooks = WalHooks {
            spawn: Arc::new(move |_, task| {
                spawned.lock().unwrap().push(tokio::spawn(task));
                Ok(())
            }),
            on_fatal: Box::new(move |error| failures.lock().unwrap().push(error)),
        };
        let (wal, report) = Wal::open(disk.clone(), &dir(), options, hooks).await?;
        Ok(Life {
            wal,
            report,
            tasks,
            fatal,
        })
    }

    /// Ends the tasks where they stand.
    pub fn abort(&self) {
        for task in self.tasks.lock().unwrap().drain(..) {
            task.abort();
        }
    }

    pub async fn append_wait(&self, entries: Vec<Entry>) -> Result<(), WalError> {
        let (tx, rx) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result| {
            let _ = tx.send(result);
        });
        self.wal.append(entries, done).await?;
        rx.await
            .unwrap_or_else(|_| Err(WalError::Fatal("dropped".into())))
    }
}

pub fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let fill = (index as u8) ^ (term as u8).wrapping_mul(31);
    let payload = Bytes::from(vec![fill; bytes]);
    Entry {
        id: LogId {
            term,
            node: 1,
            index,
        },
        payload,
    }
}

pub fn id(term: u64, index: u64) -> LogId {
    LogId {
        term,
        node: 1,
        index,
    }
}

pub fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

/// Names of the live segments, oldest first.
pub async fn segments(disk: &SimDisk) -> Vec<PathBuf> {
    let names = disk.list(Path::new(DIR)).await.unwrap();
    names
        .iter()
        .filter(|n| n.starts_with("wal-"))
        .map(|n| dir().join(n))
        .collect()
}

/// A disk on which a pause takes its time, which is virtual: it ends when all else waits.
pub fn with_pauses(disk: SimDisk) -> SimDisk {
    disk.set_delay(Some(Arc::new(|op, amount| {
        let us = if op == DiskOp::Pause { amount } else { 0 };
        Box::pin(async move {
            if us > 0 {
                tokio::time::sleep(Duration::from_micros(us)).await;
            }
        })
    })));
    disk
}

/// Overwrites a part of a file with zeros, on the medium too.
pub async fn zero(disk: &SimDisk, path: &Path, offset: u64, bytes: u64) {
    let file = disk.open(path).await.unwrap();
    file.write_at(offset, &vec![0; bytes as usize])
        .await
        .unwrap();
    file.sync_data().await.unwrap();
}

/// Where `bytes` are in a file.
pub fn place(disk: &SimDisk, path: &Path, bytes: &[u8]) -> u64 {
    let content = disk.contents(path).unwrap();
    let at = content.windows(bytes.len()).position(|w| w == bytes);
    at.unwrap() as u64
}

/// What a log that must not be opened says; it changes no file.
pub async fn corruption(disk: &SimDisk) -> Corruption {
    let before = contents(disk).await;
    match Life::start(disk, small()).await {
        Err(WalError::Corrupt(damage)) => {
            assert!(before == contents(disk).await, "nothing was changed");
            damage
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("found no damage"),
    }
}

pub async fn contents(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.list(&dir()).await.unwrap();
    names
        .into_iter()
        .map(|name| {
            let bytes = disk.contents(&dir().join(&name)).unwrap();
            (name, bytes)
        })
        .collect()
}
