//! HA: the scheduler itself.

use std::sync::atomic::{AtomicBool, Ordering};

use tenure::consensus::{Consensus as _, ConsensusError, Standing};
use tenure::leader::LeaderConfig;
use tenure_machine::codec::{self, Kind};
use tenure_machine::{Command, Counter, Proposal};
use tenure_raft::config::RaftConfig;
use tenure_raft::wire::{Append, PeerRequest, WirePayload};
use tenure_sim::cluster::Condition;
use tenure_sim::judge::{Ack, Call, Seen};
use tenure_sim::node::Crash;
use tenure_sim::plan::Plan;
use tenure_sim::scope::{self, Process};
use tenure_sim::site::FIRST_EXECUTOR;
use tenure_sim::stage::{Stage, Told, holds, struck};
use tenure_sim::traps::Moment;

use crate::{BY_HAND, EVERY_SECOND, LATE_MS, LEASE_MS, SHORT, next_heartbeat, plan, under_seeds};

/// A job fires each second and an executor does it. Who leads, and the term.
async fn ticking(s: &Stage) -> Result<(Process, u64), String> {
    s.executor(0);
    s.define("tick", EVERY_SECOND, SHORT).await?;
    let leader = s.led().await?;
    Ok((leader, s.term(leader)))
}

/// No proposal of this term is carried out in the log from a place on.
fn no_effect_of(s: &Stage, term: u64, from: usize) -> Told {
    let log = s.log();
    let mut after = log[from..].iter();
    let effect = after.any(|entry| entry.done && entry.term == Some(term));
    holds(!effect, "the old term had an effect")
}

/// Commands that a leader's loop proposes in a term that is over are refused, and each refusal is counted.
async fn refused_and_counted(s: &Stage, old: Process, term: u64) -> Told {
    let consensus = s.world.cluster.running(old).unwrap().consensus;
    let counted = || {
        s.world
            .cluster
            .standing(old)
            .map(|it| it.stale_term_rejections)
    };
    s.pass(1_000).await;
    let before = counted().ok_or("it does not run")?;
    let commands = vec![Command::Sweep; 3];
    let answers = consensus.propose_all(term, commands).await;
    let refused = |answer: &Result<_, _>| matches!(answer, Err(error) if !matches!(error, ConsensusError::OutcomeUnknown(_)));
    holds(
        answers.len() == 3 && answers.iter().all(refused),
        format!("proposals of the old term: {answers:?}"),
    )?;
    s.until("each refusal is counted", 5_000, || {
        (counted() == Some(before + 3)).then_some(())
    })
    .await
}

/// Authority for 15 s: half of it is the leader's lease, half the time that a follower waits after that. Each half takes two
/// heartbeats at least, so it is renewed every 3.7 s and not every 5 s.
fn slow_authority() -> Plan {
    let calm = plan(1, LEASE_MS);
    Plan {
        raft: RaftConfig {
            heartbeat_interval_ms: 3_700,
            election_timeout_min_ms: 7_400,
            election_timeout_max_ms: 7_600,
            quorum_loss_probe_interval_ms: 16_000,
            append_timeout_ms: 3_700,
            ..calm.raft.clone()
        },
        leader: LeaderConfig {
            quorum_loss_ms: 7_600,
            ..calm.leader.clone()
        },
        ..calm
    }
}

#[test]
fn ha_1_a_leader_that_was_cut_off_comes_back_in_an_old_term() {
    for plan in [plan(1, LEASE_MS), slow_authority()] {
        under_seeds(&plan, cut_off_for_20_s);
    }
}

async fn cut_off_for_20_s(s: &Stage) -> Told {
    let (old, term) = ticking(s).await?;
    s.pass(5_000).await;
    s.part(old, &s.others(old));
    let cut_ms = s.now_ms();
    // What the old leader's loop still asks for, in its own term.
    let asked = s.world.cluster.running(old).unwrap().consensus;
    let late = scope::spawn_in(old, async move {
        asked.propose_all(term, vec![Command::Sweep]).await
    });
    let new = s.led_after(term, 20_000).await?;
    holds(new != old, "the old leader leads on")?;
    s.pass(cut_ms + 20_000 - s.now_ms()).await;
    holds(s.term(new) > term, "no later term")?;
    let before = s.log().len();
    s.heal();
    let knows = || (s.term(old) > term).then_some(());
    s.until("the old leader learns of the new term", 10_000, knows)
        .await?;
    let late = late.await.map_err(|error| error.to_string())?;
    holds(
        late.iter().all(Result::is_err),
        "what it proposed alone came through",
    )?;
    refused_and_counted(s, old, term).await?;
    s.pass(5_000).await;
    no_effect_of(s, term, before)?;
    s.all_equal().await
}

