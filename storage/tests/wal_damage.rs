//! Torn tails are cut, damage is reported, failures end the log.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test or bench may end this way"
)]

mod support;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use support::model::Model;
use support::*;
use tenure_storage::disk::{Disk, DiskFile, DiskOp, SimDisk};
use tenure_storage::wal::WalError;

/// A log with some segments; what it holds.
async fn filled(disk: &SimDisk, entries: u64, close: bool) -> Model {
    let life = Life::start(disk, small()).await.unwrap();
    life.wal
        .save_vote(Bytes::from_static(b"a vote"))
        .await
        .unwrap();
    for index in 0..entries {
        life.append_wait(vec![entry(1, index, 300)]).await.unwrap();
    }
    let model = Model::of(&life.wal).await.unwrap();
    if close {
        life.wal.close().await.unwrap();
    }
    tokio::task::yield_now().await;
    life.abort();
    model
}

async fn reopen(disk: &SimDisk) -> Result<(Life, Model), WalError> {
    let life = Life::start(disk, small()).await?;
    let model = Model::of(&life.wal).await?;
    Ok((life, model))
}

#[test]
fn a_flipped_bit_anywhere_is_reported_or_harmless_never_a_loss() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let full = filled(&disk, 60, true).await;
        let disk = disk.crash(1);
        let files = segments(&disk).await;
        assert_eq!(3, files.len());
        let (mut reported, mut harmless) = (0, 0);
        for path in &files {
            for offset in (0..28 * 1024).step_by(11) {
                disk.flip(path, offset, 0x10).unwrap();
                match reopen(&disk).await {
                    Ok((life, model)) => {
                        assert_eq!(full, model, "{} at {offset}", path.display());
                        life.abort();
                        harmless += 1;
                    }
                    Err(WalError::Corrupt(damage)) => {
                        assert_eq!(path, &damage.file);
                        assert!(damage.offset <= offset && offset < damage.offset + 4096);
                        reported += 1;
                    }
                    Err(other) => panic!("{other}"),
                }
                disk.flip(path, offset, 0x10).unwrap();
            }
        }
        assert!(
            reported > 1000 && harmless > 100,
            "{reported} reported, {harmless} harmless"
        );
    });
}

#[test]
fn corruption_names_file_offset_and_index() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        filled(&disk, 5, true).await;
        let path = dir().join("wal-0000000001.log");
        let bytes = disk.contents(&path).unwrap();
        let marker = entry(1, 3, 300).payload;
        let at = bytes.windows(300).position(|w| w == &marker[..]).unwrap() as u64;
        disk.flip(&path, at + 5, 1).unwrap();
        let Err(WalError::Corrupt(damage)) = reopen(&disk).await else {
            panic!("found no damage")
        };
        assert_eq!(path, damage.file);
        assert_eq!(Some(3), damage.index);
        assert_eq!(at - at % 512, damage.offset);
        let text = WalError::Corrupt(damage).to_string();
        assert!(
            text.contains("wal-0000000001.log at offset") && text.contains("index 3"),
            "{text}"
        );
    });
}

#[test]
fn the_last_batch_is_protected_by_the_marker_behind_it() {
    on_runtime(async {
        let disk = with_pauses(SimDisk::new(1));
        filled(&disk, 5, false).await;
        // The process was killed; the page cache has the marker.
        let disk = disk.kill(2);
        let path = dir().join("wal-0000000001.log");
        let bytes = disk.contents(&path).unwrap();
        let last = entry(1, 4, 300).payload;
        let at = bytes.windows(300).position(|w| w == &last[..]).unwrap() as u64;
        disk.flip(&path, at, 1).unwrap();
        let Err(WalError::Corrupt(damage)) = reopen(&disk).await else {
            panic!("found no damage")
        };
        assert_eq!(Some(4), damage.index);
    });
}

