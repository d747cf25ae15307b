//! The environment and the private folder of a shell task.
//!
//! Invariant: a task sees nothing of the executor's own environment but the names listed here and
//! those that the operator added, and never another name that starts with `TENURE_`: the executor's
//! token may be in one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tenure_api::Timestamp;

use super::user::RunAs;
use crate::executor::channel;
use crate::executor::port::TaskFacts;

/// Variables of the executor that every task sees.
const INHERITED: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
];

/// Where the example jobs find their scripts. Set by `tenure dev`.
const EXAMPLES_VARIABLE: &str = "TENURE_EXAMPLES";

/// Where programs are looked for when the executor itself has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The longest path of a Unix socket that every system takes, in bytes.
const MAX_SOCKET_PATH_BYTES: usize = 103;

/// The folder of one tenure: mode 0700 from its first moment, removed at its end.
///
/// Invariant: as long as anything is put into it, it is the executor's own, so nobody else can look into it
/// or plant a link there. It becomes the user's as the last step; from then on the executor writes to nothing
/// in it by its path.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: TempDir,
}

impl PrivateFolder {
    /// Makes the folder below `base`, puts the checkpoint and the script into it and opens the task's
    /// socket. With a user, everything in it is that user's.
    ///
    /// # Errors
    /// The disk's, or the path is too long for a socket.
    pub fn make(
        base: &Path,
        checkpoint_state: &[u8],
        script: Option<&str>,
        user: Option<&RunAs>,
    ) -> io::Result<(Self, UnixListener)> {
        let folder = tempfile::Builder::new()
            .prefix("t")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(base)?;
        let made = Self { folder };
        if made.socket().as_os_str().as_bytes().len() > MAX_SOCKET_PATH_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{} is too long for a socket: give the executor a shorter work folder",
                    made.socket().display()
                ),
            ));
        }
        write_private(&made.checkpoint_file(), checkpoint_state, user)?;
        if let Some(script) = script {
            write_private(&made.script(), script.as_bytes(), user)?;
        }
        let listener = channel::server::bind(&made.socket())?;
        if let Some(user) = user {
            // Nothing at these paths can have been changed by others: the folder is not theirs yet.
            user.give_path(&made.socket())?;
            user.give_path(made.path())?;
        }
        Ok((made, listener))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where the task's socket belongs.
    pub fn socket(&self) -> PathBuf {
        self.path().join("task.sock")
    }

    /// The file with the state of the committed checkpoint.
    pub fn checkpoint_file(&self) -> PathBuf {
        self.path().join("checkpoint")
    }

    /// The script, where the job brings one for an interpreter.
    pub fn script(&self) -> PathBuf {
        self.path().join("script")
    }
}

fn write_private(path: &Path, bytes: &[u8], user: Option<&RunAs>) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    user.map_or(Ok(()), |user| user.give(&file))
}

/// The whole environment of a task.
#[derive(Debug)]
pub struct TaskEnvironment<'a> {
    /// What is fixed for the tenure.
    pub facts: &'a TaskFacts,
    /// The highest term seen.
    pub term: u64,
    /// The private folder.
    pub folder: &'a PrivateFolder,
    /// The program that answers `task checkpoint`.
    pub program: Option<&'a Path>,
    /// Names of the executor's variables that the operator added.
    pub inherit: &'a [String],
    /// Variables of the job.
    pub job: &'a BTreeMap<String, String>,
    /// The user it runs as, if another.
    pub user: Option<&'a RunAs>,
}

