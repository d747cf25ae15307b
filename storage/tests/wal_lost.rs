//! What was durable and is gone is missed: files, the end of the newest one, votes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test or bench may end this way"
)]

mod support;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use support::model::Model;
use support::*;
use tenure_storage::disk::{Disk, DiskFile, RealDisk, SimDisk};
use tenure_storage::wal::{Wal, WalError, WalHooks, spawn_threads};

const SEGMENT_BYTES: u64 = 28 * 1024;

/// A log with a batch for each entry, whose process was killed as soon as the last was durable.
async fn filled(disk: &SimDisk, entries: u64) {
    let life = Life::start(disk, small()).await.unwrap();
    for index in 0..entries {
        life.append_wait(vec![entry(1, index, 300)]).await.unwrap();
    }
    life.abort();
}

async fn newest(disk: &SimDisk) -> PathBuf {
    segments(disk).await.pop().unwrap()
}

fn control() -> PathBuf {
    dir().join("control")
}

#[test]
fn any_number_of_newest_segments_is_missed() {
    on_runtime(async {
        let disk = with_pauses(SimDisk::new(1));
        filled(&disk, 100).await;
        let files = segments(&disk).await;
        assert!(files.len() > 3);
        for lost in 1..=files.len() {
            let disk = disk.kill(1);
            for path in &files[files.len() - lost..] {
                disk.remove(path).await.unwrap();
            }
            disk.sync_dir(&dir()).await.unwrap();
            let damage = corruption(&disk).await;
            assert_eq!(files.last(), Some(&damage.file), "{lost} lost");
            assert!(damage.what.contains("missing"), "{damage}");
        }
    });
}

#[test]
fn a_purged_file_that_stayed_behind_hides_no_loss() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let life = Life::start(&disk, small()).await.unwrap();
        let first = dir().join("wal-0000000001.log");
        for index in 0..100 {
            life.append_wait(vec![entry(1, index, 300)]).await.unwrap();
        }
        let old = disk.contents(&first).unwrap();
        life.wal.purge(id(1, 80)).await.unwrap();
        for index in 100..190 {
            life.append_wait(vec![entry(1, index, 300)]).await.unwrap();
        }
        life.wal.close().await.unwrap();
        let model = Model::of(&Life::start(&disk, small()).await.unwrap().wal).await;
        let model = model.unwrap();
        let files = segments(&disk).await;
        assert!(files.len() > 2 && !files.contains(&first));
        let file = disk.create(&first).await.unwrap();
        file.write_at(0, &old).await.unwrap();
        file.sync_data().await.unwrap();
        disk.sync_dir(&dir()).await.unwrap();
        let disk = disk.kill(1);

        for missing in &files {
            let bytes = disk.contents(missing).unwrap();
            disk.remove(missing).await.unwrap();
            assert_eq!(missing, &corruption(&disk).await.file);
            let file = disk.create(missing).await.unwrap();
            file.write_at(0, &bytes).await.unwrap();
        }
        let life = Life::start(&disk, small()).await.unwrap();
        assert_eq!(model, Model::of(&life.wal).await.unwrap());
        assert_eq!(files, segments(&disk).await, "the old file is gone");
    });
}

#[test]
fn a_zeroed_second_half_is_named_with_file_offset_and_index() {
    on_runtime(async {
        let disk = with_pauses(SimDisk::new(1));
        // 24 batches of 512 bytes in the newest segment, half of the room.
        filled(&disk, 16 + 24).await;
        let path = newest(&disk).await;
        let disk = disk.kill(1);
        let at = place(&disk, &path, &entry(1, 30, 300).payload);
        let at = at - at % 512;
        zero(&disk, &path, at, SEGMENT_BYTES - at).await;
        let damage = corruption(&disk).await;
        assert_eq!(
            (path, at, Some(30)),
            (damage.file, damage.offset, damage.index)
        );
    });
}

