//! The life of a job.

use serde_json::json;

use tenure_machine::plan::Planner;
use tenure_machine::{Actor, Command, RefusalCode, RequestKey};

use super::super::history::History as _;
use super::{MANUAL, START_MS, World};
use crate::consensus::{Consensus as _, Draft};

const HOURLY: &str =
    "trigger: {cron: \"0 * * * *\", timezone: Europe/Berlin}\ntask: {capability: work}\n";

/// With the revision of another's change a client would overwrite, next time, what it has not seen.
#[tokio::test]
async fn a_put_is_answered_with_its_own_revision_whatever_came_after_it() {
    let world = World::new();
    let put = async |key: &str, description: &str, precondition: (&str, &str)| {
        let file = format!("name: report\ndescription: {description}\n{HOURLY}");
        let asking = world.ask("PUT", "/v1/jobs/report").yaml(&file);
        let asking = asking.header("idempotency-key", key);
        asking.header(precondition.0, precondition.1).send().await
    };
    let first = put("one", "mine", ("if-none-match", "*")).await;
    let etag = first.header("etag").to_owned();
    let other = put("two", "theirs", ("if-match", &etag)).await;
    assert_ne!(other.header("etag"), etag);
    // Its answer was lost, and it asks again.
    let again = put("one", "mine", ("if-none-match", "*")).await;
    assert_eq!(again.header("etag"), etag);
    let shown = again.ok();
    assert_eq!(shown["job"]["spec"]["description"], "mine");
    assert_eq!(format!("\"{}\"", shown["job"]["revision"]), etag);
}

#[tokio::test]
async fn a_job_is_created_read_changed_and_removed() {
    let world = World::new();
    let answer = world
        .ask("PUT", "/v1/jobs/report")
        .yaml(&format!("name: report\n{HOURLY}"))
        .send()
        .await;
    assert_eq!(answer.status, 201);
    let etag = answer.header("etag").to_owned();
    let put = answer.ok();
    assert_eq!(put["change"], "created");
    assert_eq!(etag, format!("\"{}\"", put["job"]["revision"]));
    assert_eq!(put["job"]["next_fire_at"], "2026-09-21T15:00:00.000Z");

    let read = world.get("/v1/jobs/report").await;
    assert_eq!(read.header("etag"), etag);
    assert_eq!(read.ok(), put["job"]);

    // The same again, as JSON this time, makes no new revision and needs no precondition.
    let again = world
        .ask("PUT", "/v1/jobs/report")
        .json(&put["job"]["spec"])
        .send()
        .await;
    assert_eq!((again.status, again.header("etag")), (200, etag.as_str()));
    assert_eq!(again.ok()["change"], "unchanged");

    let other = format!("name: report\ndescription: new\n{HOURLY}");
    let blind = world
        .ask("PUT", "/v1/jobs/report")
        .yaml(&other)
        .send()
        .await;
    assert_eq!(blind.failed(), (428, "precondition_required".into()));
    let wrong = world
        .ask("PUT", "/v1/jobs/report")
        .header("if-match", "\"1\"")
        .yaml(&other);
    assert_eq!(
        wrong.send().await.failed(),
        (412, "precondition_failed".into())
    );
    let new = world
        .ask("PUT", "/v1/jobs/report")
        .header("if-none-match", "*")
        .yaml(&other);
    assert_eq!(
        new.send().await.failed(),
        (412, "precondition_failed".into())
    );
    let right = world
        .ask("PUT", "/v1/jobs/report")
        .header("if-match", &etag)
        .yaml(&other);
    let right = right.send().await;
    assert_ne!(right.header("etag"), etag);
    assert_eq!(right.ok()["change"], "updated");

    let stale = world
        .ask("DELETE", "/v1/jobs/report")
        .header("if-match", &etag)
        .send()
        .await;
    assert_eq!(stale.failed(), (412, "precondition_failed".into()));
    world.ask("DELETE", "/v1/jobs/report").send().await.ok();
    let gone = world.get("/v1/jobs/report").await;
    assert_eq!(gone.failed(), (404, "not_found".into()));
    let exists = world
        .ask("PUT", "/v1/jobs/report")
        .header("if-match", "*")
        .yaml(&other);
    assert_eq!(
        exists.send().await.failed(),
        (412, "precondition_failed".into())
    );
}

