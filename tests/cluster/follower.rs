//! Any node takes any request: a follower sends it to the leader once.

use serde_json::{Value, json};
use tenure_api::paths;
use tenure_api::runs::{RunState, TaskState};
use tenure_sdk::{Executor, Method, TaskContext, TaskError};

use crate::support::{
    Answer, Cluster, Pinned, Settings, ShellExecutor, Wire, eventually, holds, job,
};

/// Asks a follower; it must be served, and learn who leads.
async fn asked(wire: &Wire, method: Method, path: &str, body: Option<Value>) -> Answer {
    let bytes = body
        .map(|body| body.to_string().into_bytes())
        .unwrap_or_default();
    let answer = wire.send(method, path, Vec::new(), bytes).await.unwrap();
    let what = format!(
        "{} {path}: {} {}",
        method.as_str(),
        answer.status,
        answer.text()
    );
    assert!((200..300).contains(&answer.status), "{what}");
    let leader = answer
        .response
        .header(paths::LEADER_HEADER)
        .unwrap_or_else(|| panic!("no leader: {what}"));
    assert_ne!(leader, wire.node, "{what}");
    assert!(
        answer.response.header(paths::TERM_HEADER).is_some(),
        "{what}"
    );
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn each_admin_endpoint_works_through_a_follower() {
    let mut cluster = Cluster::start(Settings::light()).await;
    let _executor = ShellExecutor::start(&cluster, "worker", &[]);
    cluster
        .counter_is("executors_online", |online| online == 1.0)
        .await;
    let place = cluster.follower().await;
    let wire = cluster.wire(place);
    let forwarded = wire.metric("http_forwarded_total").await.unwrap();
    let spec = json!({
        "name": "far", "trigger": {"every": "1s"}, "overlap": "allow",
        "task": {"capability": "shell", "params": {"script": "echo far away"}},
    });
    asked(
        &wire,
        Method::Post,
        "/v1/jobs/preview?count=2",
        Some(spec.clone()),
    )
    .await;
    let put = asked(&wire, Method::Put, "/v1/jobs/far", Some(spec)).await;
    assert_eq!(
        (put.status, put.json()["change"].as_str()),
        (201, Some("created"))
    );
    let listed = asked(&wire, Method::Get, "/v1/jobs?prefix=f", None)
        .await
        .json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    asked(&wire, Method::Get, "/v1/jobs/far", None).await;
    asked(&wire, Method::Get, "/v1/jobs/far/next?count=3", None).await;
    asked(&wire, Method::Post, "/v1/jobs/far/pause", None).await;
    asked(&wire, Method::Post, "/v1/jobs/far/resume", None).await;
    let triggered = asked(&wire, Method::Post, "/v1/jobs/far/trigger", Some(json!({}))).await;
    let run = triggered.json()["run"].as_u64().unwrap();
    let ended = cluster.ended(run.into()).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:#?}");
    let fire = eventually("a scheduled fire", async || {
        let fires = asked(&wire, Method::Get, "/v1/jobs/far/fires", None)
            .await
            .json();
        fires["items"]
            .as_array()
            .unwrap()
            .first()
            .cloned()
            .ok_or("none yet".to_owned())
    })
    .await;
    let instant = fire["scheduled_at"].as_str().unwrap();
    let same = asked(
        &wire,
        Method::Get,
        &format!("/v1/jobs/far/fires/{}", paths::encode(instant)),
        None,
    )
    .await;
    assert_eq!(same.json()["scheduled_at"], fire["scheduled_at"]);
    asked(&wire, Method::Get, "/v1/runs?job=far", None).await;
    asked(&wire, Method::Get, &format!("/v1/runs/{run}"), None).await;
    asked(&wire, Method::Get, &format!("/v1/runs/{run}/explain"), None).await;
    let output = asked(&wire, Method::Get, &format!("/v1/runs/{run}/output"), None).await;
    assert!(output.text().contains("far away"), "{}", output.text());
    asked(&wire, Method::Get, "/v1/executors", None).await;
    asked(&wire, Method::Get, "/v1/executors/worker", None).await;
    asked(&wire, Method::Get, "/v1/cluster", None).await;
    asked(&wire, Method::Get, "/v1/openapi.json", None).await;
    asked(&wire, Method::Get, "/metrics", None).await;
    asked(&wire, Method::Get, "/healthz", None).await;

    let idle = job("name: idle\ntrigger: { manual: true }\ntask: { capability: nobody-has-it }\n");
    let idle = cluster.put(idle).await;
    let waiting = cluster.trigger(&idle).await;
    asked(
        &wire,
        Method::Post,
        &format!("/v1/runs/{waiting}/cancel"),
        Some(json!({"reason": "test"})),
    )
    .await;
    assert_eq!(cluster.ended(waiting).await.state, RunState::Cancelled);
    asked(
        &wire,
        Method::Post,
        "/v1/executors/worker/drain",
        Some(json!({"deadline": "5s"})),
    )
    .await;
    let again = wire
        .send(Method::Delete, "/v1/jobs/far", Vec::new(), Vec::new())
        .await
        .unwrap();
    assert!((200..300).contains(&again.status), "{}", again.text());
    let gone = wire.get("/v1/jobs/far").await.unwrap();
    assert_eq!((gone.status, gone.code()), (404, "not_found".to_owned()));
    let now = wire.metric("http_forwarded_total").await.unwrap();
    assert!(now >= forwarded + 15.0, "{forwarded}, then {now}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ex_6_an_executor_that_reaches_a_follower_only_works() {
    let mut cluster = Cluster::start(Settings::light()).await;
    let place = cluster.follower().await;
    let url = cluster.nodes[place].url.clone();
    let executor = Executor::builder()
        .node(&url)
        .transport(Pinned::to(url.clone()))
        .token(&cluster.executor_token)
        .instance_id("pinned")
        .capacity(2)
        .handler("count", |task: TaskContext| async move {
            task.checkpoint(1, "one").await?;
            task.log("from afar");
            Ok::<(), TaskError>(())
        })
        .build()
        .unwrap();
    let handle = executor.handle();
    let running = tokio::spawn(executor.run());
    let spec = job("name: far\ntrigger: { manual: true }\ntask: { capability: count }\n");
    let name = cluster.put(spec).await;
    let run = cluster.trigger(&name).await;
    let ended = cluster.ended(run).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:#?}");
    let task = &ended.tasks[0];
    assert_eq!(
        (task.state, task.checkpoint.unwrap().offset),
        (TaskState::Succeeded, 1)
    );
    let wire = cluster.wire(place);
    assert!(wire.metric("http_forwarded_total").await.unwrap() >= 5.0);
    handle.drain(std::time::Duration::from_secs(5));
    running.await.unwrap().unwrap();
    eventually("it has left", async || {
        let online = wire.metric("executors_online").await?;
        holds(online == 0.0, online)
    })
    .await;
}
