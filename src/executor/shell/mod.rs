//! The capability `shell`: runs a program or a script and gives its exit code back.
//!
//! Order of a task: read parameters → check the operator's rules → private folder and socket →
//! start the process group → wait for its end or for a reason to stop → kill what is left → answer.
//!
//! Invariant: no way out of `run`, including dropping its future, leaves a process of the task
//! running (see [`group`]).

pub mod environment;
pub mod group;
pub mod output;
pub mod params;
pub mod rules;
pub mod user;

use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::task::JoinSet;

use self::environment::{PrivateFolder, SOCKET_VARIABLE, TaskEnvironment};
use self::group::Group;
use self::output::{LineCutter, Tail};
use self::params::{ShellCommand, ShellParams};
use self::rules::ShellRules;
use self::user::RunAs;
use super::channel;
use super::port::{Ending, StopReason, TaskPort};

/// The capability's name.
pub const CAPABILITY: &str = "shell";

/// The script's own name, for its messages.
const SCRIPT_NAME: &str = "task";

/// How long the last output may take to arrive once everything has been killed.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// The most of the last line that goes into a failure's message, in bytes.
const MAX_REASON_BYTES: usize = 512;

/// Runs shell tasks.
#[derive(Clone, Debug)]
pub struct Shell {
    rules: Arc<ShellRules>,
    work_folder: PathBuf,
    program: Option<PathBuf>,
    grace: Duration,
}

impl Shell {
    /// A capability under these rules. Private folders are made below `work_folder`; `grace` is the
    /// time between SIGTERM and SIGKILL.
    pub fn new(rules: ShellRules, work_folder: PathBuf, grace: Duration) -> Self {
        Self {
            rules: Arc::new(rules),
            work_folder,
            program: std::env::current_exe().ok(),
            grace,
        }
    }

    /// Runs one task to its end.
    pub async fn run(&self, port: Arc<dyn TaskPort>) -> Ending {
        let params = match ShellParams::read(&port.facts().params) {
            Ok(params) => params,
            Err(fault) => return Ending::refused(fault),
        };
        if let Err(fault) = self.rules.check(&params) {
            return Ending::refused(fault);
        }
        match self.prepare(&port, params).await {
            Ok((prepared, listener)) => self.execute(port, prepared, listener).await,
            Err(ending) => ending,
        }
    }

    /// Everything that touches the disk or looks up users, off the runtime's threads.
    async fn prepare(
        &self,
        port: &Arc<dyn TaskPort>,
        params: ShellParams,
    ) -> Result<(Prepared, UnixListener), Ending> {
        let (rules, base) = (Arc::clone(&self.rules), self.work_folder.clone());
        let resume = port.facts().checkpoint.clone().unwrap_or_default();
        let work = move || {
            let user = user::resolve(&rules, params.user.as_deref()).map_err(Ending::refused)?;
            let script = match &params.command {
                ShellCommand::Script {
                    interpreter: Some(_),
                    text,
                } => Some(text.as_str()),
                _ => None,
            };
            let folder = PrivateFolder::make(&base, &resume.state, script, user.as_ref());
            let (folder, listener) = folder.map_err(|fault| Ending::Failed {
                message: format!("cannot make the task's folder: {fault}"),
                retryable: true,
            })?;
            let prepared = Prepared {
                params,
                folder,
                user,
            };
            Ok((prepared, listener))
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(prepared) => prepared,
            Err(fault) => Err(Ending::Failed {
                message: format!("cannot prepare the task: {fault}"),
                retryable: true,
            }),
        }
    }

    async fn execute(
        &self,
        port: Arc<dyn TaskPort>,
        prepared: Prepared,
        listener: UnixListener,
    ) -> Ending {
        let failed = |message: String, retryable| Ending::Failed { message, retryable };
        let socket = prepared.folder.socket();
        let listener = match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => listener,
            Err(fault) => return failed(format!("cannot open the task's socket: {fault}"), true),
        };
        let mark = format!("{SOCKET_VARIABLE}={}", socket.display());
        let command = self.command(port.as_ref(), &prepared);
        let started = Instant::now();
        let mut group = match Group::start(command, mark) {
            Ok(group) => group,
            Err(fault) => return cannot_start(&prepared, &fault),
        };
        // Dropped with this future: the socket closes and the readers stop.
        let mut attendants = JoinSet::new();
        attendants.spawn(channel::server::serve(listener, Arc::clone(&port)));
        feed(&mut attendants, &mut group, prepared.params.stdin.clone());
        let tail = Arc::new(Mutex::new(Tail::new(prepared.params.output_tail_bytes)));
        let mut readers = readers(&mut group, &port, &tail);