#[tokio::test]
async fn a_file_that_is_wrong_says_where_and_stores_nothing() {
    let world = World::new();
    for (text, path) in [
        (
            "name: a\ntrigger: {cron: \"61 * * * *\"}\ntask: {capability: work}",
            "trigger.cron",
        ),
        (
            "name: a\ntrigger: {every: 1ms}\ntask: {capability: work}",
            "trigger.every",
        ),
        (
            "name: a\ntrigger: {manual: true}\ntask: {capability: work}\nfoo: 1",
            "foo",
        ),
        ("name: a\ntrigger: {manual: true}", "task"),
        (
            "name: b\ntrigger: {manual: true}\ntask: {capability: work}",
            "name",
        ),
        (
            "name: a\ntrigger: {at: 2020-01-01T00:00:00Z}\ntask: {capability: work}",
            "trigger.at",
        ),
        ("{", "$"),
    ] {
        let answer = world.ask("PUT", "/v1/jobs/a").yaml(text).send().await;
        assert_eq!(answer.failed(), (422, "invalid_job".into()), "{text}");
        assert_eq!(answer.json()["path"], path, "{answer:?}");
    }
    let media = world
        .ask("PUT", "/v1/jobs/a")
        .text("text/plain", MANUAL)
        .send()
        .await;
    assert_eq!(media.failed(), (415, "unsupported_media_type".into()));
    let name = world.ask("PUT", "/v1/jobs/A").yaml(MANUAL).send().await;
    assert_eq!(name.failed(), (400, "invalid_request".into()));
    assert_eq!(world.get("/v1/jobs").await.ok()["items"], json!([]));
}

#[tokio::test]
async fn a_one_time_job_that_has_fired_may_still_be_changed() {
    let world = World::new();
    let once = "trigger: {at: 2026-09-21T14:13:21Z}\ntask: {capability: work}\n";
    world.put("once", once).await;
    world.after(2_000).await;
    let read = world.get("/v1/jobs/once").await;
    let etag = read.header("etag").to_owned();
    let job = read.ok();
    assert_eq!(job["last_fire_at"], "2026-09-21T14:13:21.000Z");
    assert_eq!(job.get("next_fire_at"), None);
    let text = format!("name: once\ndescription: done\n{once}");
    let changed = world
        .ask("PUT", "/v1/jobs/once")
        .header("if-match", &etag)
        .yaml(&text);
    assert_eq!(changed.send().await.ok()["change"], "updated");
    let moved = text.replace("14:13:21", "14:13:20");
    let past = world
        .ask("PUT", "/v1/jobs/once")
        .header("if-match", "*")
        .yaml(&moved);
    assert_eq!(past.send().await.failed(), (422, "invalid_job".into()));
}

