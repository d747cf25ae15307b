//! HA-7: without a majority there is no new decision, and on return nothing is judged for the gap.
//! HA-10: a graceful stop hands over the lead and loses nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure_api::ledger::{Decision, Fire};
use tenure_api::protocol::{HeartbeatRequest, RegisterAnswer};
use tenure_api::runs::{Consistency, RunState, TaskState};
use tenure_api::{JobName, paths};
use tenure_sdk::{JobBody, Precondition};
use tokio::time::sleep;

use crate::support::{
    Child, Cluster, Settings, assert_one_decision_each, eventually, fires_of, holds, in_process,
    job, runs_of,
};

/// How long the majority is gone after the node has noticed: together longer than the lease of a bystander,
/// and shorter than that of the worker.
const GAP: Duration = Duration::from_secs(7);
const BYSTANDER_LEASE_MS: u64 = 4_000;
const WORKER_LEASE_MS: u64 = 30_000;
const GRACE_MS: i64 = 1_000;

async fn two_of_three_die(survivor_leads: bool) {
    let mut cluster = Cluster::start(Settings::default()).await;
    let _counter = in_process(&cluster, "counter", 64);
    let sink = cluster.dir.path().to_owned();
    let _worker = Child::start(&cluster, "worker", WORKER_LEASE_MS, &sink);
    cluster
        .counter_is("executors_online", |online| online == 2.0)
        .await;

    let tick = job("name: tick\ntrigger: { manual: true }\ntask: { capability: tick }\n");
    let tick = cluster.put(tick).await;
    let run = cluster.trigger(&tick).await;
    cluster.task_is(run, TaskState::Running).await;
    let mut jobs = Vec::new();
    for (name, misfire) in [
        ("gap-skip", "policy: skip"),
        ("gap-once", "policy: fire_once"),
        ("gap-each", "policy: catch_up, limit: 3"),
    ] {
        let text = format!(
            "name: {name}\ntrigger: {{ every: 1s }}\noverlap: allow\nqueue_limit: 100\n\
             misfire: {{ {misfire}, grace: 1s }}\nhistory: {{ keep: 1000 }}\ntask: {{ capability: count }}\n"
        );
        jobs.push(cluster.put(job(&text)).await);
    }
    cluster
        .counter_is("runs_succeeded_total", |done| done >= 6.0)
        .await;

    let leader = cluster.leader().await;
    let survivor = if survivor_leads {
        leader
    } else {
        (leader + 1) % 3
    };
    let others: Vec<usize> = (0..3).filter(|place| *place != survivor).collect();
    let wire = cluster.wire(survivor);
    let bystander = serde_json::json!({
        "instance_id": "bystander", "version": "1.0.0", "capabilities": ["nothing"], "capacity": 1,
        "lease_ttl_ms": BYSTANDER_LEASE_MS,
    });
    let bystander: RegisterAnswer = wire.post(paths::SESSIONS, &bystander).await.unwrap().read();
    others.iter().for_each(|place| cluster.kill(*place));

    // No reads, no decisions.
    let refusal = eventually("reads say that there is no leader", async || {
        let answer = wire
            .get(paths::JOBS)
            .await
            .map_err(|error| error.to_string())?;
        if answer.status == 503 {
            Ok(answer)
        } else {
            Err(answer.text())
        }
    })
    .await;
    assert_eq!(refusal.code(), "no_leader");
    assert!(
        refusal.response.header("retry-after").is_some(),
        "{refusal:?}"
    );
    eventually("the gauge says so", async || {
        let gauge = wire.metric("no_leader").await?;
        holds(gauge == 1.0, gauge)
    })
    .await;
    let committed = wire.metric("committed_index").await.unwrap();
    let fires = wire.metric("fires_total").await.unwrap();
    let ticks = line_count(&sink.join("ticks"));
    sleep(GAP).await;
    assert_eq!(
        wire.metric("committed_index").await.unwrap(),
        committed,
        "nothing new is decided"
    );
    assert_eq!(wire.metric("fires_total").await.unwrap(), fires);
    assert_eq!(wire.metric("no_leader").await.unwrap(), 1.0);
    assert!(line_count(&sink.join("ticks")) > ticks, "what runs goes on");

    // They return.
    others.iter().for_each(|place| cluster.restart(*place));
    cluster.all_ready().await;
    let heartbeat = HeartbeatRequest {
        slots_used: 0,
        healthy: true,
        tasks: Vec::new(),
    };
    let path = paths::session(paths::SESSION_HEARTBEAT, bystander.session);
    let renewed = eventually("the bystander renews", async || {
        let answer = wire
            .post(&path, &heartbeat)
            .await
            .map_err(|error| error.to_string())?;
        if answer.status == 503 {
            Err(answer.text())
        } else {
            Ok(answer)
        }
    })
    .await;
    assert_eq!(
        renewed.status,
        200,
        "a lease does not run while nobody can renew it: {}",
        renewed.text()
    );
    assert_eq!(cluster.counter("sessions_expired_total").await, 0.0);
    std::fs::write(sink.join("enough"), "").unwrap();
    let ended = cluster.ended(run).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:#?}");
    assert_eq!(
        (ended.tasks[0].epoch.0, ended.tasks[0].attempt),
        (1, 1),
        "its owner kept it"
    );

    let client = cluster.client();
    let instants = fires;
    cluster
        .counter_is("runs_succeeded_total", |done| done > instants + 9.0)
        .await;
    for job in &jobs {
        client.pause_job(job).await.unwrap();
    }
    for (job, caught_up) in jobs.iter().zip([0, 1, 3]) {
        let fires = fires_of(&client, job, Consistency::Linearizable).await;
        let runs = runs_of(&client, job, Consistency::Linearizable).await;
        assert_one_decision_each(job, 1_000, &fires, &runs);
        assert_decided_by_policy(job, &fires, caught_up);
    }
    cluster.all_alike().await;
}

