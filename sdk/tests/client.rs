//! The client against a cluster in memory, on paused time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod fake;

use fake::{Cluster, Fault, Mode, N1, N2, N3, Wire, environment};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tenure_sdk::api::jobs::JobsQuery;
use tenure_sdk::api::runs::TriggerRequest;
use tenure_sdk::api::{ErrorCode, JobName, paths};
use tenure_sdk::{Client, Error, RetryPolicy};

fn client(cluster: &Arc<Cluster>) -> Client {
    Client::builder()
        .nodes([N1, N2, N3])
        .token("secret-token")
        .retry(RetryPolicy {
            overall_timeout: Duration::from_secs(20),
            ..RetryPolicy::default()
        })
        .transport(Arc::new(Wire(Arc::clone(cluster))))
        .environment(environment())
        .build()
        .unwrap()
}

fn name() -> JobName {
    JobName::new("nightly").unwrap()
}

/// A cluster that triggers the job `nightly` and tells its own status.
fn cluster() -> Arc<Cluster> {
    let cluster = Cluster::new();
    cluster.change(|state| {
        let answer = json!({"decision": "run", "run": 7});
        state
            .admin_answers
            .insert("POST /v1/jobs/nightly/trigger".into(), answer);
        let health = json!({"live": true, "ready": true});
        state.admin_answers.insert("GET /healthz".into(), health);
    });
    cluster
}

fn keys(cluster: &Cluster) -> Vec<String> {
    let state = cluster.state();
    let key = |request: &tenure_sdk::Request| {
        request
            .header(paths::IDEMPOTENCY_KEY_HEADER)
            .unwrap_or_default()
            .to_owned()
    };
    state.admin.iter().map(key).collect()
}

#[tokio::test(start_paused = true)]
async fn the_leader_is_found_from_any_node_and_kept() {
    let cluster = cluster();
    cluster.change(|state| {
        state.leader = Some(N3.into());
        state.modes.insert(N1.into(), Mode::Down);
    });
    let client = client(&cluster);
    for _ in 0..5 {
        client.health().await.unwrap();
    }
    let trace = cluster.state().trace.clone();
    assert!(trace.len() <= 7, "{trace:?}");
    assert!(
        trace[trace.len() - 4..]
            .iter()
            .all(|line| line == "n3:1 healthz"),
        "{trace:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_no_one_listed_is_learned() {
    let cluster = cluster();
    cluster.change(|state| {
        state.modes.insert("http://n4:1".into(), Mode::Up);
        state.leader = Some("http://n4:1".into());
    });
    client(&cluster).health().await.unwrap();
    assert_eq!(cluster.state().trace.last().unwrap(), "n4:1 healthz");
}

#[tokio::test(start_paused = true)]
async fn without_a_leader_the_client_waits_as_told_and_gives_up_in_time() {
    let cluster = cluster();
    cluster.change(|state| state.leader = None);
    let client = client(&cluster);
    let began = cluster.now();
    let error = client.health().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NoLeader));
    let took = cluster.now() - began;
    assert!(
        took > Duration::from_secs(15) && took <= Duration::from_secs(20),
        "{took:?}"
    );
    // Retry-After is a second, so there are about as many rounds over the three nodes as seconds.
    assert!(
        cluster.state().trace.len() <= 3 * 21,
        "{}",
        cluster.state().trace.len()
    );

    let waiting = client.clone();
    let call = tokio::spawn(async move { waiting.health().await });
    tokio::time::sleep(Duration::from_secs(5)).await;
    cluster.change(|state| state.leader = Some(N2.into()));
    assert!(call.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn with_no_node_up_nothing_was_done() {
    let cluster = cluster();
    cluster.change(|state| {
        for mode in state.modes.values_mut() {
            *mode = Mode::Down;
        }
    });
    let client = client(&cluster);
    let error = client
        .trigger_job(&name(), &TriggerRequest::default(), None)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(client.metrics().unreachable > 3);
}

/// Nothing is done by reading, so nothing about it can be unknown.
#[tokio::test(start_paused = true)]
async fn a_read_that_gets_no_answer_says_that_nothing_was_done() {
    let cluster = cluster();
    cluster.change(|state| {
        for mode in state.modes.values_mut() {
            *mode = Mode::Silent;
        }
    });
    let client = client(&cluster);
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    // A change that gets none may have been done.
    let error = client
        .trigger_job(&name(), &TriggerRequest::default(), None)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_change_is_repeated_under_one_key_when_its_outcome_is_unknown() {
    let cluster = cluster();
    cluster.change(|state| {
        state.faults.push(("trigger", Fault::LoseReply));
        state
            .faults
            .push(("trigger", Fault::Refuse(ErrorCode::OutcomeUnknown)));
        state.faults.push(("trigger", Fault::Bare(502, None)));
        state.faults.push(("trigger", Fault::Hang));
    });
    let client = client(&cluster);
    let answer = client
        .trigger_job(&name(), &TriggerRequest::default(), None)
        .await
        .unwrap();
    assert_eq!(answer.run.unwrap().get(), 7);
    let keys = keys(&cluster);
    assert_eq!(keys.len(), 2, "once before the lost reply, once at the end");
    assert!(keys[0].len() == 32 && keys[0] == keys[1], "{keys:?}");

    client
        .trigger_job(&name(), &TriggerRequest::default(), Some("mine".into()))
        .await
        .unwrap();
    assert_eq!(self::keys(&cluster)[2], "mine");
}

#[tokio::test(start_paused = true)]
async fn what_must_not_be_done_twice_is_not_repeated() {
    let cluster = cluster();
    let client = client(&cluster);
    let request = tenure_sdk::api::cluster::InitializeRequest {
        members: Vec::new(),
    };
    cluster.change(|state| state.faults.push(("initialize", Fault::LoseReply)));
    let error = client.initialize(&request).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    assert_eq!(cluster.state().admin.len(), 1);
    // An error that says that nothing was done is repeated all the same.
    cluster.change(|state| {
        state
            .faults
            .push(("initialize", Fault::Refuse(ErrorCode::Overloaded)));
        let answer = json!({"cluster_id": "c"});
        state
            .admin_answers
            .insert("POST /v1/cluster/initialize".into(), answer);
    });
    assert_eq!(client.initialize(&request).await.unwrap().cluster_id, "c");
}

#[tokio::test(start_paused = true)]
async fn a_clear_refusal_is_final() {
    let cluster = cluster();
    let client = client(&cluster);
    let error = client.job(&name()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound));
    assert_eq!(cluster.state().admin.len(), 1);
    cluster.change(|state| state.faults.push(("healthz", Fault::Bare(404, None))));
    let error = client.health().await.unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_cluster_is_passed_over_and_believed_only_when_all_say_so() {
    let cluster = cluster();
    cluster.change(|state| {
        state.modes.insert(N2.into(), Mode::New);
        state.modes.insert(N3.into(), Mode::New);
    });
    // Wherever each begins, the one that knows is found.
    for _ in 0..6 {
        client(&cluster).health().await.unwrap();
    }
    cluster.change(|state| {
        state.modes.insert(N1.into(), Mode::New);
        state.trace.clear();
    });
    let error = client(&cluster).health().await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotInitialized));
    assert_eq!(cluster.state().trace.len(), 3, "each is asked once");
}

