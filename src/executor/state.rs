//! What an executor keeps on disk: its identity, a lock, and where its tasks have their folders.
//!
//! Invariants:
//! - One process uses a state folder at a time. A second one would take the identity of the first.
//! - What the process before left behind (it was killed) is removed before new work starts: running
//!   tasks are found by their mark and killed, their folders are deleted.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::config::ConfigError;
use super::shell::environment::SOCKET_VARIABLE;
use super::shell::group::sweep;

/// How the name of a work folder starts. Nothing else is ever deleted.
const WORK_PREFIX: &str = "tenure-exec-";

/// An executor's folders, for as long as it runs.
#[derive(Debug)]
pub struct ExecutorState {
    folder: PathBuf,
    work: TempDir,
    // Released when the process ends, however it ends.
    _lock: File,
}

impl ExecutorState {
    /// Takes the state folder, cleans up after the process before, and makes a work folder below
    /// `work_dir`. Blocks.
    ///
    /// # Errors
    /// Another process has it, or the disk's.
    pub fn open(folder: &Path, work_dir: &Path) -> Result<Self, ConfigError> {
        let failed = |what: &str, path: &Path, fault: io::Error| {
            ConfigError::new(format!("{what} {}: {fault}", path.display()))
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|fault| failed("cannot make", folder, fault))?;
        let lock = lock(folder)?;
        let record = folder.join("work-folder");
        if let Ok(former) = fs::read_to_string(&record) {
            clean_up(Path::new(former.trim()));
        }
        let work = tempfile::Builder::new()
            .prefix(WORK_PREFIX)
            // Tasks of other users pass through, to folders that only they can read.
            .permissions(fs::Permissions::from_mode(0o711))
            .tempdir_in(work_dir)
            .map_err(|fault| failed("cannot make a folder in", work_dir, fault))?;
        let path = work.path().as_os_str().as_encoded_bytes();
        replace(&record, path).map_err(|fault| failed("cannot write", &record, fault))?;
        Ok(Self {
            folder: folder.to_owned(),
            work,
            _lock: lock,
        })
    }

    /// Where the identity is kept.
    pub fn instance_file(&self) -> PathBuf {
        self.folder.join("instance-id")
    }

    /// Below what folder tasks get theirs.
    pub fn work_folder(&self) -> &Path {
        self.work.path()
    }
}

fn lock(folder: &Path) -> Result<File, ConfigError> {
    let path = folder.join("lock");
    let opened = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = opened
        .map_err(|fault| ConfigError::new(format!("cannot open {}: {fault}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ConfigError::new(format!(
            "state_dir: another executor uses {}; give each its own",
            folder.display()
        ))),
        Err(TryLockError::Error(fault)) => Err(ConfigError::new(format!(
            "cannot lock {}: {fault}",
            path.display()
        ))),
    }
}

/// Ends and removes what a process that was killed has left.
fn clean_up(former: &Path) {
    let named = former.file_name().and_then(|name| name.to_str());
    if !former.is_absolute() || !named.is_some_and(|name| name.starts_with(WORK_PREFIX)) {
        return;
    }
    let killed = sweep(&format!("{SOCKET_VARIABLE}={}/", former.display()));
    if killed > 0 {
        tracing::warn!(killed, "ended what an earlier executor left running");
    }
    // Not a link, and ours: nobody else decides what is deleted here.
    let own = fs::symlink_metadata(former)
        .is_ok_and(|found| found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw());
    if own && let Err(fault) = fs::remove_dir_all(former) {
        tracing::warn!(%fault, folder = %former.display(), "cannot remove an old work folder");
    }
}

/// Replaces a small file as a whole.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Opens a folder that was just let go. A process that another test is starting at this moment
    /// can hold a copy of the lock until it runs its program.
    fn open_again(folder: &Path, work_dir: &Path) -> ExecutorState {
        for _ in 0..2_000 {
            match ExecutorState::open(folder, work_dir) {
                Ok(state) => return state,
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        }
        ExecutorState::open(folder, work_dir).unwrap()
    }

    #[test]
    fn two_executors_cannot_share_a_folder() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("state");
        let first = ExecutorState::open(&folder, base.path()).unwrap();
        let fault = ExecutorState::open(&folder, base.path()).unwrap_err();
        assert!(fault.to_string().contains("another executor"), "{fault}");
        drop(first);
        open_again(&folder, base.path());
    }

    #[test]
    fn work_folders_let_others_pass_and_go_away() {
        let base = tempfile::tempdir().unwrap();
        let state = ExecutorState::open(&base.path().join("state"), base.path()).unwrap();
        let work = state.work_folder().to_owned();
        assert_eq!(fs::metadata(&work).unwrap().mode() & 0o777, 0o711);
        drop(state);
        assert!(!work.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_killed_executor_left_is_ended_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("state");
        let state = ExecutorState::open(&folder, base.path()).unwrap();
        let work = state.work_folder().to_owned();
        // As if the process had been killed: the folder stays.
        let ExecutorState {
            work: kept, _lock, ..
        } = state;
        let _ = kept.keep();
        drop(_lock);
        fs::create_dir(work.join("t1")).unwrap();
        let mut orphan = Command::new("sleep")
            .arg("600")
            .env(SOCKET_VARIABLE, work.join("t1/task.sock"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut other = Command::new("sleep").arg("600").spawn().unwrap();
        let _state = open_again(&folder, base.path());
        assert!(!orphan.wait().unwrap().success());
        assert!(!work.exists());
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn only_a_work_folder_is_ever_removed() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("state");
        let precious = base.path().join("precious");
        fs::create_dir_all(&precious).unwrap();
        fs::create_dir_all(&folder).unwrap();
        let record = folder.join("work-folder");
        fs::write(&record, precious.to_str().unwrap()).unwrap();
        drop(open_again(&folder, base.path()));
        assert!(precious.exists());
        let link = base.path().join("tenure-exec-link");
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        fs::write(&record, link.to_str().unwrap()).unwrap();
        drop(open_again(&folder, base.path()));
        assert!(precious.exists());
    }
}
