//! HA-4: a fire is due and the leader dies, at four different moments. In all four there is exactly one run
//! for the instant, and it is executed once.

use std::time::Duration;

use tenure_api::job::JobSpec;
use tenure_api::runs::{Consistency, Run, RunState, TaskState};
use tenure_api::{JobName, Timestamp};
use tokio::time::sleep;

use crate::support::{
    Cluster, Settings, ShellExecutor, assert_one_decision_each, eventually, fires_of, holds, job,
    now_ms, runs_of,
};

/// How far ahead the instant is: enough to get ready for it.
const AHEAD_MS: i64 = 3_000;

/// A cluster with an executor, and a job that is due once and notes each of its executions.
async fn due_soon(script: &str) -> (Cluster, ShellExecutor, JobName, i64) {
    let mut cluster = Cluster::start(Settings::default()).await;
    let executor = ShellExecutor::start(&cluster, "worker", &[]);
    cluster
        .counter_is("executors_online", |online| online == 1.0)
        .await;
    let at_ms = now_ms() + AHEAD_MS;
    let name = cluster.put(once(&cluster, at_ms, script)).await;
    (cluster, executor, name, at_ms)
}

fn once(cluster: &Cluster, at_ms: i64, script: &str) -> JobSpec {
    let at = Timestamp::from_ms(at_ms);
    let sink = cluster.dir.path().join("executions");
    let sink = sink.display();
    job(&format!(
        r#"
name: once
trigger: {{ at: "{at}" }}
task:
  capability: shell
  params:
    script: |
      echo "$TENURE_RUN_ID $TENURE_EPOCH" >> {sink}
      {script}
"#
    ))
}

async fn until(at_ms: i64) {
    let wait_ms = u64::try_from(at_ms - now_ms()).unwrap_or(0);
    sleep(Duration::from_millis(wait_ms)).await;
}

async fn the_run(cluster: &Cluster, name: &JobName) -> Run {
    let client = cluster.client();
    eventually("the run is there", async || {
        let runs = runs_of(&client, name, Consistency::Linearizable).await;
        runs.into_iter().next().ok_or("no run yet".to_owned())
    })
    .await
}

/// What holds in all four cases.
async fn exactly_one(cluster: &mut Cluster, name: &JobName) -> Run {
    let run = the_run(cluster, name).await;
    let ended = cluster.ended(run.id).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:#?}");
    let client = cluster.client();
    let runs = runs_of(&client, name, Consistency::Linearizable).await;
    let fires = fires_of(&client, name, Consistency::Linearizable).await;
    assert_eq!((runs.len(), fires.len()), (1, 1));
    assert_one_decision_each(name, 1, &fires, &runs);
    let sink = std::fs::read_to_string(cluster.dir.path().join("executions")).unwrap();
    assert_eq!(
        sink,
        format!("{} {}\n", run.id, ended.tasks[0].epoch),
        "executed once"
    );
    assert_eq!(cluster.counter("fires_total").await, 1.0);
    assert_eq!(cluster.counter("runs_succeeded_total").await, 1.0);
    assert!(cluster.counter("elections_total").await >= 2.0);
    let late_ms = fires[0].decided_at.as_ms() - fires[0].scheduled_at.as_ms();
    println!(
        "decided {late_ms} ms after the instant, in term {}",
        fires[0].term
    );
    ended
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_4_a_the_leader_dies_before_it_proposes() {
    let (mut cluster, _executor, name, at_ms) = due_soon("true").await;
    let leader = cluster.leader().await;
    let term = cluster.view(leader).await.unwrap().term;
    until(at_ms - 60).await;
    cluster.kill(leader);
    exactly_one(&mut cluster, &name).await;
    let fires = fires_of(&cluster.client(), &name, Consistency::Linearizable).await;
    assert!(
        fires[0].term > term,
        "decided by the next leader: {fires:#?}"
    );
    cluster.restart(leader);
    cluster.all_alike().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_4_b_the_leader_dies_after_it_proposed_and_before_commit() {
    let (mut cluster, _executor, name, at_ms) = due_soon("true").await;
    let leader = cluster.leader().await;
    let followers: Vec<usize> = (0..3).filter(|place| *place != leader).collect();
    until(at_ms - 100).await;
    followers
        .iter()
        .for_each(|place| cluster.nodes[*place].process.pause());
    until(at_ms).await;
    let wire = cluster.wire(leader);
    eventually(
        "the leader has proposed something that nobody else has",
        async || {
            let last = wire.metric("last_log_index").await?;
            let committed = wire.metric("committed_index").await?;
            holds(
                last > committed,
                format!("{last} of which {committed} are committed"),
            )
        },
    )
    .await;
    cluster.kill(leader);
    followers
        .iter()
        .for_each(|place| cluster.nodes[*place].process.resume());
    exactly_one(&mut cluster, &name).await;
    // The dead leader's own proposal gives way to what was decided without it.
    cluster.restart(leader);
    cluster.all_alike().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_4_c_the_leader_dies_after_commit_before_anyone_was_told() {
    let (mut cluster, executor, name, _) = due_soon("true").await;
    executor.process.pause();
    let run = the_run(&cluster, &name).await;
    let task = cluster.task_is(run.id, TaskState::Assigned).await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    executor.process.resume();
    let ended = exactly_one(&mut cluster, &name).await;
    assert_eq!(
        ended.id, run.id,
        "the run of the dead leader is the one that ran"
    );
    assert_eq!(
        ended.tasks[0].epoch, task.epoch,
        "redelivered under the same epoch"
    );
    cluster.restart(leader);
    cluster.all_alike().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_4_d_the_leader_dies_after_the_assignment_reached_the_executor() {
    let (mut cluster, _executor, name, _) = due_soon("sleep 2").await;
    let run = the_run(&cluster, &name).await;
    let task = cluster.task_is(run.id, TaskState::Running).await;
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let ended = exactly_one(&mut cluster, &name).await;
    assert_eq!(ended.id, run.id);
    assert_eq!(ended.tasks[0].epoch, task.epoch, "its owner kept it");
    cluster.restart(leader);
    cluster.all_alike().await;
}
