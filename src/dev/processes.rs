//! The processes of a development cluster.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use super::layout::Layout;
use super::{DevError, EXAMPLES_VARIABLE};

/// How long after its death a process is started again: long enough to see that the others do without it.
const RESTART: Duration = Duration::from_secs(5);
/// How long a process may take to stop.
const STOP: Duration = Duration::from_secs(20);

/// One process.
pub(super) struct Member {
    pub(super) label: String,
    arguments: Vec<String>,
    log: PathBuf,
    /// Where in the log this start begins: what an earlier one said explains nothing.
    log_from: u64,
    child: Option<Child>,
    died_at: Option<Instant>,
    examples: PathBuf,
}

/// All processes.
pub(super) struct Fleet {
    pub(super) nodes: Vec<Member>,
    pub(super) executor: Option<Member>,
}

impl Fleet {
    pub(super) fn start(layout: &Layout) -> Result<Self, DevError> {
        let mut nodes = Vec::new();
        for node in &layout.nodes {
            let arguments = ["server", "--stop-with-stdin", "--config"]
                .map(str::to_owned)
                .into_iter();
            let arguments = arguments
                .chain([node.config.display().to_string()])
                .collect();
            let label = format!("node {}", node.id);
            nodes.push(Member::start(
                label,
                arguments,
                &node.log,
                &layout.examples_dir,
            )?);
        }
        Ok(Self {
            nodes,
            executor: None,
        })
    }

    pub(super) fn start_executor(&mut self, layout: &Layout) -> Result<(), DevError> {
        let state = layout.dir.join("executor").display().to_string();
        let arguments = [
            "executor",
            "--stop-with-stdin",
            "--nodes",
            &layout.urls(),
            "--token-file",
            &layout.executor_token_file.display().to_string(),
            "--state-dir",
            &state,
            "--instance-id",
            "dev-executor",
            "--capacity",
            "16",
            "--enable-shell",
            "--allow-scripts",
            "--enable-http",
            "--allow-host",
            "127.0.0.1",
        ]
        .map(str::to_owned)
        .to_vec();
        let log = layout.dir.join("executor.log");
        let executor = Member::start("executor".into(), arguments, &log, &layout.examples_dir)?;
        self.executor = Some(executor);
        Ok(())
    }

    /// An error if a node ended before the cluster was up.
    pub(super) fn check_nodes(&mut self) -> Result<(), DevError> {
        for node in &mut self.nodes {
            if !node.alive() {
                return Err(DevError(format!(
                    "{} ended at its start: {}",
                    node.label,
                    node.last_words()
                )));
            }
        }
        Ok(())
    }

    /// Starts again what has been dead for a while.
    pub(super) fn revive(&mut self) -> Result<(), DevError> {
        for member in self.nodes.iter_mut().chain(&mut self.executor) {
            if !member.alive() && member.died_at.is_some_and(|at| at.elapsed() >= RESTART) {
                member.spawn()?;
            }
        }
        Ok(())
    }

    /// The executor first, so that it can give back what it has; then the nodes.
    pub(super) async fn stop(&mut self) {
        if let Some(executor) = &mut self.executor {
            executor.stop().await;
        }
        futures::future::join_all(self.nodes.iter_mut().map(Member::stop)).await;
    }
}

impl Member {
    fn start(
        label: String,
        arguments: Vec<String>,
        log: &Path,
        examples: &Path,
    ) -> Result<Self, DevError> {
        let mut member = Self {
            label,
            arguments,
            log: log.to_owned(),
            log_from: 0,
            child: None,
            died_at: None,
            examples: examples.to_owned(),
        };
        member.spawn()?;
        Ok(member)
    }

    fn spawn(&mut self) -> Result<(), DevError> {
        let program = std::env::current_exe().map_err(|error| DevError::new("tenure", error))?;
        let fail = |error| DevError::new(&self.label, error);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(fail)?;
        self.log_from = log.metadata().map_err(fail)?.len();
        let errors = log.try_clone().map_err(fail)?;
        let mut command = std::process::Command::new(&program);
        command
            .args(&self.arguments)
            // The process stops in good order when this pipe closes, however we end. Ctrl-C is for us alone:
            // it leaves the terminal (`signals::leave_terminal`), which the head of a group could not.
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            .env(EXAMPLES_VARIABLE, &self.examples)
            .env("TENURE_BIN", &program);
        self.child = Some(Command::from(command).spawn().map_err(fail)?);
        self.died_at = None;
        Ok(())
    }

    /// Whether it runs; notes when it was found dead.
    pub(super) fn alive(&mut self) -> bool {
        let running = self
            .child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !running && self.died_at.is_none() {
            self.died_at = Some(Instant::now());
        }
        running
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// The end of its log, for people.
    fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.log_from).unwrap_or(usize::MAX);
        let tail = text.len().saturating_sub(2_000).max(from);
        let text = String::from_utf8_lossy(text.get(tail..).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    async fn stop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        drop(child.stdin.take());
        if timeout(STOP, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
}
