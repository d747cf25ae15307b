//! The life of an executor, from its registration to its end, over JSON.

use serde_json::{Value, json};

use tenure_machine::{Actor, Command, RefusalCode, Role};

use super::{MANUAL, World};
use crate::consensus::{Consensus as _, Draft};

const SHARDED: &str = "trigger: {manual: true}\nshards: 2\nretry: {max_attempts: 2, jitter: 0}\ntask: {capability: work, params: {n: 1}}\n";

async fn trigger(world: &World, job: &str) -> u64 {
    let path = format!("/v1/jobs/{job}/trigger");
    world.ask("POST", &path).send().await.ok()["run"]
        .as_u64()
        .unwrap()
}

async fn poll(world: &World, session: u64) -> Value {
    let body = json!({"max": 10, "wait_ms": 0});
    world.tell(&format!("/{session}/poll"), body).await.ok()
}

fn key(task: &Value) -> Value {
    json!({"run": task["run"], "shard": task["shard"], "epoch": task["epoch"]})
}

fn with(mut key: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        key[name] = value.clone();
    }
    key
}

#[tokio::test]
async fn work_goes_from_the_trigger_to_the_result() {
    let world = World::new();
    world.put("sum", SHARDED).await;
    let registered = world
        .tell("", json!({"instance_id": "w1", "version": "2.4.0", "capabilities": ["work"], "capacity": 4}))
        .await
        .ok();
    assert_eq!(
        (
            &registered["lease_ttl_ms"],
            &registered["heartbeat_interval_ms"],
            &registered["generation"]
        ),
        (&json!(35_000), &json!(10_000), &json!(1))
    );
    let session = registered["session"].as_u64().unwrap();
    let run = trigger(&world, "sum").await;
    world.plan().await;

    let polled = poll(&world, session).await;
    let assignments = polled["assignments"].as_array().unwrap();
    assert_eq!(assignments.len(), 2);
    let first = &assignments[0];
    for (field, value) in [
        ("run", json!(run)),
        ("shard", json!(0)),
        ("epoch", json!(1)),
        ("shard_count", json!(2)),
        ("attempt", json!(1)),
        ("job", json!("sum")),
        ("capability", json!("work")),
        ("params", json!({"n": 1})),
        ("fencing_token", json!("0000000001.00000000000000000001")),
        ("fencing_scope", json!("sum/0")),
        ("trigger", json!("manual")),
        ("deadline_in_ms", json!(35_000)),
        ("scheduled_at_ms", json!(super::START_MS)),
    ] {
        assert_eq!(first[field], value, "{field}");
    }
    // Not started, so it is delivered again, unless the executor says that it has it.
    assert_eq!(poll(&world, session).await, polled);
    let known = json!({"max": 10, "wait_ms": 0, "known": [key(first)]});
    let rest = world.tell(&format!("/{session}/poll"), known).await.ok();
    assert_eq!(rest["assignments"], json!([assignments[1]]));

    let at = |path: &str| format!("/{session}/{path}");
    let early = with(key(first), json!({"offset": 1}));
    assert_eq!(
        world.tell(&at("checkpoint"), early).await.failed(),
        (409, "not_started".into())
    );
    let started = world.tell(&at("start"), key(first)).await.ok();
    assert_eq!(started, json!({"attempt": 1, "resume": {}}));
    assert_eq!(
        world.tell(&at("start"), key(first)).await.ok(),
        started,
        "a repeat is the same"
    );

    let commit = |offset: u64| with(key(first), json!({"offset": offset, "state": "AP8Q"}));
    assert_eq!(
        world.tell(&at("checkpoint"), commit(1000)).await.ok(),
        json!({"offset": 1000})
    );
    let back = world.tell(&at("checkpoint"), commit(999)).await;
    assert_eq!(back.failed(), (409, "checkpoint_regressed".into()));
    let write = |seq: u64, text: &str| with(key(first), json!({"seq": seq, "text": text}));
    let wrote = world.tell(&at("output"), write(0, "one\n")).await.ok();
    assert_eq!(wrote, json!({"accepted_bytes": 4, "truncated": false}));
    let wrote = world.tell(&at("output"), write(0, "one\n")).await.ok();
    assert_eq!(wrote["accepted_bytes"], 0, "a repeat is not kept twice");

    let beat = json!({"slots_used": 2, "healthy": true, "tasks": [
        with(key(first), json!({"progress": 1200})),
        {"run": run, "shard": 1, "epoch": 9},
    ]});
    let beaten = world.tell(&at("heartbeat"), beat).await.ok();
    assert_eq!(
        (&beaten["lease_ttl_ms"], &beaten["draining"]),
        (&json!(35_000), &json!(false))
    );
    assert_eq!(beaten["tasks"][0]["verdict"], "keep");
    assert_eq!(beaten["tasks"][1]["verdict"], "lost");

    let report = with(
        key(first),
        json!({"outcome": {"status": "succeeded", "value": {"sum": 3}}, "output_tail": "end\n"}),
    );
    assert_eq!(
        world.tell(&at("result"), report.clone()).await.ok(),
        json!({"state": "succeeded"})
    );
    assert_eq!(
        world.tell(&at("result"), report).await.ok(),
        json!({"state": "succeeded"})
    );
    let second = &assignments[1];
    world.tell(&at("start"), key(second)).await.ok();
    let failed = with(
        key(second),
        json!({"outcome": {"status": "failed", "message": "disk full", "retryable": true}}),
    );
    assert_eq!(
        world.tell(&at("result"), failed).await.ok(),
        json!({"state": "queued"})
    );

    let shown = world.get(&format!("/v1/runs/{run}")).await.ok();
    assert_eq!(shown["state"], "running");
    assert_eq!(
        shown["counts"],
        json!({"queued": 1, "running": 0, "succeeded": 1, "failed": 0})
    );
    assert_eq!(shown["tasks"][0]["value"], json!({"sum": 3}));
    assert_eq!(
        shown["tasks"][0]["checkpoint"],
        json!({"offset": 1000, "state_bytes": 3, "epoch": 1})
    );
    assert_eq!(shown["tasks"][1]["message"], "disk full");
    assert_eq!(shown["tasks"][1]["not_before"], "2026-09-21T14:13:21.000Z");

    world.after(1_000).await;
    let polled = poll(&world, session).await;
    let again = &polled["assignments"][0];
    assert_eq!(
        (&again["shard"], &again["attempt"], &again["epoch"]),
        (&json!(1), &json!(2), &json!(2))
    );
    world.tell(&at("start"), key(again)).await.ok();
    let old = with(key(second), json!({"outcome": {"status": "succeeded"}}));
    // A result that was taken is acknowledged again, whatever came after it; anything else is refused.
    world.tell(&at("result"), old).await.ok();
    let late = with(key(second), json!({"offset": 1}));
    assert_eq!(
        world.tell(&at("checkpoint"), late).await.failed(),
        (409, "stale_epoch".into())
    );
    let done = with(key(again), json!({"outcome": {"status": "succeeded"}}));
    world.tell(&at("result"), done).await.ok();
    assert_eq!(
        world.get(&format!("/v1/runs/{run}")).await.ok()["state"],
        "succeeded"
    );
    let output = world.get(&format!("/v1/runs/{run}/output")).await.ok();
    assert_eq!(
        output,
        json!({"run": run, "shard": 0, "truncated": false, "pieces": [
            {"epoch": 1, "seq": 0, "text": "one\n"}, {"epoch": 1, "seq": 1, "text": "end\n"},
        ]})
    );
    let beyond = world.get(&format!("/v1/runs/{run}/output?shard=2")).await;
    assert_eq!(beyond.failed(), (400, "invalid_request".into()));
    let unknown = json!({"run": 99, "shard": 0, "epoch": 1});
    assert_eq!(
        world.tell(&at("start"), unknown).await.failed(),
        (404, "unknown_task".into())
    );
}

