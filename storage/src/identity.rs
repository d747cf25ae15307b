//! Who a data folder belongs to, and that only one process uses it.
//!
//! A node whose disk was emptied has forgotten its vote and its log. If it started under its old
//! id it could vote twice in one term, or help to elect a leader without what it had
//! acknowledged. So a node starts only in a folder that says who it is; a new folder gets its
//! identity by an explicit act, with an id that was never used before.
//!
//! The order of that act: [`create`] the identity, create the log, then [`mark_ready`]. From then
//! on the log is opened with `WalOptions::create` off, and a missing one is a loss; before, it is an
//! interrupted first start.
//!
//! Absent on purpose: secrets, addresses, membership.

use std::fmt::Write as _;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile, read_exact_at};

/// Name of the identity file in the data folder.
pub const IDENTITY_FILE: &str = "identity";
/// Name of the lock file in the data folder.
pub const LOCK_FILE: &str = "lock";
/// Format that this version writes.
pub const FORMAT_VERSION: u32 = 1;

/// An identity file is never larger, in bytes.
const MAX_FILE_BYTES: u64 = 4096;
const UNFINISHED_FILE: &str = "identity.new";

/// Who a data folder belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The cluster; one line, not empty, at most 256 bytes.
    pub cluster_id: String,
    /// The node in it.
    pub node_id: u64,
    /// When and how it was created, for people; one line, at most 256 bytes.
    pub created: String,
    /// The first start came to its end: there is a log.
    pub ready: bool,
}

/// What a data folder is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Folder {
    /// Missing, or nothing in it but perhaps the lock.
    Fresh,
    /// It belongs to this node.
    Initialised(Identity),
}

/// Why a node must not start in a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The folder is empty, but the node is known.
    #[error(
        "{} is empty, but this node is to start as node {node_id} of cluster {cluster_id}. If its \
         disk was lost, do not start it under this id again: remove node {node_id} from the \
         cluster and let a new node join under a new id. If the folder is elsewhere, correct its \
         path. If this cluster is new, initialise the node first",
        dir.display()
    )]
    Emptied {
        /// The data folder.
        dir: PathBuf,
        /// Cluster that was expected.
        cluster_id: String,
        /// Node that was expected.
        node_id: u64,
    },
    /// The folder belongs to somebody else.
    #[error(
        "{} belongs to node {found_node} of cluster {found_cluster}, not to node {node_id} of \
         cluster {cluster_id}. Correct the path of the data folder or the ids in the \
         configuration; do not edit the identity file",
        dir.display()
    )]
    Mismatch {
        /// The data folder.
        dir: PathBuf,
        /// Cluster in the file.
        found_cluster: String,
        /// Node in the file.
        found_node: u64,
        /// Cluster that was expected.
        cluster_id: String,
        /// Node that was expected.
        node_id: u64,
    },
    /// There are files, but none that says whose they are.
    #[error(
        "{} is not empty ({example}) but has no identity file. Give the node an empty folder, or \
         bring the identity file back from where the folder was copied",
        dir.display()
    )]
    Unknown {
        /// The data folder.
        dir: PathBuf,
        /// One name in it.
        example: String,
    },
    /// The file cannot be understood.
    #[error(
        "{} is damaged or of a newer version ({what}). Restore it from a copy; if there is none, \
         replace this node by a new one with a new id",
        file.display()
    )]
    Damaged {
        /// The identity file.
        file: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// There already is an identity.
    #[error("{} already belongs to a node. To make another node, use another folder", dir.display())]
    Exists {
        /// The data folder.
        dir: PathBuf,
    },
    /// An identity with an empty, overlong or many-line field.
    #[error("bad identity: {0}")]
    Invalid(&'static str),
    /// Another process uses the folder.
    #[error(
        "{} is in use by another process. Stop it, or give this node a folder of its own",
        dir.display()
    )]
    Locked {
        /// The data folder.
        dir: PathBuf,
    },
    /// The system refused something.
    #[error("cannot {action} {}: {source}. Check that the folder exists, its owner and its mode", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    let path = path.to_owned();
    move |source| IdentityError::Io {
        action,
        path,
        source,
    }
}