#[tokio::test(start_paused = true)]
async fn answers_of_an_old_term_are_dropped_and_counted() {
    let cluster = cluster();
    cluster.change(|state| state.term = 42);
    let client = client(&cluster);
    client.health().await.unwrap();
    cluster.change(|state| state.faults.push(("trigger", Fault::OldTerm(41))));
    client
        .trigger_job(&name(), &TriggerRequest::default(), None)
        .await
        .unwrap();
    assert_eq!(client.metrics().stale_term_answers_dropped, 1);
    assert_eq!(client.highest_term().get(), 42);
    let keys = keys(&cluster);
    assert_eq!(keys[1], keys[2]);
}

#[tokio::test(start_paused = true)]
async fn lists_are_read_page_by_page() {
    let cluster = cluster();
    let job = |name: &str| {
        json!({
            "spec": {"name": name, "trigger": {"manual": true}, "task": {"capability": "c"}},
            "revision": 1, "live_runs": 0, "waiting_runs": 0,
            "created_at": "2026-12-01T02:00:00.000Z", "updated_at": "2026-12-01T02:00:00.000Z",
        })
    };
    cluster.change(|state| {
        let mut page = |path: &str, body| state.admin_answers.insert(format!("GET {path}"), body);
        page(
            "/v1/jobs?limit=2",
            json!({"items": [job("a"), job("b")], "next_cursor": "x&y"}),
        );
        page(
            "/v1/jobs?limit=2&cursor=x%26y",
            json!({"items": [], "next_cursor": "z"}),
        );
        page("/v1/jobs?limit=2&cursor=z", json!({"items": [job("c")]}));
        page("/v1/jobs", json!({"items": [], "next_cursor": "again"}));
        page(
            "/v1/jobs?cursor=again",
            json!({"items": [], "next_cursor": "again"}),
        );
    });
    let client = client(&cluster);
    let mut jobs = client.jobs(JobsQuery {
        limit: Some(2),
        ..JobsQuery::default()
    });
    let mut names = Vec::new();
    while let Some(job) = jobs.next().await.unwrap() {
        names.push(job.spec.name.into_string());
    }
    assert_eq!(names, ["a", "b", "c"]);
    let query = JobsQuery {
        limit: Some(2),
        ..JobsQuery::default()
    };
    assert_eq!(client.jobs(query).collect(1).await.unwrap().len(), 1);
    let endless = client
        .jobs(JobsQuery::default())
        .collect(10)
        .await
        .unwrap_err();
    assert!(matches!(endless, Error::Protocol(_)), "{endless}");
}

#[tokio::test(start_paused = true)]
async fn the_token_is_sent_and_never_shown() {
    let cluster = cluster();
    let client = client(&cluster);
    client.health().await.unwrap();
    let request = cluster.state().admin[0].clone();
    assert_eq!(request.header("authorization"), Some("Bearer secret-token"));
    for shown in [format!("{client:?}"), format!("{request:?}")] {
        assert!(!shown.contains("secret-token"), "{shown}");
    }
}
