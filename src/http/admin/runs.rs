//! Runs: list, read, cancel, explain, output. What is over long enough comes from the archive.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_api::Page;
use tenure_api::ids::{Epoch, RunId};
use tenure_api::protocol::MAX_MESSAGE_BYTES;
use tenure_api::runs::{
    CancelRequest, Explanation, OutputPiece, OutputQuery, RunOutput, RunsQuery, ShardExplanation,
};
use tenure_machine as machine;
use tenure_machine::plan::{KeptCheckpoint, MAX_EXPLAINED, explain as explain_run};
use tenure_machine::{Command, Name, State};
use tenure_raft::state_machine::Replica;

use super::{cursor, verdicts};
use crate::http::answer::Answer;
use crate::http::call::Call;
use crate::http::failure::Failure;
use crate::http::history::{FinishedRun, FinishedSummary};
use crate::http::view::{self, TaskTally};

/// How many finished runs are asked of the archive at once.
const ARCHIVE_BATCH: usize = 256;
/// How many kept checkpoints an explanation names.
const MAX_KEPT_NAMED: usize = 8;

/// `GET /v1/runs`
pub(crate) async fn list(call: Call) -> Result<Answer, Failure> {
    let query: RunsQuery = call.query()?;
    let limit = cursor::page_items(query.limit)?;
    let before: Option<u64> = cursor::read("runs", query.cursor.as_deref())?;
    let job = query.job.as_ref().map(Name::new);
    let Replica { state, applied } = call.replica().await?;
    // The archive may be further than the state. What it has from later would come without its neighbours that
    // are still live. The number of a run is the index of the entry that made it.
    let later = applied.map_or(0, |at| at.index.saturating_add(1));
    let mut listing = Listing {
        call: &call,
        live: live_runs(&state, job.as_ref(), before),
        archived: VecDeque::new(),
        archive_before: Some(before.unwrap_or(u64::MAX).min(later)),
        job,
        work_left: cursor::MAX_EXAMINED,
    };
    // Nothing in the archive waits or runs.
    if query.state.is_some_and(|wanted| !wanted.is_final()) {
        listing.archive_before = None;
    }
    let mut page = Page::default();
    let mut last = before;
    loop {
        if page.items.len() >= limit || listing.work_left == 0 {
            if listing.next(&state).await?.is_some() {
                page.next_cursor = last.map(|id| cursor::write("runs", id));
            }
            break;
        }
        let Some((run, tally)) = listing.next(&state).await? else {
            break;
        };
        last = Some(run.id);
        let shown = view::run_state(&run, &tally);
        if query.state.is_none_or(|wanted| wanted == shown) {
            page.items.push(view::run(&run, &tally)?);
        }
    }
    // A job that was deleted may have left runs. A job that has none and is not there is a wrong name.
    if before.is_none()
        && page.items.is_empty()
        && page.next_cursor.is_none()
        && let Some(name) = &query.job
        && state.job(&Name::new(name)).is_none()
    {
        return Err(Failure::not_found(format!("no job {name}")));
    }
    Ok(Answer::json(&page))
}

/// Live runs and archived ones as one list, the newest first. A run that ended lately is in both.
struct Listing<'a> {
    call: &'a Call,
    live: VecDeque<Arc<machine::Run>>,
    archived: VecDeque<FinishedSummary>,
    /// Where the next batch of the archive begins; `None` when there is no more.
    archive_before: Option<u64>,
    job: Option<Name>,
    /// A run costs one, and each of its tasks that has to be counted one more.
    work_left: usize,
}

