//! Runs, and what came of them.

use serde_json::{Value, json};

use super::{MANUAL, World};

async fn trigger(world: &World, job: &str) -> u64 {
    let path = format!("/v1/jobs/{job}/trigger");
    let answer = world.ask("POST", &path).send().await.ok();
    answer["run"].as_u64().unwrap()
}

fn ids(page: &Value) -> Vec<u64> {
    let items = page["items"].as_array().unwrap();
    items
        .iter()
        .map(|run| run["id"].as_u64().unwrap())
        .collect()
}

#[tokio::test]
async fn a_run_that_nobody_can_take_says_what_each_executor_lacks() {
    let world = World::new();
    world
        .put(
            "resize",
            "trigger: {manual: true}\ntask: {capability: image-resize, version: \">=2.1, <3\", selector: {gpu: \"true\"}}\n",
        )
        .await;
    for (instance, version, gpu) in [
        ("old", "2.0.9", true),
        ("pre", "2.1.0-rc1", true),
        ("new", "3.0.0", true),
        ("plain", "2.4.0", false),
    ] {
        let labels = if gpu {
            json!({"gpu": "true"})
        } else {
            json!({})
        };
        let body = json!({"instance_id": instance, "version": version, "labels": labels,
            "capabilities": ["image-resize"], "capacity": 1});
        world.tell("", body).await.ok();
    }
    world.register("other").await;
    let run = trigger(&world, "resize").await;
    world.plan().await;
    let explained = world.get(&format!("/v1/runs/{run}/explain")).await.ok();
    assert_eq!(explained["state"], "queued");
    let mut fails = Vec::new();
    for verdict in explained["executors"].as_array().unwrap() {
        assert_eq!(verdict["eligible"], false, "{verdict}");
        let conditions = verdict["fails"].as_array().unwrap().iter();
        let conditions: Vec<_> = conditions
            .map(|failed| failed["condition"].as_str().unwrap())
            .collect();
        fails.push(format!(
            "{}: {}",
            verdict["instance_id"].as_str().unwrap(),
            conditions.join(" ")
        ));
    }
    assert_eq!(
        fails,
        [
            "new: version",
            "old: version",
            "other: capability selector",
            "plain: selector",
            "pre: version"
        ]
    );
    let fit = json!({"instance_id": "fit", "version": "2.4.0", "labels": {"gpu": "true"},
        "capabilities": ["image-resize"], "capacity": 1});
    world.tell("", fit).await.ok();
    let explained = world.get(&format!("/v1/runs/{run}/explain")).await.ok();
    let fit = explained["executors"]
        .as_array()
        .unwrap()
        .iter()
        .find(|verdict| verdict["instance_id"] == "fit");
    assert_eq!(
        fit.unwrap(),
        &json!({"instance_id": "fit", "eligible": true, "fails": []})
    );
    world.plan().await;
    let run = world.get(&format!("/v1/runs/{run}")).await.ok();
    assert_eq!(
        (&run["tasks"][0]["executor"], &run["tasks"][0]["state"]),
        (&json!("fit"), &json!("assigned"))
    );
}

