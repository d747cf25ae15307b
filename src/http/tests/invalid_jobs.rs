//! A thousand job files that are each wrong in one place: each is refused with a code and the path of that
//! place, and nothing of it is stored.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use super::World;
use crate::consensus::Consensus as _;

/// What is put in at a path, and what the error's path must begin with. The number makes each file its own.
type Wrong = fn(u32) -> (&'static str, Value);

const WRONGS: [Wrong; 26] = [
    |n| ("colour", json!(n)),
    |n| ("shards", json!(1_025 + u64::from(n))),
    |_| ("shards", json!(0)),
    |n| ("shards", json!(format!("{n} or so"))),
    |n| ("overlap", json!(format!("perhaps{n}"))),
    |n| ("queue_limit", json!(1_001 + u64::from(n))),
    |n| ("timeout", json!(format!("{n} moments"))),
    |n| ("timeout", json!(-1 - i64::from(n))),
    |n| ("execution", json!(format!("{n}_times"))),
    |n| ("recovery", json!([n])),
    |n| ("checkpoints", json!({ "n": n })),
    |n| ("paused", json!(format!("{n}"))),
    |n| ("description", json!("x".repeat(1_025 + n as usize % 1_000))),
    |n| ("trigger", json!(n)),
    |n| ("trigger.cron", json!(format!("{} * * *", n % 60))),
    |n| {
        (
            "trigger.cron",
            json!(format!("{} * * * *", 60 + u64::from(n))),
        )
    },
    |_| ("trigger.cron", json!("0 0 30 2 *")),
    |n| ("trigger.timezone", json!(format!("Mars/Crater{n}"))),
    |n| ("trigger.every", json!(format!("{}ms", n % 1_000))),
    |n| ("misfire.policy", json!(format!("fire{n}"))),
    |n| ("retry.max_attempts", json!(-1 - i64::from(n))),
    |n| ("retry.jitter", json!(1.5 + f64::from(n))),
    |n| ("task.capability", json!(n)),
    |n| ("task.version", json!(format!("about {n}"))),
    |n| ("task.params", json!([n])),
    |n| ("history.keep", json!(-1 - i64::from(n))),
];

fn good() -> Value {
    json!({
        "name": "report",
        "trigger": { "cron": "0 2 * * *", "timezone": "Europe/Berlin" },
        "misfire": {}, "retry": {}, "history": {},
        "task": { "capability": "shell", "params": {} },
    })
}

fn put_at(job: &mut Value, path: &str, value: Value) {
    let mut place = job;
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let fields: &mut Map<String, Value> = place.as_object_mut().unwrap();
        if parts.peek().is_none() {
            fields.insert(part.to_owned(), value);
            return;
        }
        place = fields.get_mut(part).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn a_wrong_job_file_is_refused_by_code_and_path_and_stores_nothing(
        wrong in 0..WRONGS.len(),
        number in 0..1_000_000_u32,
        preview in any::<bool>(),
    ) {
        thread_local! {
            static SERVED: (Runtime, World) = (
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
                World::new(),
            );
        }
        let mut job = good();
        let (path, value) = WRONGS[wrong](number);
        put_at(&mut job, path, value);
        SERVED.with(|(runtime, world)| {
            let (method, target) = match preview {
                true => ("POST", "/v1/jobs/preview"),
                false => ("PUT", "/v1/jobs/report"),
            };
            let asking = world.ask(method, target).header("if-none-match", "*").json(&job);
            let answer = runtime.block_on(asking.send());
            prop_assert_eq!(answer.code(), "invalid_job", "{:?}", answer);
            let problem = answer.json();
            let at = problem["errors"][0]["path"].as_str().or(problem["path"].as_str());
            let top = path.split('.').next().unwrap_or_default();
            prop_assert!(at.is_some_and(|at| at.starts_with(top)), "{path}: {answer:?}");
            prop_assert_eq!(world.solo.stale().state.job_count(), 0);
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn the_file_that_the_wrong_ones_are_made_of_is_right() {
    let world = World::new();
    let asking = world
        .ask("PUT", "/v1/jobs/report")
        .header("if-none-match", "*");
    asking.json(&good()).send().await.ok();
    assert_eq!(world.solo.stale().state.job_count(), 1);
}