impl Identity {
    fn check(&self) -> Result<(), IdentityError> {
        let one_line = |text: &str| text.len() <= 256 && !text.chars().any(char::is_control);
        if self.cluster_id.is_empty() || !one_line(&self.cluster_id) {
            Err(IdentityError::Invalid(
                "the cluster id is empty, too long or not one line",
            ))
        } else if !one_line(&self.created) {
            Err(IdentityError::Invalid(
                "the creation note is too long or not one line",
            ))
        } else {
            Ok(())
        }
    }

    fn encode(&self) -> String {
        let ready = if self.ready { "ready" } else { "starting" };
        let mut text = format!(
            "tenure-identity {FORMAT_VERSION}\ncluster {}\nnode {}\ncreated {}\nstate {ready}\n",
            self.cluster_id, self.node_id, self.created
        );
        let crc = crc32c::crc32c(text.as_bytes());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "crc32c {crc:08x}");
        text
    }

    fn decode(text: &str) -> Result<Self, &'static str> {
        let version = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("tenure-identity "));
        let version: u32 = version
            .and_then(|v| v.parse().ok())
            .ok_or("it is not an identity file")?;
        if version != FORMAT_VERSION {
            return Err("its format version is not known here");
        }
        let (body, crc) = text
            .rsplit_once("crc32c ")
            .ok_or("the checksum is missing")?;
        let crc = u32::from_str_radix(crc.trim_end(), 16).map_err(|_| "the checksum is not one")?;
        if crc32c::crc32c(body.as_bytes()) != crc {
            return Err("the checksum does not match");
        }
        let mut lines = body.lines().skip(1);
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let missing = "a field is missing";
        Ok(Self {
            cluster_id: field("cluster").ok_or(missing)?.to_owned(),
            node_id: field("node")
                .and_then(|id| id.parse().ok())
                .ok_or(missing)?,
            created: field("created").ok_or(missing)?.to_owned(),
            ready: match field("state") {
                Some("ready") => true,
                Some("starting") => false,
                _ => return Err(missing),
            },
        })
    }
}

/// Tells what a folder is.
///
/// # Errors
/// [`IdentityError::Unknown`] if it has files but no identity, [`IdentityError::Damaged`],
/// [`IdentityError::Io`].
pub async fn read<D: Disk>(disk: &D, dir: &Path) -> Result<Folder, IdentityError> {
    let path = dir.join(IDENTITY_FILE);
    let file = match disk.open(&path).await {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return without_identity(disk, dir).await,
        Err(e) => return Err(io_error("open", &path)(e)),
    };
    let damaged = |what| IdentityError::Damaged {
        file: path.clone(),
        what,
    };
    let len = file.len_bytes().await.map_err(io_error("measure", &path))?;
    if len > MAX_FILE_BYTES {
        return Err(damaged("it is too long"));
    }
    let mut bytes = vec![0; len as usize];
    read_exact_at(&file, 0, &mut bytes)
        .await
        .map_err(io_error("read", &path))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text"))?;
    Identity::decode(text)
        .map(Folder::Initialised)
        .map_err(damaged)
}

async fn without_identity<D: Disk>(disk: &D, dir: &Path) -> Result<Folder, IdentityError> {
    let mut names = match disk.list(dir).await {
        Ok(names) => names,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Folder::Fresh),
        Err(e) => return Err(io_error("list", dir)(e)),
    };
    names.extend(disk.list_dirs(dir).await.map_err(io_error("list", dir))?);
    let harmless = [LOCK_FILE, UNFINISHED_FILE, "lost+found"];
    match names
        .into_iter()
        .find(|name| !harmless.contains(&name.as_str()))
    {
        Some(example) => Err(IdentityError::Unknown {
            dir: dir.to_owned(),
            example,
        }),
        None => Ok(Folder::Fresh),
    }
}

