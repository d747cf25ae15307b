//! `tenure executors …`

use tenure_api::Page;
use tenure_api::executors::{Executor, ExecutorsQuery};

use super::args::{ExecutorsCommand, Global};
use super::connect::client;
use super::out::{Format, Out, Stop};
use super::table::{Table, instant, maybe_instant};

/// Runs the command.
///
/// # Errors
/// Why it ended early.
pub(super) async fn run(
    command: ExecutorsCommand,
    global: &Global,
    out: &mut Out<'_>,
) -> Result<(), Stop> {
    match command {
        ExecutorsCommand::List { limit } => {
            let query = ExecutorsQuery {
                limit: Some(limit.page()),
                ..ExecutorsQuery::default()
            };
            let executors = client(global)?.executors(query);
            let items = executors.collect(limit.most()).await?;
            out.show(&Page::last(items), list)
        }
        ExecutorsCommand::Get { instance } => {
            let executor = client(global)?.executor(&instance).await?;
            show(&executor, out)
        }
        ExecutorsCommand::Drain { instance, deadline } => {
            let executor = client(global)?.drain_executor(&instance, deadline).await?;
            show(&executor, out)
        }
    }
}

fn list(page: &Page<Executor>) -> Table {
    let mut table = Table::new([
        "INSTANCE",
        "STATE",
        "HEALTHY",
        "SLOTS",
        "TASKS",
        "VERSION",
        "CAPABILITIES",
        "LAST HEARTBEAT",
    ]);
    for executor in &page.items {
        table.row([
            executor.instance_id.to_string(),
            executor.state.to_string(),
            yes_no(executor.healthy),
            format!("{}/{}", executor.slots_used, executor.capacity),
            executor.tasks_held.to_string(),
            executor.version.clone(),
            capabilities(executor),
            maybe_instant(executor.last_heartbeat_at),
        ]);
    }
    table
}

fn show(executor: &Executor, out: &mut Out<'_>) -> Result<(), Stop> {
    out.show(executor, details)?;
    if out.format() != Format::Table || executor.tasks.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["RUN", "SHARD", "EPOCH", "JOB", "STATE"]);
    for task in &executor.tasks {
        table.row([
            task.key.run.to_string(),
            task.key.shard.to_string(),
            task.key.epoch.to_string(),
            task.job.to_string(),
            task.state.to_string(),
        ]);
    }
    out.text("\n")?;
    out.text(&table.render())
}

fn details(executor: &Executor) -> Table {
    let mut table = Table::of_fields();
    table.field("instance", &executor.instance_id);
    table.field("session", executor.session);
    table.field("state", executor.state);
    table.field("healthy", yes_no(executor.healthy));
    table.field("version", &executor.version);
    table.field("capabilities", capabilities(executor));
    for (label, value) in &executor.labels {
        table.field("label", format!("{label}={value}"));
    }
    table.field(
        "slots",
        format!("{} of {}", executor.slots_used, executor.capacity),
    );
    table.field("tasks held", executor.tasks_held);
    table.field("registered", instant(executor.registered_at));
    table.field("last heartbeat", maybe_instant(executor.last_heartbeat_at));
    table.field(
        "lease remaining",
        format!("{} ms", executor.lease_remaining_ms),
    );
    table.optional("drain deadline", executor.drain_deadline_at.map(instant));
    table
}

fn capabilities(executor: &Executor) -> String {
    let names: Vec<&str> = executor
        .capabilities
        .iter()
        .map(|name| name.as_str())
        .collect();
    names.join(",")
}

fn yes_no(fact: bool) -> String {
    if fact { "yes" } else { "no" }.to_owned()
}
