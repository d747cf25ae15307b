//! EX: executors.

use tenure_machine::{Command, Counter, Event, RunState, SessionEnd, TaskRef};
use tenure_sim::scope;
use tenure_sim::stage::holds;

use crate::{BY_HAND, LATE_MS, LEASE_MS, next_heartbeat, plan, under_seeds, words};

#[test]
fn ex_1_two_lost_heartbeats_change_nothing() {
    under_seeds(&plan(2, LEASE_MS), async |s| {
        let executor = s.executor(0);
        s.define("long", BY_HAND, "total: 180, pace_ms: 500, every: 10")
            .await?;
        let run = s.trigger("long").await?;
        let epoch = s.works(0, run).await?;
        s.executor(1);
        let session = s.session(0).ok_or("no session")?;
        let nodes = s.world.cluster.nodes();
        let beat = next_heartbeat(s, session).await?;
        // It is answered.
        s.pass(100).await;
        s.part(executor, &nodes);
        s.pass(24_000).await;
        s.heal();
        let next = next_heartbeat(s, session).await?;
        holds(
            next - beat > 20_000,
            format!("a heartbeat came after {} ms", next - beat),
        )?;
        s.pass(20_000).await;
        holds(s.session(0) == Some(session), "its session is another one")?;
        holds(
            s.counter(Counter::SessionsExpired) == 0,
            "its session was expired",
        )?;
        let task = s.state().task(run, 0).cloned().ok_or("no task")?;
        let owner = task.owner.as_ref().map(|owner| owner.session);
        holds(
            (task.epoch, owner) == (epoch, Some(session)),
            "its task was taken away",
        )?;
        s.succeeds(run, 120_000).await
    });
}

#[test]
fn ex_2_a_lease_runs_out_when_it_does_and_not_before() {
    const IMMEDIATE: &str = "trigger: { manual: true }\noverlap: allow\nrecovery: immediate\n";
    const NEVER: &str = "trigger: { manual: true }\noverlap: allow\nexecution: at_most_once\nrecovery: never\nretry: { max_attempts: 1 }\n";
    under_seeds(&plan(2, LEASE_MS), async |s| {
        let executor = s.executor(0);
        s.define("again", IMMEDIATE, "total: 200, pace_ms: 500, every: 10")
            .await?;
        s.define("never", NEVER, "total: 200, pace_ms: 500, every: 10")
            .await?;
        let (again, never) = (s.trigger("again").await?, s.trigger("never").await?);
        let epoch = s.works(0, again).await?;
        s.works(0, never).await?;
        s.executor(1);
        let session = s.session(0).ok_or("no session")?;
        let beat_ms = next_heartbeat(s, session).await?;
        let deadline_ms = s
            .state()
            .session(session)
            .map(|session| session.deadline_lease_ms)
            .ok_or("no session")?;
        s.part(executor, &s.world.cluster.nodes());
        let cut = s.log().len();
        let is_expiry = |command: &Command| matches!(command, Command::ExpireSession { session: of, .. } if *of == session);
        let expiry = || s.log().into_iter().find(|entry| is_expiry(&entry.command));
        let expired = s.until("the session is expired", 60_000, expiry).await?;
        holds(expired.done, "the expiry was refused")?;
        let late = |ms: u64| (deadline_ms..deadline_ms + LATE_MS).contains(&ms);
        holds(
            late(expired.lease_ms),
            format!(
                "expired at {} ms, the deadline was {deadline_ms} ms",
                expired.lease_ms
            ),
        )?;
        let after_ms = expired.at_ms - beat_ms;
        holds(
            (LEASE_MS - 100..LEASE_MS + LATE_MS).contains(&after_ms),
            format!("expired {after_ms} ms after the last heartbeat"),
        )?;
        s.works(1, again).await?;
        // There is room with the one that is left only, or the run waits.
        for _ in 0..3 {
            s.trigger("again").await?;
        }
        s.pass(2_000).await;
        let log = s.log();
        let to_it = log[cut..].iter().filter(
            |entry| matches!(entry.command, Command::Assign { session: to, .. } if to == session),
        );
        holds(
            to_it.count() == 0,
            "it was given work after its last heartbeat",
        )?;
        let state = s.state();
        let next = state.task(again, 0).map(|task| task.epoch);
        holds(
            next > Some(epoch),
            format!("taken over under epoch {next:?}"),
        )?;
        let ended = s
            .until("the other one ends", 5_000, || s.finished(never))
            .await?;
        holds(
            ended.state == RunState::Unknown,
            format!("it ended as {:?}", ended.state),
        )?;
        s.succeeds(again, 300_000).await
    });
}

