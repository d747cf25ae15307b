//! `tenure run …`

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_api::runs::{Explanation, OutputQuery, Run, RunOutput, RunsQuery, Task};
use tenure_api::{Page, RunId};
use tenure_sdk::Client;

use super::args::{Global, RunCommand};
use super::connect::client;
use super::out::{Format, Out, Stop};
use super::table::{Table, instant, maybe_instant, or_nothing};

/// The pause between two looks at output that is followed.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// Runs the command.
///
/// # Errors
/// Why it ended early.
pub(super) async fn run(
    command: RunCommand,
    global: &Global,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    match command {
        RunCommand::List { job, state, limit } => {
            let query = RunsQuery {
                job,
                state,
                limit: Some(limit.page()),
                ..RunsQuery::default()
            };
            let items = client(global)?.runs(query).collect(limit.most()).await?;
            out.show(&Page::last(items), list)
        }
        RunCommand::Get { id } => {
            let run = client(global)?.run(id).await?;
            show(&run, out)
        }
        RunCommand::Cancel { id, reason } => {
            let run = client(global)?.cancel_run(id, reason).await?;
            out.show(&run, |run| {
                let mut table = Table::of_fields();
                table.field("run", run.id);
                table.field("state", run.state);
                table.field("cancel requested", run.cancel_requested);
                table
            })
        }
        RunCommand::Logs { id, shard, follow } => {
            logs(&client(global)?, id, shard, follow, out).await
        }
        RunCommand::Explain { id } => {
            let explanation = client(global)?.explain_run(id).await?;
            explain(&explanation, out)
        }
    }
}