#[test]
fn a_torn_last_write_is_cut_and_the_log_goes_on() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let full = filled(&disk, 5, false).await;
        let path = dir().join("wal-0000000001.log");
        // A batch that was written and never synced, without its second sector.
        let life = Life::start(&disk, small()).await.unwrap();
        disk.crash_after(disk.changes() + 1);
        assert!(
            life.append_wait(vec![entry(1, 5, 900)])
                .await
                .unwrap_err()
                .is_fatal()
        );
        let disk = disk.kill(1);
        let bytes = disk.contents(&path).unwrap();
        let torn = entry(1, 5, 900).payload;
        let at = bytes.windows(900).position(|w| w == &torn[..]).unwrap() as u64;
        let file = disk.open(&path).await.unwrap();
        file.write_at(at + 512 - at % 512, &[0; 512]).await.unwrap();
        let (life, model) = reopen(&disk).await.unwrap();
        assert_eq!(full, model);
        let cut = life.report.torn_tail.clone().unwrap();
        assert_eq!((path, at - at % 512), (cut.file, cut.offset));
        life.append_wait(vec![entry(2, 5, 100)]).await.unwrap();
        life.wal.close().await.unwrap();
        let (_, model) = reopen(&disk.crash(3)).await.unwrap();
        assert_eq!(Some(id(2, 5)), model.state().last);
    });
}

#[test]
fn a_misdirected_write_is_reported() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        filled(&disk, 5, false).await;
        let path = dir().join("wal-0000000001.log");
        let (life, _) = reopen(&disk).await.unwrap();
        disk.misdirect_next_write(&path, 24 * 1024);
        life.append_wait(vec![entry(1, 5, 300)]).await.unwrap();
        life.append_wait(vec![entry(1, 6, 300)]).await.unwrap();
        life.wal.close().await.unwrap();
        let Err(WalError::Corrupt(damage)) = reopen(&disk.crash(1)).await else {
            panic!("found no damage")
        };
        assert_eq!(Some(5), damage.index);
    });
}

#[test]
fn a_missing_segment_is_reported() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        filled(&disk, 100, true).await;
        let files = segments(&disk).await;
        for missing in &files[..files.len() - 1] {
            let disk = disk.crash(1);
            disk.remove(missing).await.unwrap();
            assert_eq!(missing, &corruption(&disk).await.file);
        }
    });
}

#[test]
fn a_cold_read_of_damaged_bytes_names_the_entry() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        filled(&disk, 60, true).await;
        let (life, _) = reopen(&disk).await.unwrap();
        let path = dir().join("wal-0000000001.log");
        let bytes = disk.contents(&path).unwrap();
        let cold = entry(1, 2, 300).payload;
        let at = bytes.windows(300).position(|w| w == &cold[..]).unwrap() as u64;
        disk.flip(&path, at, 4).unwrap();
        assert_eq!(2, life.wal.read(0..2, u64::MAX).await.unwrap().len());
        let Err(WalError::Corrupt(damage)) = life.wal.read(0..9, u64::MAX).await else {
            panic!("found no damage")
        };
        assert_eq!((path, Some(2)), (damage.file, damage.index));
    });
}

#[test]
fn a_failed_sync_ends_the_log_and_is_never_retried() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let full = filled(&disk, 5, false).await;
        let (life, _) = reopen(&disk).await.unwrap();
        disk.fail_sync(0);
        assert!(
            life.append_wait(vec![entry(1, 5, 10)])
                .await
                .unwrap_err()
                .is_fatal()
        );
        let changes = disk.changes();
        assert!(
            life.wal
                .append(vec![entry(1, 6, 10)], Box::new(|_| ()))
                .await
                .is_err()
        );
        assert!(
            life.wal
                .save_vote(Bytes::new())
                .await
                .unwrap_err()
                .is_fatal()
        );
        assert!(life.wal.truncate_after(None).await.unwrap_err().is_fatal());
        assert!(life.wal.purge(id(1, 1)).await.unwrap_err().is_fatal());
        assert!(life.wal.save_committed(None).await.unwrap_err().is_fatal());
        assert!(life.wal.flush().await.unwrap_err().is_fatal());
        assert!(life.wal.close().await.unwrap_err().is_fatal());
        assert!(life.wal.read(.., 1).await.unwrap_err().is_fatal());
        assert_eq!(
            changes,
            disk.changes(),
            "nothing is written after the failure"
        );
        assert_eq!(
            1,
            life.fatal.lock().unwrap().len(),
            "the process is told once"
        );
        let (_, model) = reopen(&disk.crash(5)).await.unwrap();
        assert!(full.entries.len() <= model.entries.len());
    });
}