/// Gives an empty folder its identity, durably.
///
/// # Errors
/// [`IdentityError::Exists`], [`IdentityError::Unknown`], [`IdentityError::Invalid`],
/// [`IdentityError::Io`].
pub async fn create<D: Disk>(
    disk: &D,
    dir: &Path,
    identity: &Identity,
) -> Result<(), IdentityError> {
    identity.check()?;
    disk.create_dir_all(dir)
        .await
        .map_err(io_error("create", dir))?;
    match read(disk, dir).await? {
        Folder::Initialised(_) => Err(IdentityError::Exists {
            dir: dir.to_owned(),
        }),
        Folder::Fresh => write(disk, dir, identity).await,
    }
}

/// Notes that the first start is complete: the log exists.
///
/// # Errors
/// [`IdentityError::Emptied`] if there is no identity, otherwise as [`read`].
pub async fn mark_ready<D: Disk>(
    disk: &D,
    dir: &Path,
    identity: &Identity,
) -> Result<Identity, IdentityError> {
    let found = expect(disk, dir, &identity.cluster_id, identity.node_id).await?;
    if found.ready {
        return Ok(found);
    }
    let ready = Identity {
        ready: true,
        ..found
    };
    write(disk, dir, &ready).await?;
    Ok(ready)
}

/// Reads the identity of a folder in which a known node is to start.
///
/// # Errors
/// [`IdentityError::Emptied`], [`IdentityError::Mismatch`], and as [`read`].
pub async fn expect<D: Disk>(
    disk: &D,
    dir: &Path,
    cluster_id: &str,
    node_id: u64,
) -> Result<Identity, IdentityError> {
    let cluster_id = cluster_id.to_owned();
    match read(disk, dir).await? {
        Folder::Fresh => Err(IdentityError::Emptied {
            dir: dir.to_owned(),
            cluster_id,
            node_id,
        }),
        Folder::Initialised(found) => {
            if found.cluster_id == cluster_id && found.node_id == node_id {
                return Ok(found);
            }
            Err(IdentityError::Mismatch {
                dir: dir.to_owned(),
                found_cluster: found.cluster_id,
                found_node: found.node_id,
                cluster_id,
                node_id,
            })
        }
    }
}

async fn write<D: Disk>(disk: &D, dir: &Path, identity: &Identity) -> Result<(), IdentityError> {
    let unfinished = dir.join(UNFINISHED_FILE);
    let path = dir.join(IDENTITY_FILE);
    match disk.remove(&unfinished).await {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", &unfinished)(e));
        }
        _ => {}
    }
    let file = disk
        .create(&unfinished)
        .await
        .map_err(io_error("create", &unfinished))?;
    let text = identity.encode();
    file.write_at(0, text.as_bytes())
        .await
        .map_err(io_error("write", &unfinished))?;
    file.sync_data()
        .await
        .map_err(io_error("sync", &unfinished))?;
    disk.rename(&unfinished, &path)
        .await
        .map_err(io_error("rename", &unfinished))?;
    disk.sync_dir(dir).await.map_err(io_error("sync", dir))?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        disk.sync_dir(parent)
            .await
            .map_err(io_error("sync", parent))?;
    }
    Ok(())
}

