//! What each line of a script does.

use std::sync::Arc;

use tenure_machine::{
    Command, Expect, Heartbeat, HeldTask, Name, Outcome, Registration, Reply, RequestKey,
    SkipReason, Stamp, TaskOutcome, TaskRef, Verdict,
};

use super::show;
use super::words::{self, Words, duration_ms, instant_ms, number};
use super::world::World;

/// Carries out one line and says what came of it.
pub(crate) fn carry_out(world: &mut World, at: &str, line: &str) -> Vec<String> {
    let words = Words::new(line);
    world.request = words.get("request").map(|key| RequestKey {
        key: Name::new(key),
        fingerprint: fingerprint(line),
    });
    world.by = words.get("by").map(Name::new);
    match words.word(0) {
        "clock" | "lease" | "wall" | "at" => move_clocks(world, &words),
        "plan" => plan(world),
        "hold" => hold(world),
        "late" => late(world),
        "new-leader" => new_leader(world, &words),
        "snapshot" => vec![format!("{} records", world.restore())],
        "show" => show::show(world, &words),
        "executor" => register(world, &words),
        "fire" | "skip" | "assign" | "expire" | "sweep" => by_hand(world, &words),
        "beat" | "start" | "give-back" | "checkpoint" | "output" | "result" | "drain"
        | "drain-itself" | "leave" => executor_call(world, &words),
        "job" | "delete" | "pause" | "resume" | "trigger" | "cancel" => request(world, &words),
        other => panic!("{at}: unknown verb {other}"),
    }
}

/// The fingerprint of a request: the words of its line apart from the key.
fn fingerprint(line: &str) -> [u8; 16] {
    let mut print = [0; 16];
    let request = line.split(" request=").next().unwrap_or(line);
    for (position, byte) in request.bytes().enumerate() {
        print[position % 16] = u8::wrapping_add(print[position % 16], byte.wrapping_mul(31));
    }
    print
}

fn move_clocks(world: &mut World, words: &Words) -> Vec<String> {
    let stamp = &mut world.stamp;
    let step = words.word(1);
    if words.word(0) == "at" {
        stamp.calendar_ms = instant_ms(step);
        return Vec::new();
    }
    let back = step.starts_with('-');
    let by_ms = duration_ms(step.trim_start_matches(['+', '-']));
    let moved = |ms: u64| if back { ms - by_ms } else { ms + by_ms };
    *stamp = match words.word(0) {
        "lease" => Stamp {
            lease_ms: moved(stamp.lease_ms),
            ..*stamp
        },
        "wall" => Stamp {
            calendar_ms: moved(stamp.calendar_ms),
            ..*stamp
        },
        _ => Stamp {
            lease_ms: moved(stamp.lease_ms),
            calendar_ms: moved(stamp.calendar_ms),
        },
    };
    Vec::new()
}

fn plan(world: &mut World) -> Vec<String> {
    let commands = world.planner.plan(&world.state, world.stamp);
    if commands.is_empty() {
        return vec!["nothing to propose".into()];
    }
    let mut lines = Vec::new();
    for command in commands {
        lines.push(show::command(world, &command));
        let outcome = world.lead(command);
        lines.extend(show::outcome(world, &outcome).into_iter().map(indent));
    }
    lines
}

fn indent(line: String) -> String {
    format!("  {line}")
}

fn hold(world: &mut World) -> Vec<String> {
    let commands = world.planner.plan(&world.state, world.stamp);
    let lines = commands
        .iter()
        .map(|command| format!("not in the log: {}", show::command(world, command)))
        .collect();
    let term = world.term;
    world
        .held
        .extend(commands.into_iter().map(|command| (term, command)));
    lines
}