impl Listing<'_> {
    async fn next(
        &mut self,
        state: &State,
    ) -> Result<Option<(Arc<machine::Run>, TaskTally)>, Failure> {
        if self.archived.is_empty() {
            self.fill().await?;
        }
        let live = self.live.front().map(|run| run.id);
        let archived = self.archived.front().map(|summary| summary.run.id);
        self.work_left = self.work_left.saturating_sub(1);
        if archived > live {
            let summary = self.archived.pop_front();
            return Ok(summary.map(|summary| (summary.run, summary.tally)));
        }
        if archived == live {
            self.archived.pop_front();
        }
        let Some(run) = self.live.pop_front() else {
            return Ok(None);
        };
        self.work_left = self.work_left.saturating_sub(run.spec.shards as usize);
        let tally = TaskTally::of(&run, state.tasks_of(run.id).map(Arc::as_ref));
        Ok(Some((run, tally)))
    }

    async fn fill(&mut self) -> Result<(), Failure> {
        let Some(before) = self.archive_before else {
            return Ok(());
        };
        let batch = self
            .call
            .shared
            .history
            .runs_before(self.job.clone(), before, ARCHIVE_BATCH)
            .await?;
        // A batch may be short for reasons of the archive's own. Only an empty one is the end.
        self.archive_before = batch.last().map(|last| last.run.id);
        self.archived = batch.into();
        Ok(())
    }
}

/// The live runs that a page may look at. Those of one job are found through the job; if the job is gone,
/// among the newest of all.
fn live_runs(
    state: &State,
    job: Option<&Name>,
    before: Option<u64>,
) -> VecDeque<Arc<machine::Run>> {
    let Some(name) = job else {
        let all = state.runs_before(before).cloned();
        return all.take(cursor::MAX_EXAMINED + 1).collect();
    };
    let Some(job) = state.job(name) else {
        return state
            .runs_before(before)
            .take(cursor::MAX_EXAMINED)
            .filter(|run| run.key.job() == name)
            .cloned()
            .collect();
    };
    let mut ids: Vec<u64> = job.active.iter().chain(&job.waiting).copied().collect();
    ids.sort_unstable_by(|a, b| b.cmp(a));
    ids.into_iter()
        .filter(|id| before.is_none_or(|before| *id < before))
        .filter_map(|id| state.run(id).cloned())
        .collect()
}

/// `GET /v1/runs/{id}`
pub(crate) async fn get(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let id = id_of(&call)?;
    let state = call.state().await?;
    let FinishedRun { run, tasks } = find(&call, &state, id).await?;
    let tasks = tasks.iter().map(Arc::as_ref);
    let shown = view::run_with_tasks(&run, tasks, call.shared.consensus.now())?;
    Ok(Answer::json(&shown))
}

/// `POST /v1/runs/{id}/cancel`
pub(crate) async fn cancel(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let id = id_of(&call)?;
    let request: CancelRequest = call.json_or_default()?;
    let reason = match request.reason {
        Some(reason) if reason.len() > MAX_MESSAGE_BYTES => {
            let detail = format!("reason has at most {MAX_MESSAGE_BYTES} bytes");
            return Err(Failure::invalid("reason", detail));
        }
        Some(reason) => reason,
        None => format!("cancelled by {}", call.principal()?.name),
    };
    let outcome = call.propose(Command::CancelRun { run: id, reason }).await?;
    if let Err(refusal) = outcome {
        // A run that has left the live state is over, which says more than that it is not known.
        let unknown = refusal.code == machine::RefusalCode::UnknownRun;
        if unknown && call.shared.history.run(id).await?.is_some() {
            let detail = format!("run {id} is over");
            return Err(Failure::new(tenure_api::ErrorCode::AlreadyFinal, detail));
        }
        return Err(refusal.into());
    }
    let state = call.shared.consensus.stale().state;
    let FinishedRun { run, tasks } = find(&call, &state, id).await?;
    let tasks = tasks.iter().map(Arc::as_ref);
    let shown = view::run_with_tasks(&run, tasks, call.shared.consensus.now())?;
    Ok(Answer::json(&shown))
}

