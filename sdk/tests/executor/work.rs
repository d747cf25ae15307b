//! What becomes of single tasks: failures, time-outs, cancellations, checkpoints, output.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_panic_is_the_tasks_failure_alone() {
    let cluster = Cluster::new();
    let (handle, _run) = start(executor(&cluster).handler(
        "work",
        |task: TaskContext| async move {
            assert!(task.run().get() != 1, "no such row");
            Ok(())
        },
    ));
    cluster.grant(1, 1);
    cluster.grant(2, 1);
    cluster
        .wait("both results", |state| state.results.len() == 2)
        .await;
    let state = cluster.state();
    let of = |run| {
        state
            .results
            .iter()
            .find(|result| result.key.run.get() == run)
            .unwrap()
    };
    assert_eq!(
        of(1).outcome,
        Outcome::Failed {
            message: "the handler panicked: no such row".into(),
            retryable: true
        }
    );
    assert_eq!(of(2).outcome, Outcome::Succeeded { value: None });
    assert_eq!(handle.metrics().tasks_panicked, 1);
}

#[tokio::test(start_paused = true)]
async fn failures_say_whether_another_attempt_helps() {
    let cluster = Cluster::new();
    let (_handle, _run) = start(executor(&cluster).handler(
        "work",
        |task: TaskContext| async move {
            match task.run().get() {
                1 => Err(TaskError::permanent("bad input")),
                2 => Ok("x".parse::<u32>().map(|_| ())?),
                _ => task.params_at::<u32>("missing").map(|_| ()),
            }
        },
    ));
    for run in 1..=3 {
        cluster.grant(run, 1);
    }
    cluster
        .wait("all results", |state| state.results.len() == 3)
        .await;
    let state = cluster.state();
    let retryable = |run| {
        let result = state
            .results
            .iter()
            .find(|result| result.key.run.get() == run)
            .unwrap();
        match &result.outcome {
            Outcome::Failed { retryable, .. } => *retryable,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        (retryable(1), retryable(2), retryable(3)),
        (false, true, false)
    );
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_is_timed_out() {
    let cluster = Cluster::new();
    let (handler, dropped) = watched();
    let (handle, _run) = start(
        executor(&cluster)
            .cancel_grace(seconds(3))
            .handler("work", handler)
            .handler("polite", |task: TaskContext| async move {
                assert_eq!(task.cancelled().await, CancelReason::TimedOut);
                Ok(())
            }),
    );
    let began = cluster.now();
    cluster.grant_with(1, 1, |assignment| assignment.timeout_ms = Some(5_000));
    cluster.grant_with(2, 1, |assignment| {
        assignment.timeout_ms = Some(5_000);
        assignment.capability = "polite".parse().unwrap();
    });
    cluster
        .wait("the polite one", |state| state.results.len() == 1)
        .await;
    assert_eq!(cluster.state().results[0].key.run.get(), 2);
    assert!(
        !dropped.load(Ordering::SeqCst),
        "dropped before its grace was over"
    );
    cluster
        .wait("the other", |state| state.results.len() == 2)
        .await;
    let took = cluster.now() - began;
    assert!(dropped.load(Ordering::SeqCst));
    assert!(took >= seconds(8) && took < seconds(9), "{took:?}");
    assert!(
        cluster
            .state()
            .results
            .iter()
            .all(|result| result.outcome == Outcome::TimedOut)
    );
    assert_eq!(handle.metrics().tasks_timed_out, 2);
}

#[tokio::test(start_paused = true)]
async fn cancellations_come_by_poll_and_by_heartbeat() {
    let cluster = Cluster::new();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tells = Arc::clone(&told);
    let (_handle, _run) = start(
        executor(&cluster).handler("work", move |task: TaskContext| {
            let tells = Arc::clone(&tells);
            async move {
                let reason = task.cancelled().await;
                tells.lock().unwrap().push(reason.to_string());
                Ok(())
            }
        }),
    );
    let (first, second) = (cluster.grant(1, 1), cluster.grant(2, 1));
    cluster
        .wait("both start", |state| state.starts.len() == 2)
        .await;
    cluster.change(|state| {
        state.cancels.push(CancelNotice {
            key: first,
            reason: "by poll".into(),
        })
    });
    cluster
        .wait("one result", |state| state.results.len() == 1)
        .await;
    cluster.change(|state| {
        state
            .verdicts
            .insert(second, (Verdict::Cancel, "by heartbeat".into()));
    });
    cluster
        .wait("both results", |state| state.results.len() == 2)
        .await;
    assert!(
        cluster
            .state()
            .results
            .iter()
            .all(|result| result.outcome == Outcome::Cancelled)
    );
    assert_eq!(
        *told.lock().unwrap(),
        ["cancelled: by poll", "cancelled: by heartbeat"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_lost_stops_and_reports_nothing() {
    let cluster = Cluster::new();
    let (handler, dropped) = watched();
    let (handle, _run) = start(executor(&cluster).handler("work", handler));
    let key = cluster.grant(1, 1);
    cluster
        .wait("a start", |state| state.starts.len() == 1)
        .await;
    cluster.change(|state| {
        state
            .verdicts
            .insert(key, (Verdict::Lost, "taken over".into()));
    });
    cluster
        .wait("the loss", |_| handle.metrics().tasks_lost == 1)
        .await;
    assert!(dropped.load(Ordering::SeqCst));
    tokio::time::sleep(seconds(60)).await;
    assert!(cluster.state().results.is_empty());
    assert_eq!(handle.metrics().sessions_registered, 1);
}

/// SH-1 and SH-4, the executor's side.
#[tokio::test(start_paused = true)]
async fn sh_4_work_resumes_from_the_checkpoint_and_commits_after_the_effect() {
    let cluster = Cluster::new();
    cluster.change(|state| {
        state.resume = Resume {
            checkpoint: Some(Checkpoint {
                offset: 1_000,
                state: b"cursor".to_vec().into(),
                epoch: Epoch(18),
            }),
            last_progress: Some(1_200),
            previous_epoch: Some(Epoch(18)),
        };
    });
    let effects = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&effects);
    let seen = Arc::clone(&cluster);
    let (_handle, _run) = start(
        executor(&cluster).handler("work", move |task: TaskContext| {
            let (counted, cluster) = (Arc::clone(&counted), Arc::clone(&seen));
            async move {
                assert_eq!(
                    (task.resume_offset(), task.last_progress()),
                    (1_000, Some(1_200))
                );
                assert_eq!(task.previous_epoch(), Some(Epoch(18)));
                assert_eq!(task.committed().unwrap().state.as_slice(), b"cursor");
                let failed = task
                    .commit_after(
                        async { Err::<(), _>(TaskError::retryable("no disk")) },
                        1_100,
                        "x",
                    )
                    .await;
                assert_eq!(failed.unwrap_err().message, "no disk");
                assert!(
                    cluster.state().checkpoints.is_empty(),
                    "committed without its effect"
                );
                let effect = async {
                    counted.fetch_add(1, Ordering::SeqCst);
                    assert!(
                        cluster.state().checkpoints.is_empty(),
                        "committed before its effect"
                    );
                    Ok::<_, TaskError>(5)
                };
                assert_eq!(task.commit_after(effect, 1_100, "next").await?, 5);
                let back = task.checkpoint(900, "").await.unwrap_err();
                assert_eq!(back.code(), Some(ErrorCode::CheckpointRegressed));
                let large = task.checkpoint(1_200, vec![0; 65_537]).await.unwrap_err();
                assert_eq!(large.code(), Some(ErrorCode::CheckpointTooLarge));
                task.progress(1_150);
                Ok(())
            }
        }),
    );
    cluster.grant(1, 19);
    cluster
        .wait("a result", |state| state.results.len() == 1)
        .await;
    let state = cluster.state();
    assert_eq!(state.results[0].outcome, Outcome::Succeeded { value: None });
    assert_eq!(state.results[0].progress, Some(1_150));
    assert_eq!(state.checkpoints.len(), 1);
    assert_eq!(
        (state.checkpoints[0].offset, state.checkpoints[0].epoch),
        (1_100, Epoch(19))
    );
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn output_is_sent_in_batches_before_the_result() {
    let cluster = Cluster::new();
    let (_handle, _run) = start(executor(&cluster).handler(
        "work",
        |task: TaskContext| async move {
            for line in 0..50 {
                task.log(format!("line {line}"));
            }
            tokio::time::sleep(seconds(2)).await;
            task.log("the end");
            Ok(())
        },
    ));
    cluster.grant(1, 1);
    cluster
        .wait("a result", |state| state.results.len() == 1)
        .await;
    let state = cluster.state();
    assert_eq!(state.outputs.len(), 2);
    assert_eq!(state.outputs[0].text.lines().count(), 50);
    assert_eq!((state.outputs[0].seq, state.outputs[1].seq), (0, 1));
    assert_eq!(state.outputs[1].text, "the end\n");
    let order: Vec<_> = state
        .trace
        .iter()
        .filter(|line| line.ends_with("output") || line.ends_with("result"))
        .collect();
    assert!(order.last().unwrap().ends_with("result"));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_tell_slots_progress_and_health() {
    let cluster = Cluster::new();
    let healthy = Arc::new(AtomicBool::new(true));
    let probed = Arc::clone(&healthy);
    let (_handle, _run) = start(
        executor(&cluster)
            .health(move || probed.load(Ordering::SeqCst))
            .handler("work", |task: TaskContext| async move {
                task.progress(5);
                task.progress(3);
                std::future::pending::<Result<(), TaskError>>().await
            }),
    );
    cluster.grant(1, 1);
    cluster
        .wait("a heartbeat", |state| state.heartbeats.len() == 1)
        .await;
    let first = cluster.state().heartbeats[0].1.clone();
    assert_eq!(
        (first.slots_used, first.healthy, first.tasks[0].progress),
        (1, true, Some(5))
    );
    healthy.store(false, Ordering::SeqCst);
    cluster
        .wait("another heartbeat", |state| state.heartbeats.len() == 2)
        .await;
    let state = cluster.state();
    assert!(!state.heartbeats[1].1.healthy);
    let gap = state.heartbeats[1].0 - state.heartbeats[0].0;
    assert!(
        gap >= seconds(9) && gap <= Duration::from_millis(10_100),
        "{gap:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn no_more_is_taken_than_fits() {
    let cluster = Cluster::new();
    let running = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let (count, peak) = (Arc::clone(&running), Arc::clone(&most));
    let (_handle, _run) = start(executor(&cluster).capacity(2).handler(
        "work",
        move |_: TaskContext| {
            let (count, peak) = (Arc::clone(&count), Arc::clone(&peak));
            async move {
                peak.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(seconds(7)).await;
                count.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        },
    ));
    for run in 1..=7 {
        cluster.grant(run, 1);
    }
    cluster
        .wait("all results", |state| state.results.len() == 7)
        .await;
    assert_eq!(most.load(Ordering::SeqCst), 2);
    assert!(cluster.state().polls.iter().all(|poll| poll.max <= 2));
    assert_eq!(cluster.state().starts.len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_full_executor_still_hears_of_cancellations() {
    let cluster = Cluster::new();
    let (_handle, _run) = start(executor(&cluster).capacity(1).handler("work", for_ever));
    let key = cluster.grant(1, 1);
    cluster
        .wait("a poll for nothing", |state| {
            state.polls.iter().any(|poll| poll.max == 0)
        })
        .await;
    let asked = cluster.now();
    cluster.change(|state| {
        state.cancels.push(CancelNotice {
            key,
            reason: "enough".into(),
        })
    });
    cluster
        .wait("a result", |state| state.results.len() == 1)
        .await;
    assert_eq!(cluster.state().results[0].outcome, Outcome::Cancelled);
    // The grace of 10 s, and no heartbeat waited for.
    assert!(cluster.now() - asked < seconds(11));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_token_ends_the_executor_and_a_missing_cluster_does_not() {
    let cluster = Cluster::new();
    cluster.change(|state| {
        state
            .faults
            .push(("sessions", Fault::Refuse(ErrorCode::Unauthenticated)))
    });
    let executor_1 = executor(&cluster)
        .handler("work", for_ever)
        .build()
        .unwrap();
    let error = executor_1.run().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unauthenticated));

    cluster.change(|state| {
        for node in [N1, N2, N3] {
            state.modes.insert(node.into(), Mode::Down);
        }
    });
    let (handle, run) = start(executor(&cluster).handler("work", for_ever));
    tokio::time::sleep(seconds(600)).await;
    assert!(!run.is_finished());
    cluster.change(|state| {
        state.modes.insert(N1.into(), Mode::Up);
    });
    cluster.wait("a session", |state| state.session == 1).await;
    handle.stop();
    assert_eq!(run.await.unwrap(), Stopped::Stopped);
    assert_eq!(cluster.state().left, 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_executor_drops_its_work() {
    let cluster = Cluster::new();
    let (handler, dropped) = watched();
    let (_handle, run) = start(executor(&cluster).handler("work", handler));
    cluster.grant(1, 1);
    cluster
        .wait("a start", |state| state.starts.len() == 1)
        .await;
    run.abort();
    cluster
        .wait("the drop", |_| dropped.load(Ordering::SeqCst))
        .await;
    let requests = cluster.state().trace.len();
    tokio::time::sleep(seconds(120)).await;
    assert_eq!(cluster.state().trace.len(), requests);
}
