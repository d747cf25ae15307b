//! What whole clusters of real processes do in a second: `scripts/bench`, or
//! `cargo bench -p tenure --bench cluster [-- PART...]`. Parts: commands, cycles, failover, failover-off, lateness.
//!
//! Three nodes, their clients and the executor share this machine, over loopback and real `fdatasync`, in the
//! system's temporary folder. A figure is the median of three runs, with the lowest and the highest beside it.
//! `cargo test` runs it small, so that it cannot rot.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    unused_imports,
    reason = "a bench measures time, prints it and may end by panicking; it uses a part of the tests' support"
)]

#[path = "../cluster/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Cluster, Settings, Wire, eventually, fires_of, holds, in_process, job};
use tenure_api::protocol::{HeartbeatRequest, RegisterAnswer};
use tenure_api::runs::{Consistency, TriggerRequest};
use tenure_api::{JobName, paths};
use tenure_sdk::Method;

/// How much is done.
struct Size {
    runs: usize,
    run_for: Duration,
    clients: &'static [usize],
    kills: usize,
    jobs: usize,
    fires_a_job: usize,
}

const LARGE: Size = Size {
    runs: 3,
    run_for: Duration::from_secs(5),
    clients: &[1, 64, 1_000],
    kills: 10,
    jobs: 100,
    fires_a_job: 20,
};
const SMALL: Size = Size {
    runs: 1,
    run_for: Duration::from_millis(300),
    clients: &[1, 8],
    kills: 1,
    jobs: 5,
    fires_a_job: 2,
};

const PARTS: [&str; 5] = ["commands", "cycles", "failover", "failover-off", "lateness"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Cargo says `--bench` when it measures, and nothing when it tests.
    let size = if arguments.iter().any(|argument| argument == "--bench") {
        LARGE
    } else {
        SMALL
    };
    let named: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    if let Some(unknown) = named.iter().find(|part| !PARTS.contains(part)) {
        eprintln!("no part {unknown}; there are {}", PARTS.join(", "));
        std::process::exit(2);
    }
    let wanted = |part: &str| named.is_empty() || named.contains(&part);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    println!(
        "{:<52}{:>10}{:>22}  unit",
        "what", "median", "lowest .. highest"
    );
    runtime.block_on(async {
        if wanted("commands") {
            commands(&size).await;
        }
        if wanted("cycles") {
            cycles(&size).await;
        }
        if wanted("failover") {
            failover(&size, true).await;
        }
        if wanted("failover-off") {
            failover(&size, false).await;
        }
        if wanted("lateness") {
            lateness(&size).await;
        }
    });
}

/// A line of the table.
fn line(what: &str, mut values: Vec<f64>, unit: &str) {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[0], values[values.len() - 1]);
    let median = values[values.len() / 2];
    assert!(high > 0.0, "{what}: nothing was measured");
    println!(
        "{what:<52}{median:>10.0}{:>22}  {unit}",
        format!("{low:.0} .. {high:.0}")
    );
}

/// Heartbeats of registered sessions: one command, one log entry, one kept-open connection each.
async fn commands(size: &Size) {
    let mut cluster = Cluster::start(Settings::default()).await;
    let leader = cluster.leader().await;
    let most = size.clients.iter().max().copied().unwrap_or(1);
    let mut clients: Vec<(Wire, String)> = Vec::new();
    for number in 0..most {
        let wire = cluster.executor_wire(leader);
        let register = json!({
            "instance_id": format!("beat-{number}"), "version": "1.0.0", "capabilities": ["none"],
            "capacity": 1, "lease_ttl_ms": 3_600_000,
        });
        let session: RegisterAnswer = wire.post(paths::SESSIONS, &register).await.unwrap().read();
        clients.push((
            wire,
            paths::session(paths::SESSION_HEARTBEAT, session.session),
        ));
    }
    for count in size.clients {
        let mut rates = Vec::new();
        for _ in 0..size.runs {
            rates.push(heartbeats(&clients[..*count], size.run_for).await);
        }
        let what = format!("commands (heartbeats over HTTP), {count} clients");
        line(&what, rates, "/s");
    }
}