#[test]
fn a_vote_cannot_be_lost_without_a_trace_once_it_was_acknowledged() {
    on_runtime(async {
        for power_loss in [false, true] {
            let disk = with_pauses(SimDisk::new(1));
            let life = Life::start(&disk, small()).await.unwrap();
            life.append_wait(vec![entry(1, 0, 300)]).await.unwrap();
            let vote = Bytes::from_static(b"a vote in term 7");
            life.wal.save_vote(vote.clone()).await.unwrap();
            let disk = if power_loss {
                disk.crash(3)
            } else {
                disk.kill(3)
            };
            let path = newest(&disk).await;
            let at = place(&disk, &path, &vote);
            let at = at - at % 512;
            zero(&disk, &path, at, SEGMENT_BYTES - at).await;
            let damage = corruption(&disk).await;
            assert_eq!((path, at), (damage.file, damage.offset));
        }
    });
}

#[test]
fn an_idle_log_comes_to_be_covered_and_then_is_quiet() {
    on_runtime(async {
        let disk = with_pauses(SimDisk::new(1));
        let life = Life::start(&disk, small()).await.unwrap();
        for index in 0..2 {
            life.append_wait(vec![entry(1, index, 300)]).await.unwrap();
        }
        life.wal
            .save_committed(Some(Bytes::from_static(b"committed")))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let changes = disk.changes();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(changes, disk.changes(), "an idle log does nothing");
        let disk = disk.crash(1);
        let path = newest(&disk).await;
        let at = place(&disk, &path, &entry(1, 1, 300).payload);
        zero(&disk, &path, at - at % 512, 1024).await;
        assert_eq!(Some(1), corruption(&disk).await.index);
    });
}

/// What remains: the last batches under load, before a mark covers them.
#[test]
fn at_most_eight_batches_can_look_torn() {
    on_runtime(async {
        for entries in 9..30 {
            let disk = with_pauses(SimDisk::new(1));
            filled(&disk, entries).await;
            let path = newest(&disk).await;
            for lost in [8, 9] {
                let disk = disk.kill(1);
                let at = place(&disk, &path, &entry(1, entries - lost, 300).payload);
                let at = at - at % 512;
                zero(&disk, &path, at, SEGMENT_BYTES - at).await;
                let opened = Life::start(&disk, small()).await.map(|life| life.report);
                let noticed = matches!(opened, Err(WalError::Corrupt(_)));
                assert!(noticed || lost == 8, "{lost} of {entries} are gone");
            }
        }
    });
}

#[test]
fn a_torn_mark_leaves_the_other_and_two_bad_ones_are_damage() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        filled(&disk, 100).await;
        let disk = disk.crash(1);
        for (file, first) in [(control(), 0), (newest(&disk).await, 4096)] {
            let slots = [first, first + 4096];
            // Each start mends the bad one, or the second flip would leave none.
            for slot in slots.into_iter().chain(slots) {
                disk.flip(&file, slot + 9, 1).unwrap();
                let life = Life::start(&disk, small()).await.unwrap();
                assert_eq!(100, life.report.entries);
                life.abort();
            }
            let good = disk.contents(&file).unwrap();
            for slot in slots {
                disk.flip(&file, slot + 9, 1).unwrap();
            }
            assert_eq!(file, corruption(&disk).await.file);
            let open = disk.open(&file).await.unwrap();
            open.write_at(0, &good).await.unwrap();
        }
    });
}

#[test]
fn a_control_file_that_is_missing_cut_or_too_old_is_named() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        filled(&disk, 20).await;
        let old = disk.contents(&control()).unwrap();
        let life = Life::start(&disk, small()).await.unwrap();
        for index in 20..130 {
            life.append_wait(vec![entry(1, index, 300)]).await.unwrap();
        }
        life.wal.close().await.unwrap();
        let disk = disk.crash(1);
        let file = disk.open(&control()).await.unwrap();
        let good = disk.contents(&control()).unwrap();
        file.write_at(0, &old).await.unwrap();
        let damage = corruption(&disk).await;
        assert_eq!(control(), damage.file);
        assert!(damage.what.contains("newer"), "{damage}");
        file.write_at(0, &good).await.unwrap();
        file.set_len(4096).await.unwrap();
        assert_eq!(control(), corruption(&disk).await.file);
        disk.remove(&control()).await.unwrap();
        assert_eq!(control(), corruption(&disk).await.file);
        for path in segments(&disk).await {
            disk.remove(&path).await.unwrap();
        }
        // Spare files are left: there was a log.
        assert_eq!(control(), corruption(&disk).await.file);
    });
}