/// An executor that has heard of the new term can reach nobody but the old leader for a while: it takes nothing that
/// it is told there, neither assignments nor answers to renewals, and counts what it dropped.
#[test]
fn ha_1_an_executor_takes_nothing_of_an_old_term() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        let (old, term) = ticking(s).await?;
        let executor = FIRST_EXECUTOR;
        // Work that the old leader has granted and would grant again.
        s.define("long", BY_HAND, "total: 400, pace_ms: 500, every: 10")
            .await?;
        let run = s.trigger("long").await?;
        s.works(0, run).await?;
        s.part(old, &s.others(old));
        let new = s.led_after(term, 20_000).await?;
        let new_term = s.term(new);
        let from = s.log().len();
        s.until("the executor works for the new leader", 60_000, || {
            let log = s.log();
            let mut since = log[from.min(log.len())..].iter();
            since
                .any(|entry| entry.done && matches!(entry.command, Command::ReportResult { .. }))
                .then_some(())
        })
        .await?;
        let before = s.counted(executor)?;
        holds(
            s.term(old) == term,
            "the old leader has heard of a later term",
        )?;
        s.part(executor, &s.others(old));
        s.pass(60_000).await;
        let meanwhile = s.counted(executor)?;
        holds(
            meanwhile.stale_term_answers_dropped > before.stale_term_answers_dropped,
            format!("no answer of term {term} was dropped after one of {new_term}: {meanwhile:?}"),
        )?;
        holds(
            (meanwhile.assignments_received, meanwhile.heartbeats_granted)
                == (before.assignments_received, before.heartbeats_granted),
            format!("it took something of the old leader: {before:?}, then {meanwhile:?}"),
        )?;
        s.join(executor, &s.others(old));
        s.heal();
        s.succeeds(run, 400_000).await?;
        s.all_equal().await
    });
}

#[test]
fn ha_2_a_leader_that_was_suspended_amid_a_proposal_follows_without_a_restart() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        let (old, term) = ticking(s).await?;
        s.pass(3_000).await;
        let amid = s.at_the_moment(
            move |moment| sends(moment, old, |_| true),
            // The whole process, its own loops too.
            |node| {
                scope::pause(node);
                scope::pause(scope::loops_of(node));
            },
        );
        struck(s, &amid, 5_000).await?;
        let new = s.led_after(term, 20_000).await?;
        holds(new != old, "a suspended node leads")?;
        s.pass(20_000).await;
        let before = s.log().len();
        scope::resume(old);
        scope::resume(scope::loops_of(old));
        let follows = || {
            let standing = s.world.cluster.standing(old)?;
            let of = standing.leader.map(|leader| leader.id as Process);
            (!standing.leads && of == Some(new) && standing.term > term).then_some(())
        };
        s.until("it follows", 5_000, follows).await?;
        holds(
            s.world.cluster.condition(old) == Condition::Up,
            "it was started again",
        )?;
        // It serves as a follower: what only it is asked is answered.
        let client = s.world.client_of(70, [old]);
        let read = s.read(&client, "tick").await;
        holds(read.is_ok(), format!("it does not serve: {read:?}"))?;
        refused_and_counted(s, old, term).await?;
        s.pass(5_000).await;
        no_effect_of(s, term, before)?;
        s.all_equal().await
    });
}