fn late(world: &mut World) -> Vec<String> {
    let mut lines = Vec::new();
    for (term, command) in std::mem::take(&mut world.held) {
        lines.push(format!(
            "of term {term}: {}",
            show::command(world, &command)
        ));
        let outcome = world.propose(command, Some(term));
        lines.extend(show::outcome(world, &outcome).into_iter().map(indent));
    }
    lines
}

fn new_leader(world: &mut World, words: &Words) -> Vec<String> {
    world.term = words.number("term").unwrap_or(world.term + 1);
    let grace_ms = words.get("grace").map_or(0, duration_ms);
    // What a leader learns from its plans does not outlive it.
    world.planner = tenure_machine::plan::Planner::default();
    let outcome = world.lead(Command::TermStarted { grace_ms });
    show::outcome(world, &outcome)
}

fn register(world: &mut World, words: &Words) -> Vec<String> {
    let process = words.word(1).to_owned();
    let registration = Registration {
        instance: Name::new(words.get("as").unwrap_or(&process)),
        version: words.get("version").unwrap_or("1.0.0").into(),
        capabilities: words
            .get("can")
            .unwrap_or("shell")
            .split(',')
            .map(Name::new)
            .collect(),
        labels: words::labels(words.get("label")),
        capacity: u32::try_from(words.number("capacity").unwrap_or(10)).unwrap_or(u32::MAX),
        lease_ttl_ms: words.get("ttl").map_or(35_000, duration_ms),
    };
    let outcome = world.apply(Command::RegisterSession(registration));
    if let Ok(Reply::Session { session, .. }) = outcome.reply {
        world.sessions.insert(process, session);
    }
    show::outcome(world, &outcome)
}

fn request(world: &mut World, words: &Words) -> Vec<String> {
    let text = words.word(1);
    let name = Name::new(text);
    let expect = match words.get("expect") {
        None => Expect::Any,
        Some("absent") => Expect::Absent,
        Some(revision) => Expect::Revision(number(revision)),
    };
    let command = match words.word(0) {
        "job" => {
            let spec = words::spec(words);
            let now_ms = world.stamp.calendar_ms.max(world.state.clock().calendar_ms);
            let anchor_ms = world
                .state
                .job(&name)
                .map_or(now_ms, |job| job.created_at_ms);
            let next = world
                .planner
                .schedules()
                .next_after(&spec.trigger, anchor_ms, now_ms);
            let superseded = world
                .state
                .job(&name)
                .cloned()
                .filter(|job| job.spec.trigger != spec.trigger)
                .filter(|_| words.get("undecided") != Some("none"))
                .map(|job| world.planner.supersede(&job, now_ms));
            Command::PutJob {
                superseded,
                name,
                expect,
                next_at_ms: match words.get("next") {
                    Some(next) => Some(instant_ms(next)),
                    None => next.expect("a trigger that can be read"),
                },
                spec: Arc::new(spec),
                paused: words.get("paused").map(|paused| paused == "true"),
            }
        }
        "delete" => match world.state.job(&name).cloned() {
            Some(job) if words.get("undecided") != Some("none") => {
                let now_ms = world.stamp.calendar_ms.max(world.state.clock().calendar_ms);
                world.planner.delete(&job, expect, now_ms)
            }
            _ => Command::DeleteJob {
                name,
                expect,
                undecided: None,
            },
        },
        "pause" => Command::PauseJob { name },
        "resume" => match world.state.job(&name).cloned() {
            Some(job) => {
                let now_ms = world.stamp.calendar_ms.max(world.state.clock().calendar_ms);
                world.planner.resume(&job, now_ms)
            }
            None => Command::ResumeJob {
                name,
                skipped: None,
                next_at_ms: None,
            },
        },
        "trigger" => Command::TriggerJob {
            name,
            key: words.get("key").map(Name::new),
            params: words.get("params").map(str::to_owned),
        },
        _ => Command::CancelRun {
            run: world.run_id(text),
            reason: words.plain[2..].join(" "),
        },
    };
    let outcome = world.apply(command);
    show::outcome(world, &outcome)
}