#[test]
fn a_log_that_must_be_there_is_never_made_anew() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let mut options = small();
        options.create = false;
        for _ in 0..2 {
            let Err(error) = Life::start(&disk, options.clone()).await else {
                panic!("made a log")
            };
            let said = error.to_string();
            assert!(matches!(error, WalError::Missing(_)), "{said}");
            assert!(said.contains("under a new id"), "{said}");
            assert!(disk.list(&dir()).await.unwrap().is_empty(), "made nothing");
        }
        // Neither is the first start finished that a crash interrupted before the control file.
        filled(&disk, 0).await;
        disk.remove(&control()).await.unwrap();
        let Err(WalError::Corrupt(damage)) = Life::start(&disk, options).await else {
            panic!("found no damage")
        };
        assert_eq!(control(), damage.file);
        Life::start(&disk, small()).await.unwrap();
    });
}

#[test]
fn a_segment_of_another_format_is_told_from_damage() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        filled(&disk, 5).await;
        let path = newest(&disk).await;
        let mut header = disk.contents(&path).unwrap()[..512].to_vec();
        header[7] = 1;
        header[8..12].fill(0);
        let crc = crc32c::crc32c(&header);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        let file = disk.open(&path).await.unwrap();
        file.write_at(0, &header).await.unwrap();
        // The old format knew no control file.
        disk.remove(&control()).await.unwrap();
        let Err(error) = Life::start(&disk, small()).await else {
            panic!("opened it")
        };
        let said = error.to_string();
        assert!(
            said.contains("wal-0000000001.log is of log format 1"),
            "{said}"
        );
    });
}

/// A file that is used again holds marks and batches of its earlier lives.
#[test]
fn marks_of_an_earlier_life_of_a_file_do_not_count() {
    on_runtime(async {
        let mut disk = with_pauses(SimDisk::new(1));
        let mut next = 0;
        for round in 0..40 {
            let life = Life::start(&disk, small()).await.unwrap();
            assert_eq!(next, Model::of(&life.wal).await.unwrap().next_index());
            for _ in 0..15 {
                life.append_wait(vec![entry(1, next, 900)]).await.unwrap();
                next += 1;
            }
            life.wal.purge(id(1, next - 3)).await.unwrap();
            life.wal.flush().await.unwrap();
            life.abort();
            disk = disk.crash(round);
        }
        let number = newest(&disk).await;
        let spares = disk.list(&dir()).await.unwrap();
        let used = spares.iter().filter(|name| name.starts_with("spare-"));
        assert!(used.count() < 4, "files are used again: {spares:?}");
        assert!(number > dir().join("wal-0000000030.log"));
    });
}

#[test]
fn losses_on_real_files_are_missed_too() {
    let base = std::env::temp_dir().join(format!("tenure-wal-lost-{}", std::process::id()));
    let hooks = || WalHooks {
        spawn: spawn_threads(),
        on_fatal: Box::new(|e| panic!("{e}")),
    };
    on_runtime(async {
        for cut in [false, true] {
            let _ = std::fs::remove_dir_all(&base);
            let (wal, _) = Wal::open(RealDisk, &base, small(), hooks()).await.unwrap();
            for index in 0..100 {
                wal.append(vec![entry(1, index, 300)], Box::new(|_| ()))
                    .await
                    .unwrap();
                wal.flush().await.unwrap();
            }
            wal.close().await.unwrap();
            let names = RealDisk.list(&base).await.unwrap();
            let name = names.iter().rfind(|name| name.starts_with("wal-")).unwrap();
            let path = base.join(name);
            if cut {
                let file = RealDisk.open(&path).await.unwrap();
                file.write_at(12 * 1024 + 512, &[0; 16 * 1024 - 512])
                    .await
                    .unwrap();
            } else {
                std::fs::remove_file(&path).unwrap();
            }
            for _ in 0..2 {
                let opened = Wal::open(RealDisk, &base, small(), hooks()).await;
                let Err(WalError::Corrupt(damage)) = opened.map(|_| ()) else {
                    panic!("found no damage")
                };
                assert_eq!(path, damage.file);
            }
        }
    });
    std::fs::remove_dir_all(&base).unwrap();
}