/// Accepted heartbeats a second, each client sending the next when the last is answered.
async fn heartbeats(clients: &[(Wire, String)], run_for: Duration) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = clients
        .iter()
        .cloned()
        .map(|(wire, path)| {
            let (done, stop) = (done.clone(), stop.clone());
            tokio::spawn(async move {
                let beat = HeartbeatRequest {
                    slots_used: 0,
                    healthy: true,
                    tasks: Vec::new(),
                };
                while !stop.load(Ordering::Relaxed) {
                    match wire.post(&path, &beat).await {
                        Ok(answer) if answer.status == 200 => {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        // A starved node answers late, or has lost the lead for a moment.
                        Ok(answer) if answer.status < 500 => panic!("{}", answer.text()),
                        Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(run_for / 4).await;
    let (before, start) = (done.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(run_for).await;
    eventually("something is done", async || {
        let now = done.load(Ordering::Relaxed);
        holds(now > before, now)
    })
    .await;
    let rate = (done.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    rate
}

/// Trigger to result: run created, assigned, started, handler called, result accepted. Four entries each.
async fn cycles(size: &Size) {
    let mut cluster = Cluster::start(Settings::default()).await;
    let _executor = in_process(&cluster, "counter", 1_000);
    let spec = job(
        "name: cycle\ntrigger: { manual: true }\noverlap: allow\nqueue_limit: 1000\n\
         history: { keep: 100 }\ntask: { capability: count }\n",
    );
    let name = cluster.put(spec).await;
    let leader = cluster.leader().await;
    let wire = cluster.wire(leader);
    let stop = Arc::new(AtomicBool::new(false));
    let triggers: Vec<_> = (0..64)
        .map(|client| {
            let (wire, stop) = (cluster.wire(leader), stop.clone());
            tokio::spawn(trigger_on(wire, client, stop))
        })
        .collect();
    cluster
        .counter_is("runs_succeeded_total", |count| count > 0.0)
        .await;
    let mut rates = Vec::new();
    for _ in 0..size.runs {
        let (before, start) = (
            wire.metric("runs_succeeded_total").await.unwrap(),
            Instant::now(),
        );
        tokio::time::sleep(size.run_for * 2).await;
        let after = cluster
            .counter_is("runs_succeeded_total", |count| count > before)
            .await;
        rates.push((after - before) / start.elapsed().as_secs_f64());
    }
    stop.store(true, Ordering::Relaxed);
    for trigger in triggers {
        trigger.await.unwrap();
    }
    cluster.counter_is("runs_live", |live| live == 0.0).await;
    assert_eq!(
        cluster.counter("runs_not_succeeded_total").await,
        0.0,
        "{name}"
    );
    line("run life cycles (trigger, handler, done)", rates, "/s");
}

async fn trigger_on(wire: Wire, client: usize, stop: Arc<AtomicBool>) {
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let key = vec![(paths::IDEMPOTENCY_KEY_HEADER, format!("{client}-{number}"))];
        let body = serde_json::to_vec(&TriggerRequest::default()).unwrap();
        let answer = wire
            .send(Method::Post, "/v1/jobs/cycle/trigger", key, body)
            .await;
        let made = match answer {
            Ok(answer) if answer.status < 300 => !answer.json()["run"].is_null(),
            // The queue is full: the executor is the slower one. Or a node is starved.
            Ok(answer) if [409, 429].contains(&answer.status) || answer.status >= 500 => false,
            Ok(answer) => panic!("{}", answer.text()),
            Err(_) => false,
        };
        if !made {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// From SIGKILL of the leader to the next write that a survivor accepts, with or without fast failover.
async fn failover(size: &Size, fast: bool) {
    let mut raft = toml::Table::new();
    raft.insert("fast_failover".into(), fast.into());
    let settings = Settings {
        raft,
        ..Settings::default()
    };
    let mut cluster = Cluster::start(settings).await;
    let mut times_ms = Vec::new();
    for kill in 0..size.kills {
        let leader = cluster.leader().await;
        let survivors: Vec<Wire> = (0..3)
            .filter(|place| *place != leader)
            .map(|place| cluster.wire(place))
            .collect();
        let spec = json!({
            "name": format!("after-{kill}"), "trigger": {"manual": true}, "task": {"capability": "none"},
        });
        let (path, body) = (
            format!("/v1/jobs/after-{kill}"),
            spec.to_string().into_bytes(),
        );
        cluster.kill(leader);
        let start = Instant::now();
        let mut place = 0;
        loop {
            let wire = &survivors[place % survivors.len()];
            let answer = wire
                .send(Method::Put, &path, Vec::new(), body.clone())
                .await;
            if answer.is_ok_and(|answer| answer.status < 300) {
                break;
            }
            place += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        times_ms.push(start.elapsed().as_secs_f64() * 1_000.0);
        cluster.restart(leader);
        cluster.all_ready().await;
        cluster.all_alike().await;
    }
    let how = if fast { "" } else { ", fast failover off" };
    let what = format!("SIGKILL of the leader to the next write{how}");
    line(&what, times_ms, "ms");
}

/// How long after its instant a run is decided.
async fn lateness(size: &Size) {
    let mut cluster = Cluster::start(Settings::default()).await;
    let _executor = in_process(&cluster, "counter", 1_000);
    let mut jobs: Vec<JobName> = Vec::new();
    for number in 0..size.jobs {
        let text = format!(
            "name: second-{number}\ntrigger: {{ every: 1s }}\noverlap: allow\nqueue_limit: 1000\n\
             history: {{ keep: 1000 }}\ntask: {{ capability: count }}\n"
        );
        jobs.push(cluster.put(job(&text)).await);
    }
    let wanted = (size.jobs * size.fires_a_job) as f64;
    let (mut median, mut tail) = (Vec::new(), Vec::new());
    let client = cluster.client();
    let mut from = None;
    for run in 1..=size.runs {
        let leader = cluster.leader().await;
        let wire = cluster.wire(leader);
        eventually("enough fires", async || {
            let fires = wire.metric("fires_total").await?;
            holds(fires >= wanted * run as f64, fires)
        })
        .await;
        let mut late_ms = Vec::new();
        let mut last = from;
        for job in &jobs {
            for fire in fires_of(&client, job, Consistency::Linearizable).await {
                last = last.max(Some(fire.scheduled_at));
                if Some(fire.scheduled_at) > from {
                    late_ms.push((fire.decided_at.as_ms() - fire.scheduled_at.as_ms()) as f64);
                }
            }
        }
        from = last;
        late_ms.sort_by(f64::total_cmp);
        median.push(late_ms[late_ms.len() / 2] + 1.0);
        tail.push(late_ms[late_ms.len() * 99 / 100] + 1.0);
    }
    // A stamp is in whole milliseconds: the figure is the next one.
    line(
        &format!("lateness of fires, {} jobs every second, p50", size.jobs),
        median,
        "ms, below",
    );
    line(
        &format!("lateness of fires, {} jobs every second, p99", size.jobs),
        tail,
        "ms, below",
    );
}