fn by_hand(world: &mut World, words: &Words) -> Vec<String> {
    let instant = |key: &str| words.get(key).map(instant_ms);
    let present = |world: &World, name: &Name| {
        let job = world.state.job(name);
        words
            .number("revision")
            .or(job.map(|job| job.revision))
            .unwrap_or(0)
    };
    let command = match words.word(0) {
        "fire" => {
            let job = Name::new(words.word(1));
            Command::Fire {
                revision: present(world, &job),
                job,
                scheduled_at_ms: instant("due").expect("due="),
                next_at_ms: instant("next"),
            }
        }
        "skip" => {
            let job = Name::new(words.word(1));
            Command::SkipFires {
                revision: present(world, &job),
                job,
                first_ms: instant("first").expect("first="),
                last_ms: instant("last").expect("last="),
                count: words.number("count").unwrap_or(1),
                next_at_ms: instant("next"),
                reason: SkipReason::Misfire,
            }
        }
        "assign" => {
            let (run, shard) = task(world, words.word(1));
            Command::Assign {
                task: TaskRef {
                    run,
                    shard,
                    epoch: words.number("epoch").expect("epoch="),
                },
                session: session(world, words.word(2)),
            }
        }
        "sweep" => Command::Sweep,
        _ if words.word(1).starts_with("run") => {
            let (run, shard) = task(world, words.word(1));
            let held = world.state.task(run, shard).cloned().expect("a task");
            let deadline_ms = held
                .owner
                .as_ref()
                .map_or(0, |owner| owner.deadline_lease_ms);
            Command::ExpireTask {
                task: TaskRef {
                    run,
                    shard,
                    epoch: words.number("epoch").unwrap_or(held.epoch),
                },
                deadline_ms: words.get("deadline").map_or(deadline_ms, duration_ms),
            }
        }
        _ => {
            let session = session(world, words.word(1));
            let deadline_ms = world
                .state
                .session(session)
                .map_or(0, |session| session.deadline_lease_ms);
            Command::ExpireSession {
                session,
                deadline_ms: words.get("deadline").map_or(deadline_ms, duration_ms),
            }
        }
    };
    let term = words.number("term").unwrap_or(world.term);
    let outcome = world.propose(command, Some(term));
    show::outcome(world, &outcome)
}

fn session(world: &World, process: &str) -> u64 {
    world.sessions.get(process).copied().unwrap_or(888_888)
}

fn task(world: &World, text: &str) -> (u64, u32) {
    let (run, shard) = text.split_once('/').unwrap_or((text, "0"));
    let shard = u32::try_from(number(shard)).expect("a shard");
    (world.run_id(run), shard)
}

/// The grant a process believes to hold.
fn grant(world: &World, words: &Words) -> TaskRef {
    let (run, shard) = task(world, words.word(2));
    let believed = world
        .believes
        .get(&(words.word(1).to_owned(), run, shard))
        .map(|(epoch, _)| *epoch);
    let present = world.state.task(run, shard).map_or(0, |task| task.epoch);
    TaskRef {
        run,
        shard,
        epoch: words.number("epoch").or(believed).unwrap_or(present),
    }
}

