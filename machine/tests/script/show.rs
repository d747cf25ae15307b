//! Words for what came of a line, and for what the state holds.

use tenure_machine::plan::explain;
use tenure_machine::{Command, Counter, Event, Name, Outcome, Reply, Run, Task};

use super::words::{Words, instant, snake};
use super::world::World;

/// What came of a command: the answer first, then what happened.
pub(crate) fn outcome(world: &World, outcome: &Outcome) -> Vec<String> {
    let mut lines = match &outcome.reply {
        Ok(answer) => reply(world, answer).into_iter().collect(),
        Err(refusal) => vec![format!(
            "refused {}: {}",
            snake(&format!("{:?}", refusal.code)),
            refusal.detail
        )],
    };
    lines.extend(outcome.events.iter().filter_map(|event| line(world, event)));
    lines
}

fn reply(world: &World, reply: &Reply) -> Option<String> {
    Some(match reply {
        Reply::Done => return None,
        Reply::Job {
            revision,
            created,
            changed,
        } => match (created, changed) {
            (true, _) => format!("created, revision {revision}"),
            (false, true) => format!("changed, revision {revision}"),
            (false, false) => format!("unchanged, revision {revision}"),
        },
        Reply::Run { run, created } => format!(
            "{}{}",
            world.run_name(*run),
            if *created { "" } else { " was there already" }
        ),
        Reply::Fired { .. } => return None,
        Reply::Granted { epoch } => format!("granted, epoch {epoch}"),
        Reply::Session {
            session, replaced, ..
        } => match replaced {
            Some(old) => format!("session {session}, replaces session {old}"),
            None => format!("session {session}"),
        },
        Reply::Renewed {
            lease_ttl_ms,
            drain_in_ms,
            ..
        } => match drain_in_ms {
            Some(ms) => format!("renewed for {lease_ttl_ms} ms, to be gone in {ms} ms"),
            None => format!("renewed for {lease_ttl_ms} ms"),
        },
        Reply::Started {
            attempt,
            checkpoint,
            last_progress,
            previous_epoch,
        } => {
            let mut text = format!("attempt {attempt}");
            match checkpoint {
                Some(checkpoint) => text.push_str(&format!(
                    " from checkpoint {} of epoch {}",
                    checkpoint.offset, checkpoint.epoch
                )),
                None => text.push_str(" from the beginning"),
            }
            if let (Some(progress), Some(epoch)) = (last_progress, previous_epoch) {
                text.push_str(&format!("; epoch {epoch} had come to {progress}"));
            }
            text
        }
        Reply::Checkpointed { offset } => format!("committed {offset}"),
        Reply::OutputTaken {
            accepted_bytes,
            truncated,
        } => format!("took {accepted_bytes} bytes, truncated: {truncated}"),
        Reply::ResultTaken { repeated, retrying } => match (repeated, retrying) {
            (false, false) => "taken".into(),
            (false, true) => "taken, another attempt follows".into(),
            (true, false) => "was taken already".into(),
            (true, true) => "was taken already, another attempt follows".into(),
        },
        Reply::Cancelling { pending } => format!("{pending} tasks to stop"),
        Reply::Swept { removed } => format!("removed {removed}"),
    })
}

fn line(world: &World, event: &Event) -> Option<String> {
    Some(match event {
        Event::Decided(decision) => decided(world, decision),
        Event::RunCreated(run) => format!("{} created", world.run_name(run.id)),
        Event::RunFinished { run, .. } => format!(
            "{} over: {}",
            world.run_name(run.id),
            snake(&format!("{:?}", run.state))
        ),
        Event::TasksQueued { run } => format!("{} queued", world.run_name(*run)),
        Event::Assigned {
            session,
            run,
            shard,
        } => format!(
            "{}/{shard} is {}'s",
            world.run_name(*run),
            world.process(*session)
        ),
        Event::CancelRequested {
            session,
            run,
            shard,
        } => format!(
            "{} is to stop {}/{shard}",
            world.process(*session),
            world.run_name(*run)
        ),
        Event::Orphaned { run, shard, epoch } => {
            format!("{}/{shard} orphaned at epoch {epoch}", world.run_name(*run))
        }
        Event::Replayed { records } => format!("replayed {records} records"),
        Event::Output {
            position_bytes,
            text,
            ..
        } => {
            format!("output of {} bytes at byte {position_bytes}", text.len())
        }
        Event::SessionEnded { session, why, .. } => format!(
            "{}'s session {session} ended: {}",
            world.process(*session),
            snake(&format!("{why:?}"))
        ),
        Event::SessionOpened(_)
        | Event::JobChanged { .. }
        | Event::Audited(_)
        | Event::Refused { .. } => return None,
    })
}

