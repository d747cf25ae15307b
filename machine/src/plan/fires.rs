//! Which due instants to decide, and how.

use super::schedule::Schedules;
use crate::{Command, Expect, Job, MisfirePolicy, SkipReason, State, Superseded, Undecided};

/// Most instants that one range names. A longer absence takes several ranges.
const MAX_RANGE: usize = 10_000;
/// About how many instants one plan walks through for all jobs together. After a long absence of many jobs the
/// rest comes with the next plans, so that expiries and renewals are not kept waiting.
const MAX_WALKED: usize = 50_000;
/// Most runs that one plan gives one job, so that no job keeps the others waiting.
const MAX_FIRES_A_JOB: usize = 64;

pub(super) fn plan(
    schedules: &mut Schedules,
    state: &State,
    now_ms: u64,
    budget: usize,
    commands: &mut Vec<Command>,
) {
    let end = commands.len() + budget;
    let mut walked = 0;
    for (due_ms, name) in state.index().due.iter() {
        if *due_ms > now_ms || commands.len() >= end || walked >= MAX_WALKED {
            break;
        }
        if let Some(job) = state.job(name) {
            let room = (end - commands.len()).min(MAX_FIRES_A_JOB);
            walked += plan_job(schedules, job, now_ms, room, commands);
        }
    }
}

/// Plans the due instants of one job. Says how many it walked through.
fn plan_job(
    schedules: &mut Schedules,
    job: &Job,
    now_ms: u64,
    room: usize,
    commands: &mut Vec<Command>,
) -> usize {
    let Some(first_ms) = job.next_fire_ms else {
        return 0;
    };
    let late_before_ms = now_ms.saturating_sub(job.spec.misfire.grace_ms);
    let (late, next_ms) = instants(schedules, job, first_ms, late_before_ms, MAX_RANGE);
    let wanted = match job.spec.misfire.policy {
        MisfirePolicy::Skip => 0,
        MisfirePolicy::FireOnce => 1,
        MisfirePolicy::CatchUp => job.spec.misfire.limit as usize,
    };
    // More late instants may come behind this list. Then none of it fires yet, but its end stays undecided:
    // it may be among the latest ones.
    let complete = next_ms.is_none_or(|next| next >= late_before_ms);
    let (skipped, caught_up) = late.split_at(late.len() - wanted.min(late.len()));
    if let (Some(first), Some(last)) = (skipped.first(), skipped.last()) {
        commands.push(Command::SkipFires {
            job: job.name.clone(),
            revision: job.revision,
            first_ms: *first,
            last_ms: *last,
            count: skipped.len() as u64,
            next_at_ms: caught_up.first().copied().or(next_ms),
            reason: SkipReason::Misfire,
        });
    }
    let walked = late.len().max(1);
    if !complete {
        return walked;
    }
    let mut due: Vec<u64> = caught_up.to_vec();
    let mut after = next_ms;
    if let Some(next) = next_ms
        && next <= now_ms
        && due.len() < room
    {
        let (on_time, behind) = instants(schedules, job, next, now_ms.saturating_add(1), room);
        due.extend(on_time);
        after = behind;
    }
    for (position, instant) in due.iter().enumerate().take(room) {
        commands.push(Command::Fire {
            job: job.name.clone(),
            revision: job.revision,
            scheduled_at_ms: *instant,
            next_at_ms: due.get(position + 1).copied().or(after),
        });
    }
    walked + due.len()
}

/// The instants of a job from `first_ms` (itself one) that are before `before_ms`, at most `limit`, and the
/// instant that follows them.
fn instants(
    schedules: &mut Schedules,
    job: &Job,
    first_ms: u64,
    before_ms: u64,
    limit: usize,
) -> (Vec<u64>, Option<u64>) {
    let mut found = Vec::new();
    let mut next = Some(first_ms);
    while let Some(instant) = next {
        if instant >= before_ms || found.len() >= limit {
            break;
        }
        found.push(instant);
        // A definition was checked when it came in. One that can no longer be read has no next instant.
        next = schedules
            .next_after(&job.spec.trigger, job.created_at_ms, follows(job, instant))
            .ok()
            .flatten();
    }
    (found, next)
}

/// From where to look for the instant behind one: what lies before the present trigger came is not due.
fn follows(job: &Job, instant_ms: u64) -> u64 {
    instant_ms.max(job.trigger_since_ms)
}

/// The due instants of a job that nobody has decided. The cursor may stand on an instant of an earlier trigger;
/// the rest is counted.
fn undecided(schedules: &mut Schedules, job: &Job, now_ms: u64) -> Option<Undecided> {
    let first_ms = job.next_fire_ms.filter(|first_ms| *first_ms <= now_ms)?;
    let (trigger, anchor_ms) = (&job.spec.trigger, job.created_at_ms);
    let after_ms = follows(job, first_ms);
    let more = schedules.count(trigger, anchor_ms, after_ms, now_ms);
    let (last_ms, count, next_at_ms) = match more {
        Ok(Some(more)) => (more.last_ms, more.count.saturating_add(1), more.next_ms),
        _ => {
            let next = schedules.next_after(trigger, anchor_ms, after_ms);
            (first_ms, 1, next.ok().flatten())
        }
    };
    Some(Undecided {
        first_ms,
        last_ms,
        count,
        next_at_ms,
    })
}

/// The resume of a job.
pub(super) fn resume(schedules: &mut Schedules, job: &Job, now_ms: u64) -> Command {
    let name = job.name.clone();
    match undecided(schedules, job, now_ms) {
        Some(found) => Command::ResumeJob {
            name,
            skipped: Some((found.first_ms, found.last_ms, found.count)),
            next_at_ms: found.next_at_ms,
        },
        None => Command::ResumeJob {
            name,
            skipped: None,
            next_at_ms: job.next_fire_ms,
        },
    }
}

/// The deletion of a job.
pub(super) fn delete(schedules: &mut Schedules, job: &Job, expect: Expect, now_ms: u64) -> Command {
    Command::DeleteJob {
        name: job.name.clone(),
        expect,
        undecided: undecided(schedules, job, now_ms),
    }
}

/// What becomes of a job's instants when it gets another trigger.
pub(super) fn supersede(schedules: &mut Schedules, job: &Job, now_ms: u64) -> Superseded {
    let Some(found) = undecided(schedules, job, now_ms) else {
        return Superseded {
            skipped: None,
            not_due_ms: job.next_fire_ms,
        };
    };
    let earlier = |schedules: &mut Schedules| {
        let before_ms = found.last_ms.checked_sub(1)?;
        undecided(schedules, job, before_ms)
    };
    Superseded {
        skipped: earlier(schedules),
        not_due_ms: found.next_at_ms,
    }
}
