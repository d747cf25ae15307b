//! `tenure executor`: the built-in executor as a process.

use std::io::Read as _;
use std::path::PathBuf;

use tenure_sdk::Stopped;

use super::args::{ExecutorArgs, Global};
use super::connect;
use super::failure::{Exit, Failure};
use crate::executor::config::{ConfigError, ExecutorConfig};
use crate::executor::{BuiltinExecutor, ExecutorError};

/// Runs until it is told to leave, and drains.
///
/// # Errors
/// It cannot start, or the cluster refuses it.
pub(super) async fn run(args: ExecutorArgs, global: &Global) -> Result<(), Failure> {
    let stop_with_stdin = args.stop_with_stdin;
    if stop_with_stdin {
        crate::signals::leave_terminal();
    }
    let config = config(args, global, |name| {
        std::env::var_os(name).map(PathBuf::from)
    })?;
    let own = std::env::var("TENURE_TOKEN").ok();
    let token = connect::token(config.token_file.as_deref(), own)?;
    let drain_timeout = config.drain_timeout.to_duration();
    let executor = BuiltinExecutor::new(config, token, |builder| builder)?;
    let handle = executor.handle();
    tracing::info!(instance = %handle.instance_id(), "executor starts");
    if stop_with_stdin {
        let handle = handle.clone();
        // A thread, because reading standard input cannot be given up.
        let watch = std::thread::Builder::new().name("stdin".into());
        let started = watch.spawn(move || {
            let mut chunk = [0; 64];
            while matches!(std::io::stdin().read(&mut chunk), Ok(count) if count > 0) {}
            handle.drain(drain_timeout);
        });
        started.map_err(|fault| Failure::io("standard input", &fault))?;
    }
    match executor.run_until_signal().await? {
        Stopped::Replaced => Err(Failure::new(
            Exit::Refused,
            "another process registered under the same instance id",
        )
        .todo("give each executor a --state-dir (and --instance-id) of its own")),
        ended => {
            tracing::info!(?ended, "executor has left");
            Ok(())
        }
    }
}

/// The file, and the flags over it.
fn config(
    args: ExecutorArgs,
    global: &Global,
    variable: impl Fn(&str) -> Option<PathBuf>,
) -> Result<ExecutorConfig, Failure> {
    let (mut config, from_file) = match &args.config {
        Some(path) => (ExecutorConfig::load(path)?, true),
        None => (ExecutorConfig::default(), false),
    };
    if !global.nodes.is_empty() {
        config.nodes = global.nodes.clone();
    }
    let set = |to: &mut PathBuf, from: Option<PathBuf>| {
        if let Some(path) = from {
            *to = path;
        }
    };
    // A service manager that makes the folder says where it is.
    let of_service = variable("STATE_DIRECTORY").filter(|_| !from_file);
    set(&mut config.state_dir, args.state_dir.or(of_service));
    set(&mut config.work_dir, args.work_dir);
    config.token_file = global.token_file.clone().or(config.token_file);
    config.instance_id = args.instance_id.or(config.instance_id);
    config.lease_ttl = args.lease_ttl.or(config.lease_ttl);
    config.version = args.executor_version.unwrap_or(config.version);
    config.capacity = args.capacity.unwrap_or(config.capacity);
    config.stop_grace = args.stop_grace.unwrap_or(config.stop_grace);
    config.drain_timeout = args.drain_timeout.unwrap_or(config.drain_timeout);
    config.labels.extend(args.labels);
    let shell = &mut config.shell;
    shell.enabled |= args.enable_shell;
    shell.allow_scripts |= args.allow_scripts;
    shell.run_as = args.run_as.or(shell.run_as.take());
    shell.working_dir = args.working_dir.or(shell.working_dir.take());
    if !args.allow_commands.is_empty() {
        shell.allow_commands = Some(args.allow_commands);
    }
    let http = &mut config.http;
    http.enabled = (http.enabled || args.enable_http) && !args.disable_http;
    http.allow_hosts.extend(args.allow_hosts);
    http.allow_networks.extend(args.allow_networks);
    Ok(config)
}

impl From<ConfigError> for Failure {
    fn from(fault: ConfigError) -> Self {
        let failure = Self::new(Exit::Usage, fault.message);
        match fault.file {
            Some(file) => failure.at(file.display()),
            None => failure,
        }
    }
}

impl From<ExecutorError> for Failure {
    fn from(fault: ExecutorError) -> Self {
        match fault {
            ExecutorError::Config(fault) => fault.into(),
            ExecutorError::Build(fault) => fault.into(),
            ExecutorError::Cluster(fault) => (*fault).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser as _;
    use tenure_api::Millis;

    fn configured(line: &str) -> Result<ExecutorConfig, Failure> {
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Executor(args) = cli.command else {
            panic!("not an executor");
        };
        let variable = |name: &str| (name == "STATE_DIRECTORY").then(|| "/var/lib/x".into());
        config(*args, &cli.global, variable)
    }

    #[test]
    fn flags_go_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("executor.toml");
        let text = "nodes = [\"http://a:1\"]\nstate_dir = \"/srv/x\"\ncapacity = 2\n\
                    [shell]\nenabled = true\nallow_commands = [\"/bin/a\"]\n";
        std::fs::write(&path, text).unwrap();
        let line = format!(
            "tenure executor --config {} --nodes http://b:1,http://c:1 --capacity 9 --label gpu=true \
             --allow-command /bin/b --stop-grace 3s --disable-http",
            path.display()
        );
        let config = configured(&line.replace("  ", " ")).unwrap();
        assert_eq!(config.nodes, ["http://b:1", "http://c:1"]);
        assert_eq!((config.capacity, config.stop_grace), (9, Millis(3_000)));
        assert_eq!(config.state_dir, PathBuf::from("/srv/x"));
        assert_eq!(config.labels.get("gpu").map(String::as_str), Some("true"));
        assert!(config.shell.enabled && !config.http.enabled);
        let allowed = config.shell.allow_commands.unwrap();
        assert_eq!(
            allowed.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["/bin/b"]
        );
    }

    #[test]
    fn without_a_file_the_service_manager_says_where_the_folder_is() {
        let config = configured("tenure executor --nodes http://a:1").unwrap();
        assert_eq!(config.state_dir, PathBuf::from("/var/lib/x"));
        assert!(!config.shell.enabled && config.http.enabled);
        let config = configured("tenure executor --nodes http://a:1 --state-dir s").unwrap();
        assert_eq!(config.state_dir, PathBuf::from("s"));
    }

    #[test]
    fn a_bad_file_is_named() {
        let fault = configured("tenure executor --config no/such.toml").unwrap_err();
        assert_eq!(fault.at.as_deref(), Some("no/such.toml"));
    }
}