        let stopped = self.wait(&port, &mut group).await;
        let status = group.end().await;
        let drained = async { while readers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN_LIMIT, drained).await;
        if let Some(reason) = stopped {
            return Ending::Stopped(reason);
        }
        let tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        match status {
            Ok(status) => judge(&prepared.params, status, started.elapsed(), &tail),
            Err(fault) => failed(format!("cannot read the exit status: {fault}"), true),
        }
    }

    /// Waits for the leader's end. A reason to stop starts the grace.
    async fn wait(&self, port: &Arc<dyn TaskPort>, group: &mut Group) -> Option<StopReason> {
        let reason = tokio::select! {
            biased;
            () = group.leader_ended() => return None,
            reason = port.stopped() => reason,
        };
        // Without the right to run, there is no time for a farewell.
        if !matches!(reason, StopReason::LeaseLost(_)) {
            group.ask_to_end();
            let _ = tokio::time::timeout(self.grace, group.leader_ended()).await;
        }
        Some(reason)
    }

    fn command(&self, port: &dyn TaskPort, prepared: &Prepared) -> Command {
        let Prepared {
            params,
            folder,
            user,
        } = prepared;
        let mut command = match &params.command {
            ShellCommand::Argv { program, arguments } => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
            ShellCommand::Script {
                interpreter: None,
                text,
            } => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", text, SCRIPT_NAME]);
                command
            }
            ShellCommand::Script {
                interpreter: Some(interpreter),
                ..
            } => {
                let mut command = Command::new(interpreter);
                command.arg(folder.script());
                command
            }
        };
        let environment = TaskEnvironment {
            facts: port.facts(),
            term: port.term(),
            folder,
            program: self.program.as_deref(),
            inherit: &self.rules.inherit_env,
            job: &params.env,
            user: user.as_ref(),
        };
        let stdin = match params.stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        };
        command
            .env_clear()
            .envs(environment.variables(|name| std::env::var_os(name)))
            .current_dir(self.rules.folder(params, folder.path()))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(user) = user {
            // Setting the user as root also drops the supplementary groups.
            command.uid(user.uid).gid(user.gid);
        }
        command
    }
}

/// What a task needs before it starts.
struct Prepared {
    params: ShellParams,
    folder: PrivateFolder,
    user: Option<RunAs>,
}

/// Writes standard input, and closes it.
fn feed(attendants: &mut JoinSet<()>, group: &mut Group, stdin: Option<String>) {
    if let (Some(text), Some(mut pipe)) = (stdin, group.child().stdin.take()) {
        attendants.spawn(async move {
            // A program that does not read its input is within its rights.
            let _ = pipe.write_all(text.as_bytes()).await;
        });
    }
}

fn readers(group: &mut Group, port: &Arc<dyn TaskPort>, tail: &Arc<Mutex<Tail>>) -> JoinSet<()> {
    let mut readers = JoinSet::new();
    if let Some(stdout) = group.child().stdout.take() {
        readers.spawn(read_output(stdout, Arc::clone(port), Arc::clone(tail)));
    }
    if let Some(stderr) = group.child().stderr.take() {
        readers.spawn(read_output(stderr, Arc::clone(port), Arc::clone(tail)));
    }
    readers
}

/// Passes lines on until the stream ends. Never holds more than a chunk, a line and the tail.
async fn read_output(
    mut stream: impl AsyncRead + Unpin,
    port: Arc<dyn TaskPort>,
    tail: Arc<Mutex<Tail>>,
) {
    let mut chunk = vec![0; 16 * 1024];
    let mut cutter = LineCutter::default();
    loop {
        let bytes = match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(count) => chunk.get(..count).unwrap_or_default(),
        };
        tail.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(bytes);
        cutter.push(bytes, |line| port.log(line));
    }
    cutter.finish(|line| port.log(line));
}

fn cannot_start(prepared: &Prepared, fault: &std::io::Error) -> Ending {
    let program = match &prepared.params.command {
        ShellCommand::Argv { program, .. } => program.as_str(),
        ShellCommand::Script { interpreter, .. } => interpreter.as_deref().unwrap_or("/bin/sh"),
    };
    let cwd = prepared.params.cwd.as_deref().unwrap_or(Path::new("."));
    let permanent = matches!(
        fault.kind(),
        std::io::ErrorKind::NotFound
            | std::io::ErrorKind::PermissionDenied
            | std::io::ErrorKind::NotADirectory
            | std::io::ErrorKind::InvalidInput
    );
    Ending::Failed {
        message: format!("cannot start {program:?} in {}: {fault}", cwd.display()),
        retryable: !permanent,
    }
}

/// What the exit status means.
fn judge(params: &ShellParams, status: ExitStatus, took: Duration, tail: &Tail) -> Ending {
    let code = status.code();
    let because = match tail.last_line(MAX_REASON_BYTES) {
        Some(line) => format!(": {line}"),
        None => String::new(),
    };
    match code {
        Some(code) if params.success_exit_codes.contains(&code) => {
            Ending::Succeeded(value(code, took, tail))
        }
        Some(code) => Ending::Failed {
            message: format!("exit code {code}{because}"),
            retryable: params
                .retryable_exit_codes
                .as_ref()
                .is_none_or(|codes| codes.contains(&code)),
        },
        None => Ending::Failed {
            message: format!(
                "ended by signal {}{because}",
                status.signal().unwrap_or_default()
            ),
            retryable: true,
        },
    }
}

fn value(exit_code: i32, took: Duration, tail: &Tail) -> Value {
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let mut value = json!({"exit_code": exit_code, "duration_ms": duration_ms});
    let text = tail.text();
    if let (false, Value::Object(fields)) = (text.is_empty(), &mut value) {
        fields.insert("output_tail".to_owned(), Value::String(text));
        fields.insert("output_tail_truncated".to_owned(), tail.dropped().into());
    }
    value
}

#[cfg(test)]
mod tests;
