//! The log does what it says when nothing fails, on a simulated and on a real disk.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test or bench may end this way"
)]

mod support;

use bytes::Bytes;
use support::*;
use tenure_storage::disk::{RealDisk, SimDisk};
use tenure_storage::wal::{LogState, Wal, WalError, WalHooks, spawn_threads};

#[test]
fn entries_are_readable_before_they_are_durable() {
    on_runtime(async {
        let disk = SimDisk::new(1);
        let life = Life::start(&disk, small()).await.unwrap();
        assert!(life.report.created);
        let before = disk.changes();
        let (tx, mut rx) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result: Result<(), WalError>| tx.send(result).unwrap());
        life.wal
            .append(vec![entry(1, 0, 10), entry(1, 1, 10)], done)
            .await
            .unwrap();
        assert_eq!(before, disk.changes(), "append itself does no disk work");
        assert!(rx.try_recv().is_err());
        let read = life.wal.read(.., u64::MAX).await.unwrap();
        assert_eq!(vec![entry(1, 0, 10), entry(1, 1, 10)], read);
        rx.await.unwrap().unwrap();
    });
}

#[test]
fn many_appends_share_one_sync() {
    on_runtime(async {
        let disk = with_pauses(SimDisk::new(1));
        let life = Life::start(&disk, small()).await.unwrap();
        let before = disk.changes();
        for index in 0..10 {
            life.wal
                .append(vec![entry(1, index, 20)], Box::new(|_| ()))
                .await
                .unwrap();
        }
        life.wal.flush().await.unwrap();
        let changes = disk.changes() - before;
        assert!(
            changes <= 3,
            "one write, one sync, one marker, got {changes}"
        );
    });
}

#[test]
fn all_survives_a_clean_restart_and_cold_reads_are_right() {
    on_runtime(async {
        let mut disk = SimDisk::new(3);
        let mut expected = Vec::new();
        let life = Life::start(&disk, small()).await.unwrap();
        for index in 0..300 {
            let entry = entry(index / 50 + 1, index, (index % 700) as usize);
            expected.push(entry.clone());
            life.append_wait(vec![entry]).await.unwrap();
        }
        life.wal
            .save_vote(Bytes::from_static(b"vote"))
            .await
            .unwrap();
        life.wal
            .save_committed(Some(Bytes::from_static(b"committed")))
            .await
            .unwrap();
        assert_eq!(expected, life.wal.read(.., u64::MAX).await.unwrap());
        assert_eq!(
            expected[17..93],
            life.wal.read(17..93, u64::MAX).await.unwrap()
        );
        assert_eq!(expected[17..18], life.wal.read(17..93, 1).await.unwrap());
        life.wal.close().await.unwrap();
        assert!(life.wal.read(.., 1).await.unwrap_err().is_fatal());
        disk = disk.crash(4);
        let life = Life::start(&disk, small()).await.unwrap();
        assert_eq!(None, life.report.torn_tail);
        assert_eq!(300, life.report.entries);
        assert!(life.report.segments > 5, "the log rolled over");
        assert_eq!(expected, life.wal.read(.., u64::MAX).await.unwrap());
        assert_eq!(Some(Bytes::from_static(b"vote")), life.wal.vote());
        assert_eq!(Some(Bytes::from_static(b"committed")), life.wal.committed());
    });
}