#[test]
fn ha_3_a_leader_that_is_heard_and_hears_nobody_gives_no_wrong_answer() {
    let two_at_once = AtomicBool::new(false);
    under_seeds(&plan(1, LEASE_MS), async |s| {
        let (old, term) = ticking(s).await?;
        s.pass(3_000).await;
        for other in s.others(old) {
            s.cut(other, &[old]);
        }
        let cut_ms = s.now_ms();
        // Clients that know only the old leader ask it all the time. What it answers must be true then.
        let client = s.world.client_of(70, [old]);
        while s.now_ms() < cut_ms + 15_000 {
            two_at_once.fetch_or(s.world.cluster.leaders().len() > 1, Ordering::Relaxed);
            let committed = s.world.judge.committed();
            if let Ok(face) = s.read(&client, "tick").await {
                let name = "tick".to_owned();
                let ack = Ack::Read { name, face };
                s.world
                    .judge
                    .show(&Seen::Acknowledged(&Call { committed, ack }));
            }
            let edition = format!("edition {}", s.now_ms());
            if let Ok((revision, changed)) = s.describe(&client, "tick", &edition).await {
                let ack = Ack::Job {
                    name: "tick".to_owned(),
                    revision,
                    description: edition,
                    changed,
                };
                s.world
                    .judge
                    .show(&Seen::Acknowledged(&Call { committed, ack }));
            }
            s.pass(200).await;
        }
        let new = s.led_after(term, 100).await?;
        holds(new != old, "the old leader leads on")?;
        s.heal();
        s.led().await?;
        s.pass(3_000).await;
        // Each second has its decision; that it has one only is an invariant.
        let until_ms = s.due("tick").unwrap_or(0);
        holds(
            until_ms + 1_000 > s.now_ms(),
            "due instants are not decided",
        )?;
        s.all_equal().await
    });
    // Under some of the seeds the old one has not noticed yet when there is a new one.
    assert!(two_at_once.into_inner(), "there were never two leaders");
}

/// Whether a node sends entries of which one is wanted.
fn sends(moment: Moment<'_>, node: Process, wanted: fn(&Command) -> bool) -> Option<Process> {
    let Moment::Sent {
        from,
        request: Some(PeerRequest::Append(Append { entries, .. })),
        ..
    } = moment
    else {
        return None;
    };
    let carries = entries.iter().any(|entry| match &entry.payload {
        WirePayload::Command(bytes) => {
            let proposal = codec::decode::<Proposal>(Kind::LogEntry, &bytes.0);
            proposal.is_ok_and(|proposal| wanted(&proposal.command))
        }
        _ => false,
    });
    (from == node && carries).then_some(from)
}

fn commits(moment: Moment<'_>, wanted: fn(&Command) -> bool) -> Option<Process> {
    match moment {
        Moment::Committed { node, proposal, .. } if wanted(&proposal.command) => Some(node),
        _ => None,
    }
}

fn is_fire(command: &Command) -> bool {
    matches!(command, Command::Fire { .. })
}

fn is_start(command: &Command) -> bool {
    matches!(command, Command::StartTask { .. })
}

/// The leader dies around a fire. There is one run for the instant, it is executed, and it is not later than
/// the failover.
async fn a_fire_survives(s: &Stage, deadly: impl AsyncFn(&Stage, Process, u64) -> Told) -> Told {
    const RARELY: &str = "trigger: { every: 8s }\noverlap: allow\nmisfire: { policy: catch_up, grace: 1s, limit: 5 }\n";
    s.executor(0);
    s.define("job", RARELY, SHORT).await?;
    let leader = s.led().await?;
    let term = s.term(leader);
    let due_ms = s.due("job").ok_or("it is never due")?;
    // The executor is there long before.
    let ready = || s.session(0);
    s.until("the executor is registered", 5_000, ready).await?;
    deadly(s, leader, due_ms).await?;
    let down = || (s.world.cluster.condition(leader) != Condition::Up).then_some(());
    s.until("the leader is dead", 100, down).await?;
    s.led_after(term, 5_000).await?;
    let led_ms = s.now_ms();
    let of_instant = || {
        let fired = s.fired("job").into_iter();
        fired
            .filter(|(instant, _)| *instant == due_ms)
            .map(|(_, run)| run)
            .next()
    };
    let run = s.until("the instant has a run", 5_000, of_instant).await?;
    let decided_ms = s.now_ms();
    holds(
        decided_ms <= led_ms.max(due_ms) + LATE_MS,
        format!(
            "decided {} ms after there was a leader",
            decided_ms - led_ms
        ),
    )?;
    s.succeeds(run, 60_000).await?;
    s.start(leader);
    s.pass(5_000).await;
    let runs = s
        .fired("job")
        .into_iter()
        .filter(|(instant, _)| *instant == due_ms);
    holds(runs.count() == 1, "the instant has two runs")?;
    s.all_equal().await
}

