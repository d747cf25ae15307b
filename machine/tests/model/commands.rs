//! Random commands, near enough to what is there to hit it and often enough beside it.

use std::sync::Arc;

use tenure_machine::{
    CheckpointScope, Command, Execution, Expect, Heartbeat, HeldTask, History, JobSpec, Misfire,
    MisfirePolicy, Name, Overlap, Recovery, Registration, RequestKey, Retry, SkipReason,
    Superseded, TaskOutcome, TaskRef, TaskTemplate, Trigger, Undecided,
};

use super::{Op, World};

/// A command, the term that it names, and its idempotency key.
pub(crate) fn command(world: &mut World, op: Op) -> (Command, Option<u64>, Option<RequestKey>) {
    let command = choose(world, op);
    let term = match (command.is_leaders(), op.z % 16) {
        (_, 15) => Some(world.term.saturating_sub(1)),
        (true, 14) => None,
        (true, _) => Some(world.term),
        (false, _) => None,
    };
    let request = (op.z % 8 == 3).then(|| RequestKey {
        key: Name::new(format!("key{}", op.x % 4)),
        fingerprint: [op.y % 2; 16],
    });
    (command, term, request)
}

fn choose(world: &mut World, op: Op) -> Command {
    let name = Name::new(format!("job{}", op.x % 4));
    let session = session(world, op.y);
    match (op.kind / 16) % 14 {
        0 | 1 => put(world, op, name),
        2 => life(op, name),
        3 => match op.y % 3 {
            0 => Command::PauseJob { name },
            1 => resume(world, op, name),
            _ => delete(world, op, name),
        },
        4 => decision(world, op, name),
        5 => Command::Assign {
            task: grant(world, op, 1),
            session,
        },
        6 => register(op),
        7 => beat(world, op, session),
        8 | 9 => Command::StartTask {
            session,
            task: grant(world, op, 0),
        },
        10 => Command::Checkpoint {
            session,
            task: grant(world, op, 0),
            offset: [0, 10, u64::from(op.z), u64::MAX][usize::from(op.z % 4)],
            state: vec![op.x; if op.z == 9 { 70_000 } else { 2 }].into(),
        },
        11 => result(world, op, session),
        12 => ending(world, op, session),
        _ => match op.x % 4 {
            0 => Command::ReleaseTask {
                session,
                task: grant(world, op, 0),
            },
            1 => Command::AppendOutput {
                session,
                task: grant(world, op, 0),
                seq: [0, 1, u32::MAX][usize::from(op.z % 3)],
                text: "x".repeat(usize::from(op.z) * 80),
            },
            2 if op.z.is_multiple_of(3) => Command::DrainSession {
                session,
                within_ms: 60_000,
            },
            2 => Command::CloseSession { session },
            _ => Command::DrainExecutor {
                instance: Name::new(format!("node{}", op.y % 3)),
                within_ms: [0, 60_000, u64::MAX][usize::from(op.z % 3)],
            },
        },
    }
}

/// A session that lives, mostly.
fn session(world: &World, choice: u8) -> u64 {
    let live: Vec<u64> = world
        .state
        .sessions_after(None)
        .map(|session| session.id)
        .collect();
    match choice % 16 {
        14 => 0,
        15 => u64::MAX,
        _ if live.is_empty() => 1,
        _ => live[usize::from(choice) % live.len()],
    }
}

/// A task of a run that is live, mostly under its present epoch or near it.
fn grant(world: &World, op: Op, ahead: u64) -> TaskRef {
    let open: Vec<u64> = world
        .state
        .runs_before(None)
        .filter(|run| !run.state.is_final() || op.z.is_multiple_of(8))
        .map(|run| run.id)
        .collect();
    let run = match open.len() {
        0 => u64::from(op.x),
        count => open[usize::from(op.x) % count],
    };
    let shards = world.state.run(run).map_or(1, |run| run.spec.shards);
    let shard = u32::from(op.y / 16) % (shards + u32::from(op.z == 255));
    let present = world.state.task(run, shard).map_or(0, |task| task.epoch);
    let job = world.state.run(run).map(|run| run.key.job().clone());
    let next = job.map_or(1, |job| world.state.shard_epoch(&job, shard) + 1);
    let epoch = match (ahead, op.z % 16) {
        (_, 0) => present.wrapping_sub(1),
        (_, 1) => present + 1,
        (_, 2) => u64::MAX,
        (0, _) => present,
        _ => next.max(present + 1),
    };
    TaskRef { run, shard, epoch }
}

