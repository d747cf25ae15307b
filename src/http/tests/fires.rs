//! What was decided for 02:00, and why.

use serde_json::json;

use super::{START_MS, World};

async fn why(world: &World, job: &str, instant: &str) -> (u16, String) {
    let answer = world.get(&format!("/v1/jobs/{job}/fires/{instant}")).await;
    let json = answer.json();
    let said = if answer.status == 200 {
        &json["reason"]
    } else {
        &json["detail"]
    };
    (answer.status, said.as_str().unwrap().to_owned())
}

#[tokio::test]
async fn every_instant_has_a_decision_or_a_reason_for_none() {
    let world = World::new();
    world.solo.advance(10_000);
    // Created at 14:13:30; due each ten seconds.
    world
        .put("tick", "trigger: {cron: \"*/10 * * * * *\"}\nmisfire: {policy: skip, grace: 5s}\ntask: {capability: work}\n")
        .await;
    world.after(10_000).await;
    let run = world.get("/v1/jobs/tick/fires").await.ok()["items"][0]["run"].clone();
    world.after(10_000).await;
    let cancel = world.ask("POST", &format!("/v1/runs/{run}/cancel"));
    cancel.send().await.ok();
    world.after(40_000).await;

    let decided = format!("Run {run} was created, 0 ms after the instant.");
    assert_eq!(
        why(&world, "tick", "2026-09-21T14:13:40Z").await,
        (200, decided)
    );
    let (status, overlap) = why(&world, "tick", "2026-09-21T14:13:50Z").await;
    assert_eq!(status, 200);
    assert!(overlap.contains("forbids overlap"), "{overlap}");
    let (status, misfire) = why(&world, "tick", "2026-09-21T14:14:10Z").await;
    assert_eq!(status, 200);
    assert!(misfire.contains("misfire policy"), "{misfire}");
    for (instant, what) in [
        ("2026-09-21T14:13:20Z", "before the job existed"),
        (
            "2026-09-21T14:14:11Z",
            "not an instant of the job's present schedule",
        ),
        (
            "2026-09-21T14:14:05Z",
            "not an instant of the job's present schedule",
        ),
        ("2026-09-21T15:00:00Z", "not due yet"),
    ] {
        let (status, said) = why(&world, "tick", instant).await;
        assert_eq!(status, 404, "{said}");
        assert!(said.contains(what), "{instant}: {said}");
    }
    // Milliseconds name the same instant.
    let ms = (START_MS + 20_000).to_string();
    assert_eq!(why(&world, "tick", &ms).await.0, 200);

    world.ask("POST", "/v1/jobs/tick/pause").send().await.ok();
    world.after(10_000).await;
    let (_, paused) = why(&world, "tick", "2026-09-21T14:14:40Z").await;
    assert!(paused.contains("while the job is paused"), "{paused}");
    world.ask("POST", "/v1/jobs/tick/resume").send().await.ok();
    let (status, paused) = why(&world, "tick", "2026-09-21T14:14:40Z").await;
    assert_eq!(status, 200);
    assert!(paused.contains("while the job was paused"), "{paused}");

    world.solo.advance(10_000);
    let (_, pending) = why(&world, "tick", "2026-09-21T14:14:50Z").await;
    assert!(pending.contains("about to be decided"), "{pending}");
    world
        .history
        .forget_decisions(&"tick".into(), START_MS + 30_000);
    let (_, gone) = why(&world, "tick", "2026-09-21T14:13:40Z").await;
    assert!(gone.contains("no longer kept"), "{gone}");
    let (_, none) = why(&world, "none", "2026-09-21T14:13:40Z").await;
    assert!(none.contains("no job none"), "{none}");
    let bad = world.get("/v1/jobs/tick/fires/yesterday").await;
    assert_eq!(bad.failed(), (400, "invalid_request".into()));
}

#[tokio::test]
async fn the_ledger_comes_in_pages_the_latest_first() {
    let world = World::new();
    world
        .put(
            "tick",
            "trigger: {every: 1s}\noverlap: allow\ntask: {capability: work}\n",
        )
        .await;
    for _ in 0..5 {
        world.after(1_000).await;
    }
    let instants = |page: &serde_json::Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap();
        items
            .iter()
            .map(|fire| fire["scheduled_at"].as_str().unwrap()[17..19].to_owned())
            .collect()
    };
    let first = world.get("/v1/jobs/tick/fires?limit=3").await.ok();
    assert_eq!(instants(&first), ["25", "24", "23"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = world
        .get(&format!("/v1/jobs/tick/fires?limit=3&cursor={cursor}"))
        .await
        .ok();
    assert_eq!(instants(&rest), ["22", "21"]);
    assert_eq!(rest.get("next_cursor"), None);
    let span = "/v1/jobs/tick/fires?from=2026-09-21T14:13:22Z&to=2026-09-21T14:13:24Z";
    assert_eq!(instants(&world.get(span).await.ok()), ["23", "22"]);
    let fire = &first["items"][0];
    assert_eq!(
        (
            &fire["decision"],
            &fire["run_state"],
            &fire["instants"],
            &fire["trigger"]
        ),
        (
            &json!("run"),
            &json!("queued"),
            &json!(1),
            &json!("scheduled")
        )
    );
    assert_eq!(
        world.get("/v1/jobs/none/fires").await.failed(),
        (404, "not_found".into())
    );
}

#[tokio::test]
async fn an_instant_before_the_present_schedule_is_told_apart() {
    let world = World::new();
    world
        .put("tick", "trigger: {every: 1h}\ntask: {capability: work}\n")
        .await;
    world.after(60_000).await;
    let text = "name: tick\ntrigger: {every: 10s}\ntask: {capability: work}\n";
    let put = world.ask("PUT", "/v1/jobs/tick").header("if-match", "*");
    put.yaml(text).send().await.ok();
    let (status, said) = why(&world, "tick", "2026-09-21T14:13:30Z").await;
    assert_eq!(status, 404);
    assert!(said.contains("before the job's present schedule"), "{said}");
}
