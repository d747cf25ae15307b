//! HA-5, first form: every second of every job has exactly one decision, however often the leader is killed.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_api::JobName;
use tenure_api::runs::{Consistency, RunState};
use tokio::time::sleep;

use crate::support::{
    Cluster, Settings, assert_one_decision_each, eventually, fires_of, full, holds, in_process,
    job, quick, runs_of,
};

/// How much is asked: the long form is the scenario's, scaled; the short one is for every change.
struct Plan {
    jobs: usize,
    kills: usize,
    pause: Duration,
}

fn plan() -> Plan {
    if full() {
        return Plan {
            jobs: 100,
            kills: 6,
            pause: Duration::from_secs(20),
        };
    }
    Plan {
        jobs: 30,
        kills: 3,
        pause: Duration::from_secs(6),
    }
}

async fn put_jobs(cluster: &Cluster, count: usize) -> Vec<JobName> {
    let mut jobs = Vec::new();
    for number in 0..count {
        let trigger = if number % 2 == 0 {
            "every: 1s"
        } else {
            "cron: \"* * * * * *\""
        };
        let text = format!(
            "name: second-{number}\ntrigger: {{ {trigger} }}\noverlap: allow\nqueue_limit: 1000\n\
             misfire: {{ policy: catch_up, grace: 2m, limit: 1000 }}\n\
             history: {{ keep: 100000, max_age: 1d }}\ntask: {{ capability: count }}\n"
        );
        jobs.push(cluster.put(job(&text)).await);
    }
    jobs
}

#[tokio::test(flavor = "multi_thread")]
async fn ha_5_each_second_of_each_job_is_decided_once_while_leaders_are_killed() {
    if quick() {
        println!("left out: TENURE_QUICK=1");
        return;
    }
    let plan = plan();
    let mut cluster = Cluster::start(Settings::frequent_snapshots()).await;
    let executor = in_process(&cluster, "counter", 500);
    let jobs = put_jobs(&cluster, plan.jobs).await;

    // Two leaders die and come back. The last one stays away until the log that it needs is gone.
    let mut late = None;
    for kill in 1..=plan.kills {
        sleep(plan.pause).await;
        let leader = cluster.leader().await;
        let last = cluster.wire(leader).metric("last_log_index").await.unwrap();
        cluster.kill(leader);
        let next = cluster.leader().await;
        println!(
            "kill {kill}: node {} at index {last}, then node {}",
            leader + 1,
            next + 1
        );
        if kill == plan.kills {
            late = Some((leader, last));
        } else {
            cluster.restart(leader);
            cluster.all_ready().await;
        }
    }
    let (late, last) = late.unwrap();
    let leader = cluster.leader().await;
    let wire = cluster.wire(leader);
    eventually("the log that the dead node needs is purged", async || {
        let purged = wire.metric("purged_index").await?;
        holds(
            purged > last + 1_000.0,
            format!("purged up to {purged}, it has {last}"),
        )
    })
    .await;
    cluster.restart(late);
    cluster.all_ready().await;

    let client = cluster.client();
    for job in &jobs {
        client.pause_job(job).await.unwrap();
    }
    cluster.counter_is("runs_live", |live| live == 0.0).await;
    cluster.all_alike().await;

    let starts = executor.seen.starts();
    let mut decisions = 0;
    let mut handled = BTreeSet::new();
    for job in &jobs {
        let made_ms = client.job(job).await.unwrap().created_at.as_ms();
        let fires = fires_of(&client, job, Consistency::Linearizable).await;
        let runs = runs_of(&client, job, Consistency::Linearizable).await;
        assert_one_decision_each(job, 1_000, &fires, &runs);
        let first_ms = fires[0].scheduled_at.as_ms();
        assert!(
            first_ms > made_ms && first_ms <= made_ms + 1_000,
            "{job}: made {made_ms}, first {first_ms}"
        );
        for (fire, run) in fires.iter().zip(&runs) {
            assert!(fire.decision.made_run() && fire.instants == 1, "{fire:#?}");
            assert_eq!(run.state, RunState::Succeeded, "{run:#?}");
            let key = (job.as_str().to_owned(), fire.scheduled_at);
            let started = starts
                .get(&key)
                .unwrap_or_else(|| panic!("no handler for {fire:#?}"));
            assert!(
                started.iter().all(|run| Some(*run) == fire.run),
                "{started:?} for {fire:#?}"
            );
            handled.insert(key);
        }
        decisions += fires.len();

        // The node that got a snapshot has the whole past again.
        let own = cluster.client_of(late);
        eventually("the late node's archive is complete", async || {
            let own_fires = fires_of(&own, job, Consistency::Stale).await;
            let own_runs = runs_of(&own, job, Consistency::Stale).await;
            holds(
                own_fires.len() == fires.len(),
                format!("{} of {} fires", own_fires.len(), fires.len()),
            )?;
            holds(
                own_runs.len() == runs.len(),
                format!("{} of {} runs", own_runs.len(), runs.len()),
            )?;
            assert_eq!(own_fires, fires);
            Ok(())
        })
        .await;
    }
    // Nothing else was decided or run, and each result was accepted once.
    assert_eq!(handled.len(), decisions);
    assert_eq!(starts.len(), decisions);
    assert_eq!(cluster.counter("fires_total").await, decisions as f64);
    assert_eq!(
        cluster.counter("runs_succeeded_total").await,
        decisions as f64
    );
    assert_eq!(cluster.counter("runs_not_succeeded_total").await, 0.0);
    let refused = cluster.counter("duplicate_fires_refused_total").await;
    println!("{decisions} decisions, {refused} proposals refused as double");
}