#[tokio::test]
async fn an_interval_counts_from_the_creation() {
    let world = World::new();
    world.solo.advance(123);
    let put = world
        .put("tick", "trigger: {every: 30s}\ntask: {capability: work}\n")
        .await;
    let created = &put["job"]["created_at"];
    assert_eq!(created, "2026-09-21T14:13:20.123Z");
    assert_eq!(put["job"]["next_fire_at"], "2026-09-21T14:13:50.123Z");
    world.after(60_000).await;
    let fires = world.get("/v1/jobs/tick/fires").await.ok();
    let decided: Vec<_> = fires["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fire| &fire["scheduled_at"])
        .collect();
    assert_eq!(
        decided,
        ["2026-09-21T14:14:20.123Z", "2026-09-21T14:13:50.123Z"]
    );
}

#[tokio::test]
async fn a_pause_is_ended_by_a_resume_alone() {
    let world = World::new();
    world
        .put("tick", "trigger: {every: 10s}\ntask: {capability: work}\n")
        .await;
    let paused = world.ask("POST", "/v1/jobs/tick/pause").send().await.ok();
    assert_eq!(paused["spec"]["paused"], true);
    world.after(35_000).await;
    // The file says nothing of a pause: it stays, and nothing changes.
    let same = world
        .put("tick", "trigger: {every: 10s}\ntask: {capability: work}\n")
        .await;
    assert_eq!(same["change"], "unchanged");
    assert_eq!(same["job"]["spec"]["paused"], true);
    let resumed = world.ask("POST", "/v1/jobs/tick/resume").send().await.ok();
    assert_eq!(resumed["spec"]["paused"], false);
    assert_eq!(resumed["next_fire_at"], "2026-09-21T14:14:00.000Z");
    let fires = world.get("/v1/jobs/tick/fires").await.ok();
    let fire = &fires["items"][0];
    assert_eq!(fire["decision"], "skipped_paused");
    assert_eq!(
        (&fire["instants"], &fire["through"]),
        (&json!(3), &json!("2026-09-21T14:13:50.000Z"))
    );
    // Once more changes nothing.
    let again = world.ask("POST", "/v1/jobs/tick/resume").send().await.ok();
    assert_eq!(again, resumed);
    let missing = world.ask("POST", "/v1/jobs/none/resume").send().await;
    assert_eq!(missing.failed(), (404, "not_found".into()));
}

#[tokio::test]
async fn a_list_comes_in_pages_and_by_filter() {
    let world = World::new();
    for name in ["a", "b", "b-1", "b-2", "c"] {
        world.put(name, MANUAL).await;
    }
    world
        .put(
            "b-3",
            "trigger: {manual: true}\npaused: true\ntask: {capability: other}\n",
        )
        .await;
    let names = |page: &serde_json::Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap();
        items
            .iter()
            .map(|job| job["spec"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = world.get("/v1/jobs?limit=4").await.ok();
    assert_eq!(names(&first), ["a", "b", "b-1", "b-2"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = world
        .get(&format!("/v1/jobs?limit=4&cursor={cursor}"))
        .await
        .ok();
    assert_eq!(names(&second), ["b-3", "c"]);
    assert_eq!(second.get("next_cursor"), None);
    for (filter, wanted) in [
        ("prefix=b", vec!["b", "b-1", "b-2", "b-3"]),
        ("prefix=b-", vec!["b-1", "b-2", "b-3"]),
        ("prefix=zz", vec![]),
        ("paused=true", vec!["b-3"]),
        ("capability=other", vec!["b-3"]),
        ("prefix=b&paused=false&limit=3", vec!["b", "b-1", "b-2"]),
    ] {
        let page = world.get(&format!("/v1/jobs?{filter}")).await.ok();
        assert_eq!(names(&page), wanted, "{filter}");
    }
    for (bad, path) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("cursor=x", "cursor"),
        ("foo=1", "foo"),
        ("consistency=maybe", "consistency"),
        ("paused=true&paused=false", "paused"),
    ] {
        let answer = world.get(&format!("/v1/jobs?{bad}")).await;
        assert_eq!(answer.failed(), (400, "invalid_request".into()), "{bad}");
        assert_eq!(answer.json()["path"], path, "{answer:?}");
    }
}

#[tokio::test]
async fn what_is_due_next_is_told_in_the_jobs_own_zone() {
    let world = World::new();
    world.put("report", HOURLY).await;
    let next = world.get("/v1/jobs/report/next?count=2").await.ok();
    assert_eq!(next["timezone"], "Europe/Berlin");
    assert_eq!(
        next["fires"],
        json!([
            {"at": "2026-09-21T15:00:00.000Z", "local": "2026-09-21T17:00:00.000+02:00"},
            {"at": "2026-09-21T16:00:00.000Z", "local": "2026-09-21T18:00:00.000+02:00"},
        ])
    );
    world.put("hand", MANUAL).await;
    assert_eq!(
        world.get("/v1/jobs/hand/next").await.ok()["fires"],
        json!([])
    );
    let preview = world.ask_as("viewer", "POST", "/v1/jobs/preview?count=1");
    let preview = preview
        .yaml(&format!("name: new\n{HOURLY}"))
        .send()
        .await
        .ok();
    assert_eq!(preview["change"], "created");
    assert_eq!(
        preview["next"]["fires"][0]["at"],
        "2026-09-21T15:00:00.000Z"
    );
    assert_eq!(world.get("/v1/jobs/new").await.status, 404);
    let wrong = world
        .ask("POST", "/v1/jobs/preview")
        .yaml("name: new")
        .send()
        .await;
    assert_eq!(wrong.failed(), (422, "invalid_job".into()));
}

#[tokio::test]
async fn a_trigger_under_one_key_makes_one_run() {
    let world = World::new();
    world.put("hand", MANUAL).await;
    let ask = |who: &str, key: &str, body: serde_json::Value| {
        let asking = world
            .ask_as(who, "POST", "/v1/jobs/hand/trigger")
            .header("idempotency-key", key);
        asking.json(&body).send()
    };
    let first = ask("operator", "k1", json!({"params": {"n": 1}}))
        .await
        .ok();
    assert_eq!(first["decision"], "run");
    let again = ask("operator", "k1", json!({"params": {"n": 1}}))
        .await
        .ok();
    assert_eq!(again["run"], first["run"]);
    let other = ask("operator", "k1", json!({"params": {"n": 2}})).await;
    assert_eq!(other.failed(), (422, "idempotency_conflict".into()));
    // The job forbids overlap, so another key meets the live run; another principal has keys of its own.
    assert_eq!(
        ask("operator", "k2", json!({})).await.failed(),
        (409, "overlap".into())
    );
    assert_eq!(
        ask("admin", "k1", json!({})).await.failed(),
        (409, "overlap".into())
    );
    let run = world.get(&format!("/v1/runs/{}", first["run"])).await.ok();
    assert_eq!(
        (&run["trigger"], &run["idempotency_key"]),
        (&json!("manual"), &json!("k1"))
    );
    for bad in ["", &"k".repeat(129)] {
        assert_eq!(
            ask("operator", bad, json!({})).await.failed(),
            (400, "invalid_request".into())
        );
    }
    let params = ask("operator", "k3", json!({"params": [1]})).await;
    assert_eq!(params.failed(), (400, "invalid_request".into()));
}

#[tokio::test]
async fn a_put_repeated_under_its_key_meets_its_first_answer() {
    let world = World::new();
    let put = || {
        let asking = world
            .ask("PUT", "/v1/jobs/a")
            .header("idempotency-key", "once");
        asking
            .header("if-none-match", "*")
            .yaml(&format!("name: a\n{MANUAL}"))
            .send()
    };
    let first = put().await;
    assert_eq!(first.status, 201);
    let again = put().await;
    assert_eq!(
        (again.status, again.header("etag")),
        (201, first.header("etag"))
    );
    let without = world.ask("PUT", "/v1/jobs/a").header("if-none-match", "*");
    let without = without.yaml(&format!("name: a\n{MANUAL}")).send().await;
    assert_eq!(without.status, 412);
}

#[tokio::test]
async fn a_key_stands_for_one_request_with_its_precondition() {
    let world = World::new();
    world.put("a", MANUAL).await;
    let yaml = format!("name: a\n{MANUAL}");
    let put = |key: &str, header: &str, value: &str| {
        let asking = world
            .ask("PUT", "/v1/jobs/a")
            .header("idempotency-key", key);
        asking.header(header, value).yaml(&yaml).send()
    };
    // The same body each time: what differs is what it may replace.
    assert_eq!(put("k", "if-match", "\"1\"").await.status, 412);
    assert_eq!(put("k", "if-match", " \"1\" ").await.status, 412);
    let others = [
        ("if-match", "\"2\""),
        ("if-match", "*"),
        ("if-none-match", "*"),
        ("x-other", "1"),
    ];
    for (header, value) in others {
        let other = put("k", header, value).await;
        assert_eq!(
            other.failed(),
            (422, "idempotency_conflict".into()),
            "{header}: {value}"
        );
    }
}

#[tokio::test]
async fn the_first_instant_lies_behind_all_that_was_decided() {
    let world = World::new();
    world
        .put("tick", "trigger: {every: 1s}\ntask: {capability: work}\n")
        .await;
    world.after(5_000).await;
    world.ask("DELETE", "/v1/jobs/tick").send().await.ok();
    let put = world
        .put(
            "tick",
            "trigger: {cron: \"* * * * * *\"}\ntask: {capability: work}\n",
        )
        .await;
    assert_eq!(put["job"]["next_fire_at"], "2026-09-21T14:13:26.000Z");
    let decided = world
        .history
        .decisions("tick".into(), 0, u64::MAX, 100)
        .await
        .unwrap();
    assert!(
        decided
            .iter()
            .all(|decision| decision.last_ms <= START_MS + 5_000)
    );
}

#[tokio::test]
async fn a_plan_that_was_refused_is_made_again_under_its_key() {
    let world = World::new();
    world
        .put("tick", "trigger: {every: 10s}\ntask: {capability: work}\n")
        .await;
    world.ask("POST", "/v1/jobs/tick/pause").send().await.ok();
    let resume = |command| {
        world.solo.propose(Draft {
            term: None,
            actor: Actor::Scheduler,
            request: Some(RequestKey {
                key: "admin:k".into(),
                fingerprint: [7; 16],
            }),
            command,
        })
    };
    // Planned before the pause covered anything, and asked with a range that is not due yet.
    let early = Command::ResumeJob {
        name: "tick".into(),
        skipped: Some((START_MS + 10_000, START_MS + 10_000, 1)),
        next_at_ms: Some(START_MS + 20_000),
    };
    let refused = resume(early).await.unwrap().reply.unwrap_err();
    assert_eq!(refused.code, RefusalCode::NotDue);
    world.solo.advance(25_000);
    let state = world.solo.stale().state;
    let now_ms = world.solo.now().calendar_ms;
    let planned = Planner::default().resume(state.job(&"tick".into()).unwrap(), now_ms);
    resume(planned.clone()).await.unwrap().reply.unwrap();
    let job = world.get("/v1/jobs/tick").await.ok();
    assert_eq!(job["spec"]["paused"], false);
    // That one was the answer to remember.
    world.ask("POST", "/v1/jobs/tick/pause").send().await.ok();
    resume(planned).await.unwrap().reply.unwrap();
    let job = world.get("/v1/jobs/tick").await.ok();
    assert_eq!(job["spec"]["paused"], true);
}

#[tokio::test]
async fn a_paused_job_shows_what_is_due_after_its_resume() {
    let world = World::new();
    world
        .put("tick", "trigger: {every: 10s}\ntask: {capability: work}\n")
        .await;
    world.ask("POST", "/v1/jobs/tick/pause").send().await.ok();
    world.after(25_000).await;
    let next = world.get("/v1/jobs/tick/next?count=1").await.ok();
    assert_eq!(next["fires"][0]["at"], "2026-09-21T14:13:50.000Z");
}
