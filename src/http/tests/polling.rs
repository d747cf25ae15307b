//! The long poll: what wakes it, and how long it waits.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{MANUAL, World};

async fn poll(world: &World, session: u64, wait_ms: u64) -> Value {
    let body = json!({"max": 10, "wait_ms": wait_ms});
    world.tell(&format!("/{session}/poll"), body).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_poll_waits_as_long_as_it_says() {
    let world = World::new();
    let session = world.register("w1").await;
    let began = Instant::now();
    let polled = poll(&world, session, 20_000).await;
    assert_eq!(polled["assignments"], json!([]));
    assert!(began.elapsed() >= Duration::from_secs(20));
    assert!(began.elapsed() < Duration::from_secs(21));
}

#[tokio::test(start_paused = true)]
async fn a_grant_wakes_the_poll_that_waits_for_it() {
    let world = World::new();
    world.put("hand", MANUAL).await;
    let session = world.register("w1").await;
    let began = Instant::now();
    let granting = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.ask("POST", "/v1/jobs/hand/trigger").send().await.ok();
        world.plan().await;
    };
    let (polled, ()) = tokio::join!(poll(&world, session, 30_000), granting);
    assert_eq!(polled["assignments"].as_array().unwrap().len(), 1);
    assert!(
        began.elapsed() < Duration::from_millis(400),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_wakes_a_poll_and_does_not_make_it_spin() {
    let world = World::new();
    world.put("hand", MANUAL).await;
    let session = world.register("w1").await;
    let run = world.ask("POST", "/v1/jobs/hand/trigger").send().await.ok()["run"].clone();
    world.plan().await;
    let task = json!({"run": run, "shard": 0, "epoch": 1});
    world
        .tell(&format!("/{session}/start"), task.clone())
        .await
        .ok();
    let began = Instant::now();
    let cancelling = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let path = format!("/v1/runs/{run}/cancel");
        world
            .ask("POST", &path)
            .json(&json!({"reason": "enough"}))
            .send()
            .await
            .ok();
    };
    let (polled, ()) = tokio::join!(poll(&world, session, 30_000), cancelling);
    assert_eq!(
        polled["cancels"],
        json!([{"run": run, "shard": 0, "epoch": 1, "reason": "enough"}])
    );
    assert!(
        began.elapsed() < Duration::from_millis(400),
        "{:?}",
        began.elapsed()
    );
    // It stands until the work has stopped. The next polls tell of it, at a pace.
    poll(&world, session, 30_000).await;
    let began = Instant::now();
    let polled = poll(&world, session, 30_000).await;
    assert_eq!(polled["cancels"].as_array().unwrap().len(), 1);
    assert!(
        began.elapsed() >= Duration::from_millis(500),
        "{:?}",
        began.elapsed()
    );
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    let mut report = task;
    report["outcome"] = json!({"status": "cancelled"});
    let ended = world.tell(&format!("/{session}/result"), report).await.ok();
    assert_eq!(ended, json!({"state": "cancelled"}));
}

#[tokio::test(start_paused = true)]
async fn a_poll_ends_when_its_session_or_its_leader_does() {
    let world = World::new();
    let session = world.register("w1").await;
    let body = json!({"max": 10, "wait_ms": 30_000});
    let path = format!("/{session}/poll");
    let replacing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.register("w1").await
    };
    let began = Instant::now();
    let (polled, session) = tokio::join!(world.tell(&path, body.clone()), replacing);
    assert_eq!(polled.failed(), (409, "session_replaced".into()));
    assert!(began.elapsed() < Duration::from_secs(1));

    let deposing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.solo.set_leads(false);
    };
    let path = format!("/{session}/poll");
    let began = Instant::now();
    let (polled, ()) = tokio::join!(world.tell(&path, body), deposing);
    assert_eq!(polled.failed(), (503, "no_leader".into()));
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_poll_keeps_its_bounds() {
    let world = World::new();
    let session = world.register("w1").await;
    for (body, path) in [
        (json!({"max": 0, "wait_ms": 0}), "max"),
        (json!({"max": 257, "wait_ms": 0}), "max"),
        (json!({"max": 1, "wait_ms": 30_001}), "wait_ms"),
        (json!({"max": 1}), "$"),
        (
            json!({"max": 1, "wait_ms": 0, "known": [{"run": "x"}]}),
            "known[0].run",
        ),
    ] {
        let answer = world.tell(&format!("/{session}/poll"), body).await;
        assert_eq!(answer.failed(), (400, "invalid_request".into()));
        assert_eq!(answer.json()["path"], path, "{answer:?}");
    }
}

#[tokio::test]
async fn a_poll_brings_no_more_than_was_asked_for() {
    let world = World::new();
    world.put("wide", &format!("shards: 4\n{MANUAL}")).await;
    let session = world.register("w1").await;
    world.ask("POST", "/v1/jobs/wide/trigger").send().await.ok();
    world.plan().await;
    let polled = world
        .tell(&format!("/{session}/poll"), json!({"max": 3, "wait_ms": 0}))
        .await
        .ok();
    assert_eq!(polled["assignments"].as_array().unwrap().len(), 3);
}
