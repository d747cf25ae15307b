//! `tenure job …`

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use tenure_api::job::Trigger;
use tenure_api::jobs::{Job, JobChange, JobsQuery, NextFires, PutJobAnswer};
use tenure_api::ledger::{Fire, FiresQuery};
use tenure_api::runs::TriggerRequest;
use tenure_api::{ErrorCode, JobName, Page, Timestamp};
use tenure_sdk::{Client, Error, JobBody, Precondition};

use super::NextOfFile;
use super::args::{Global, JobCommand};
use super::connect::client;
use super::failure::{Exit, Failure};
use super::files::{self, FoundJob};
use super::out::{Out, Stop};
use super::table::{Table, instant, maybe_instant, or_nothing};

/// How often a job that changes under our hands is read again.
const MAX_RACES: usize = 5;

/// Runs the command.
///
/// # Errors
/// Why it ended early.
pub(super) async fn run(
    command: JobCommand,
    global: &Global,
    next_of_file: NextOfFile,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    match command {
        JobCommand::Apply {
            files,
            dry_run,
            prune: _,
        } => apply(&files, dry_run, global, out).await,
        JobCommand::Get { name } => {
            let job = client(global)?.job(&name).await?;
            out.show(&job, details)
        }
        JobCommand::List {
            prefix,
            paused,
            capability,
            limit,
        } => {
            let query = JobsQuery {
                prefix,
                paused,
                capability,
                limit: Some(limit.page()),
                ..JobsQuery::default()
            };
            let items = client(global)?.jobs(query).collect(limit.most()).await?;
            out.show(&Page::last(items), list)
        }
        JobCommand::Delete { name, if_revision } => {
            client(global)?.delete_job(&name, if_revision).await?;
            out.say(&format!("{name} deleted"))
        }
        JobCommand::Pause { name } => {
            let job = client(global)?.pause_job(&name).await?;
            changed(&job, "paused", out)
        }
        JobCommand::Resume { name } => {
            let job = client(global)?.resume_job(&name).await?;
            changed(&job, "resumed", out)
        }
        JobCommand::Trigger { name, params, key } => trigger(&name, params, key, global, out).await,
        JobCommand::Fires {
            name,
            from,
            to,
            limit,
        } => {
            let query = FiresQuery {
                from,
                to,
                limit: Some(limit.page()),
                ..FiresQuery::default()
            };
            let pages = client(global)?.fires(&name, query);
            let items = pages.collect(limit.most()).await?;
            out.show(&Page::last(items), ledger)
        }
        JobCommand::Next { name, file, count } => {
            let next = match (name, file) {
                (_, Some(file)) => from_file(&file, next_of_file, count)?,
                (Some(name), None) => client(global)?.next_fires(&name, count).await?,
                (None, None) => return Err(Failure::usage("give a job's name or --file").into()),
            };
            out.show(&next, next_table)
        }
    }
}

fn changed(job: &Job, what: &str, out: &mut Out<'_>) -> Result<(), Stop> {
    let line = format!("{} {what}, revision {}", job.spec.name, job.revision);
    if out.format() == super::out::Format::Table {
        return out.say(&line);
    }
    out.show(job, details)
}

/// What became of one job of the files.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Applied {
    job: JobName,
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<JobChange>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

async fn apply(
    files: &[PathBuf],
    dry_run: bool,
    global: &Global,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    let found = files::read_all(files, &mut std::io::stdin())?;
    let client = client(global)?;
    let mut applied = Vec::new();
    let mut first_failure = None;
    // One after another: the order of the files is the order of the changes. A job that is refused
    // does not stop the others.
    for job in found {
        let outcome = if dry_run {
            preview(&client, &job).await
        } else {
            put(&client, &job).await
        };
        let mut entry = Applied {
            job: job.spec.name.clone(),
            file: job.file.clone(),
            change: None,
            revision: None,
            error: None,
        };
        match outcome {
            Ok((change, revision)) => {
                entry.change = Some(change);
                entry.revision = revision;
            }
            Err(fault) => {
                let failure = Failure::from(fault);
                entry.error = Some(failure.what.clone());
                first_failure.get_or_insert(failure.exit);
            }
        }
        applied.push(entry);
    }
    out.show(&applied, |applied| applied_table(applied, dry_run))?;
    match first_failure {
        None => Ok(()),
        Some(exit) => Err(Stop::With(exit)),
    }
}