fn list(page: &Page<Run>) -> Table {
    let mut table = Table::new([
        "RUN",
        "JOB",
        "STATE",
        "SCHEDULED",
        "STARTED",
        "FINISHED",
        "TASKS",
        "REASON",
    ]);
    for run in &page.items {
        table.row([
            run.id.to_string(),
            run.job.to_string(),
            state(run),
            instant(run.scheduled_at),
            maybe_instant(run.started_at),
            maybe_instant(run.finished_at),
            format!("{}/{}", run.counts.succeeded, run.shard_count),
            run.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn state(run: &Run) -> String {
    if run.cancel_requested && !run.state.is_final() {
        return format!("{} (cancelling)", run.state);
    }
    run.state.to_string()
}

fn show(run: &Run, out: &mut Out<'_>) -> Result<(), Stop> {
    out.show(run, details)?;
    if out.format() != Format::Table || run.tasks.is_empty() {
        return Ok(());
    }
    out.text("\n")?;
    out.text(&tasks(&run.tasks).render())
}

fn details(run: &Run) -> Table {
    let mut table = Table::of_fields();
    table.field("run", run.id);
    table.field("job", format!("{} (revision {})", run.job, run.revision));
    table.field("state", state(run));
    table.optional("reason", run.reason.as_ref());
    table.field("scheduled", instant(run.scheduled_at));
    table.field("created", instant(run.created_at));
    table.field("started", maybe_instant(run.started_at));
    table.field("finished", maybe_instant(run.finished_at));
    table.optional("idempotency key", run.idempotency_key.as_ref());
    let counts = run.counts;
    table.field(
        "tasks",
        format!(
            "{}: {} queued, {} running, {} succeeded, {} failed",
            run.shard_count, counts.queued, counts.running, counts.succeeded, counts.failed
        ),
    );
    table
}

fn tasks(tasks: &[Task]) -> Table {
    let mut table = Table::new([
        "SHARD",
        "STATE",
        "ATTEMPT",
        "EPOCH",
        "EXECUTOR",
        "CHECKPOINT",
        "PROGRESS",
        "MESSAGE",
    ]);
    for task in tasks {
        table.row([
            task.shard.to_string(),
            task.state.to_string(),
            task.attempt.to_string(),
            task.epoch.to_string(),
            or_nothing(task.executor.as_ref()),
            or_nothing(task.checkpoint.map(|checkpoint| checkpoint.offset)),
            or_nothing(task.progress),
            task.message.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn explain(explanation: &Explanation, out: &mut Out<'_>) -> Result<(), Stop> {
    out.show(explanation, |explanation| {
        let mut table = Table::of_fields();
        table.field("run", explanation.run);
        table.field("state", explanation.state);
        table.field("because", &explanation.summary);
        for shard in &explanation.shards {
            let name = format!("shard {}", shard.shard);
            table.field(&name, format!("{}: {}", shard.state, shard.summary));
        }
        table
    })?;
    if out.format() != Format::Table || explanation.executors.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["EXECUTOR", "FITS", "FAILS"]);
    for executor in &explanation.executors {
        let fails = executor
            .fails
            .iter()
            .map(|fault| format!("{}: {}", fault.condition, fault.detail));
        let fails: Vec<String> = fails.collect();
        let fits = if executor.eligible { "yes" } else { "no" };
        table.row([
            executor.instance_id.to_string(),
            fits.to_owned(),
            fails.join("; "),
        ]);
    }
    out.text("\n")?;
    out.text(&table.render())
}

/// Prints what was written, shard by shard, and with `follow` goes on until the run has ended.
async fn logs(
    client: &Client,
    id: RunId,
    shard: Option<u32>,
    follow: bool,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    let mut seen: Seen = BTreeSet::new();
    let mut lines = Lines::default();
    loop {
        // The state is read before the output: what a run that has ended wrote is all there.
        let run = client.run(id).await?;
        let shards: Vec<u32> = match shard {
            Some(shard) => vec![shard],
            None => (0..run.shard_count).collect(),
        };
        let label = shards.len() > 1;
        for shard in shards {
            let query = OutputQuery {
                shard: Some(shard),
                ..OutputQuery::default()
            };
            let output = client.run_output(id, &query).await?;
            if out.format() != Format::Table {
                // For programs: each answer as it is. Following makes a sequence of documents.
                if output
                    .pieces
                    .iter()
                    .any(|piece| seen.insert((shard, piece.epoch.get(), piece.seq)))
                    || !follow
                {
                    out.show(&output, |_| Table::default())?;
                }
                continue;
            }
            let text = lines.fresh(&output, &mut seen, label);
            out.foreign(&text)?;
        }
        if !follow || run.state.is_final() {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_PAUSE).await;
    }
}

/// Shard, epoch and place of each piece that was printed.
type Seen = BTreeSet<(u32, u64, u64)>;

/// Output for people: only what is new, and with several shards each line says whose it is.
#[derive(Debug, Default)]
struct Lines {
    told_truncated: BTreeSet<u32>,
}

impl Lines {
    fn fresh(&mut self, output: &RunOutput, seen: &mut Seen, label: bool) -> String {
        let shard = output.shard;
        let mut text = String::new();
        for piece in &output.pieces {
            if seen.insert((shard, piece.epoch.get(), piece.seq)) {
                text.push_str(&piece.text);
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        if output.truncated && self.told_truncated.insert(shard) {
            text.push_str("[the limit of output was reached; the rest was dropped]\n");
        }
        if !label {
            return text;
        }
        text.split_inclusive('\n')
            .map(|line| format!("[{shard}] {line}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_api::Epoch;
    use tenure_api::runs::OutputPiece;

    fn output(pieces: &[(u64, u64, &str)], truncated: bool) -> RunOutput {
        RunOutput {
            run: RunId(7),
            shard: 1,
            pieces: pieces
                .iter()
                .map(|(epoch, seq, text)| OutputPiece {
                    epoch: Epoch(*epoch),
                    seq: *seq,
                    text: (*text).to_owned(),
                })
                .collect(),
            truncated,
        }
    }

    #[test]
    fn only_new_output_is_printed() {
        let (mut lines, mut seen) = (Lines::default(), BTreeSet::new());
        let first = output(&[(1, 0, "a\nb\n")], false);
        assert_eq!(lines.fresh(&first, &mut seen, true), "[1] a\n[1] b\n");
        assert_eq!(lines.fresh(&first, &mut seen, true), "");
        let second = output(&[(1, 0, "a\nb\n"), (2, 0, "again")], true);
        assert_eq!(
            lines.fresh(&second, &mut seen, false),
            "again\n[the limit of output was reached; the rest was dropped]\n"
        );
        assert_eq!(lines.fresh(&second, &mut seen, false), "");
    }
}