#[test]
fn purge_frees_segments_and_recycles_them() {
    on_runtime(async {
        let disk = SimDisk::new(5);
        let life = Life::start(&disk, small()).await.unwrap();
        let mut most = 0;
        for index in 0..1000 {
            life.append_wait(vec![entry(1, index, 400)]).await.unwrap();
            if index % 50 == 49 {
                life.wal.purge(id(1, index - 10)).await.unwrap();
                life.wal.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
            most = most.max(segments(&disk).await.len());
        }
        assert!(most <= 6, "old segments go, at most {most} were live");
        let state = life.wal.log_state();
        assert_eq!(
            LogState {
                purged: Some(id(1, 989)),
                last: Some(id(1, 999))
            },
            state
        );
        life.wal.close().await.unwrap();
        let disk = disk.crash(1);
        let life = Life::start(&disk, small()).await.unwrap();
        assert_eq!(state, life.wal.log_state());
        assert_eq!(10, life.wal.read(.., u64::MAX).await.unwrap().len());
    });
}

#[test]
fn truncate_and_purge_move_the_ends() {
    on_runtime(async {
        let disk = SimDisk::new(5);
        let life = Life::start(&disk, small()).await.unwrap();
        life.append_wait((0..10).map(|i| entry(1, i, 9)).collect())
            .await
            .unwrap();
        life.wal.truncate_after(Some(6)).await.unwrap();
        assert_eq!(Some(id(1, 6)), life.wal.log_state().last);
        let gap = life.append_wait(vec![entry(2, 9, 1)]).await.unwrap_err();
        assert!(
            matches!(
                gap,
                WalError::Gap {
                    expected: 7,
                    got: 9
                }
            ),
            "{gap}"
        );
        life.append_wait(vec![entry(2, 7, 1)]).await.unwrap();
        life.wal.purge(id(1, 3)).await.unwrap();
        life.wal.truncate_after(None).await.unwrap();
        let purged = LogState {
            purged: Some(id(1, 3)),
            last: Some(id(1, 3)),
        };
        assert_eq!(purged, life.wal.log_state());
        life.wal.purge(id(3, 20)).await.unwrap();
        life.append_wait(vec![entry(3, 21, 1)]).await.unwrap();
        life.abort();
        let disk = disk.crash(9);
        let life = Life::start(&disk, small()).await.unwrap();
        let state = LogState {
            purged: Some(id(3, 20)),
            last: Some(id(3, 21)),
        };
        assert_eq!(state, life.wal.log_state());
        assert_eq!(
            vec![entry(3, 21, 1)],
            life.wal.read(0.., u64::MAX).await.unwrap()
        );
    });
}

#[test]
fn a_log_that_was_emptied_takes_any_first_index() {
    on_runtime(async {
        let disk = SimDisk::new(5);
        let life = Life::start(&disk, small()).await.unwrap();
        life.append_wait(vec![entry(1, 5, 1)]).await.unwrap();
        life.wal.truncate_after(None).await.unwrap();
        life.append_wait(vec![entry(1, 2, 1)]).await.unwrap();
        life.wal.purge(id(1, 1)).await.unwrap();
        life.wal.close().await.unwrap();
        let life = Life::start(&disk.crash(2), small()).await.unwrap();
        assert_eq!(
            LogState {
                purged: Some(id(1, 1)),
                last: Some(id(1, 2))
            },
            life.wal.log_state()
        );
    });
}

#[test]
fn too_large_is_refused_and_nothing_is_added() {
    on_runtime(async {
        let disk = SimDisk::new(5);
        let life = Life::start(&disk, small()).await.unwrap();
        let entries = vec![entry(1, 0, 10), entry(1, 1, 5000)];
        let error = life.append_wait(entries).await.unwrap_err();
        assert!(
            matches!(
                error,
                WalError::TooLarge {
                    limit_bytes: 2048,
                    ..
                }
            ),
            "{error}"
        );
        assert_eq!(LogState::default(), life.wal.log_state());
        let vote = Bytes::from(vec![0; 257]);
        assert!(matches!(
            life.wal.save_vote(vote).await,
            Err(WalError::TooLarge { .. })
        ));
        // Larger than one queue slot, but made of small entries.
        life.append_wait((0..40).map(|i| entry(1, i, 500)).collect())
            .await
            .unwrap();
        assert_eq!(40, life.wal.read(.., u64::MAX).await.unwrap().len());
    });
}

#[test]
fn works_on_real_files_with_threads() {
    let dir = std::env::temp_dir().join(format!("tenure-wal-basic-{}", std::process::id()));
    let hooks = || WalHooks {
        spawn: spawn_threads(),
        on_fatal: Box::new(|e| panic!("{e}")),
    };
    on_runtime(async {
        let (wal, report) = Wal::open(RealDisk, &dir, small(), hooks()).await.unwrap();
        assert!(report.created);
        let expected: Vec<_> = (0..500).map(|i| entry(1, i, 200)).collect();
        for chunk in expected.chunks(7) {
            wal.append(chunk.to_vec(), Box::new(|_| ())).await.unwrap();
        }
        wal.save_vote(Bytes::from_static(b"me")).await.unwrap();
        wal.purge(id(1, 99)).await.unwrap();
        assert_eq!(expected[100..], wal.read(.., u64::MAX).await.unwrap());
        wal.close().await.unwrap();
        let (wal, report) = Wal::open(RealDisk, &dir, small(), hooks()).await.unwrap();
        assert_eq!(400, report.entries);
        assert_eq!(expected[100..], wal.read(.., u64::MAX).await.unwrap());
        assert_eq!(Some(Bytes::from_static(b"me")), wal.vote());
        wal.close().await.unwrap();
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