fn decided(world: &World, decision: &tenure_machine::FireDecision) -> String {
    let when = if decision.first_ms == decision.last_ms {
        instant(decision.first_ms)
    } else {
        format!(
            "{} to {} ({} instants)",
            instant(decision.first_ms),
            instant(decision.last_ms),
            decision.count
        )
    };
    let what = match (decision.run, decision.skipped) {
        (Some(run), _) => format!("run as {}", world.run_name(run)),
        (None, Some(why)) => format!("not run: {}", snake(&format!("{why:?}"))),
        (None, None) => "undecided".into(),
    };
    format!("{} {when}: {what}", decision.job)
}

/// A proposal in words.
pub(crate) fn command(world: &World, command: &Command) -> String {
    match command {
        Command::Fire {
            job,
            scheduled_at_ms,
            ..
        } => format!("fire {job} {}", instant(*scheduled_at_ms)),
        Command::SkipFires {
            job,
            first_ms,
            last_ms,
            count,
            ..
        } => format!(
            "skip {job} {} to {} ({count} instants)",
            instant(*first_ms),
            instant(*last_ms)
        ),
        Command::Assign { task, session } => format!(
            "assign {}/{} to {} epoch {}",
            world.run_name(task.run),
            task.shard,
            world.process(*session),
            task.epoch
        ),
        Command::ExpireSession { session, .. } => {
            format!("expire session of {}", world.process(*session))
        }
        Command::ExpireTask { task, .. } => format!(
            "expire {}/{} epoch {}",
            world.run_name(task.run),
            task.shard,
            task.epoch
        ),
        Command::EndOverdueTask { task, .. } => format!(
            "end overdue {}/{} epoch {}",
            world.run_name(task.run),
            task.shard,
            task.epoch
        ),
        Command::Sweep => "sweep".into(),
        other => format!("{other:?}"),
    }
}

/// `show …`.
pub(crate) fn show(world: &World, words: &Words) -> Vec<String> {
    let name = words.plain.get(2).map_or("", String::as_str);
    match words.word(1) {
        "job" => job(world, &Name::new(name)),
        "run" => run(world, world.run_id(name)),
        "runs" => world
            .state
            .runs_before(None)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .map(|run| run_line(world, run))
            .collect(),
        "tasks" => world
            .state
            .tasks_of(world.run_id(name))
            .map(|task| task_line(world, task))
            .collect(),
        "shards" => world
            .state
            .shards_of(&Name::new(name))
            .map(|shard| {
                let kept = shard.checkpoint.as_ref().map_or_else(String::new, |kept| {
                    format!(
                        ", checkpoint {} of epoch {} under {} shards",
                        kept.offset, kept.epoch, shard.checkpoint_shards
                    )
                });
                format!("{}/{}: epoch {}{kept}", shard.job, shard.index, shard.epoch)
            })
            .collect(),
        "executors" => executors(world),
        "counters" => counters(world, &words.plain[2..]),
        "ledger" => world
            .ledger
            .iter()
            .filter(|decision| name.is_empty() || decision.job.as_str() == name)
            .map(|decision| decided(world, decision))
            .collect(),
        "audit" => world
            .audit
            .iter()
            .map(|record| format!("{} {} {}", record.seq, record.action, record.subject))
            .collect(),
        "explain" => explained(world, name),
        "terms" => world
            .state
            .terms()
            .map(|term| format!("term {} since {}", term.term, instant(term.at_ms)))
            .collect(),
        other => panic!("show {other}"),
    }
}

fn job(world: &World, name: &Name) -> Vec<String> {
    let Some(job) = world.state.job(name) else {
        return vec![format!("no job {name}")];
    };
    let names = |ids: Vec<u64>| {
        let names: Vec<_> = ids.into_iter().map(|id| world.run_name(id)).collect();
        if names.is_empty() {
            "none".into()
        } else {
            names.join(" ")
        }
    };
    vec![
        format!(
            "{name}: last {}, next {}{}",
            job.last_fire_ms.map_or("none".into(), instant),
            job.next_fire_ms.map_or("none".into(), instant),
            job.paused_at_ms
                .map_or(String::new(), |at| format!(", paused at {}", instant(at)))
        ),
        format!(
            "active {}, waiting {}",
            names(job.active.clone()),
            names(job.waiting.iter().copied().collect())
        ),
    ]
}

