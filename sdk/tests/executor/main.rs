//! The executor against a cluster in memory, on paused time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

#[path = "../fake/mod.rs"]
mod fake;
mod work;

use fake::{Cluster, Fault, Leaping, Mode, N1, N2, N3, environment_with, executor};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tenure_sdk::api::protocol::{CancelNotice, Checkpoint, Outcome, Resume, Verdict};
use tenure_sdk::api::{Epoch, ErrorCode};
use tenure_sdk::{CancelReason, ExecutorBuilder, ExecutorHandle, Stopped, TaskContext, TaskError};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Runs an executor in the background.
fn start(builder: ExecutorBuilder) -> (ExecutorHandle, JoinHandle<Stopped>) {
    let executor = builder.build().unwrap();
    let handle = executor.handle();
    (
        handle,
        tokio::spawn(async move { executor.run().await.unwrap() }),
    )
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A handler that waits for ever.
async fn for_ever(_: TaskContext) -> Result<(), TaskError> {
    std::future::pending().await
}

/// A handler that waits for ever, and a mark that says it was dropped.
fn watched() -> (
    impl Fn(TaskContext) -> BoxedHandler + Send + Sync + 'static,
    Arc<AtomicBool>,
) {
    struct Mark(Arc<AtomicBool>);
    impl Drop for Mark {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&dropped);
    let handler = move |_: TaskContext| -> BoxedHandler {
        let mark = Mark(Arc::clone(&shared));
        Box::pin(async move {
            let _mark = mark;
            std::future::pending::<Result<(), TaskError>>().await
        })
    };
    (handler, dropped)
}

type BoxedHandler = tenure_sdk::BoxFuture<'static, Result<(), TaskError>>;

#[tokio::test(start_paused = true)]
async fn a_handler_runs_after_its_start_is_acknowledged() {
    let cluster = Cluster::new();
    let seen = Arc::clone(&cluster);
    let (handle, _run) = start(
        executor(&cluster).handler("work", move |task: TaskContext| {
            let cluster = Arc::clone(&seen);
            async move {
                assert_eq!(
                    cluster.state().starts.len(),
                    1,
                    "started before it was acknowledged"
                );
                let rows: u32 = task.params_at("rows")?;
                assert_eq!(
                    task.fencing_token().to_string(),
                    "0000000001.00000000000000000019"
                );
                assert_eq!((task.fencing_scope(), task.term().get()), ("nightly/0", 1));
                assert_eq!(
                    (task.shard(), task.shard_count(), task.attempt()),
                    (0, 1, 1)
                );
                assert_eq!(task.scheduled_at().to_string(), "2025-12-01T02:00:00.000Z");
                Ok(json!({"rows": rows * 2}))
            }
        }),
    );
    let key = cluster.grant(9, 19);
    cluster
        .wait("a result", |state| state.results.len() == 1)
        .await;
    let result = cluster.state().results[0].clone();
    assert_eq!(result.key, key);
    assert_eq!(
        result.outcome,
        Outcome::Succeeded {
            value: Some(json!({"rows": 10}))
        }
    );
    cluster
        .wait("acknowledged", |_| {
            handle.metrics().results_acknowledged == 1
        })
        .await;
    assert_eq!(
        cluster.state().registrations[0].capabilities[0].as_str(),
        "work"
    );
}

/// EX-1, the executor's side.
#[tokio::test(start_paused = true)]
async fn ex_1_two_lost_heartbeats_change_nothing() {
    let cluster = Cluster::new();
    let (handle, _run) = start(executor(&cluster).handler("work", for_ever));
    let key = cluster.grant(1, 1);
    cluster.wait("a start", |state| state.starts == [key]).await;
    cluster
        .wait("a heartbeat", |state| state.heartbeats.len() == 1)
        .await;
    // Each heartbeat is tried more than once; all attempts of about 20 s are lost.
    let heartbeats = cluster.state().heartbeats.len();
    cluster.change(|state| {
        state
            .faults
            .extend((0..4).map(|_| ("heartbeat", Fault::Hang)))
    });
    cluster
        .wait("the faults are used up", |state| state.faults.is_empty())
        .await;
    cluster
        .wait("more heartbeats", |state| {
            state.heartbeats.len() > heartbeats + 2
        })
        .await;
    let metrics = handle.metrics();
    assert_eq!(
        (
            metrics.leases_lost,
            metrics.sessions_registered,
            metrics.tasks_lost
        ),
        (0, 1, 0)
    );
    assert_eq!(
        cluster.state().heartbeats.last().unwrap().1.tasks[0].key,
        key
    );
}

#[tokio::test(start_paused = true)]
async fn the_executor_follows_the_leader() {
    let cluster = Cluster::new();
    let release = Arc::new(Notify::new());
    let released = Arc::clone(&release);
    let (handle, _run) = start(executor(&cluster).handler("work", move |_| {
        let released = Arc::clone(&released);
        async move {
            released.notified().await;
            Ok(())
        }
    }));
    cluster.grant(1, 1);
    cluster
        .wait("a start", |state| state.starts.len() == 1)
        .await;
    cluster.change(|state| {
        state.modes.insert(N1.into(), Mode::Down);
        state.leader = None;
    });
    release.notify_one();
    tokio::time::sleep(seconds(3)).await;
    assert!(cluster.state().results.is_empty());
    cluster.change(|state| {
        state.leader = Some(N2.into());
        state.term = 2;
    });
    cluster
        .wait("a result", |state| state.results.len() == 1)
        .await;
    cluster.grant(2, 1);
    release.notify_one();
    cluster
        .wait("another result", |state| state.results.len() == 2)
        .await;
    assert_eq!(handle.metrics().sessions_registered, 1);
    assert!(handle.metrics().leader_changes >= 1);
    assert!(cluster.state().trace.last().unwrap().starts_with("n2:1 "));
}

#[tokio::test(start_paused = true)]
async fn a_result_is_repeated_until_it_is_acknowledged() {
    let cluster = Cluster::new();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let (handle, _run) = start(executor(&cluster).handler("work", move |_| {
        let counted = Arc::clone(&counted);
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }));
    cluster.change(|state| {
        state.faults.push(("result", Fault::LoseReply));
        state.faults.push(("result", Fault::Hang));
        state
            .faults
            .push(("result", Fault::Refuse(ErrorCode::Overloaded)));
        state.faults.push(("result", Fault::Bare(502, None)));
    });
    cluster.grant(1, 1);
    cluster
        .wait("acknowledged", |_| {
            handle.metrics().results_acknowledged == 1
        })
        .await;
    let state = cluster.state();
    assert_eq!(
        state.results.len(),
        2,
        "once before the lost reply, once after"
    );
    assert_eq!(state.results[0], state.results[1]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_result_is_dropped_and_its_slot_is_free() {
    let cluster = Cluster::new();
    let (handle, _run) = start(
        executor(&cluster)
            .capacity(1)
            .handler("work", |_| async { Ok(()) }),
    );
    cluster.change(|state| {
        state
            .faults
            .push(("result", Fault::Refuse(ErrorCode::StaleEpoch)))
    });
    cluster.grant(1, 1);
    cluster
        .wait("refused", |_| handle.metrics().results_refused == 1)
        .await;
    cluster.grant(1, 2);
    cluster
        .wait("the next result", |state| state.results.len() == 1)
        .await;
    assert_eq!(cluster.state().results[0].key.epoch, Epoch(2));
}

/// HA-1, the executor's side.
#[tokio::test(start_paused = true)]
async fn ha_1_answers_of_an_old_term_are_dropped() {
    let cluster = Cluster::new();
    cluster.change(|state| state.term = 42);
    let (handle, _run) = start(executor(&cluster).handler("work", |_| async { Ok(()) }));
    cluster.wait("a poll", |state| state.polls.len() == 1).await;
    // The poll that waits, and the next one, are answered with term 41 and an assignment.
    cluster.change(|state| {
        state.faults.push(("poll", Fault::OldTerm(41)));
        state.faults.push(("poll", Fault::OldTerm(41)));
        state.draining = false;
    });
    cluster
        .wait("the next poll", |state| state.polls.len() == 2)
        .await;
    let key = cluster.grant(1, 1);
    cluster
        .wait("a dropped answer", |_| {
            handle.metrics().stale_term_answers_dropped >= 1
        })
        .await;
    assert!(cluster.state().starts.is_empty());
    // The new term's answer counts.
    cluster
        .wait("a result", |state| state.results.len() == 1)
        .await;
    assert_eq!(cluster.state().starts, [key]);
}

#[tokio::test(start_paused = true)]
async fn without_a_renewal_work_stops_at_the_own_deadline() {
    let cluster = Cluster::new();
    let (handler, dropped) = watched();
    let (handle, _run) = start(executor(&cluster).handler("work", handler));
    cluster.grant(1, 1);
    cluster
        .wait("a start", |state| state.starts.len() == 1)
        .await;
    cluster
        .wait("a heartbeat", |state| state.heartbeats.len() == 1)
        .await;
    let renewed_at = cluster.state().heartbeats[0].0;
    cluster.change(|state| {
        for mode in state.modes.values_mut() {
            *mode = Mode::Silent;
        }
    });
    while !dropped.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // 0.9 of 35 s, counted from when the last granted renewal was sent.
    let held = cluster.now() - renewed_at;
    assert!(held <= Duration::from_millis(31_510), "{held:?}");
    assert!(held >= Duration::from_millis(31_490), "{held:?}");
    assert_eq!(handle.metrics().leases_lost, 1);
    // The cluster comes back: the work is gone, the executor is there under a new session.
    cluster.change(|state| {
        for mode in state.modes.values_mut() {
            *mode = Mode::Up;
        }
    });
    cluster
        .wait("a new session", |state| state.session == 2)
        .await;
    assert!(cluster.state().results.is_empty());
    cluster.grant(2, 1);
    cluster
        .wait("work again", |state| state.starts.len() == 2)
        .await;
}

/// EX-4, the executor's side: the clock leaps, as after SIGSTOP and SIGCONT, and what the handler
/// waited for is there. Not one more line of it may run.
#[tokio::test(start_paused = true)]
async fn ex_4_a_paused_process_runs_no_further_line() {
    let cluster = Cluster::new();
    let clock = Arc::new(Leaping::default());
    let ready = Arc::new(Notify::new());
    let wrote = Arc::new(AtomicBool::new(false));
    let (waits, writes) = (Arc::clone(&ready), Arc::clone(&wrote));
    let environment = environment_with(Arc::clone(&clock) as _);
    let (handle, _run) = start(executor(&cluster).environment(environment).handler(
        "work",
        move |_| {
            let (waits, writes) = (Arc::clone(&waits), Arc::clone(&writes));
            async move {
                waits.notified().await;
                writes.store(true, Ordering::SeqCst);
                Ok(())
            }
        },
    ));
    cluster.grant(1, 1);
    cluster
        .wait("a start", |state| state.starts.len() == 1)
        .await;
    tokio::time::sleep(seconds(1)).await;
    clock.leap(seconds(60));
    cluster.change(|state| state.session_error = Some(ErrorCode::SessionExpired));
    ready.notify_one();
    cluster
        .wait("the loss", |_| handle.metrics().tasks_lost == 1)
        .await;
    assert!(!wrote.load(Ordering::SeqCst));
    assert!(cluster.state().results.is_empty());
    cluster
        .wait("a new session", |state| state.session == 2)
        .await;
}

#[tokio::test(start_paused = true)]
async fn each_call_of_the_context_looks_at_the_clock() {
    let cluster = Cluster::new();
    let clock = Arc::new(Leaping::default());
    let leaps = Arc::clone(&clock);
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tells = Arc::clone(&told);
    let environment = environment_with(Arc::clone(&clock) as _);
    let (handle, _run) = start(executor(&cluster).environment(environment).handler(
        "work",
        move |task| {
            let (leaps, tells) = (Arc::clone(&leaps), Arc::clone(&tells));
            async move {
                task.checkpoint(10, b"ten".to_vec()).await?;
                // No wait between here and the end: only the calls can tell.
                leaps.leap(seconds(60));
                tells
                    .lock()
                    .unwrap()
                    .push(task.check().unwrap_err().to_string());
                tells
                    .lock()
                    .unwrap()
                    .push(task.lease_remaining().as_millis().to_string());
                let late = task.checkpoint(20, Vec::new()).await;
                tells.lock().unwrap().push(late.unwrap_err().to_string());
                Ok(())
            }
        },
    ));
    cluster.grant(1, 1);
    cluster
        .wait("the loss", |_| handle.metrics().tasks_lost == 1)
        .await;
    assert_eq!(*told.lock().unwrap(), ["lease_lost", "0", "lease_lost"]);
    assert_eq!(cluster.state().checkpoints.len(), 1);
    assert!(cluster.state().results.is_empty());
}

/// EX-5, the earlier process's side.
#[tokio::test(start_paused = true)]
async fn ex_5_a_replaced_executor_stops_for_good() {
    let cluster = Cluster::new();
    let (handler, dropped) = watched();
    let (handle, run) = start(executor(&cluster).handler("work", handler));
    cluster.grant(1, 1);
    cluster
        .wait("a start", |state| state.starts.len() == 1)
        .await;
    cluster.change(|state| state.session_error = Some(ErrorCode::SessionReplaced));
    assert_eq!(run.await.unwrap(), Stopped::Replaced);
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(handle.metrics().sessions_replaced, 1);
    let requests = cluster.state().trace.len();
    tokio::time::sleep(seconds(300)).await;
    assert_eq!(
        cluster.state().trace.len(),
        requests,
        "it went on after it was replaced"
    );
    assert_eq!(cluster.state().session, 1);
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_repeated_makes_one_session() {
    let cluster = Cluster::new();
    cluster.change(|state| {
        state.faults = vec![
            ("sessions", Fault::LoseReply),
            ("sessions", Fault::LoseReply),
        ];
    });
    let (handle, _run) = start(executor(&cluster).handler("work", for_ever));
    cluster
        .wait("registered", |_| handle.metrics().sessions_registered == 1)
        .await;
    let keys = cluster.state().registration_keys.clone();
    assert_eq!(keys.len(), 3);
    assert!(!keys[0].is_empty() && keys.iter().all(|key| *key == keys[0]));
    assert_eq!(cluster.state().session, 1);
    cluster.change(|state| state.session_error = Some(ErrorCode::SessionExpired));
    cluster
        .wait("registered again", |_| {
            handle.metrics().sessions_registered == 2
        })
        .await;
    assert_eq!(
        cluster.state().session,
        2,
        "the old key must not be used again"
    );
}

/// A cluster that is slow to answer must not give an executor sessions whose lease is over when it hears of
/// them: each of them replaces the one before, and that is slowed down as a fight over the instance id.
#[tokio::test(start_paused = true)]
async fn a_registration_that_takes_longer_than_the_lease_is_not_used() {
    let cluster = Cluster::new();
    cluster.change(|state| {
        state.lease_ttl_ms = 6_000;
        state.heartbeat_interval_ms = 2_000;
        state.faults = vec![("sessions", Fault::Hang), ("sessions", Fault::Hang)];
    });
    let builder = executor(&cluster).lease_ttl(seconds(6));
    let (handle, _run) = start(builder.handler("work", for_ever));
    cluster
        .wait("registered", |_| handle.metrics().sessions_registered == 1)
        .await;
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(handle.metrics().leases_lost, 0);
    assert_eq!(cluster.state().session, 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_session_is_replaced_by_a_new_one_with_growing_pauses() {
    let cluster = Cluster::new();
    let (handle, _run) = start(executor(&cluster).handler("work", for_ever));
    cluster.grant(1, 1);
    cluster
        .wait("a start", |state| state.starts.len() == 1)
        .await;
    // Each new session is expired at once, as when two processes fight.
    let mut registered_at = Vec::new();
    for session in 1..=6 {
        cluster
            .wait("a session", |state| state.session == session)
            .await;
        registered_at.push(cluster.now());
        cluster.change(|state| state.session_error = Some(ErrorCode::StaleSession));
    }
    let gaps: Vec<_> = registered_at
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    assert!(
        gaps[4] > gaps[1] * 3,
        "the fight does not slow down: {gaps:?}"
    );
    assert!(handle.metrics().sessions_expired >= 5);
    assert_eq!(handle.metrics().tasks_lost, 1);
}

/// EX-9, the executor's side.
#[tokio::test(start_paused = true)]
async fn ex_9_a_drain_finishes_what_it_can_and_gives_back_the_rest() {
    let cluster = Cluster::new();
    let (handle, run) = start(
        executor(&cluster).handler("work", |task: TaskContext| async move {
            if task.run().get() == 1 {
                tokio::time::sleep(seconds(20)).await;
                return Ok(());
            }
            let reason = task.cancelled().await;
            assert_eq!(reason, CancelReason::Draining);
            task.checkpoint(77, b"so far".to_vec()).await?;
            Err(TaskError::retryable("not finished"))
        }),
    );
    cluster.grant(1, 1);
    cluster.grant(2, 1);
    cluster
        .wait("both start", |state| state.starts.len() == 2)
        .await;
    let began = cluster.now();
    handle.drain(seconds(60));
    cluster
        .wait("the drain is announced", |state| state.drains == 1)
        .await;
    let polls = cluster.state().polls.len();
    cluster.grant(3, 1);
    assert_eq!(run.await.unwrap(), Stopped::Drained);
    assert!(cluster.now() - began <= seconds(60));
    let state = cluster.state();
    assert_eq!(state.polls.len(), polls, "it polled while draining");
    assert_eq!(state.starts.len(), 2, "it took new work");
    assert_eq!(state.results.len(), 1);
    assert_eq!(state.results[0].key.run.get(), 1);
    assert_eq!(state.releases.len(), 1);
    assert_eq!(state.releases[0].key().run.get(), 2);
    assert_eq!(state.checkpoints[0].offset, 77);
    assert_eq!(state.left, 1);
    assert_eq!(handle.metrics().tasks_released, 1);
}

#[tokio::test(start_paused = true)]
async fn an_operator_can_ask_for_the_drain() {
    let cluster = Cluster::new();
    let (_handle, run) = start(executor(&cluster).handler("work", |_| async { Ok(()) }));
    cluster.wait("a poll", |state| state.polls.len() == 1).await;
    cluster.change(|state| state.draining = true);
    assert_eq!(run.await.unwrap(), Stopped::Drained);
    assert_eq!(cluster.state().left, 1);
}

#[tokio::test(start_paused = true)]
async fn an_assignment_that_comes_again_is_started_once() {
    let cluster = Cluster::new();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let (handle, _run) = start(executor(&cluster).handler("work", move |_| {
        let counted = Arc::clone(&counted);
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }));
    cluster.change(|state| {
        state.redeliver = true;
        state.faults.push(("start", Fault::Hang));
        state.faults.push(("start", Fault::LoseReply));
    });
    let key = cluster.grant(1, 1);
    cluster
        .wait("a result", |state| state.results.len() == 1)
        .await;
    assert!(handle.metrics().assignments_repeated >= 1);
    assert_eq!(handle.metrics().assignments_received, 1);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(
        cluster.state().starts,
        [key, key],
        "a start is repeated after a lost reply"
    );
    assert!(cluster.state().polls.iter().any(|poll| poll.known == [key]));
}

#[tokio::test(start_paused = true)]
async fn a_refused_start_runs_nothing() {
    let cluster = Cluster::new();
    let (handle, _run) = start(executor(&cluster).handler("work", |_| async {
        panic!("it ran");
        #[expect(unreachable_code, reason = "it gives the handler its type")]
        Ok(())
    }));
    cluster.change(|state| {
        state
            .faults
            .push(("start", Fault::Refuse(ErrorCode::StaleEpoch)))
    });
    cluster.grant(1, 1);
    cluster
        .wait("refused", |_| handle.metrics().starts_refused == 1)
        .await;
    cluster.change(|state| state.granted.clear());
    tokio::time::sleep(seconds(30)).await;
    assert!(cluster.state().results.is_empty());
    assert_eq!(cluster.state().heartbeats.last().unwrap().1.slots_used, 0);
}