fn executor_call(world: &mut World, words: &Words) -> Vec<String> {
    let verb = words.word(0);
    let process = words.word(1).to_owned();
    let session = session(world, &process);
    let command = match verb {
        "beat" => return beat(world, words, &process, session),
        "drain" => Command::DrainExecutor {
            instance: Name::new(&process),
            within_ms: words.get("within").map_or(60_000, duration_ms),
        },
        "drain-itself" => Command::DrainSession {
            session,
            within_ms: words.get("within").map_or(60_000, duration_ms),
        },
        "leave" => Command::CloseSession { session },
        "start" => Command::StartTask {
            session,
            task: grant(world, words),
        },
        "give-back" => Command::ReleaseTask {
            session,
            task: grant(world, words),
        },
        "checkpoint" => Command::Checkpoint {
            session,
            task: grant(world, words),
            offset: number(words.word(3)),
            state: vec![7; bytes(words)].into(),
        },
        "output" => Command::AppendOutput {
            session,
            task: grant(world, words),
            seq: u32::try_from(words.number("seq").unwrap_or(0)).expect("a number of a piece"),
            text: match words.plain.get(3) {
                Some(text) => text.clone(),
                None => "x".repeat(bytes(words)),
            },
        },
        _ => Command::ReportResult {
            session,
            task: grant(world, words),
            outcome: result(words),
            progress: words.number("progress"),
            output_tail: words.number("tail").map(|bytes| "x".repeat(bytes as usize)),
        },
    };
    let subject = matches!(verb, "start" | "give-back" | "result").then(|| grant(world, words));
    let outcome = world.apply(command);
    if let Some(grant) = subject
        && outcome.reply.is_ok()
    {
        let key = (process, grant.run, grant.shard);
        match verb {
            "start" => world.believes.insert(key, (grant.epoch, true)),
            _ => world.believes.remove(&key),
        };
    }
    show::outcome(world, &outcome)
}

fn bytes(words: &Words) -> usize {
    words.number("bytes").unwrap_or(3) as usize
}

fn result(words: &Words) -> TaskOutcome {
    let message = words.get("message").unwrap_or("exit code 1").to_owned();
    match words.word(3) {
        "ok" => TaskOutcome::Succeeded {
            value: words
                .number("bytes")
                .map(|bytes| "v".repeat(bytes as usize))
                .or(words.get("value").map(str::to_owned)),
        },
        "fail" => TaskOutcome::Failed {
            message,
            retryable: true,
        },
        "fatal" => TaskOutcome::Failed {
            message,
            retryable: false,
        },
        "cancelled" => TaskOutcome::Cancelled,
        "timeout" => TaskOutcome::TimedOut,
        other => panic!("outcome {other}"),
    }
}

fn beat(world: &mut World, words: &Words, process: &str, session: u64) -> Vec<String> {
    let only: Option<Vec<(u64, u32)>> = words.get("only").map(|list| {
        list.split(',')
            .filter(|text| !text.is_empty())
            .map(|text| task(world, text))
            .collect()
    });
    let tasks: Vec<HeldTask> = world
        .believes
        .iter()
        .filter(|((owner, run, shard), (_, started))| {
            owner == process
                && match &only {
                    Some(list) => list.contains(&(*run, *shard)),
                    None => *started,
                }
        })
        .map(|((_, run, shard), (epoch, _))| HeldTask {
            task: TaskRef {
                run: *run,
                shard: *shard,
                epoch: words.number("epoch").unwrap_or(*epoch),
            },
            progress: words.number("progress"),
        })
        .collect();
    let used = words.number("used").unwrap_or(tasks.len() as u64);
    let outcome = world.apply(Command::Heartbeat(Heartbeat {
        session,
        slots_used: u32::try_from(used).unwrap_or(u32::MAX),
        healthy: words.get("healthy") != Some("false"),
        tasks: tasks.clone(),
    }));
    let mut lines = show::outcome(world, &outcome);
    if let Outcome {
        reply: Ok(Reply::Renewed { verdicts, .. }),
        ..
    } = &outcome
    {
        for (held, verdict) in tasks.iter().zip(verdicts) {
            let run = world.run_name(held.task.run);
            let verdict_text = words::snake(&format!("{verdict:?}"));
            lines.push(format!(
                "{run}/{} epoch {}: {verdict_text}",
                held.task.shard, held.task.epoch
            ));
            if *verdict == Verdict::Lost && words.get("epoch").is_none() {
                world
                    .believes
                    .remove(&(process.to_owned(), held.task.run, held.task.shard));
            }
        }
    }
    lines
}
