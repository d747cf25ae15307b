//! The built-in executor's configuration: a TOML file, over which flags of the command line go.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_api::{InstanceId, Millis};

use super::http::target::HttpRules;
use super::shell::rules::ShellRules;

/// How many tasks run at once when nothing is said.
const DEFAULT_CAPACITY: u32 = 8;

/// An executor's configuration. Unknown names in a file are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecutorConfig {
    /// Nodes of the cluster: `http://host:port`. One will do; more are better.
    pub nodes: Vec<String>,
    /// A file that holds the token, of the executor role.
    pub token_file: Option<PathBuf>,
    /// Where the executor keeps its identity. Two executors must not share it; the second one is
    /// refused. By default `tenure-executor` in `$XDG_STATE_HOME` or `~/.local/state`.
    pub state_dir: PathBuf,
    /// The lasting identity. Absent: made on the first start and kept in `state_dir`.
    pub instance_id: Option<InstanceId>,
    /// The version that jobs may ask for (semantic versioning).
    pub version: String,
    /// Labels that jobs select by.
    pub labels: BTreeMap<String, String>,
    /// How many tasks run at once.
    pub capacity: u32,
    /// Below what folder tasks get their private ones. Its path must be short: sockets are in it.
    pub work_dir: PathBuf,
    /// The lease to ask for.
    pub lease_ttl: Option<Millis>,
    /// The time between SIGTERM and SIGKILL for a task that must stop.
    pub stop_grace: Millis,
    /// How long running tasks may take to finish after the executor was told to leave.
    pub drain_timeout: Millis,
    /// The capability `shell`.
    pub shell: ShellRules,
    /// The capability `http`.
    pub http: HttpRules,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            token_file: None,
            state_dir: usual_state_dir(|name| std::env::var_os(name)),
            instance_id: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            labels: BTreeMap::new(),
            capacity: DEFAULT_CAPACITY,
            work_dir: std::env::temp_dir(),
            lease_ttl: None,
            stop_grace: Millis(10_000),
            drain_timeout: Millis(60_000),
            shell: ShellRules::default(),
            http: HttpRules::default(),
        }
    }
}

/// Below the user's own state, so that an executor that is started again, from whatever folder, is the same one.
/// A user without a home gets a folder where it is started.
fn usual_state_dir(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let absolute = |name| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_default()
        .join("tenure-executor")
}

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, where there is one.
    pub file: Option<PathBuf>,
    /// What is wrong, with its place.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}: ", file.display())?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            file: None,
            message: message.into(),
        }
    }
}

impl ExecutorConfig {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// It cannot be read, or is not valid.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let in_file = |message: String| ConfigError {
            file: Some(path.to_owned()),
            message,
        };
        let text = std::fs::read_to_string(path).map_err(|fault| in_file(fault.to_string()))?;
        Self::from_toml(&text).map_err(|fault| in_file(fault.message))
    }

    /// Reads a configuration.
    ///
    /// # Errors
    /// It is not valid.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|fault| ConfigError::new(fault.to_string().trim_end()))
    }

    /// Checks what types alone cannot.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |message: &str| Err(ConfigError::new(message));
        if self.nodes.is_empty() {
            return refuse("nodes: give at least one, such as http://127.0.0.1:7401");
        }
        if !self.shell.enabled && !self.http.enabled {
            return refuse("there is no capability: enable shell (--enable-shell) or http");
        }
        if self.stop_grace.get() == 0 || self.stop_grace > Millis(600_000) {
            return refuse("stop_grace: must be from 1ms to 10m");
        }
        if self
            .shell
            .inherit_env
            .iter()
            .any(|name| name.starts_with("TENURE_"))
        {
            return refuse("shell.inherit_env: names in TENURE_ are never handed on");
        }
        if self
            .shell
            .working_dir
            .as_ref()
            .is_some_and(|path| !path.is_absolute())
        {
            return refuse("shell.working_dir: must be an absolute path");
        }
        Ok(())
    }

    /// How long the SDK waits for a task that must stop: the grace, and time to kill and reap.
    pub(super) fn cancel_grace(&self) -> Duration {
        self.stop_grace.to_duration() + Duration::from_secs(5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file_is_read() {
        let config = ExecutorConfig::from_toml(
            r#"
            nodes = ["http://a:7401", "http://b:7401"]
            token_file = "/etc/tenure/executor.token"
            state_dir = "/var/lib/tenure-executor"
            instance_id = "worker-1"
            capacity = 32
            stop_grace = "5s"
            labels = { gpu = "true" }

            [shell]
            enabled = true
            allow_commands = ["/usr/bin/rsync", "/opt/jobs/*"]
            run_as = "jobs"

            [http]
            allow_hosts = ["127.0.0.1:7401"]
            allow_networks = ["10.1.0.0/16"]
            "#,
        )
        .unwrap();
        config.check().unwrap();
        assert_eq!(config.capacity, 32);
        assert_eq!(config.stop_grace, Millis(5_000));
        assert_eq!(config.shell.allow_commands.as_ref().map(Vec::len), Some(2));
        assert_eq!(config.http.allow_hosts[0].to_string(), "127.0.0.1:7401");
        assert!(config.http.enabled && !config.shell.allow_scripts);
    }

    #[test]
    fn the_usual_state_folder_does_not_depend_on_where_it_is_started() {
        for (xdg, home, expected) in [
            (Some("/state"), Some("/home/a"), "/state/tenure-executor"),
            (
                None,
                Some("/home/a"),
                "/home/a/.local/state/tenure-executor",
            ),
            (
                Some("not/absolute"),
                Some("/home/a"),
                "/home/a/.local/state/tenure-executor",
            ),
            (None, None, "tenure-executor"),
        ] {
            let found = usual_state_dir(|name| match name {
                "XDG_STATE_HOME" => xdg.map(Into::into),
                "HOME" => home.map(Into::into),
                _ => None,
            });
            assert_eq!(found, PathBuf::from(expected));
        }
    }

    #[test]
    fn shell_is_off_unless_it_is_switched_on() {
        let config = ExecutorConfig::from_toml("[shell]\nallow_scripts = true\n").unwrap();
        assert!(!config.shell.enabled);
    }

    #[test]
    fn faults_say_where_they_are() {
        for (text, part) in [
            ("capcity = 1", "capcity"),
            ("[shell]\nallow = []", "allow"),
            ("stop_grace = 5", "stop_grace"),
            ("[http]\nallow_networks = [\"10.0.0.0/99\"]", "10.1.0.0/16"),
            ("instance_id = \"a b\"", "instance_id"),
            ("nodes = [", "line 1"),
        ] {
            let fault = ExecutorConfig::from_toml(text).unwrap_err();
            assert!(fault.to_string().contains(part), "{text}: {fault}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_before_it_starts() {
        let good = ExecutorConfig {
            nodes: vec!["http://a:1".into()],
            ..ExecutorConfig::default()
        };
        assert_eq!(good.check(), Ok(()));
        let mut closed = good.clone();
        closed.http.enabled = false;
        let mut leaking = good.clone();
        leaking.shell.inherit_env = vec!["TENURE_TOKEN".into()];
        for bad in [ExecutorConfig::default(), closed, leaking] {
            assert!(bad.check().is_err());
        }
    }
}