/// `GET /v1/runs/{id}/explain`
pub(crate) async fn explain(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let id = id_of(&call)?;
    let state = call.state().await?;
    let FinishedRun { run, tasks } = find(&call, &state, id).await?;
    let tally = TaskTally::of(&run, tasks.iter().map(Arc::as_ref));
    let explained = explain_run(&state, &run);
    let waits = tasks.iter().any(|task| task.state.is_waiting());
    let executors = match waits {
        true => verdicts::of_executors(&state, &run, call.shared.consensus.now().lease_ms)?,
        false => Vec::new(),
    };
    let open = explained.tasks.into_iter().map(|task| ShardExplanation {
        shard: task.shard,
        state: view::task_state(task.state),
        summary: task.summary,
    });
    let failed = tasks
        .iter()
        .filter(|task| view::ended_badly(task.state))
        .take(MAX_EXPLAINED)
        .map(|task| ShardExplanation {
            shard: task.shard,
            state: view::task_state(task.state),
            summary: failure(task),
        });
    let mut shards: Vec<ShardExplanation> = open.chain(failed).collect();
    shards.sort_by_key(|explained| explained.shard);
    Ok(Answer::json(&Explanation {
        run: RunId(id),
        state: view::run_state(&run, &tally),
        summary: with_kept(explained.summary, &explained.kept_checkpoints),
        shards,
        executors,
    }))
}

/// What a task that ended badly said at last.
fn failure(task: &machine::Task) -> String {
    match &task.message {
        Some(message) => format!("Attempt {} was the last one: {message}", task.attempt),
        None => format!(
            "Attempt {} was the last one; it said nothing.",
            task.attempt
        ),
    }
}

/// The summary, and what the job keeps from a time when it had another number of shards (seed scenario SH-8).
fn with_kept(summary: String, kept: &[KeptCheckpoint]) -> String {
    if kept.is_empty() {
        return summary;
    }
    let named = kept.iter().take(MAX_KEPT_NAMED).map(|kept| {
        let KeptCheckpoint {
            shard,
            shards,
            offset,
            epoch,
        } = kept;
        format!("shard {shard} of {shards} at offset {offset}, epoch {epoch}")
    });
    let named: Vec<String> = named.collect();
    let more = match kept.len().saturating_sub(MAX_KEPT_NAMED) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    format!(
        "{summary} The job keeps checkpoints of another number of shards: {}{more}.",
        named.join("; ")
    )
}

/// `GET /v1/runs/{id}/output`
pub(crate) async fn output(call: Call) -> Result<Answer, Failure> {
    let query: OutputQuery = call.query()?;
    let id = id_of(&call)?;
    let shard = query.shard.unwrap_or(0);
    let state = call.state().await?;
    let FinishedRun { run, tasks } = find(&call, &state, id).await?;
    if shard >= run.spec.shards {
        let detail = format!("run {id} has shards 0 to {}", run.spec.shards - 1);
        return Err(Failure::invalid("shard", detail));
    }
    let chunks = call.shared.history.output(id, shard).await?;
    let mut pieces: Vec<OutputPiece> = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let seq = match pieces.last() {
            Some(last) if last.epoch.get() == chunk.epoch => last.seq + 1,
            _ => 0,
        };
        pieces.push(OutputPiece {
            epoch: Epoch(chunk.epoch),
            seq,
            text: chunk.text,
        });
    }
    let truncated = tasks
        .iter()
        .any(|task| task.shard == shard && task.output_truncated);
    Ok(Answer::json(&RunOutput {
        run: RunId(id),
        shard,
        pieces,
        truncated,
    }))
}

fn id_of(call: &Call) -> Result<u64, Failure> {
    call.parameter::<u64>(0, "id")
}

/// A run with its tasks: from the live state, or from the archive.
async fn find(call: &Call, state: &State, id: u64) -> Result<FinishedRun, Failure> {
    if let Some(run) = state.run(id) {
        return Ok(FinishedRun {
            run: run.clone(),
            tasks: state.tasks_of(id).cloned().collect(),
        });
    }
    let kept = call.shared.history.run(id).await?;
    kept.ok_or_else(|| Failure::not_found(format!("no run {id} is kept")))
}
