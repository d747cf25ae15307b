//! EX-2, EX-3, EX-4 and SH-1 with processes that are killed and paused. Times are scaled by one short lease.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use tenure_api::executors::ExecutorState;
use tenure_api::runs::{RunState, TaskState};
use tenure_api::{ErrorCode, InstanceId, JobName, SessionId, paths};

use crate::support::{CHECKPOINT_EVERY, Child, Cluster, RECORDS, Settings, eventually, holds, job};

const LEASE_MS: u64 = 3_000;
/// Heartbeats come at 10 of 35 parts of the lease.
const HEARTBEAT_MS: u64 = LEASE_MS * 10 / 35;
/// What a new leader gives each lease: in the same ratio to the lease as by default.
const GRACE_MS: u64 = HEARTBEAT_MS;
/// Longer than any test: a lease that must not end by itself.
const LONG_LEASE_MS: u64 = 120_000;

/// A cluster, a folder for effects, and a manual job.
async fn prepared(yaml: &str) -> (Cluster, PathBuf, JobName) {
    let cluster = Cluster::start(Settings {
        grace_ms: Some(GRACE_MS),
        ..Settings::light()
    })
    .await;
    let sink = cluster.dir.path().join("sink");
    std::fs::create_dir(&sink).unwrap();
    let name = cluster.put(job(yaml)).await;
    (cluster, sink, name)
}