fn line_count(path: &std::path::Path) -> usize {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .count()
}

/// The gap has one skip over all that the policy does not run, and then as many late runs as it does.
fn assert_decided_by_policy(job: &JobName, fires: &[Fire], caught_up: usize) {
    let skips: Vec<usize> = (0..fires.len())
        .filter(|place| fires[*place].decision == Decision::SkippedMisfire)
        .collect();
    assert!(!skips.is_empty(), "{job}: {fires:#?}");
    let (last, before) = skips.split_last().unwrap();
    assert!(before.iter().all(|place| fires[*place].instants > 0));
    let late = |fire: &&Fire| fire.decided_at.as_ms() - fire.scheduled_at.as_ms() > GRACE_MS;
    let late = fires[last + 1..].iter().take_while(late).count();
    // One more may have become late between the plan and its stamp.
    assert!(
        (caught_up..=caught_up + 1).contains(&late),
        "{job}: {late} late runs in {fires:#?}"
    );
    let made = fires[last + 1..]
        .iter()
        .all(|fire| fire.decision.made_run());
    assert!(made, "{job}: {fires:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_7_two_of_three_die_and_the_leader_survives() {
    two_of_three_die(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_7_two_of_three_die_and_a_follower_survives() {
    two_of_three_die(false).await;
}

/// When each write was acknowledged, and the longest time without one.
#[derive(Default)]
struct Acknowledged {
    jobs: Vec<JobName>,
    last: Option<Instant>,
    longest: Duration,
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_10_each_leader_stops_gracefully_under_load() {
    let mut cluster = Cluster::start(Settings::default()).await;
    let counter = in_process(&cluster, "counter", 64);
    let mut jobs = Vec::new();
    for number in 0..5 {
        let text = format!(
            "name: second-{number}\ntrigger: {{ cron: \"* * * * * *\" }}\noverlap: allow\nqueue_limit: 100\n\
             history: {{ keep: 10000 }}\ntask: {{ capability: count }}\n"
        );
        jobs.push(cluster.put(job(&text)).await);
    }
    let acknowledged = Arc::new(Mutex::new(Acknowledged::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for writer in 0..4 {
        let (client, stop) = (cluster.client(), stop.clone());
        let (acknowledged, written) = (acknowledged.clone(), written.clone());
        writers.push(tokio::spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                let text = format!(
                    "name: load-{writer}-{number}\ntrigger: {{ manual: true }}\ntask: {{ capability: count }}\n"
                );
                let spec = job(&text);
                let name = spec.name.clone();
                client.put_job(&name, &JobBody::from(spec), Precondition::Absent).await.unwrap();
                let mut seen = acknowledged.lock().unwrap();
                let now = Instant::now();
                if let Some(last) = seen.last {
                    seen.longest = seen.longest.max(now - last);
                }
                seen.last = Some(now);
                seen.jobs.push(name);
                written.fetch_add(1, Ordering::AcqRel);
            }
        }));
    }
    for hand_over in 1..=3 {
        let before = written.load(Ordering::Acquire);
        eventually("writes are accepted", async || {
            let written = written.load(Ordering::Acquire);
            holds(written > before + 50, written)
        })
        .await;
        acknowledged.lock().unwrap().longest = Duration::ZERO;
        let leader = cluster.leader().await;
        let said = cluster.nodes[leader]
            .process
            .log()
            .matches("handed over the lead")
            .count();
        let status = cluster.nodes[leader].process.terminate().await;
        assert_eq!(
            status.code(),
            Some(0),
            "{}",
            cluster.nodes[leader].process.last_words()
        );
        let log = cluster.nodes[leader].process.log();
        assert_eq!(
            log.matches("handed over the lead").count(),
            said + 1,
            "{log}"
        );
        let stopped_at = written.load(Ordering::Acquire);
        eventually("writes go on", async || {
            let written = written.load(Ordering::Acquire);
            holds(written > stopped_at + 50, written)
        })
        .await;
        let longest = acknowledged.lock().unwrap().longest;
        println!(
            "hand-over {hand_over}: longest time without an accepted write {} ms",
            longest.as_millis()
        );
        cluster.restart(leader);
        cluster.all_ready().await;
    }
    stop.store(true, Ordering::Release);
    for writer in writers {
        writer.await.unwrap();
    }
    let client = cluster.client();
    for job in &jobs {
        client.pause_job(job).await.unwrap();
    }
    cluster.counter_is("runs_live", |live| live == 0.0).await;
    for job in &jobs {
        let fires = fires_of(&client, job, Consistency::Linearizable).await;
        let runs = runs_of(&client, job, Consistency::Linearizable).await;
        assert_one_decision_each(job, 1_000, &fires, &runs);
        assert!(
            runs.iter().all(|run| run.state == RunState::Succeeded),
            "{runs:#?}"
        );
    }
    let acknowledged = acknowledged.lock().unwrap().jobs.clone();
    for name in &acknowledged {
        client
            .job(name)
            .await
            .unwrap_or_else(|error| panic!("{name} was acknowledged: {error}"));
    }
    assert!(cluster.counter("elections_total").await >= 4.0);
    assert!(!counter.seen.starts().is_empty());
    cluster.all_alike().await;
}