fn applied_table(applied: &Vec<Applied>, dry_run: bool) -> Table {
    let mut table = Table::new(["JOB", "RESULT", "REVISION", "FILE"]);
    for entry in applied {
        let result = match (&entry.error, entry.change) {
            (Some(error), _) => format!("failed: {error}"),
            (None, Some(change)) if dry_run => format!("{change} (dry run)"),
            (None, change) => or_nothing(change),
        };
        table.row([
            entry.job.to_string(),
            result,
            or_nothing(entry.revision),
            entry.file.clone(),
        ]);
    }
    table
}

async fn preview(client: &Client, job: &FoundJob) -> Result<(JobChange, Option<u64>), Error> {
    let body = JobBody::from(job.spec.clone());
    let preview = client.preview_job(&body, 1).await?;
    Ok((preview.change, None))
}

/// Stores a job over whatever is there, and notices when someone else does the same at that moment.
async fn put(client: &Client, job: &FoundJob) -> Result<(JobChange, Option<u64>), Error> {
    let body = JobBody::from(job.spec.clone());
    let name = &job.spec.name;
    let mut races = 0;
    loop {
        let precondition = match client.job(name).await {
            Ok(present) => Precondition::Revision(present.revision),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Precondition::Absent,
            Err(error) => return Err(error),
        };
        match client.put_job(name, &body, precondition).await {
            Ok(PutJobAnswer { change, job }) => return Ok((change, Some(job.revision.get()))),
            Err(error)
                if error.code() == Some(ErrorCode::PreconditionFailed) && races < MAX_RACES =>
            {
                races += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn trigger(
    name: &JobName,
    params: Option<String>,
    key: Option<String>,
    global: &Global,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    let params = params.map(|text| parse_params(&text)).transpose()?;
    let client = client(global)?;
    let answer = client
        .trigger_job(name, &TriggerRequest { params }, key)
        .await?;
    out.show(&answer, |answer| {
        let mut table = Table::of_fields();
        table.field("decision", answer.decision);
        table.optional("run", answer.run);
        table.optional("reason", answer.reason.as_ref());
        table
    })?;
    // A script that triggers wants a run; a skip is an answer, not a run.
    if answer.decision.made_run() || answer.run.is_some() {
        return Ok(());
    }
    Err(Stop::With(Exit::Refused))
}

fn parse_params(text: &str) -> Result<Value, Failure> {
    let value: Value = serde_json::from_str(text)
        .map_err(|fault| Failure::usage(format!("is not JSON: {fault}")).at("--params"))?;
    if value.is_object() {
        return Ok(value);
    }
    Err(Failure::usage("must be a JSON object, such as '{\"day\": \"2026-12-01\"}'").at("--params"))
}

fn from_file(file: &Path, next: NextOfFile, count: u32) -> Result<NextFires, Failure> {
    let stdin: &mut dyn Read = &mut std::io::stdin();
    let mut found = files::read_one(file, stdin)?;
    let job = found.pop();
    match (job, found.is_empty()) {
        (Some(job), true) => next(&job.spec, now(), count),
        _ => Err(
            Failure::usage("the file holds several jobs: give one with one job").at(file.display()),
        ),
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn next_table(next: &NextFires) -> Table {
    let zone = format!("LOCAL ({})", next.timezone);
    let mut table = Table::new(["UTC", &zone]);
    for fire in &next.fires {
        table.row([instant(fire.at), fire.local.clone()]);
    }
    table
}

fn ledger(page: &Page<Fire>) -> Table {
    let mut table = Table::new([
        "DUE", "INSTANTS", "DECISION", "RUN", "STATE", "DECIDED", "WHY",
    ]);
    for fire in &page.items {
        let due = match fire.through {
            Some(last) => format!("{} to {}", instant(fire.scheduled_at), instant(last)),
            None => instant(fire.scheduled_at),
        };
        table.row([
            due,
            fire.instants.to_string(),
            fire.decision.to_string(),
            or_nothing(fire.run),
            or_nothing(fire.run_state),
            instant(fire.decided_at),
            fire.reason.clone(),
        ]);
    }
    table
}

fn list(page: &Page<Job>) -> Table {
    let mut table = Table::new([
        "NAME",
        "TRIGGER",
        "CAPABILITY",
        "SHARDS",
        "STATE",
        "LIVE",
        "WAITING",
        "NEXT",
    ]);
    for job in &page.items {
        table.row([
            job.spec.name.to_string(),
            trigger_text(&job.spec.trigger),
            job.spec.task.capability.to_string(),
            job.spec.shards.to_string(),
            state(job).to_owned(),
            job.live_runs.to_string(),
            job.waiting_runs.to_string(),
            maybe_instant(job.next_fire_at),
        ]);
    }
    table
}

fn details(job: &Job) -> Table {
    let spec = &job.spec;
    let mut table = Table::of_fields();
    table.field("name", &spec.name);
    if !spec.description.is_empty() {
        table.field("description", &spec.description);
    }
    table.field("state", state(job));
    table.field("revision", job.revision);
    table.field("trigger", trigger_text(&spec.trigger));
    table.field("overlap", spec.overlap);
    table.field(
        "misfire",
        format!("{}, grace {}", spec.misfire.policy, spec.misfire.grace),
    );
    table.field("attempts", spec.retry.max_attempts);
    table.field("timeout", or_nothing(spec.timeout));
    table.field("shards", spec.shards);
    table.field(
        "execution",
        format!("{}, recovery {}", spec.execution, spec.recovery),
    );
    table.field("checkpoints", spec.checkpoints);
    table.field("capability", &spec.task.capability);
    table.optional("version", spec.task.version.as_ref());
    for (label, value) in &spec.task.selector {
        table.field("selector", format!("{label}={value}"));
    }
    if !spec.task.params.is_empty() {
        table.field("params", Value::Object(spec.task.params.clone()));
    }
    table.field("live runs", job.live_runs);
    table.field("waiting runs", job.waiting_runs);
    table.field("last fire", maybe_instant(job.last_fire_at));
    table.field("next fire", maybe_instant(job.next_fire_at));
    table.field("created", instant(job.created_at));
    table.field("updated", instant(job.updated_at));
    table
}

fn state(job: &Job) -> &'static str {
    if job.spec.paused { "paused" } else { "active" }
}

fn trigger_text(trigger: &Trigger) -> String {
    match trigger {
        Trigger::Cron { cron, timezone } => format!("cron {cron} ({timezone})"),
        Trigger::Every { every } => format!("every {every}"),
        Trigger::At { at } => format!("at {}", instant(*at)),
        Trigger::Manual => "manual".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_about_many_instants_is_one_row_with_both_ends() {
        let fire = |json: Value| -> Fire { serde_json::from_value(json).unwrap() };
        let of = |through: Option<&str>, decision: &str, run: Option<u64>| {
            let mut json = serde_json::json!({
                "job": "a", "scheduled_at": "2026-12-01T02:00:00Z", "instants": 1, "trigger": "scheduled",
                "decision": decision, "reason": "Because.", "revision": 3,
                "decided_at": "2026-12-01T02:00:00.007Z", "term": 1,
            });
            if let Some(through) = through {
                json["through"] = through.into();
                json["instants"] = 61.into();
            }
            if let Some(run) = run {
                json["run"] = run.into();
                json["run_state"] = "failed".into();
            }
            fire(json)
        };
        let text = ledger(&Page::last(vec![
            of(None, "run", Some(7)),
            of(Some("2026-12-01T02:01:00Z"), "skipped_misfire", None),
        ]))
        .render();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            [
                "2026-12-01T02:00:00Z",
                "1",
                "run",
                "7",
                "failed",
                "2026-12-01T02:00:00.007Z",
                "Because."
            ]
        );
        assert_eq!(
            lines[2][..7],
            [
                "2026-12-01T02:00:00Z",
                "to",
                "2026-12-01T02:01:00Z",
                "61",
                "skipped_misfire",
                "-",
                "-"
            ]
        );
    }
}