#[tokio::test]
async fn ex_3_a_replaced_session_has_no_effect() {
    let world = World::new();
    world.put("hand", MANUAL).await;
    let old = world.register("w1").await;
    let run = trigger(&world, "hand").await;
    world.plan().await;
    let task = json!({"run": run, "shard": 0, "epoch": 1});
    world
        .tell(&format!("/{old}/start"), task.clone())
        .await
        .ok();
    let new = world.register("w1").await;
    assert!(new > old);
    let result = with(task.clone(), json!({"outcome": {"status": "succeeded"}}));
    let offset = with(task.clone(), json!({"offset": 1}));
    for (path, body) in [
        ("heartbeat", json!({"slots_used": 0, "healthy": true})),
        ("poll", json!({"max": 1, "wait_ms": 0})),
        ("start", task.clone()),
        ("checkpoint", offset),
        ("result", result.clone()),
        ("drain", json!({"deadline_ms": 1})),
    ] {
        let answer = world.tell(&format!("/{old}/{path}"), body).await;
        assert_eq!(answer.failed(), (409, "session_replaced".into()), "{path}");
    }
    // The new process cannot confirm the old one's work.
    let stolen = world.tell(&format!("/{new}/result"), result).await;
    assert_eq!(stolen.failed(), (409, "stale_epoch".into()));
    let never = world
        .tell("/999/heartbeat", json!({"slots_used": 0, "healthy": true}))
        .await;
    assert_eq!(never.failed(), (409, "stale_session".into()));
}

