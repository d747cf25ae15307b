//! Snapshots are whole and sound, or not there.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test or bench may end this way"
)]

use std::path::Path;

use tenure_storage::disk::{Disk, DiskFile, RealDisk, SimDisk};
use tenure_storage::snapshot::{SnapshotError, SnapshotId, SnapshotInfo, SnapshotStore};

fn dir() -> &'static Path {
    Path::new("/data/snapshots")
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

fn records(count: u32) -> Vec<(u32, Vec<u8>)> {
    (0..count)
        .map(|i| {
            (
                i * 4 / count.max(1),
                vec![i as u8; (i as usize * 37) % 3000],
            )
        })
        .collect()
}

async fn write<D: Disk>(
    store: &SnapshotStore<D>,
    index: u64,
    records: &[(u32, Vec<u8>)],
) -> Result<SnapshotInfo, SnapshotError> {
    let mut writer = store.write(index, format!("header {index}").into()).await?;
    for (section, record) in records {
        writer.section(*section).await?;
        writer.record(record).await?;
    }
    writer.finish().await
}

async fn read<D: Disk>(
    store: &SnapshotStore<D>,
    id: SnapshotId,
) -> Result<Vec<(u32, Vec<u8>)>, SnapshotError> {
    let mut reader = store.open_verified(id).await?;
    let mut records = Vec::new();
    while let Some((section, record)) = reader.next().await? {
        records.push((section, record.to_vec()));
    }
    Ok(records)
}

#[test]
fn what_was_written_is_read() {
    run(async {
        let store = SnapshotStore::open(SimDisk::new(1), dir()).await.unwrap();
        for count in [0, 1, 3, 500] {
            let info = write(&store, 10 + u64::from(count), &records(count))
                .await
                .unwrap();
            assert_eq!(info, store.verify(info.id).await.unwrap());
            assert_eq!(u64::from(count), info.records);
            assert_eq!(records(count), read(&store, info.id).await.unwrap());
        }
        // One record larger than a block, and an empty one.
        let large = vec![(7, vec![3; 1_000_000]), (7, Vec::new())];
        let info = write(&store, 999, &large).await.unwrap();
        assert_eq!(large, read(&store, info.id).await.unwrap());
        assert_eq!(b"header 999".to_vec(), info.header);
    });
}

#[test]
fn the_same_content_has_the_same_hash() {
    run(async {
        let a = SnapshotStore::open(SimDisk::new(1), dir()).await.unwrap();
        let b = SnapshotStore::open(SimDisk::new(2), dir()).await.unwrap();
        let hash = write(&a, 5, &records(40)).await.unwrap().sha256;
        assert_eq!(hash, write(&b, 5, &records(40)).await.unwrap().sha256);
        assert_ne!(hash, write(&b, 5, &records(41)).await.unwrap().sha256);
    });
}