fn lines(sink: &Path, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(sink.join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn instance(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

const TICK: &str = "name: tick\ntrigger: { manual: true }\ntask: { capability: tick }\n";

#[tokio::test(flavor = "multi_thread")]
async fn ex_2_a_silent_executor_is_expired_by_the_log_and_its_task_taken_over() {
    let (mut cluster, sink, name) = prepared(TICK).await;
    let first = Child::start(&cluster, "first", LEASE_MS, &sink);
    let run = cluster.trigger(&name).await;
    let held = cluster.task_is(run, TaskState::Running).await;
    assert_eq!(held.executor, Some(instance("first")));
    let _second = Child::start(&cluster, "second", LONG_LEASE_MS, &sink);
    cluster
        .counter_is("executors_online", |online| online == 2.0)
        .await;
    assert_eq!(cluster.counter("sessions_expired_total").await, 0.0);

    first.process.pause();
    let silent_since = Instant::now();
    cluster
        .counter_is("sessions_expired_total", |expired| expired == 1.0)
        .await;
    let silent_ms = silent_since.elapsed().as_millis();
    // The last renewal was granted at most a heartbeat before the pause. Not before the lease was over:
    assert!(
        silent_ms >= u128::from(LEASE_MS - HEARTBEAT_MS),
        "{silent_ms} ms"
    );
    println!("expired {silent_ms} ms after the pause, with a lease of {LEASE_MS} ms");
    let gone = cluster
        .client()
        .executor(&instance("first"))
        .await
        .unwrap_err();
    assert_eq!(
        gone.code(),
        Some(ErrorCode::NotFound),
        "nobody is shown whose lease is over"
    );
    let taken = eventually("the other one has it", async || {
        let task = cluster.run(run).await.tasks[0].clone();
        let taken = task.executor == Some(instance("second")) && task.state == TaskState::Running;
        if taken {
            Ok(task)
        } else {
            Err(format!("{task:?}"))
        }
    })
    .await;
    assert_eq!(taken.epoch.0, held.epoch.0 + 1);
    assert_eq!(cluster.counter("takeovers_total").await, 1.0);
    assert_eq!(cluster.counter("leases_expired_total").await, 1.0);
    std::fs::write(sink.join("enough"), "").unwrap();
    assert_eq!(cluster.ended(run).await.state, RunState::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn ex_3_the_old_session_of_a_restarted_executor_is_refused_in_every_call() {
    let text = format!("{TICK}recovery: immediate\n");
    let (mut cluster, sink, name) = prepared(&text).await;
    let mut worker = Child::start(&cluster, "worker", LONG_LEASE_MS, &sink);
    let run = cluster.trigger(&name).await;
    let held = cluster.task_is(run, TaskState::Running).await;
    let old = held.session.unwrap();
    worker.process.kill();
    worker.process.start();
    let taken = eventually(
        "the new process has the task under a new epoch",
        async || {
            let task = cluster.run(run).await.tasks[0].clone();
            let taken = task.state == TaskState::Running && task.epoch > held.epoch;
            if taken {
                Ok(task)
            } else {
                Err(format!("{task:?}"))
            }
        },
    )
    .await;
    let new = taken.session.unwrap();
    assert!(new > old && taken.executor == Some(instance("worker")));

    let before = cluster.counter("stale_session_rejections_total").await;
    let key = json!({"run": run, "shard": 0, "epoch": held.epoch});
    let with = |more: serde_json::Value| {
        let mut body = key.clone();
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let calls = [
        (
            paths::SESSION_HEARTBEAT,
            json!({"slots_used": 1, "healthy": true, "tasks": [key]}),
        ),
        (paths::SESSION_POLL, json!({"max": 1, "wait_ms": 0})),
        (paths::SESSION_START, key.clone()),
        (paths::SESSION_CHECKPOINT, with(json!({"offset": 99}))),
        (
            paths::SESSION_OUTPUT,
            with(json!({"seq": 99, "text": "late"})),
        ),
        (
            paths::SESSION_RESULT,
            with(json!({"outcome": {"status": "succeeded"}})),
        ),
        (paths::SESSION_RELEASE, with(json!({"reason": "late"}))),
    ];
    let follower = cluster.follower().await;
    for (route, body) in &calls {
        let path = paths::session(route, old);
        let answer = cluster
            .executor_wire(follower)
            .post(&path, body)
            .await
            .unwrap();
        let code = answer.code();
        assert!(
            ["stale_session", "session_replaced"].contains(&code.as_str()),
            "{route}: {}",
            answer.text()
        );
    }
    let after = cluster.counter("stale_session_rejections_total").await;
    // A poll that has nothing to say writes no entry, and so counts nothing in the state.
    assert!(after >= before + 6.0, "{before}, then {after}");
    let run_now = cluster.run(run).await;
    assert_eq!(
        run_now.state,
        RunState::Running,
        "the old one's result had no effect"
    );
    assert_eq!(run_now.tasks[0].checkpoint, None);
    assert_eq!(cluster.counter("sessions_replaced_total").await, 1.0);
    std::fs::write(sink.join("enough"), "").unwrap();
    let ended = cluster.ended(run).await;
    assert_eq!(
        (ended.state, ended.tasks[0].epoch),
        (RunState::Succeeded, taken.epoch)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ex_4_a_paused_executor_does_nothing_more_when_it_wakes_up() {
    let (mut cluster, sink, name) = prepared(TICK).await;
    let first = Child::start(&cluster, "first", LEASE_MS, &sink);
    let run = cluster.trigger(&name).await;
    let held = cluster.task_is(run, TaskState::Running).await;
    let _second = Child::start(&cluster, "second", LONG_LEASE_MS, &sink);
    cluster
        .counter_is("executors_online", |online| online == 2.0)
        .await;
    first.process.pause();
    let old = held.session.unwrap();
    let by = |epoch: u64| {
        lines(&sink, "ticks")
            .iter()
            .filter(|line| **line == epoch.to_string())
            .count()
    };
    eventually("the other one works", async || {
        holds(by(held.epoch.0 + 1) > 0, "no line of it")
    })
    .await;
    let before = by(held.epoch.0);
    assert!(before > 0);
    first.process.resume();
    let client = cluster.client();
    eventually("the first one has a new session", async || {
        let executor = client
            .executor(&instance("first"))
            .await
            .map_err(|error| error.to_string())?;
        let renewed = executor.session > old && executor.state == ExecutorState::Online;
        holds(renewed, format!("{executor:?}"))
    })
    .await;
    let now = by(held.epoch.0 + 1);
    eventually("the other one goes on", async || {
        holds(by(held.epoch.0 + 1) > now + 20, now)
    })
    .await;
    // A line that was under way in the moment of the pause cannot be called back.
    let after = by(held.epoch.0);
    assert!(
        after <= before + 1,
        "{} lines after it woke up",
        after - before
    );
    std::fs::write(sink.join("enough"), "").unwrap();
    let ended = cluster.ended(run).await;
    assert_eq!(ended.state, RunState::Succeeded);
    assert_eq!(ended.tasks[0].epoch.0, held.epoch.0 + 1, "taken over once");
    assert_eq!(cluster.counter("takeovers_total").await, 1.0);
    assert_eq!(cluster.counter("runs_succeeded_total").await, 1.0);
}

const RECORDS_JOB: &str =
    "name: records\ntrigger: { manual: true }\ntask: { capability: records }\n";

#[tokio::test(flavor = "multi_thread")]
async fn sh_1_a_killed_owner_is_followed_from_its_checkpoint_under_a_higher_epoch() {
    let (mut cluster, sink, name) = prepared(RECORDS_JOB).await;
    let mut workers = BTreeMap::new();
    for label in ["one", "two"] {
        workers.insert(
            instance(label),
            Child::start(&cluster, label, LEASE_MS, &sink),
        );
    }
    cluster
        .counter_is("executors_online", |online| online == 2.0)
        .await;
    let run = cluster.trigger(&name).await;
    let owner = eventually("the owner is past a checkpoint and said so", async || {
        let task = cluster.run(run).await.tasks[0].clone();
        let committed = task.checkpoint.map_or(0, |checkpoint| checkpoint.offset);
        let past = committed >= 2 * CHECKPOINT_EVERY && task.progress.unwrap_or(0) > committed;
        if past {
            Ok(task)
        } else {
            Err(format!("{task:?}"))
        }
    })
    .await;
    let lost = owner.executor.clone().unwrap();
    workers.get_mut(&lost).unwrap().process.kill();
    // What the cluster knows of the dead owner no longer moves.
    let known = cluster.run(run).await.tasks[0].clone();
    let (committed, progress) = (known.checkpoint.unwrap().offset, known.progress.unwrap());
    assert!(committed.is_multiple_of(CHECKPOINT_EVERY) && committed < RECORDS);

    let next = eventually("the other one has it", async || {
        let task = cluster.run(run).await.tasks[0].clone();
        let taken = task.epoch > owner.epoch && task.state == TaskState::Running;
        if taken {
            Ok(task)
        } else {
            Err(format!("{task:?}"))
        }
    })
    .await;
    assert_eq!(next.epoch.0, owner.epoch.0 + 1);
    assert_ne!(next.executor, Some(lost));
    // The old epoch is refused and counted, even from the session that owns the shard now.
    let before = cluster.counter("stale_epoch_rejections_total").await;
    let leader = cluster.leader().await;
    let late = json!({"run": run, "shard": 0, "epoch": owner.epoch, "offset": RECORDS});
    let session: SessionId = next.session.unwrap();
    let answer = cluster
        .executor_wire(leader)
        .post(&paths::session(paths::SESSION_CHECKPOINT, session), &late)
        .await;
    assert_eq!(answer.unwrap().code(), "stale_epoch");
    cluster
        .counter_is("stale_epoch_rejections_total", |count| {
            count == before + 1.0
        })
        .await;

    let ended = cluster.ended(run).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:#?}");
    let owners = lines(&sink, "owners");
    let expected = [
        format!("0 {} 0", owner.epoch),
        format!("0 {} {committed}", next.epoch),
    ];
    assert_eq!(owners, expected, "shard, epoch, and where it began");
    // Each record's effect is there once, however often it was tried.
    let tries = lines(&sink, "tries");
    let made = tries.iter().filter(|line| line.ends_with(" true")).count() as u64;
    assert_eq!(made, RECORDS);
    for record in 0..RECORDS {
        assert!(
            sink.join(format!("record-0-{record}")).exists(),
            "record {record}"
        );
    }
    let replayed = cluster.counter("replayed_records_total").await;
    assert_eq!(
        replayed,
        (progress.max(committed) - committed) as f64,
        "{known:?}"
    );
    println!(
        "{} tries for {RECORDS} records, {replayed} of them known to be replayed",
        tries.len()
    );
}