/// Holds a real data folder for this process. The system releases it when the process ends,
/// however it ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the lock; creates the folder if it is missing. Does not wait.
    ///
    /// # Errors
    /// [`IdentityError::Locked`], [`IdentityError::Io`].
    pub fn acquire(dir: &Path) -> Result<Self, IdentityError> {
        std::fs::create_dir_all(dir).map_err(io_error("create", dir))?;
        let path = dir.join(LOCK_FILE);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(IdentityError::Locked {
                dir: dir.to_owned(),
            }),
            Err(TryLockError::Error(e)) => Err(io_error("lock", &path)(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;

    fn identity() -> Identity {
        Identity {
            cluster_id: "blue".into(),
            node_id: 3,
            created: "2026-11-29 by init".into(),
            ready: false,
        }
    }

    #[test]
    fn a_folder_is_fresh_then_initialised_then_ready() {
        pollster::block_on(async {
            let (disk, dir) = (SimDisk::new(1), Path::new("/data"));
            assert_eq!(Folder::Fresh, read(&disk, dir).await.unwrap());
            create(&disk, dir, &identity()).await.unwrap();
            assert_eq!(
                Folder::Initialised(identity()),
                read(&disk, dir).await.unwrap()
            );
            let found = expect(&disk, dir, "blue", 3).await.unwrap();
            let ready = mark_ready(&disk, dir, &found).await.unwrap();
            assert!(ready.ready && !found.ready);
            assert_eq!(ready, expect(&disk, dir, "blue", 3).await.unwrap());
            let again = create(&disk, dir, &identity()).await.unwrap_err();
            assert!(matches!(again, IdentityError::Exists { .. }));
        });
    }

    #[test]
    fn an_emptied_or_foreign_folder_is_refused_with_the_way_out() {
        pollster::block_on(async {
            let (disk, dir) = (SimDisk::new(1), Path::new("/data"));
            let emptied = expect(&disk, dir, "blue", 3).await.unwrap_err();
            assert!(matches!(emptied, IdentityError::Emptied { node_id: 3, .. }));
            assert!(
                emptied.to_string().contains("join under a new id"),
                "{emptied}"
            );
            create(&disk, dir, &identity()).await.unwrap();
            for (cluster, node) in [("blue", 4), ("red", 3)] {
                let other = expect(&disk, dir, cluster, node).await.unwrap_err();
                assert!(matches!(other, IdentityError::Mismatch { .. }), "{other}");
            }
            disk.create_dir_all(Path::new("/other/wal")).await.unwrap();
            let unknown = read(&disk, Path::new("/other")).await.unwrap_err();
            assert!(
                matches!(unknown, IdentityError::Unknown { .. }),
                "{unknown}"
            );
        });
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        pollster::block_on(async {
            let (disk, dir) = (SimDisk::new(1), Path::new("/data"));
            create(&disk, dir, &identity()).await.unwrap();
            let path = dir.join(IDENTITY_FILE);
            for offset in 0..disk.contents(&path).unwrap().len() as u64 - 1 {
                disk.flip(&path, offset, 1).unwrap();
                let found = read(&disk, dir).await;
                assert!(
                    matches!(found, Err(IdentityError::Damaged { .. })),
                    "{offset}: {found:?}"
                );
                disk.flip(&path, offset, 1).unwrap();
            }
        });
    }

    #[test]
    fn a_crash_leaves_the_old_state_or_the_new() {
        for after in 1..20 {
            for seed in 0..10 {
                pollster::block_on(async {
                    let (disk, dir) = (SimDisk::new(seed), Path::new("/data"));
                    disk.crash_after(after);
                    let created = create(&disk, dir, &identity()).await.is_ok();
                    let ready = mark_ready(&disk, dir, &identity()).await.is_ok();
                    match read(&disk.crash(seed), dir).await.unwrap() {
                        Folder::Fresh => assert!(!created),
                        Folder::Initialised(found) => assert!(found.ready || !ready),
                    }
                });
            }
        }
    }

    #[test]
    fn fields_of_more_than_one_line_are_refused() {
        pollster::block_on(async {
            let bad = Identity {
                cluster_id: "a\nnode 9".into(),
                ..identity()
            };
            let error = create(&SimDisk::new(1), Path::new("/data"), &bad)
                .await
                .unwrap_err();
            assert!(matches!(error, IdentityError::Invalid(_)));
        });
    }

    #[test]
    fn a_folder_has_one_user() {
        let dir = std::env::temp_dir().join(format!("tenure-lock-{}", std::process::id()));
        let first = FolderLock::acquire(&dir).unwrap();
        let second = FolderLock::acquire(&dir).unwrap_err();
        assert!(matches!(second, IdentityError::Locked { .. }), "{second}");
        drop(first);
        FolderLock::acquire(&dir).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