#[test]
fn works_on_real_files() {
    let dir = std::env::temp_dir().join(format!("tenure-snapshot-{}", std::process::id()));
    run(async {
        let store = SnapshotStore::open(RealDisk, &dir).await.unwrap();
        let info = write(&store, 5, &records(2000)).await.unwrap();
        let store = SnapshotStore::open(RealDisk, &dir).await.unwrap();
        assert_eq!(vec![info.id], store.list().await.unwrap());
        assert_eq!(records(2000), read(&store, info.id).await.unwrap());
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn every_flipped_byte_is_noticed_before_anything_is_handed_out() {
    run(async {
        let disk = SimDisk::new(1);
        let store = SnapshotStore::open(disk.clone(), dir()).await.unwrap();
        let info = write(&store, 5, &records(12)).await.unwrap();
        for offset in (0..info.file_bytes).step_by(3) {
            disk.flip(&info.path, offset, 0x40).unwrap();
            let Err(error) = store.open_verified(info.id).await.map(drop) else {
                panic!("byte {offset} was not noticed")
            };
            assert!(
                error.is_damage() && error.to_string().contains("offset"),
                "{error}"
            );
            disk.flip(&info.path, offset, 0x40).unwrap();
        }
        for len in [0, 3, 15, 16, 100, info.file_bytes - 1, info.file_bytes + 1] {
            let file = disk.open(&info.path).await.unwrap();
            let whole = disk.contents(&info.path).unwrap();
            file.set_len(len).await.unwrap();
            assert!(
                store.verify(info.id).await.unwrap_err().is_damage(),
                "length {len}"
            );
            file.set_len(0).await.unwrap();
            file.write_at(0, &whole).await.unwrap();
        }
        store.verify(info.id).await.unwrap();
    });
}

#[test]
fn damage_falls_back_to_an_older_snapshot() {
    run(async {
        let disk = SimDisk::new(1);
        let store = SnapshotStore::open(disk.clone(), dir()).await.unwrap();
        assert!(store.newest().await.unwrap().reader.is_none());
        let old = write(&store, 5, &records(5)).await.unwrap();
        let new = write(&store, 9, &records(9)).await.unwrap();
        assert_eq!(&new, store.newest().await.unwrap().reader.unwrap().info());
        disk.flip(&new.path, new.file_bytes / 2, 1).unwrap();
        let newest = store.newest().await.unwrap();
        assert_eq!(&old, newest.reader.unwrap().info());
        assert_eq!(1, newest.damaged.len());
        assert_eq!(vec![old.id], store.list().await.unwrap());
        let aside = disk.list(dir()).await.unwrap();
        assert!(
            aside.iter().any(|name| name.ends_with(".snap.damaged")),
            "{aside:?}"
        );
        // A new one never takes a name that was in use.
        let store = SnapshotStore::open(disk, dir()).await.unwrap();
        assert!(write(&store, 9, &records(9)).await.unwrap().id > new.id);
    });
}

#[test]
fn retain_keeps_the_newest() {
    run(async {
        let store = SnapshotStore::open(SimDisk::new(1), dir()).await.unwrap();
        for index in [3, 9, 9, 7] {
            write(&store, index, &records(2)).await.unwrap();
        }
        let ids = store.list().await.unwrap();
        assert_eq!(
            vec![9, 9, 7, 3],
            ids.iter().map(|id| id.index).collect::<Vec<_>>()
        );
        let open = store.open_verified(ids[3]).await.unwrap();
        assert_eq!(ids[2..], store.retain(2).await.unwrap());
        assert_eq!(ids[..2], store.list().await.unwrap());
        assert_eq!(
            16,
            open.read_chunk(0, 16).await.unwrap().len(),
            "an open reader goes on"
        );
        assert_eq!(ids[1..2], store.retain(0).await.unwrap(), "one stays");
    });
}

#[test]
fn chunks_are_received_checked_and_installed() {
    run(async {
        let from = SnapshotStore::open(SimDisk::new(1), dir()).await.unwrap();
        let to = SnapshotStore::open(SimDisk::new(2), dir()).await.unwrap();
        let sent = write(&from, 77, &records(300)).await.unwrap();
        let reader = from.open_verified(sent.id).await.unwrap();
        let mut receiver = to.receive(77, sent.file_bytes).await.unwrap();
        loop {
            let offset = receiver.received_bytes();
            let chunk = reader.read_chunk(offset, 4096).await.unwrap();
            if chunk.is_empty() {
                break;
            }
            receiver.chunk(offset, &chunk).await.unwrap();
            receiver.chunk(offset, &chunk).await.unwrap();
            let skipped = receiver.chunk(offset + 9_999, &chunk).await.unwrap_err();
            assert!(matches!(skipped, SnapshotError::OutOfOrder { .. }));
        }
        let more = receiver.chunk(sent.file_bytes, &[0]).await.unwrap_err();
        assert!(matches!(more, SnapshotError::TooLarge { .. }));
        let got = receiver.install().await.unwrap();
        assert_eq!((sent.sha256, &sent.header), (got.sha256, &got.header));
        assert_eq!(records(300), read(&to, got.id).await.unwrap());
    });
}

#[test]
fn a_bad_transfer_is_removed_and_the_old_snapshot_stays() {
    run(async {
        let disk = SimDisk::new(2);
        let from = SnapshotStore::open(SimDisk::new(1), dir()).await.unwrap();
        let to = SnapshotStore::open(disk.clone(), dir()).await.unwrap();
        let old = write(&to, 5, &records(3)).await.unwrap();
        let a = write(&from, 77, &records(700)).await.unwrap();
        let other: Vec<_> = records(700)
            .into_iter()
            .map(|(s, r)| (s, vec![9; r.len()]))
            .collect();
        let b = write(&from, 77, &other).await.unwrap();
        let (a, b) = (
            from.open_verified(a.id).await.unwrap(),
            from.open_verified(b.id).await.unwrap(),
        );
        let len = a.info().file_bytes as usize;
        // The first block starts behind the header; its length is in its fourth field.
        let start = 16 + a.info().header.len();
        let field = a.read_chunk(start as u64 + 12, 4).await.unwrap();
        let border = start + 20 + u32::from_le_bytes(field.try_into().unwrap()) as usize;
        assert!(border < len / 2, "there are several blocks");
        // Cut short; and sound blocks of two snapshots, mixed at a border.
        let cases = [(len / 2, 0, "early"), (border, len - border, "footer")];
        for (first, rest, what) in cases {
            let mut receiver = to.receive(77, u64::MAX).await.unwrap();
            receiver
                .chunk(0, &a.read_chunk(0, first).await.unwrap())
                .await
                .unwrap();
            let tail = b.read_chunk(first as u64, rest).await.unwrap();
            receiver.chunk(first as u64, &tail).await.unwrap();
            let error = receiver.install().await.unwrap_err();
            assert!(
                error.is_damage() && error.to_string().contains(what),
                "{error}"
            );
            assert_eq!(&old, to.newest().await.unwrap().reader.unwrap().info());
            assert_eq!(1, disk.list(dir()).await.unwrap().len());
        }
    });
}

/// The power fails after every operation: the newest sound snapshot is the old or the new one.
#[test]
fn a_crash_leaves_the_old_or_the_new_snapshot_never_half_of_one() {
    let (mut kept_old, mut got_new) = (0, 0);
    for seed in 0..12 {
        for after in 1..40 {
            run(async {
                let disk = SimDisk::new(seed);
                let store = SnapshotStore::open(disk.clone(), dir()).await.unwrap();
                let old = write(&store, 5, &records(30)).await.unwrap();
                disk.crash_after(disk.changes() + after);
                let finished = async {
                    let new = write(&store, 9, &records(150)).await?;
                    store.retain(1).await?;
                    Ok::<_, SnapshotError>(new)
                }
                .await;
                let disk = disk.crash(seed * 1000 + after);
                let store = SnapshotStore::open(disk.clone(), dir()).await.unwrap();
                let newest = store.newest().await.unwrap();
                assert!(newest.damaged.is_empty(), "seed {seed}, after {after}");
                let info = newest.reader.unwrap().info().clone();
                if info.id.index == 5 {
                    assert!(finished.is_err(), "a finished snapshot is there");
                    assert_eq!(old, info);
                    kept_old += 1;
                } else {
                    assert_eq!(records(150), read(&store, info.id).await.unwrap());
                    got_new += 1;
                }
                let left = disk.list(dir()).await.unwrap();
                assert!(left.iter().all(|name| name.ends_with(".snap")), "{left:?}");
            });
        }
    }
    assert!(
        kept_old > 20 && got_new > 20,
        "both happened: {kept_old}, {got_new}"
    );
}

#[test]
fn limits_are_refused() {
    run(async {
        let store = SnapshotStore::open(SimDisk::new(1), dir()).await.unwrap();
        let header = vec![0; 1024 * 1024 + 1];
        assert!(matches!(
            store.write(1, header).await,
            Err(SnapshotError::TooLarge { .. })
        ));
        let writer = store.write(1, Vec::new()).await.unwrap();
        writer.abandon().await.unwrap();
        assert!(store.list().await.unwrap().is_empty());
        let missing = SnapshotId {
            index: 1,
            number: 1,
        };
        assert!(matches!(
            store.verify(missing).await,
            Err(SnapshotError::NotFound { .. })
        ));
    });
}