#[test]
fn ha_4_a_the_leader_dies_before_it_proposes_a_fire() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        a_fire_survives(s, async |s, leader, due_ms| {
            s.pass(due_ms - s.now_ms() - 2).await;
            s.kill(leader);
            Ok(())
        })
        .await
    });
}

#[test]
fn ha_4_b_the_leader_dies_before_a_fire_is_committed() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        a_fire_survives(s, async |s, leader, _| {
            let cluster = s.world.cluster.clone();
            let kill = move |node| cluster.crash(node, Crash::Kill);
            let moment = s.at_the_moment(move |moment| sends(moment, leader, is_fire), kill);
            struck(s, &moment, 20_000).await.map(drop)
        })
        .await
    });
}

#[test]
fn ha_4_c_the_leader_dies_when_a_fire_is_committed_and_nobody_told() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        a_fire_survives(s, async |s, _, _| {
            let cluster = s.world.cluster.clone();
            let kill = move |node| cluster.crash(node, Crash::Kill);
            let moment = s.at_the_moment(|moment| commits(moment, is_fire), kill);
            struck(s, &moment, 20_000).await.map(drop)
        })
        .await
    });
}

#[test]
fn ha_4_d_the_leader_dies_when_the_assignment_has_reached_the_executor() {
    under_seeds(&plan(1, LEASE_MS), async |s| {
        a_fire_survives(s, async |s, _, _| {
            let cluster = s.world.cluster.clone();
            let kill = move |node| cluster.crash(node, Crash::Kill);
            let moment = s.at_the_moment(|moment| commits(moment, is_start), kill);
            struck(s, &moment, 20_000).await.map(drop)
        })
        .await
    });
}

#[test]
fn ha_7_without_a_majority_nothing_is_decided_and_nothing_is_lost() {
    const CATCH_UP: &str = "trigger: { every: 5s }\noverlap: allow\nmisfire: { policy: catch_up, grace: 1s, limit: 2 }\n";
    const SKIP: &str =
        "trigger: { every: 5s }\noverlap: allow\nmisfire: { policy: skip, grace: 1s }\n";
    const ONCE: &str =
        "trigger: { every: 5s }\noverlap: allow\nmisfire: { policy: fire_once, grace: 1s }\n";
    under_seeds(&plan(2, LEASE_MS), async |s| {
        s.executor(0);
        s.define("catch-up", CATCH_UP, SHORT).await?;
        s.define("skip", SKIP, SHORT).await?;
        s.define("once", ONCE, SHORT).await?;
        s.define("long", BY_HAND, "total: 150, pace_ms: 500, every: 1000")
            .await?;
        let run = s.trigger("long").await?;
        s.works(0, run).await?;
        // One that cannot renew after the gap either. Its lease would be over if the gap counted.
        let silent = s.executor(1);
        let second = || s.session(1);
        let session = s.until("a second session", 10_000, second).await?;
        let leader = s.led().await?;
        let term = s.term(leader);
        let last = s.others(leader)[0];
        next_heartbeat(s, session).await?;
        let working = s.session(0).ok_or("no session")?;
        next_heartbeat(s, working).await?;
        scope::kill(silent);
        let (expired, gone_ms) = (s.counter(Counter::SessionsExpired), s.now_ms());
        for node in s.others(last) {
            s.kill(node);
        }
        s.pass(2_000).await;
        let (committed, written) = (s.world.judge.committed(), s.world.site.writes().0);
        let client = s.world.client_of(70, [last]);
        let read = s.read(&client, "long").await;
        let says = read.as_ref().err().map(ToString::to_string);
        holds(
            says.as_ref().is_some_and(|says| says.contains("no_leader")),
            format!("a read says {read:?}"),
        )?;
        s.pass(gone_ms + 27_000 - s.now_ms()).await;
        // In the middle between two instants, so that all of the gap have missed their grace.
        let due_ms = s.due("once").ok_or("it is never due")?;
        s.pass((due_ms + 2_500 - s.now_ms() % 5_000) % 5_000).await;
        holds(
            s.world.judge.committed() == committed,
            "something was decided",
        )?;
        holds(
            s.world.site.writes().0 > written + 20,
            "running work does not go on",
        )?;
        let standing = s.world.cluster.standing(last);
        let known = standing.as_ref().is_some_and(Standing::has_leader);
        holds(!known, "the gauge says that there is a leader")?;
        let leaderless_ms = standing.map_or(0, |standing| standing.leaderless_ms);
        // It counts from when the old leader has been silent for 5 s.
        holds(
            leaderless_ms > 20_000,
            format!("the metric says {leaderless_ms} ms"),
        )?;
        for node in s.others(last) {
            s.start(node);
        }
        s.led_after(term, 10_000).await?;
        let led_ms = s.now_ms();
        s.pass((gone_ms + LEASE_MS + 2_000).saturating_sub(led_ms))
            .await;
        holds(
            s.counter(Counter::SessionsExpired) == expired,
            "a session was expired for the gap",
        )?;
        // The instants of the gap that had missed their grace when there was a leader again.
        let missed = |job: &str| {
            let within = |instant: &u64| *instant > gone_ms && *instant < led_ms;
            let fired = s.fired(job);
            let runs = fired.iter().filter(|(instant, _)| within(instant)).count();
            (s.instants(job, gone_ms, led_ms), runs)
        };
        for (job, wanted) in [("catch-up", 2), ("skip", 0), ("once", 1)] {
            let (instants, runs) = missed(job);
            holds(
                instants >= 5,
                format!("{job}: {instants} instants in the gap"),
            )?;
            holds(
                runs == wanted,
                format!("{job}: {runs} runs for {instants} missed instants"),
            )?;
            let due_ms = s.due(job).unwrap_or(0);
            holds(
                due_ms + 500 > s.now_ms(),
                format!("{job}: a due instant has no decision"),
            )?;
        }
        s.succeeds(run, 120_000).await?;
        s.all_equal().await
    });
}

