//! A handler that works through a file in pieces, commits a checkpoint after each, and writes to a
//! sink that is idempotent and refuses owners of the past. Killed anywhere and run again, by this
//! process or another, each line has its effect once.
//!
//! ```text
//! cargo run --example checkpointed -- http://127.0.0.1:7001
//! ```
//!
//! The token is read from `TENURE_TOKEN`. A job for it:
//!
//! ```yaml
//! name: word-count
//! trigger: { manual: true }
//! recovery: after_lease
//! retry: { max_attempts: 5 }
//! task:
//!   capability: word-count
//!   params: { input: README.md, output: /tmp/word-count.json }
//! ```

use serde::{Deserialize, Serialize};
use std::error::Error;
use std::path::{Path, PathBuf};
use tenure_sdk::{Executor, TaskContext, TaskError};

/// Lines between two checkpoints.
const LINES_A_STEP: usize = 100;

#[derive(Deserialize)]
struct Params {
    input: PathBuf,
    output: PathBuf,
}

/// What the sink holds. The offset makes it idempotent: a step that is repeated after a crash finds
/// that it has been counted. The token makes it refuse an owner that has been replaced.
#[derive(Default, Serialize, Deserialize)]
struct Report {
    /// The highest fencing token that has written. Compared as text.
    token: String,
    /// The run that the counts belong to.
    run: u64,
    /// Lines that are counted.
    offset: u64,
    words: u64,
}

impl Report {
    fn read(path: &Path) -> Result<Self, TaskError> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces the file in one step, so that a crash leaves the old one or the new one.
    fn write(&self, path: &Path) -> Result<(), TaskError> {
        let temporary = path.with_extension("new");
        let file = std::fs::File::create(&temporary)?;
        serde_json::to_writer(&file, self)?;
        file.sync_all()?;
        Ok(std::fs::rename(&temporary, path)?)
    }
}

/// Adds one step to the sink, unless it has been added, or a newer owner has been here.
///
/// A file has no compare-and-set, so between reading and renaming a second owner could slip in. A
/// database does both in one statement; the module `tenure_api::token` shows it.
fn add(params: &Params, task: &TaskContext, lines: &[&str], until: u64) -> Result<(), TaskError> {
    let mut report = Report::read(&params.output)?;
    let token = task.fencing_token().to_string();
    if report.token > token {
        return Err(TaskError::permanent("a newer owner writes to this report"));
    }
    if report.run != task.run().get() {
        report = Report {
            run: task.run().get(),
            ..Report::default()
        };
    }
    if report.offset < until {
        report.words += lines
            .iter()
            .map(|line| line.split_whitespace().count() as u64)
            .sum::<u64>();
        report.offset = until;
    }
    report.token = token;
    report.write(&params.output)
}

async fn word_count(task: TaskContext) -> Result<serde_json::Value, TaskError> {
    let params: Params = task.params()?;
    let text = std::fs::read_to_string(&params.input)?;
    let lines: Vec<&str> = text.lines().collect();
    let mut offset = usize::try_from(task.resume_offset())?;
    if let Some(epoch) = task.previous_epoch() {
        task.log(format!("going on from line {offset} after epoch {epoch}"));
    }
    while offset < lines.len() {
        let end = lines.len().min(offset + LINES_A_STEP);
        let (step, until) = (&lines[offset..end], end as u64);
        // First the effect, then the checkpoint.
        task.commit_after(async { add(&params, &task, step, until) }, until, "")
            .await?;
        offset = end;
    }
    let report = Report::read(&params.output)?;
    task.log(format!("{} words in {} lines", report.words, report.offset));
    Ok(serde_json::json!({"words": report.words, "lines": report.offset}))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes: Vec<String> = std::env::args().skip(1).collect();
    let executor = Executor::builder()
        .nodes(nodes)
        .token(std::env::var("TENURE_TOKEN")?)
        .version(env!("CARGO_PKG_VERSION"))
        .capacity(4)
        .handler("word-count", word_count)
        .build()?;
    executor.run_until_signal().await?;
    Ok(())
}
