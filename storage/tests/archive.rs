//! One suite for both archives, then what only the one on disk can suffer.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test or bench may end this way"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tenure_storage::archive::{
    Archive, ArchiveError, Change, MemArchive, Page, Scan, SledArchive, Table, move_aside,
};

const CACHE_BYTES: u64 = 8 * 1024 * 1024;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("tenure-archive-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn archive(&self) -> PathBuf {
        self.0.join("archive")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn on_both(name: &str, test: impl Fn(&dyn Archive)) {
    test(&MemArchive::empty());
    let folder = Folder::new(name);
    test(&open(&folder.archive()));
}

fn open(dir: &Path) -> SledArchive {
    SledArchive::open_dir(dir, CACHE_BYTES).unwrap()
}

fn put(table: Table, key: &str, value: &str) -> Change {
    Change::Put {
        table,
        key: key.into(),
        value: value.into(),
    }
}

fn delete(table: Table, key: &str) -> Change {
    Change::Delete {
        table,
        key: key.into(),
    }
}

fn keys(page: &Page) -> Vec<String> {
    page.records
        .iter()
        .map(|(key, _)| String::from_utf8(key.clone()).unwrap())
        .collect()
}

#[test]
fn a_batch_is_applied_once() {
    on_both("once", |archive| {
        assert_eq!(None, archive.applied_index().unwrap());
        assert!(archive.apply(0, &[put(Table::Runs, "a", "first")]).unwrap());
        assert!(
            archive
                .apply(7, &[put(Table::Runs, "a", "1"), put(Table::Runs, "b", "2")])
                .unwrap()
        );
        assert!(!archive.apply(7, &[put(Table::Runs, "a", "again")]).unwrap());
        assert!(!archive.apply(3, &[delete(Table::Runs, "a")]).unwrap());
        assert_eq!(Some(b"1".to_vec()), archive.get(Table::Runs, b"a").unwrap());
        assert_eq!(None, archive.get(Table::Audit, b"a").unwrap());
        assert_eq!(Some(7), archive.applied_index().unwrap());
        assert!(archive.apply(8, &[]).unwrap());
        assert_eq!(Some(8), archive.barrier().unwrap());
    });
}

#[test]
fn counts_follow_puts_and_deletes() {
    on_both("counts", |archive| {
        let changes = [
            put(Table::Runs, "a", "1"),
            put(Table::Runs, "a", "2"),
            put(Table::Runs, "b", "1"),
            put(Table::Audit, "b", "1"),
            delete(Table::Runs, "missing"),
        ];
        archive.apply(1, &changes).unwrap();
        assert_eq!(
            (2, 1),
            (
                archive.count(Table::Runs).unwrap(),
                archive.count(Table::Audit).unwrap()
            )
        );
        archive
            .apply(2, &[delete(Table::Runs, "a"), put(Table::Runs, "a", "3")])
            .unwrap();
        assert_eq!(2, archive.count(Table::Runs).unwrap());
        archive
            .apply(3, &[put(Table::Runs, "a", "3"), delete(Table::Runs, "a")])
            .unwrap();
        assert_eq!(1, archive.count(Table::Runs).unwrap());
        archive.verify().unwrap();
    });
}

#[test]
fn scans_go_both_ways_in_pages() {
    on_both("scans", |archive| {
        let changes: Vec<_> = (0..10)
            .map(|i| put(Table::Runs, &format!("k{i}"), "v"))
            .collect();
        archive.apply(1, &changes).unwrap();
        archive
            .apply(
                2,
                &[
                    put(Table::RunOutput, "k0", "x"),
                    put(Table::Audit, "", "empty"),
                ],
            )
            .unwrap();
        let forward = Scan {
            from: Some(b"k2".to_vec()),
            until: Some(b"k8".to_vec()),
            limit: 4,
            ..Scan::default()
        };
        let page = archive.scan(Table::Runs, &forward).unwrap();
        assert_eq!(["k2", "k3", "k4", "k5"], keys(&page)[..]);
        let next = Scan {
            cursor: page.cursor,
            ..forward.clone()
        };
        let page = archive.scan(Table::Runs, &next).unwrap();
        assert_eq!(
            (vec!["k6".to_owned(), "k7".into()], None),
            (keys(&page), page.cursor.clone())
        );
        let backward = Scan {
            backward: true,
            ..forward
        };
        let page = archive.scan(Table::Runs, &backward).unwrap();
        assert_eq!(["k7", "k6", "k5", "k4"], keys(&page)[..]);
        let page = archive
            .scan(
                Table::Runs,
                &Scan {
                    cursor: page.cursor,
                    ..backward
                },
            )
            .unwrap();
        assert_eq!(["k3", "k2"], keys(&page)[..]);
        let all = Scan {
            limit: 100,
            ..Scan::default()
        };
        assert_eq!(10, archive.scan(Table::Runs, &all).unwrap().records.len());
        assert_eq!([""], keys(&archive.scan(Table::Audit, &all).unwrap())[..]);
        let none = Scan {
            limit: 0,
            ..Scan::default()
        };
        assert_eq!(Page::default(), archive.scan(Table::Runs, &none).unwrap());
        let inverted = Scan {
            from: Some(vec![9]),
            until: Some(vec![1]),
            limit: 5,
            ..Scan::default()
        };
        assert_eq!(
            Page::default(),
            archive.scan(Table::Runs, &inverted).unwrap()
        );
    });
}

#[test]
fn too_large_changes_nothing() {
    on_both("large", |archive| {
        let key = "k".repeat(1025);
        let error = archive.apply(1, &[put(Table::Runs, "a", "1"), put(Table::Runs, &key, "")]);
        assert!(matches!(
            error,
            Err(ArchiveError::TooLarge {
                bytes: 1025,
                limit_bytes: 1024
            })
        ));
        assert_eq!(None, archive.applied_index().unwrap());
        assert_eq!(0, archive.count(Table::Runs).unwrap());
    });
}

#[test]
fn an_export_is_imported_while_the_source_goes_on() {
    on_both("transfer", |source| {
        let changes: Vec<_> = (0..200)
            .map(|i| put(Table::Runs, &format!("{i:05}"), &"x".repeat(i % 90)))
            .collect();
        source.apply(5, &changes).unwrap();
        let later: Vec<Vec<Change>> = (6..30)
            .map(|i| {
                vec![
                    put(Table::Audit, &i.to_string(), "late"),
                    delete(Table::Runs, &format!("{:05}", i * 6)),
                ]
            })
            .collect();
        let target = MemArchive::empty();
        target
            .apply(90, &[put(Table::Runs, "old", "gone after the import")])
            .unwrap();
        let mut late = later.iter().enumerate();
        let mut cursor: Option<Vec<u8>> = None;
        let mut chunks = 0;
        loop {
            let chunk = source.export(cursor.as_deref(), 1000).unwrap();
            assert!(chunk.bytes.len() <= 1000);
            if let Some((at, changes)) = late.next() {
                source.apply(6 + at as u64, changes).unwrap();
            }
            let done = target.import(&chunk.bytes).unwrap();
            assert_eq!(chunk.cursor.is_none(), done);
            chunks += 1;
            cursor = chunk.cursor;
            if done {
                break;
            }
        }
        assert!(chunks > 5);
        late.for_each(|(at, changes)| assert!(source.apply(6 + at as u64, changes).unwrap()));
        assert_eq!(Some(5), target.applied_index().unwrap());
        for (at, changes) in later.iter().enumerate() {
            assert!(target.apply(6 + at as u64, changes).unwrap());
        }
        target.verify().unwrap();
        let all = Scan {
            limit: 10_000,
            ..Scan::default()
        };
        for table in Table::ALL {
            assert_eq!(
                source.scan(table, &all).unwrap(),
                target.scan(table, &all).unwrap()
            );
        }
    });
}

#[test]
fn bad_chunks_are_refused_and_a_new_import_works() {
    on_both("chunks", |target| {
        let source = MemArchive::empty();
        let changes: Vec<_> = (0..50)
            .map(|i| put(Table::Runs, &i.to_string(), "value"))
            .collect();
        source.apply(1, &changes).unwrap();
        let first = source.export(None, 100).unwrap();
        let second = source.export(first.cursor.as_deref(), 100).unwrap();
        let third = source.export(second.cursor.as_deref(), 100).unwrap();
        for at in 0..first.bytes.len() {
            let mut bad = first.bytes.clone();
            bad[at] ^= 8;
            assert!(matches!(
                target.import(&bad),
                Err(ArchiveError::BadChunk(_))
            ));
        }
        assert!(matches!(
            target.import(&second.bytes),
            Err(ArchiveError::BadChunk(_))
        ));
        assert!(!target.import(&first.bytes).unwrap());
        assert!(matches!(
            target.import(&third.bytes),
            Err(ArchiveError::BadChunk(_))
        ));
        assert!(!target.import(&second.bytes).unwrap());
        assert!(matches!(
            target.import(&second.bytes),
            Err(ArchiveError::BadChunk(_))
        ));
        let whole = source.export(None, 1 << 20).unwrap();
        assert!(target.import(&whole.bytes).unwrap());
        assert_eq!(50, target.count(Table::Runs).unwrap());
        target.verify().unwrap();
    });
}

#[test]
fn an_interrupted_import_is_noticed_at_the_next_start() {
    let folder = Folder::new("interrupted");
    let source = MemArchive::empty();
    let changes: Vec<_> = (0..50)
        .map(|i| put(Table::Runs, &i.to_string(), "value"))
        .collect();
    source.apply(1, &changes).unwrap();
    let chunk = source.export(None, 100).unwrap();
    let archive = open(&folder.archive());
    archive.import(&chunk.bytes).unwrap();
    archive.barrier().unwrap();
    drop(archive);
    let error = SledArchive::open_dir(&folder.archive(), CACHE_BYTES)
        .err()
        .unwrap();
    assert!(error.heals_by_rebuild(), "{error}");

    let archive = MemArchive::empty();
    archive.import(&chunk.bytes).unwrap();
    assert!(archive.crash(usize::MAX).err().unwrap().heals_by_rebuild());
}

#[test]
fn all_behind_a_barrier_survives_a_crash_in_memory() {
    let archive = MemArchive::empty();
    archive.apply(1, &[put(Table::Runs, "a", "1")]).unwrap();
    archive.barrier().unwrap();
    archive.apply(2, &[put(Table::Runs, "b", "1")]).unwrap();
    archive.apply(3, &[put(Table::Runs, "c", "1")]).unwrap();
    for keep in 0..3 {
        let after = archive.crash(keep).unwrap();
        assert_eq!(Some(1 + keep as u64), after.applied_index().unwrap());
        assert_eq!(1 + keep as u64, after.count(Table::Runs).unwrap());
        after.verify().unwrap();
    }
}

#[test]
fn damage_is_an_error_not_a_missing_record() {
    let archive = MemArchive::empty();
    archive.apply(1, &[put(Table::Runs, "a", "value")]).unwrap();
    // Sorted: the count, the applied index, the record.
    archive.damage(2, 6, 1);
    let error = archive.get(Table::Runs, b"a").unwrap_err();
    assert!(
        error.heals_by_rebuild() && error.to_string().contains("move it aside"),
        "{error}"
    );
    assert!(
        archive
            .scan(
                Table::Runs,
                &Scan {
                    limit: 1,
                    ..Scan::default()
                }
            )
            .is_err()
    );
    assert!(archive.verify().is_err());
    assert!(archive.export(None, 100).is_err());
}

#[test]
fn sled_survives_a_restart() {
    let folder = Folder::new("restart");
    let archive = open(&folder.archive());
    archive.apply(4, &[put(Table::Runs, "a", "1")]).unwrap();
    assert_eq!(Some(4), archive.barrier().unwrap());
    drop(archive);
    let archive = open(&folder.archive());
    assert_eq!(Some(4), archive.applied_index().unwrap());
    assert_eq!(Some(b"1".to_vec()), archive.get(Table::Runs, b"a").unwrap());
    archive.verify().unwrap();
}

#[test]
fn sled_that_lost_what_was_durable_is_noticed_moved_aside_and_built_again() {
    let folder = Folder::new("lost");
    let dir = folder.archive();
    let archive = open(&dir);
    archive.apply(4, &[put(Table::Runs, "a", "1")]).unwrap();
    archive.barrier().unwrap();
    drop(archive);
    std::fs::remove_dir_all(dir.join("sled")).unwrap();
    let error = SledArchive::open_dir(&dir, CACHE_BYTES).err().unwrap();
    assert!(
        matches!(
            error,
            ArchiveError::Incomplete {
                found: None,
                required: 4
            }
        ),
        "{error}"
    );
    let first = move_aside(&dir).unwrap();
    let archive = open(&dir);
    assert_eq!(None, archive.applied_index().unwrap());
    drop(archive);
    let second = move_aside(&dir).unwrap();
    assert!(first != second && first.exists() && second.exists() && !dir.exists());
}

/// Whatever bytes of sled's files are overwritten, records are never silently fewer or other.
#[test]
fn sled_files_that_are_overwritten_never_give_wrong_records() {
    let folder = Folder::new("overwritten");
    let dir = folder.archive();
    let changes: Vec<_> = (0..300)
        .map(|i| put(Table::Runs, &format!("{i:04}"), &format!("value {i}")))
        .collect();
    let archive = open(&dir);
    archive.apply(9, &changes).unwrap();
    archive.barrier().unwrap();
    drop(archive);
    let file = dir.join("sled").join("db");
    let sound = std::fs::read(&file).unwrap();
    let (mut noticed, mut harmless) = (0, 0);
    let step = (sound.len() / 24).max(1);
    for at in (0..sound.len()).step_by(step) {
        let mut bad = sound.clone();
        bad[at..(at + 40).min(sound.len())]
            .iter_mut()
            .for_each(|byte| *byte ^= 0x5A);
        let copy = folder.0.join("copy");
        copy_dir(&dir, &copy);
        std::fs::write(copy.join("sled").join("db"), &bad).unwrap();
        match SledArchive::open_dir(&copy, CACHE_BYTES).and_then(|a| a.verify().map(|()| a)) {
            Ok(archive) => {
                assert_eq!(300, archive.count(Table::Runs).unwrap());
                harmless += 1;
            }
            Err(error) => {
                assert!(error.heals_by_rebuild() || matches!(error, ArchiveError::Io { .. }));
                noticed += 1;
            }
        }
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert!(noticed > 0, "{noticed} noticed, {harmless} harmless");
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_dir(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn both_archives_are_maps(
        batches in prop::collection::vec(
            prop::collection::vec((0_usize..4, 0_u8..12, prop::option::of("[a-z]{0,6}")), 0..8),
            1..12,
        )
    ) {
        on_both("model", |archive| {
            let mut model: BTreeMap<(Table, Vec<u8>), Vec<u8>> = BTreeMap::new();
            for (index, batch) in batches.iter().enumerate() {
                let mut changes = Vec::new();
                for (table, key, value) in batch {
                    let (table, key) = (Table::ALL[*table], vec![*key]);
                    match value {
                        Some(value) => {
                            model.insert((table, key.clone()), value.clone().into());
                            changes.push(Change::Put { table, key, value: value.clone().into() });
                        }
                        None => {
                            model.remove(&(table, key.clone()));
                            changes.push(Change::Delete { table, key });
                        }
                    }
                }
                archive.apply(index as u64, &changes).unwrap();
            }
            archive.verify().unwrap();
            for table in Table::ALL {
                let expected: Vec<_> = model
                    .iter()
                    .filter(|((t, _), _)| *t == table)
                    .map(|((_, key), value)| (key.clone(), value.clone()))
                    .collect();
                let all = Scan { limit: 1000, ..Scan::default() };
                assert_eq!(expected, archive.scan(table, &all).unwrap().records);
                assert_eq!(expected.len() as u64, archive.count(table).unwrap());
            }
        });
    }
}