#[tokio::test]
async fn a_session_belongs_to_the_principal_that_registered_it() {
    let world = World::new();
    let session = world.register("w1").await;
    let beat = json!({"slots_used": 0, "healthy": true});
    for who in ["stranger", "admin"] {
        for (path, body) in [
            ("heartbeat", beat.clone()),
            ("poll", json!({"max": 1, "wait_ms": 0})),
        ] {
            let path = format!("/v1/executor/sessions/{session}/{path}");
            let answer = world.ask_as(who, "POST", &path).json(&body).send().await;
            assert_eq!(answer.failed(), (403, "forbidden".into()), "{who}: {path}");
        }
        let path = format!("/v1/executor/sessions/{session}");
        let answer = world.ask_as(who, "DELETE", &path).send().await;
        assert_eq!(answer.failed(), (403, "forbidden".into()), "{who}");
    }
    world
        .tell(&format!("/{session}/heartbeat"), beat)
        .await
        .ok();
}

/// A session whose number was guessed is registered while the stranger's request is on its way.
#[tokio::test]
async fn a_guessed_session_is_of_no_use_to_a_stranger() {
    let world = World::new();
    let next = world.register("w1").await + 1;
    let poll = world
        .ask_as(
            "stranger",
            "POST",
            &format!("/v1/executor/sessions/{next}/poll"),
        )
        .json(&json!({"max": 1, "wait_ms": 30_000}));
    // A poll of a session that is not there ends at once; the one that waits is of one's own session.
    let early = poll.send().await;
    assert_eq!(early.failed(), (409, "stale_session".into()));
    // What was checked before the session was there reaches the log behind it.
    assert_eq!(world.register("w2").await, next);
    let stranger = Actor::Principal {
        name: "stranger".into(),
        role: Role::Executor,
    };
    let late = world.solo.propose(Draft {
        term: None,
        actor: stranger,
        request: None,
        command: Command::CloseSession { session: next },
    });
    let refused = late.await.unwrap().reply.unwrap_err();
    assert_eq!(refused.code, RefusalCode::NotOwner);
    let beat = json!({"slots_used": 0, "healthy": true});
    world.tell(&format!("/{next}/heartbeat"), beat).await.ok();
}

#[tokio::test]
async fn an_executor_drains_and_leaves() {
    let world = World::new();
    world.put("hand", MANUAL).await;
    let session = world.register("w1").await;
    let run = trigger(&world, "hand").await;
    world.plan().await;
    let drained = world
        .ask("POST", "/v1/executors/w1/drain")
        .json(&json!({"deadline": "1m"}));
    let drained = drained.send().await.ok();
    assert_eq!(
        (&drained["state"], &drained["drain_deadline_at"]),
        (&json!("draining"), &json!("2026-09-21T14:14:20.000Z"))
    );
    assert_eq!(
        drained["tasks"],
        json!([{"run": run, "shard": 0, "epoch": 1, "job": "hand", "state": "assigned"}])
    );
    let beat =
        json!({"slots_used": 1, "healthy": true, "tasks": [{"run": run, "shard": 0, "epoch": 1}]});
    let beaten = world
        .tell(&format!("/{session}/heartbeat"), beat)
        .await
        .ok();
    assert_eq!(
        (&beaten["draining"], &beaten["drain_deadline_in_ms"]),
        (&json!(true), &json!(60_000))
    );
    let release = json!({"run": run, "shard": 0, "epoch": 1, "reason": "draining"});
    world
        .tell(&format!("/{session}/release"), release)
        .await
        .ok();
    world.plan().await;
    assert_eq!(
        poll(&world, session).await,
        json!({"assignments": [], "cancels": [], "draining": true})
    );
    let path = format!("/v1/executor/sessions/{session}");
    world.ask_as("executor", "DELETE", &path).send().await.ok();
    let gone = world.ask_as("executor", "DELETE", &path).send().await;
    assert_eq!(gone.failed(), (409, "stale_session".into()));
    assert_eq!(world.get("/v1/executors").await.ok()["items"], json!([]));
    assert_eq!(
        world.get("/v1/executors/w1").await.failed(),
        (404, "not_found".into())
    );
    let none = world
        .ask("POST", "/v1/executors/w1/drain")
        .json(&json!({"deadline": "1m"}));
    assert_eq!(none.send().await.failed(), (404, "not_found".into()));
    let long = world
        .ask("POST", "/v1/executors/w1/drain")
        .json(&json!({"deadline": "8d"}));
    assert_eq!(long.send().await.failed(), (400, "invalid_request".into()));
}

