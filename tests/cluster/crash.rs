//! All three nodes are killed at once under load, again and again: nothing acknowledged is missing, and a
//! request that timed out is in or out as a whole.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_api::jobs::JobChange;
use tenure_api::runs::{Consistency, TriggerRequest};
use tenure_api::{JobName, JobSpec, RunId};
use tenure_sdk::{Client, Error, JobBody, Precondition, RetryPolicy};

use crate::support::{Cluster, LIMIT, Settings, eventually, full, holds, in_process, job, runs_of};

const WRITERS: usize = 6;
const IMPATIENT: usize = 3;

/// What the writers know.
#[derive(Default)]
struct Memory {
    acknowledged_jobs: Vec<JobName>,
    /// By key.
    acknowledged_triggers: BTreeMap<String, RunId>,
    /// The client was told that nothing was changed.
    refused_jobs: Vec<JobName>,
    unknown_jobs: Vec<JobName>,
    unknown_triggers: Vec<String>,
}

fn spec(name: &str) -> JobSpec {
    job(&format!(
        "name: {name}\ntrigger: {{ manual: true }}\ntask: {{ capability: count }}\n"
    ))
}

async fn write(
    client: Client,
    writer: usize,
    target: JobName,
    memory: Arc<Mutex<Memory>>,
    stop: Arc<AtomicBool>,
) {
    for number in 0.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let spec = spec(&format!("written-{writer}-{number}"));
        let name = spec.name.clone();
        let put = client
            .put_job(&name, &JobBody::from(spec), Precondition::None)
            .await;
        {
            let mut memory = memory.lock().unwrap();
            match put {
                Ok(_) => memory.acknowledged_jobs.push(name),
                Err(Error::OutcomeUnknown { .. }) => memory.unknown_jobs.push(name),
                Err(Error::Unavailable { .. }) => memory.refused_jobs.push(name),
                Err(Error::Refused(problem)) if problem.code.had_no_side_effect() => {
                    memory.refused_jobs.push(name);
                }
                Err(error) => panic!("{error}"),
            }
        }
        let key = format!("key-{writer}-{number}");
        let triggered = client
            .trigger_job(&target, &TriggerRequest::default(), Some(key.clone()))
            .await;
        let mut memory = memory.lock().unwrap();
        match triggered {
            Ok(answer) => {
                let run = answer.run.unwrap_or_else(|| panic!("no run: {answer:?}"));
                memory.acknowledged_triggers.insert(key, run);
            }
            Err(_) => memory.unknown_triggers.push(key),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_are_killed_at_once_and_nothing_acknowledged_is_missing() {
    let rounds = if full() { 20 } else { 4 };
    let mut cluster = Cluster::start(Settings::frequent_snapshots()).await;
    let _executor = in_process(&cluster, "counter", 200);
    let target = job(
        "name: target\ntrigger: { manual: true }\noverlap: allow\nqueue_limit: 1000\n\
         history: { keep: 100000 }\ntask: { capability: count }\n",
    );
    let target = cluster.put(target).await;
    let memory = Arc::new(Mutex::new(Memory::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            // Some are impatient, so that some outcomes stay unknown.
            let patience = if writer < IMPATIENT {
                Duration::from_millis(250)
            } else {
                LIMIT
            };
            let policy = RetryPolicy {
                attempt_timeout: (patience / 2).min(Duration::from_secs(2)),
                overall_timeout: patience,
                ..RetryPolicy::default()
            };
            let client = Client::builder()
                .nodes(cluster.urls())
                .token(&cluster.admin_token)
                .retry(policy);
            let client = client.build().unwrap();
            tokio::spawn(write(
                client,
                writer,
                target.clone(),
                memory.clone(),
                stop.clone(),
            ))
        })
        .collect();
    for _ in 0..rounds {
        let before = memory.lock().unwrap().acknowledged_jobs.len();
        eventually("writes are acknowledged", async || {
            let now = memory.lock().unwrap().acknowledged_jobs.len();
            holds(now >= before + 60, format!("{now} after {before}"))
        })
        .await;
        (0..3).for_each(|place| cluster.kill(place));
        (0..3).for_each(|place| cluster.restart(place));
        cluster.all_ready().await;
    }
    stop.store(true, Ordering::Release);
    for writer in writers {
        writer.await.unwrap();
    }
    let memory = std::mem::take(&mut *memory.lock().unwrap());
    println!(
        "{rounds} rounds: {} jobs and {} triggers acknowledged, {} and {} of unknown outcome, {} known not done",
        memory.acknowledged_jobs.len(),
        memory.acknowledged_triggers.len(),
        memory.unknown_jobs.len(),
        memory.unknown_triggers.len(),
        memory.refused_jobs.len()
    );
    check(&cluster, &target, memory).await;
    cluster.counter_is("runs_live", |live| live == 0.0).await;
    cluster.all_alike().await;
}

async fn check(cluster: &Cluster, target: &JobName, memory: Memory) {
    let client = cluster.client();
    for name in &memory.acknowledged_jobs {
        let found = client.job(name).await;
        let found = found.unwrap_or_else(|error| panic!("{name} was acknowledged: {error}"));
        assert_eq!(found.spec, spec(name.as_str()));
        assert_eq!(
            found.created_at, found.updated_at,
            "{name} was changed after it was made"
        );
    }
    for name in &memory.refused_jobs {
        assert!(
            client.job(name).await.is_err(),
            "{name} is there, but the client was told it is not"
        );
    }
    // In or out as a whole; a repetition makes it one.
    for name in &memory.unknown_jobs {
        let there = client.job(name).await.is_ok();
        let body = JobBody::from(spec(name.as_str()));
        let put = client
            .put_job(name, &body, Precondition::None)
            .await
            .unwrap();
        let expected = if there {
            JobChange::Unchanged
        } else {
            JobChange::Created
        };
        assert_eq!(put.change, expected, "{name}");
        assert_eq!(
            put.job.created_at, put.job.updated_at,
            "{name} was changed after it was made"
        );
        assert_eq!(put.job.spec, spec(name.as_str()));
    }
    for (key, run) in &memory.acknowledged_triggers {
        let again = client
            .trigger_job(target, &TriggerRequest::default(), Some(key.clone()))
            .await
            .unwrap();
        assert_eq!(again.run, Some(*run), "{key} was acknowledged");
    }
    for key in &memory.unknown_triggers {
        let request = TriggerRequest::default();
        let once = client
            .trigger_job(target, &request, Some(key.clone()))
            .await
            .unwrap();
        let twice = client
            .trigger_job(target, &request, Some(key.clone()))
            .await
            .unwrap();
        assert_eq!(once.run, twice.run, "{key}");
    }
    let mut by_key: BTreeMap<String, Vec<RunId>> = BTreeMap::new();
    for run in runs_of(&client, target, Consistency::Linearizable).await {
        by_key
            .entry(run.idempotency_key.clone().unwrap())
            .or_default()
            .push(run.id);
    }
    for (key, runs) in &by_key {
        assert_eq!(runs.len(), 1, "{key} made {runs:?}");
    }
    for (key, run) in &memory.acknowledged_triggers {
        assert_eq!(by_key.get(key), Some(&vec![*run]), "{key}");
    }
    assert_eq!(
        by_key.len(),
        memory.acknowledged_triggers.len() + memory.unknown_triggers.len()
    );
}