/// Where the holder is known to be gone before its lease is over, `immediate` does not wait for that and
/// `after_lease` does.
#[test]
fn ex_2_each_recovery_policy_waits_as_long_as_it_says() {
    const LONG: &str = "total: 200, pace_ms: 500, every: 10";
    for (policy, waits) in [("immediate", false), ("after_lease", true)] {
        under_seeds(&plan(1, LEASE_MS), async |s| {
            let old = s.executor(0);
            let job = format!("{BY_HAND}recovery: {policy}\n");
            s.define("work", &job, LONG).await?;
            let run = s.trigger("work").await?;
            let epoch = s.works(0, run).await?;
            let session = s.session(0).ok_or("no session")?;
            next_heartbeat(s, session).await?;
            let owner = s.state().task(run, 0).and_then(|task| task.owner.clone());
            let end_ms = owner.ok_or("no owner")?.deadline_lease_ms;
            // The process is followed by another one under its instance id.
            scope::kill(old);
            s.executor_at(old + 20, 0);
            let grant = || {
                s.log().into_iter().find(|entry| {
                    let next = |task: &TaskRef| task.run == run && task.epoch > epoch;
                    entry.done
                        && matches!(&entry.command, Command::Assign { task, .. } if next(task))
                })
            };
            let granted = s.until("the next grant", 60_000, grant).await?;
            let waited = granted.lease_ms >= end_ms;
            holds(
                waited == waits,
                format!(
                    "{policy}: granted at {} ms, the lease ends at {end_ms} ms",
                    granted.lease_ms
                ),
            )?;
            s.succeeds(run, 200_000).await
        });
    }
}

#[test]
fn ex_3_after_a_restart_nothing_of_the_old_process_counts() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        let old = s.executor(0);
        s.define("work", BY_HAND, "total: 40, pace_ms: 200, every: 1")
            .await?;
        let run = s.trigger("work").await?;
        let epoch = s.works(0, run).await?;
        let session = s.session(0).ok_or("no session")?;
        // The result is on the wire when the process is gone.
        let network = &s.world.network;
        network.hold(old, "/result");
        let held = || (network.held(old) > 0).then_some(());
        s.until("a result is on the wire", 60_000, held).await?;
        scope::pause(old);
        s.executor_at(old + 20, 0);
        let replaced = || s.session(0).filter(|new| *new != session);
        let new = s
            .until("the new process has a session", 10_000, replaced)
            .await?;
        // Whatever the old one says under its session is refused, from then on.
        for (what, body) in words(run, epoch) {
            let answer = s.say(session, what, body).await?;
            holds(
                answer["code"] == "session_replaced",
                format!("{what} of the old session: {answer}"),
            )?;
        }
        // Nor can the new one confirm the old one's work.
        for (what, body) in words(run, epoch) {
            let answer = s.say(new, what, body).await?;
            let refused = match what {
                "heartbeat" => answer["tasks"][0]["verdict"] == "lost",
                _ => answer["code"] == "stale_epoch",
            };
            holds(refused, format!("{what} of the new session: {answer}"))?;
        }
        let before = s.counter(Counter::StaleSessionRejections);
        let from = s.log().len();
        network.release(old);
        let arrived = || {
            let log = s.log();
            let mut late = log[from..].iter().filter(|entry| {
                matches!(&entry.command, Command::ReportResult { session: of, .. } if *of == session)
            });
            late.next().map(|entry| entry.done)
        };
        let done = s.until("the result arrives", 5_000, arrived).await?;
        holds(!done, "the result of the old session had an effect")?;
        let refused = s.counter(Counter::StaleSessionRejections) - before;
        holds(refused >= 1, format!("{refused} refusals are counted"))?;
        let log = s.log();
        let ended = log.iter().flat_map(|entry| &entry.events).any(|event| {
            matches!(event, Event::SessionEnded { session: of, why: SessionEnd::Replaced, .. } if *of == session)
        });
        holds(ended, "the old session did not end as replaced")?;
        // The new process has the work under a new epoch only.
        s.succeeds(run, 60_000).await?;
        let log = s.log();
        let result = log.iter().find_map(|entry| match &entry.command {
            Command::ReportResult { session, task, .. } if entry.done && task.run == run => {
                Some((*session, task.epoch))
            }
            _ => None,
        });
        let (by, under) = result.ok_or("no result")?;
        holds(
            by == new && under > epoch,
            format!("session {by} ended it under epoch {under}"),
        )
    });
}

#[test]
fn ex_6_an_executor_that_reaches_only_followers_is_alive() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        let executor = s.executor(0);
        s.define("long", BY_HAND, "total: 240, pace_ms: 500, every: 10")
            .await?;
        let run = s.trigger("long").await?;
        s.works(0, run).await?;
        let (leader, session) = (s.led().await?, s.session(0));
        s.part(executor, &[leader]);
        s.pass(90_000).await;
        holds(s.world.cluster.leaders() == [leader], "the lead was lost")?;
        holds(s.session(0) == session, "its session is another one")?;
        holds(
            s.counter(Counter::SessionsExpired) == 0,
            "its session was expired",
        )?;
        s.heal();
        s.succeeds(run, 200_000).await
    });
}
