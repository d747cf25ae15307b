//! A real process that can be killed, stopped and started again.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::LIMIT;

/// Lines of a log that are shown when a test fails.
const SHOWN_LINES: usize = 40;

/// The program under test.
pub(crate) fn tenure() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tenure"))
}

/// A process with its log. It is killed when this is dropped.
pub(crate) struct Process {
    label: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// A process that was not started yet. Its output is appended to `log`.
    pub(crate) fn new(
        label: impl Into<String>,
        program: &Path,
        arguments: impl IntoIterator<Item = impl Into<String>>,
        log: PathBuf,
    ) -> Self {
        Self {
            label: label.into(),
            program: program.to_owned(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            log,
            child: None,
        }
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.label);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("a log");
        let errors = log.try_clone().expect("a second handle of the log");
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("{}: {error}", self.label)));
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let child = self
            .child
            .as_ref()
            .unwrap_or_else(|| panic!("{} does not run", self.label));
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a pid");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{}: {error}", self.label));
    }

    /// SIGKILL: nothing is written, handed over or said.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGSTOP: it stands still, as in a long garbage collection or a frozen machine.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM, and waits for the end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Waits for the end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            let child = self
                .child
                .as_mut()
                .unwrap_or_else(|| panic!("{} was not started", self.label));
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                self.child = None;
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{} does not end\n{}",
                self.label,
                self.last_words()
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of its log, for people.
    pub(crate) fn last_words(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines
            .get(lines.len().saturating_sub(SHOWN_LINES)..)
            .unwrap_or_default();
        format!(
            "--- {} ({})\n{}",
            self.label,
            self.log.display(),
            tail.join("\n")
        )
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.last_words());
        }
    }
}

/// Runs a program to its end.
pub(crate) async fn output(mut command: Command) -> Output {
    let ended = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output());
    let output = ended
        .await
        .expect("a thread")
        .expect("a program that starts");
    assert!(output.status.signal().is_none(), "{output:?}");
    output
}