impl TaskEnvironment<'_> {
    /// All variables, given how to look one up in the executor's own environment.
    pub fn variables(
        &self,
        own: impl Fn(&str) -> Option<OsString>,
    ) -> BTreeMap<OsString, OsString> {
        let mut all: BTreeMap<OsString, OsString> = BTreeMap::new();
        let added = self.inherit.iter().map(String::as_str);
        let locale = [
            "LC_ALL",
            "LC_CTYPE",
            "LC_COLLATE",
            "LC_MESSAGES",
            "LC_NUMERIC",
            "LC_TIME",
        ];
        for name in INHERITED.into_iter().chain(locale).chain(added) {
            if name.starts_with("TENURE_") {
                continue;
            }
            if let Some(value) = own(name) {
                all.insert(name.into(), value);
            }
        }
        all.entry("PATH".into())
            .or_insert_with(|| DEFAULT_PATH.into());
        if let Some(user) = self.user {
            all.insert("HOME".into(), user.home.clone().into());
            all.insert("USER".into(), user.name.clone().into());
            all.insert("LOGNAME".into(), user.name.clone().into());
        }
        if let Some(examples) = own(EXAMPLES_VARIABLE) {
            all.insert(EXAMPLES_VARIABLE.into(), examples);
        }
        for (name, value) in self.job {
            all.insert(name.into(), value.into());
        }
        // Last, so that nothing above can stand in for them.
        for (name, value) in self.of_tenure() {
            all.insert(name.into(), value);
        }
        all
    }

    fn of_tenure(&self) -> Vec<(&'static str, OsString)> {
        let facts = self.facts;
        let offset = facts.checkpoint.as_ref().map_or(0, |resume| resume.offset);
        let text = |value: &dyn std::fmt::Display| OsString::from(value.to_string());
        let mut all = vec![
            ("TENURE_RUN_ID", text(&facts.run)),
            ("TENURE_JOB", text(&facts.job)),
            ("TENURE_REVISION", text(&facts.revision)),
            (
                "TENURE_SCHEDULED_AT",
                text(&Timestamp::from_ms(facts.scheduled_at_ms)),
            ),
            ("TENURE_SHARD", text(&facts.shard)),
            ("TENURE_SHARD_COUNT", text(&facts.shard_count)),
            ("TENURE_ATTEMPT", text(&facts.attempt)),
            ("TENURE_EPOCH", text(&facts.epoch)),
            ("TENURE_TERM", text(&self.term)),
            ("TENURE_GENERATION", text(&facts.generation)),
            ("TENURE_FENCING_TOKEN", text(&facts.fencing_token)),
            ("TENURE_FENCING_SCOPE", text(&facts.fencing_scope)),
            ("TENURE_CHECKPOINT_OFFSET", text(&offset)),
            (
                "TENURE_CHECKPOINT_FILE",
                self.folder.checkpoint_file().into(),
            ),
            ("TENURE_PARAMS", text(&facts.params)),
            (SOCKET_VARIABLE, self.folder.socket().into()),
            ("TENURE_TASK_DIR", self.folder.path().into()),
        ];
        if let Some(progress) = facts.last_progress {
            all.push(("TENURE_LAST_PROGRESS", text(&progress)));
        }
        if let Some(program) = self.program {
            all.push(("TENURE_BIN", program.into()));
        }
        all
    }
}