#[tokio::test]
async fn live_runs_and_finished_ones_are_one_list() {
    let world = World::new();
    world.put("a", &format!("overlap: allow\n{MANUAL}")).await;
    world.put("b", &format!("overlap: allow\n{MANUAL}")).await;
    let mut of_a = Vec::new();
    let mut all = Vec::new();
    for round in 0..6 {
        let job = if round % 2 == 0 { "a" } else { "b" };
        let run = trigger(&world, job).await;
        all.insert(0, run);
        if job == "a" {
            of_a.insert(0, run);
        }
    }
    // The oldest two end, and leave the live state ten minutes later.
    for run in &all[4..] {
        world
            .ask("POST", &format!("/v1/runs/{run}/cancel"))
            .send()
            .await
            .ok();
    }
    world.after(11 * 60_000).await;
    // One more ends and is in both places.
    world
        .ask("POST", &format!("/v1/runs/{}/cancel", all[2]))
        .send()
        .await
        .ok();
    assert_eq!(ids(&world.get("/v1/runs").await.ok()), all);
    assert_eq!(ids(&world.get("/v1/runs?job=a").await.ok()), of_a);
    let cancelled = world.get("/v1/runs?state=cancelled").await.ok();
    assert_eq!(ids(&cancelled), [all[2], all[4], all[5]]);
    assert_eq!(
        ids(&world.get("/v1/runs?state=queued").await.ok()),
        [all[0], all[1], all[3]]
    );
    let mut paged = Vec::new();
    let mut path = "/v1/runs?limit=2".to_owned();
    loop {
        let page = world.get(&path).await.ok();
        paged.extend(ids(&page));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/runs?limit=2&cursor={cursor}");
    }
    assert_eq!(paged, all);
    let old = world.get(&format!("/v1/runs/{}", all[5])).await.ok();
    assert_eq!(
        (&old["state"], &old["tasks"][0]["state"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    let explained = world
        .get(&format!("/v1/runs/{}/explain", all[5]))
        .await
        .ok();
    assert_eq!(
        explained["summary"],
        "It was cancelled: cancelled by admin."
    );
    let late = world
        .ask("POST", &format!("/v1/runs/{}/cancel", all[5]))
        .send()
        .await;
    assert_eq!(late.failed(), (409, "already_final".into()));
    world.ask("DELETE", "/v1/jobs/b").send().await.ok();
    assert_eq!(
        ids(&world.get("/v1/runs?job=b").await.ok()).len(),
        3,
        "the past of a job outlives it"
    );
}

#[tokio::test]
async fn the_runs_of_a_job_that_is_not_there_are_not_found() {
    let world = World::new();
    let missing = world.get("/v1/runs?job=nope").await;
    assert_eq!(missing.failed(), (404, "not_found".into()));
    assert!(missing.text.contains("no job nope"), "{}", missing.text);
    world.put("a", MANUAL).await;
    assert_eq!(world.get("/v1/runs?job=a").await.ok()["items"], json!([]));
    // What a job that was deleted has left is still found by its name.
    let run = trigger(&world, "a").await;
    world.ask("DELETE", "/v1/jobs/a").send().await.ok();
    assert_eq!(ids(&world.get("/v1/runs?job=a").await.ok()), [run]);
    assert_eq!(world.get("/v1/runs").await.status, 200);
}

#[tokio::test]
async fn a_failed_run_says_what_its_task_said() {
    let world = World::new();
    world.put("a", &format!("shards: 2\n{MANUAL}")).await;
    let session = world.register("w").await;
    let run = trigger(&world, "a").await;
    world.plan().await;
    let body = json!({"max": 10, "wait_ms": 0});
    let polled = world.tell(&format!("/{session}/poll"), body).await.ok();
    for task in polled["assignments"].as_array().unwrap() {
        let mut key = json!({"run": run, "shard": task["shard"], "epoch": task["epoch"]});
        let start = format!("/{session}/start");
        world.tell(&start, key.clone()).await.ok();
        key["outcome"] = if task["shard"] == 1 {
            json!({"status": "failed", "message": format!("exit code 3: {}", "x".repeat(1_000)), "retryable": true})
        } else {
            json!({"status": "succeeded"})
        };
        world.tell(&format!("/{session}/result"), key).await.ok();
    }
    let listed = world.get("/v1/runs").await.ok()["items"][0].clone();
    assert_eq!(listed["state"], "failed");
    let reason = listed["reason"].as_str().unwrap();
    assert!(reason.starts_with("shard 1: exit code 3: xx"), "{reason}");
    assert!(reason.len() < 400, "{reason}");
    let why = world.get(&format!("/v1/runs/{run}/explain")).await.ok();
    assert_eq!(why["shards"].as_array().unwrap().len(), 1, "{why}");
    let said = why["shards"][0]["summary"].as_str().unwrap();
    assert!(
        said.starts_with("Attempt 1 was the last one: exit code 3: xx"),
        "{said}"
    );
    assert_eq!(
        (&why["shards"][0]["shard"], &why["shards"][0]["state"]),
        (&json!(1), &json!("failed"))
    );
}

#[tokio::test]
async fn a_run_that_was_never_there_is_not_found() {
    let world = World::new();
    for path in ["/v1/runs/99", "/v1/runs/99/explain", "/v1/runs/99/output"] {
        assert_eq!(
            world.get(path).await.failed(),
            (404, "not_found".into()),
            "{path}"
        );
    }
    let cancel = world.ask("POST", "/v1/runs/99/cancel").send().await;
    assert_eq!(cancel.failed(), (404, "not_found".into()));
    for path in ["/v1/runs/x", "/v1/runs/-1", "/v1/runs/99999999999999999999"] {
        assert_eq!(
            world.get(path).await.failed(),
            (400, "invalid_request".into()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_run_is_cancelled_with_a_reason() {
    let world = World::new();
    world
        .put("hand", &format!("overlap: queue\n{MANUAL}"))
        .await;
    let first = trigger(&world, "hand").await;
    let second = world.ask("POST", "/v1/jobs/hand/trigger").send().await.ok();
    assert_eq!(second["decision"], "run_waiting");
    let explained = world
        .get(&format!("/v1/runs/{}/explain", second["run"]))
        .await
        .ok();
    assert_eq!(
        explained["summary"],
        format!("It waits until run {first} of the same job is over.")
    );
    let path = format!("/v1/runs/{first}/cancel");
    let cancelled = world
        .ask("POST", &path)
        .json(&json!({"reason": "wrong day"}))
        .send()
        .await
        .ok();
    assert_eq!(
        (&cancelled["state"], &cancelled["reason"]),
        (&json!("cancelled"), &json!("wrong day"))
    );
    let next = world.get(&format!("/v1/runs/{}", second["run"])).await.ok();
    assert_eq!(next["state"], "queued");
    let long = world
        .ask("POST", &path)
        .json(&json!({"reason": "x".repeat(5000)}))
        .send()
        .await;
    assert_eq!(long.failed(), (400, "invalid_request".into()));
}