fn put(world: &mut World, op: Op, name: Name) -> Command {
    let spec = spec(op);
    let now_ms = world.stamp.calendar_ms.max(world.state.clock().calendar_ms);
    let anchor_ms = world
        .state
        .job(&name)
        .map_or(now_ms, |job| job.created_at_ms);
    let next = world
        .planner
        .schedules()
        .next_after(&spec.trigger, anchor_ms, now_ms);
    let superseded = match (world.state.job(&name).cloned(), op.z % 32) {
        (_, 4) => None,
        (_, 5) => Some(Superseded {
            skipped: Some(Undecided {
                first_ms: 0,
                last_ms: u64::MAX,
                count: u64::MAX,
                next_at_ms: None,
            }),
            not_due_ms: Some(u64::MAX),
        }),
        (Some(job), _) if now_ms < 4_000_000_000_000 => Some(world.planner.supersede(&job, now_ms)),
        _ => None,
    };
    Command::PutJob {
        name,
        superseded,
        expect: match op.z % 16 {
            0 => Expect::Absent,
            1 => Expect::Revision(u64::from(op.y)),
            _ => Expect::Any,
        },
        next_at_ms: match op.z % 32 {
            2 => Some(0),
            3 => Some(u64::MAX),
            _ => next.unwrap_or(None),
        },
        spec: Arc::new(spec),
        paused: match op.y % 16 {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        },
    }
}

fn spec(op: Op) -> JobSpec {
    let cron = |expression: &str, timezone: &str| Trigger::Cron {
        expression: expression.into(),
        timezone: timezone.into(),
    };
    let execution = match op.z % 5 {
        0 => Execution::AtMostOnce,
        _ => Execution::AtLeastOnce,
    };
    let overlap = [
        Overlap::Forbid,
        Overlap::Allow,
        Overlap::Queue,
        Overlap::Replace,
    ][usize::from(op.y / 4 % 4)];
    let once = execution == Execution::AtMostOnce;
    JobSpec {
        description: String::new(),
        trigger: match op.z / 8 % 5 {
            0 => Trigger::Manual,
            1 => Trigger::Every { interval_ms: 7_000 },
            2 => cron("*/10 * * * * *", "UTC"),
            3 => cron("30 1,2 * * *", "America/New_York"),
            _ => Trigger::At {
                instant_ms: 1_767_225_600_000 + u64::from(op.x) * 1000,
            },
        },
        overlap,
        queue_limit: 1 + u32::from(op.x / 64),
        misfire: Misfire {
            policy: [
                MisfirePolicy::FireOnce,
                MisfirePolicy::Skip,
                MisfirePolicy::CatchUp,
            ][usize::from(op.x / 8 % 3)],
            grace_ms: [0, 30_000, u64::MAX][usize::from(op.y / 32 % 3)],
            limit: 2,
        },
        retry: Retry {
            max_attempts: if once { 1 } else { 1 + u32::from(op.y % 3) },
            initial_backoff_ms: 500,
            max_backoff_ms: 10_000,
            multiplier_milli: 2000,
            jitter_permille: 200,
        },
        timeout_ms: op.x.is_multiple_of(3).then_some(5_000),
        shards: 1 + u32::from(op.y % 3),
        execution,
        recovery: match op.z / 32 % 3 {
            _ if once => Recovery::Never,
            0 => Recovery::Immediate,
            1 => Recovery::AfterLease,
            _ => Recovery::Never,
        },
        checkpoints: match (overlap, op.y % 2) {
            (Overlap::Allow, _) | (_, 0) => CheckpointScope::PerRun,
            _ => CheckpointScope::CarryOver,
        },
        task: TaskTemplate {
            capability: Name::new(if op.x.is_multiple_of(5) {
                "http"
            } else {
                "shell"
            }),
            version: op.x.is_multiple_of(7).then(|| ">=2.1, <3".into()),
            selector: match op.x % 11 {
                0 => [(Name::new("gpu"), Name::new("true"))].into(),
                _ => Default::default(),
            },
            params: "{}".into(),
        },
        history: History {
            keep: 1,
            max_age_ms: 1,
        },
    }
}

fn life(op: Op, name: Name) -> Command {
    Command::TriggerJob {
        name,
        key: op
            .y
            .is_multiple_of(3)
            .then(|| Name::new(format!("order{}", op.y % 5))),
        params: None,
    }
}

fn delete(world: &mut World, op: Op, name: Name) -> Command {
    let now_ms = world.stamp.calendar_ms.max(world.state.clock().calendar_ms);
    match world.state.job(&name).cloned() {
        Some(job) if op.z > 16 && now_ms < 4_000_000_000_000 => {
            world.planner.delete(&job, Expect::Any, now_ms)
        }
        job => Command::DeleteJob {
            name,
            expect: Expect::Any,
            undecided: op.z.is_multiple_of(4).then(|| Undecided {
                first_ms: job.and_then(|job| job.next_fire_ms).unwrap_or(0),
                last_ms: u64::MAX,
                count: u64::MAX,
                next_at_ms: None,
            }),
        },
    }
}