fn run_line(world: &World, run: &Run) -> String {
    let cancelled = run
        .cancelled
        .as_ref()
        .map_or(String::new(), |why| format!(" ({why})"));
    format!(
        "{} of {}: {}{cancelled}",
        world.run_name(run.id),
        run.key.job(),
        snake(&format!("{:?}", run.state))
    )
}

fn run(world: &World, id: u64) -> Vec<String> {
    match world.state.run(id) {
        Some(run) => std::iter::once(run_line(world, run))
            .chain(world.state.tasks_of(id).map(|task| task_line(world, task)))
            .collect(),
        None => vec!["no such run".into()],
    }
}

fn task_line(world: &World, task: &Task) -> String {
    let mut text = format!(
        "{}/{}: {} epoch {} attempt {}",
        world.run_name(task.run),
        task.shard,
        snake(&format!("{:?}", task.state)),
        task.epoch,
        task.attempt
    );
    if let Some(owner) = &task.owner {
        text.push_str(&format!(
            " held by {} until {} ms",
            world.process(owner.session),
            owner.deadline_lease_ms
        ));
    }
    let now_ms = world.state.clock().lease_ms;
    if task.state.is_waiting() && task.not_before_lease_ms > now_ms {
        text.push_str(&format!(
            " not before {} ms from now",
            task.not_before_lease_ms - now_ms
        ));
    }
    if let Some(checkpoint) = &task.checkpoint {
        text.push_str(&format!(" checkpoint {}", checkpoint.offset));
    }
    if let Some(message) = &task.message {
        text.push_str(&format!(": {}", &message[..message.len().min(80)]));
    }
    text
}

fn executors(world: &World) -> Vec<String> {
    world
        .state
        .sessions_after(None)
        .map(|session| {
            let mut text = format!(
                "{} session {}: {} of {} slots free, lease until {} ms",
                session.instance,
                session.id,
                world.state.free_slots(session),
                session.capacity,
                session.deadline_lease_ms
            );
            if !session.healthy {
                text.push_str(", not healthy");
            }
            if session.drain_limit_lease_ms.is_some() {
                text.push_str(", draining");
            }
            if session.conflicts > 0 {
                text.push_str(&format!(", changed hands {} times", session.conflicts));
            }
            text
        })
        .collect()
}

const COUNTERS: [(&str, Counter); 19] = [
    ("elections", Counter::Elections),
    ("fires", Counter::Fires),
    ("fires_skipped", Counter::FiresSkipped),
    ("duplicate_fires_refused", Counter::DuplicateFiresRefused),
    ("stale_term_rejections", Counter::StaleTermRejections),
    ("stale_session_rejections", Counter::StaleSessionRejections),
    ("stale_epoch_rejections", Counter::StaleEpochRejections),
    ("sessions_expired", Counter::SessionsExpired),
    ("sessions_replaced", Counter::SessionsReplaced),
    ("leases_expired", Counter::LeasesExpired),
    ("takeovers", Counter::Takeovers),
    ("replayed_records", Counter::ReplayedRecords),
    ("runs_succeeded", Counter::RunsSucceeded),
    ("runs_not_succeeded", Counter::RunsNotSucceeded),
    ("retries", Counter::Retries),
    (
        "dispatch_failures{session_lost}",
        Counter::DispatchSessionLost,
    ),
    ("dispatch_failures{expired}", Counter::DispatchExpired),
    ("dispatch_failures{refused}", Counter::DispatchRefused),
    ("instance_conflicts", Counter::InstanceConflicts),
];

fn counters(world: &World, wanted: &[String]) -> Vec<String> {
    COUNTERS
        .iter()
        .filter(|(name, counter)| match wanted.is_empty() {
            true => world.state.counter(*counter) > 0,
            false => wanted.iter().any(|word| name.starts_with(word.as_str())),
        })
        .map(|(name, counter)| format!("{name} {}", world.state.counter(*counter)))
        .collect()
}

fn explained(world: &World, name: &str) -> Vec<String> {
    let Some(run) = world.state.run(world.run_id(name)) else {
        return vec!["no such run".into()];
    };
    let explanation = explain(&world.state, run);
    let mut lines = vec![explanation.summary];
    for task in explanation.tasks {
        lines.push(format!("shard {}: {}", task.shard, task.summary));
        for obstacle in task.obstacles {
            lines.push(format!("  {}: {}", obstacle.instance, obstacle.why));
        }
    }
    for kept in explanation.kept_checkpoints {
        lines.push(format!(
            "kept: checkpoint {} of shard {} of {}",
            kept.offset, kept.shard, kept.shards
        ));
    }
    lines
}