#[tokio::test]
async fn ex_2_an_executor_that_falls_silent_is_expired() {
    let world = World::new();
    let session = world.register("w1").await;
    world.after(34_999).await;
    assert_eq!(
        world.get("/v1/executors/w1").await.ok()["lease_remaining_ms"],
        1
    );
    world.after(1).await;
    let late = world
        .tell(
            &format!("/{session}/heartbeat"),
            json!({"slots_used": 0, "healthy": true}),
        )
        .await;
    assert_eq!(late.failed(), (410, "session_expired".into()));
    let late = world
        .tell(&format!("/{session}/poll"), json!({"max": 1, "wait_ms": 0}))
        .await;
    assert_eq!(late.failed(), (410, "session_expired".into()));
}

#[tokio::test]
async fn ex_10_a_registration_that_is_wrong_stores_nothing() {
    let world = World::new();
    let good =
        json!({"instance_id": "w1", "version": "2.4.0", "capabilities": ["work"], "capacity": 4});
    let many: Vec<String> = (0..10_000).map(|n| format!("c{n}")).collect();
    for (field, value) in [
        ("capabilities", json!(many)),
        ("capabilities", json!([])),
        ("labels", json!({"a": "x".repeat(1_000)})),
        ("capacity", json!(-1)),
        ("capacity", json!(0)),
        ("capacity", json!(1.5)),
        ("version", json!("two")),
        ("instance_id", json!("a/b")),
        ("load", json!("NaN")),
    ] {
        let answer = world
            .tell("", with(good.clone(), json!({field: value})))
            .await;
        assert_eq!(answer.failed(), (400, "invalid_request".into()), "{field}");
    }
    let huge = with(
        good.clone(),
        json!({"labels": {"a": "x".repeat(1024 * 1024)}}),
    );
    assert_eq!(
        world.tell("", huge).await.failed(),
        (413, "payload_too_large".into())
    );
    assert_eq!(world.get("/v1/executors").await.ok()["items"], json!([]));
    world.tell("", good).await.ok();
}

#[tokio::test]
async fn executors_come_in_pages() {
    let world = World::new();
    for instance in ["a", "b", "c"] {
        world.register(instance).await;
    }
    let first = world.get("/v1/executors?limit=2").await.ok();
    assert_eq!(
        (
            &first["items"][0]["instance_id"],
            &first["items"][1]["instance_id"]
        ),
        (&json!("a"), &json!("b"))
    );
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = world
        .get(&format!("/v1/executors?limit=2&cursor={cursor}"))
        .await
        .ok();
    assert_eq!(
        (
            &second["items"][0]["instance_id"],
            second.get("next_cursor")
        ),
        (&json!("c"), None)
    );
}

#[tokio::test]
async fn what_is_too_large_is_refused_with_its_limit() {
    let world = World::new();
    world.put("hand", MANUAL).await;
    let session = world.register("w1").await;
    let run = trigger(&world, "hand").await;
    world.plan().await;
    let task = json!({"run": run, "shard": 0, "epoch": 1});
    world
        .tell(&format!("/{session}/start"), task.clone())
        .await
        .ok();
    // 65,537 bytes: one more than the limit.
    let state = format!("{}AAA=", "AAAA".repeat(21_845));
    let answer = world
        .tell(
            &format!("/{session}/checkpoint"),
            with(task.clone(), json!({"offset": 1, "state": state})),
        )
        .await;
    assert_eq!(answer.failed(), (413, "checkpoint_too_large".into()));
    assert!(answer.json()["detail"].as_str().unwrap().contains("65536"));
    let answer = world
        .tell(
            &format!("/{session}/output"),
            with(
                task.clone(),
                json!({"seq": 0, "text": "x".repeat(16 * 1024 + 1)}),
            ),
        )
        .await;
    assert_eq!(answer.failed(), (413, "payload_too_large".into()));
    let value = json!({"status": "succeeded", "value": "x".repeat(64 * 1024)});
    let answer = world
        .tell(
            &format!("/{session}/result"),
            with(task.clone(), json!({"outcome": value})),
        )
        .await;
    assert_eq!(answer.failed(), (413, "payload_too_large".into()));
    let future = json!({"run": run, "shard": 0, "epoch": 7, "offset": 1});
    let answer = world.tell(&format!("/{session}/checkpoint"), future).await;
    assert_eq!(answer.failed(), (409, "stale_epoch".into()));
}