/// The keeper's files hold no entry, and all the same: whichever sync fails, the process is told at once,
/// not when the file is needed.
#[test]
fn each_sync_that_fails_is_told_at_once() {
    let mut by_keeper = 0;
    for nth in 0.. {
        let failed = on_runtime(async {
            let disk = SimDisk::new(nth);
            let life = Life::start(&disk, small()).await.unwrap();
            let failed = Arc::new(Mutex::new(false));
            let seen = failed.clone();
            disk.set_delay(Some(Arc::new(move |operation, _| {
                *seen.lock().unwrap() |= operation == DiskOp::SyncFailed;
                Box::pin(std::future::ready(()))
            })));
            disk.fail_sync(nth);
            for index in 0..120 {
                let appended = life.append_wait(vec![entry(1, index, 300)]).await;
                if index % 20 == 19 {
                    let _ = life.wal.purge(id(1, index - 10)).await;
                }
                // What was under way beside it ends.
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                let failed = *failed.lock().unwrap();
                let told = life.fatal.lock().unwrap().len();
                assert_eq!(told, usize::from(failed), "sync {nth}, entry {index}");
                if failed {
                    by_keeper += u32::from(appended.is_ok());
                    assert!(
                        life.append_wait(vec![entry(1, index + 1, 1)])
                            .await
                            .is_err()
                    );
                    return true;
                }
            }
            false
        });
        if !failed {
            break;
        }
    }
    assert!(by_keeper >= 4, "{by_keeper}");
}

/// After a failed sync the cache shows what the medium does not have. The next process must not
/// take it for durable.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_made_durable_before_it_counts() {
    for seed in 0..40 {
        on_runtime(async {
            let disk = SimDisk::new(seed);
            filled(&disk, 3, false).await;
            let (life, _) = reopen(&disk).await.unwrap();
            disk.fail_sync(0);
            assert!(life.append_wait(vec![entry(1, 3, 700)]).await.is_err());
            let disk = disk.kill(seed);
            let (life, seen) = reopen(&disk).await.unwrap();
            life.abort();
            let (_, found) = reopen(&disk.crash(seed)).await.unwrap();
            assert_eq!(seen, found, "seed {seed}");
        });
    }
}

#[test]
fn every_waiting_callback_gets_the_error() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let life = Life::start(&disk, small()).await.unwrap();
        disk.fail_sync(0);
        let results = Arc::new(Mutex::new(Vec::new()));
        for index in 0..20 {
            let results = Arc::clone(&results);
            let done = Box::new(move |result| results.lock().unwrap().push(result));
            life.wal
                .append(vec![entry(1, index, 500)], done)
                .await
                .unwrap();
        }
        assert!(life.wal.flush().await.unwrap_err().is_fatal());
        let results = results.lock().unwrap();
        assert_eq!(20, results.len());
        assert!(results.iter().all(|r| matches!(r, Err(WalError::Fatal(_)))));
    });
}

#[test]
fn a_full_disk_ends_the_log_and_loses_nothing() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        disk.set_capacity_bytes(150 * 1024);
        let life = Life::start(&disk, small()).await.unwrap();
        let mut acknowledged = 0;
        let error = loop {
            match life.append_wait(vec![entry(1, acknowledged, 300)]).await {
                Ok(()) => acknowledged += 1,
                Err(error) => break error,
            }
        };
        assert!(
            error.is_fatal() && error.to_string().contains("full"),
            "{error}"
        );
        assert!(
            acknowledged > 60,
            "all of the disk was used, {acknowledged}"
        );
        let disk = disk.crash(2);
        let (life, model) = reopen(&disk).await.unwrap();
        assert!(model.entries.len() as u64 >= acknowledged);
        life.abort();
        disk.set_capacity_bytes(200 * 1024);
        let (life, model) = reopen(&disk).await.unwrap();
        life.append_wait(vec![entry(1, model.next_index(), 300)])
            .await
            .unwrap();
    });
}

#[test]
fn bad_options_are_refused() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let mut options = small();
        options.segment_bytes = 4096;
        assert!(matches!(
            Life::start(&disk, options).await,
            Err(WalError::Options(_))
        ));
    });
}