/// Names the task's socket. Its value is different for each tenure, so it also marks every process
/// that belongs to one.
pub const SOCKET_VARIABLE: &str = "TENURE_TASK_SOCKET";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::port::recorder::Recorder;
    use crate::executor::port::{Resume, TaskPort};
    use serde_json::json;
    use std::os::unix::fs::MetadataExt as _;

    fn own(name: &str) -> Option<OsString> {
        match name {
            "PATH" => Some("/bin".into()),
            "TENURE_TOKEN" => Some("secret".into()),
            "AWS_SECRET_ACCESS_KEY" => Some("secret".into()),
            "PROXY" => Some("p".into()),
            "TENURE_EXAMPLES" => Some("/examples".into()),
            _ => None,
        }
    }

    #[test]
    fn a_task_sees_its_tenure_and_not_the_executors_secrets() {
        let base = tempfile::tempdir().unwrap();
        let resume = Resume {
            offset: 7,
            state: b"state".to_vec(),
        };
        let port = Recorder::with_checkpoint(json!({"a": 1}), Some(resume));
        let (folder, _listener) =
            PrivateFolder::make(base.path(), b"state", Some("x"), None).unwrap();
        let job = BTreeMap::from([("PATH".to_owned(), "/opt".to_owned())]);
        let inherit = ["PROXY".to_owned(), "TENURE_TOKEN".to_owned()];
        let environment = TaskEnvironment {
            facts: port.facts(),
            term: 7,
            folder: &folder,
            program: None,
            inherit: &inherit,
            job: &job,
            user: None,
        };
        let all = environment.variables(own);
        let get = |name: &str| all.get(std::ffi::OsStr::new(name)).and_then(|v| v.to_str());
        for (name, value) in [
            ("PATH", Some("/opt")),
            ("PROXY", Some("p")),
            ("TENURE_TOKEN", None),
            ("TENURE_EXAMPLES", Some("/examples")),
            ("AWS_SECRET_ACCESS_KEY", None),
            ("TENURE_RUN_ID", Some("41")),
            ("TENURE_JOB", Some("count-words")),
            ("TENURE_SCHEDULED_AT", Some("2026-05-28T20:26:40.000Z")),
            ("TENURE_SHARD", Some("2")),
            ("TENURE_SHARD_COUNT", Some("4")),
            ("TENURE_EPOCH", Some("19")),
            ("TENURE_TERM", Some("7")),
            (
                "TENURE_FENCING_TOKEN",
                Some("0000000001.00000000000000000019"),
            ),
            ("TENURE_CHECKPOINT_OFFSET", Some("7")),
            ("TENURE_PARAMS", Some("{\"a\":1}")),
        ] {
            assert_eq!(get(name), value, "{name}");
        }
        let state = fs::read(get("TENURE_CHECKPOINT_FILE").unwrap()).unwrap();
        assert_eq!(state, b"state");
    }

    #[test]
    fn the_folder_is_private_and_goes_away() {
        let base = tempfile::tempdir().unwrap();
        let (folder, _listener) =
            PrivateFolder::make(base.path(), b"", Some("echo"), None).unwrap();
        let path = folder.path().to_owned();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&folder.checkpoint_file()), 0o600);
        assert_eq!(mode(&folder.script()), 0o600);
        assert_eq!(mode(&folder.socket()), 0o600);
        drop(folder);
        assert!(!path.exists());
    }

    /// Runs as root only: nobody else can give a file away.
    #[test]
    fn everything_in_the_folder_is_the_users_and_for_nobody_else() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let user = RunAs {
            name: "somebody".into(),
            uid: 65_534,
            gid: 65_533,
            home: "/".into(),
        };
        let (folder, _listener) =
            PrivateFolder::make(base.path(), b"", Some("echo"), Some(&user)).unwrap();
        for (path, mode) in [
            (folder.path().to_owned(), 0o700),
            (folder.checkpoint_file(), 0o600),
            (folder.script(), 0o600),
            (folder.socket(), 0o600),
        ] {
            let found = fs::symlink_metadata(&path).unwrap();
            let owner = (found.uid(), found.gid());
            assert_eq!(owner, (user.uid, user.gid), "{}", path.display());
            assert_eq!(found.mode() & 0o777, mode, "{}", path.display());
        }
    }

    /// Runs as root only: nobody else can give a file away.
    #[test]
    fn what_a_link_leads_to_is_never_given_away() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let (precious, link) = (base.path().join("precious"), base.path().join("link"));
        fs::write(&precious, "").unwrap();
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        let user = RunAs {
            name: "somebody".into(),
            uid: 65_534,
            gid: 65_533,
            home: "/".into(),
        };
        user.give_path(&link).unwrap();
        assert_eq!(fs::metadata(&precious).unwrap().uid(), 0);
        assert_eq!(fs::symlink_metadata(&link).unwrap().uid(), user.uid);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused_early() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("x".repeat(100));
        fs::create_dir(&deep).unwrap();
        let fault = PrivateFolder::make(&deep, b"", None, None).unwrap_err();
        assert!(fault.to_string().contains("too long"), "{fault}");
    }
}