fn resume(world: &mut World, op: Op, name: Name) -> Command {
    let now_ms = world.stamp.calendar_ms.max(world.state.clock().calendar_ms);
    match world.state.job(&name).cloned() {
        // At the end of time a pause has too many instants to walk through.
        Some(job) if op.z > 16 && now_ms < 4_000_000_000_000 => world.planner.resume(&job, now_ms),
        job => Command::ResumeJob {
            name,
            skipped: op.z.is_multiple_of(2).then_some((0, u64::MAX, u64::MAX)),
            next_at_ms: job.and_then(|job| job.next_fire_ms),
        },
    }
}

fn decision(world: &World, op: Op, job: Name) -> Command {
    let present = world.state.job(&job);
    let revision = present.map_or(0, |job| job.revision);
    let cursor = present.and_then(|job| job.next_fire_ms).unwrap_or(0);
    let first_ms = match op.y % 8 {
        0 => cursor.wrapping_add(1000),
        1 => u64::MAX,
        _ => cursor,
    };
    let next_at_ms = match op.z % 8 {
        0 => Some(first_ms),
        1 => None,
        2 => Some(u64::MAX),
        _ => first_ms.checked_add(1000),
    };
    if op.z.is_multiple_of(2) {
        return Command::Fire {
            job,
            revision,
            scheduled_at_ms: first_ms,
            next_at_ms,
        };
    }
    Command::SkipFires {
        job,
        revision,
        first_ms,
        last_ms: [first_ms, first_ms.saturating_add(3000), 0, u64::MAX][usize::from(op.y / 8 % 4)],
        count: [1, 2, 4, u64::MAX][usize::from(op.y / 32 % 4)],
        next_at_ms,
        reason: SkipReason::Misfire,
    }
}

fn register(op: Op) -> Command {
    Command::RegisterSession(Registration {
        instance: Name::new(format!("node{}", op.y % 3)),
        version: ["2.4.0", "1.0.0", "2.1.0-rc1", "what"][usize::from(op.z % 4)].into(),
        capabilities: vec![Name::new("shell"), Name::new("http")],
        labels: match op.x % 2 {
            0 => [(Name::new("gpu"), Name::new("true"))].into(),
            _ => Default::default(),
        },
        capacity: [1, 3, 10, 0, u32::MAX][usize::from(op.x % 5)],
        lease_ttl_ms: [35_000, 1_000, 0, u64::MAX][usize::from(op.z / 4 % 4)],
    })
}

fn beat(world: &World, op: Op, session: u64) -> Command {
    let mut tasks: Vec<HeldTask> = world
        .state
        .held_by(session)
        .map(|task| HeldTask {
            task: TaskRef {
                run: task.run,
                shard: task.shard,
                epoch: task.epoch,
            },
            progress: [None, Some(u64::from(op.z)), Some(u64::MAX)][usize::from(op.z % 3)],
        })
        .collect();
    if op.x.is_multiple_of(4) {
        tasks.pop();
    }
    if op.x % 8 == 1 {
        tasks.push(HeldTask {
            task: grant(world, op, 0),
            progress: None,
        });
    }
    Command::Heartbeat(Heartbeat {
        session,
        slots_used: [0, 1, 1, 1, u32::MAX][usize::from(op.x % 5)],
        healthy: op.y % 8 != 7,
        tasks,
    })
}

fn result(world: &World, op: Op, session: u64) -> Command {
    let message = String::from("no");
    Command::ReportResult {
        session,
        task: grant(world, op, 0),
        outcome: match op.z / 16 % 6 {
            0 | 1 => TaskOutcome::Succeeded { value: None },
            2 => TaskOutcome::Failed {
                message,
                retryable: true,
            },
            3 => TaskOutcome::Failed {
                message,
                retryable: false,
            },
            4 => TaskOutcome::Cancelled,
            _ => TaskOutcome::TimedOut,
        },
        progress: op.x.is_multiple_of(2).then_some(u64::from(op.y)),
        output_tail: op
            .x
            .is_multiple_of(3)
            .then(|| "é".repeat(usize::from(op.y) * 40)),
    }
}

fn ending(world: &World, op: Op, session: u64) -> Command {
    let deadline_ms = world
        .state
        .session(session)
        .map_or(0, |session| session.deadline_lease_ms);
    let task = grant(world, op, 0);
    let owner_ms = world
        .state
        .task(task.run, task.shard)
        .and_then(|task| task.owner.as_ref().map(|owner| owner.deadline_lease_ms))
        .unwrap_or(0);
    match op.z % 6 {
        0 => Command::ExpireSession {
            session,
            deadline_ms,
        },
        1 => Command::ExpireTask {
            task,
            deadline_ms: owner_ms,
        },
        2 => Command::EndOverdueTask {
            task,
            limit_ms: owner_ms,
        },
        3 => Command::Sweep,
        4 => Command::Bootstrap {
            cluster_id: Name::new("other"),
            generation: 9,
        },
        _ => Command::CancelRun {
            run: task.run,
            reason: "enough".into(),
        },
    }
}