/// What an alarm reads: so many jumps were noticed.
async fn jumped(s: &Stage, node: Process, times: u64) -> Told {
    let client = s.world.client_of(71, [node]);
    let metrics = client.metrics_text().await.map_err(|e| e.to_string())?;
    let name = "tenure_wall_clock_jumps_total ";
    let shown = metrics.lines().find_map(|line| line.strip_prefix(name));
    holds(
        shown == Some(times.to_string().as_str()),
        format!("{shown:?} jumps, not {times}"),
    )
}

#[test]
fn ha_9_the_leaders_wall_clock_jumps_an_hour_forth_and_back() {
    const CATCH_UP: &str = "trigger: { every: 10s }\noverlap: allow\nmisfire: { policy: catch_up, grace: 1s, limit: 3 }\n";
    under_seeds(&plan(1, LEASE_MS), async |s| {
        s.executor(0);
        s.define("job", CATCH_UP, SHORT).await?;
        s.define("long", BY_HAND, "total: 200, pace_ms: 500, every: 10")
            .await?;
        let run = s.trigger("long").await?;
        s.works(0, run).await?;
        let (leader, session) = (s.led().await?, s.session(0));
        let before = s.fired("job").len();
        s.world.cluster.clock(leader).jump(3_600_000);
        s.pass(5_000).await;
        let after = s.fired("job").len();
        holds(after > before, "the jump was not noticed")?;
        jumped(s, leader, 1).await?;
        // As many as may be caught up with, and one that is due in these seconds anyway.
        holds(
            after <= before + 3 + 1,
            format!("{} runs for one jump", after - before),
        )?;
        s.world.cluster.clock(leader).jump(-3_600_000);
        s.pass(60_000).await;
        jumped(s, leader, 2).await?;
        holds(
            s.fired("job").len() == after,
            "an instant that had been decided fired again",
        )?;
        holds(s.world.cluster.leaders() == [leader], "the lead was lost")?;
        holds(s.session(0) == session, "the lease noticed")?;
        holds(
            s.counter(Counter::SessionsExpired) == 0,
            "a session was expired",
        )?;
        s.succeeds(run, 120_000).await?;
        s.all_equal().await
    });
}
