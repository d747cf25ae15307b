//! Whatever is sent, the answer is a success or a problem that the sender made, and never a fault of ours.

use proptest::prelude::*;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use super::super::routes::ROUTES;
use super::World;

/// Field names that the interface knows, so that bodies get past the first check.
const FIELDS: [&str; 30] = [
    "name",
    "trigger",
    "cron",
    "every",
    "at",
    "manual",
    "task",
    "capability",
    "params",
    "shards",
    "retry",
    "max_attempts",
    "run",
    "shard",
    "epoch",
    "offset",
    "state",
    "seq",
    "text",
    "outcome",
    "status",
    "value",
    "tasks",
    "slots_used",
    "healthy",
    "max",
    "wait_ms",
    "instance_id",
    "members",
    "reason",
];

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..20).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "* * * * *",
            "1s",
            "work",
            "succeeded",
            "AP8Q",
            "2.4.0"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(FIELDS.to_vec()), inner), 0..8).prop_map(
                |fields| {
                    let fields: Map<String, Value> = fields
                        .into_iter()
                        .map(|(name, value)| (name.to_owned(), value))
                        .collect();
                    Value::Object(fields)
                }
            ),
        ]
    })
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => any_json().prop_map(|json| json.to_string().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..200),
        1 => "[a-z:{}\\[\\]&*!|> \n\"-]{0,80}".prop_map(String::into_bytes),
    ]
}

fn any_segment() -> impl Strategy<Value = String> {
    prop_oneof![
        (0_u64..12).prop_map(|number| number.to_string()),
        "[a-z0-9._-]{1,8}",
        "(%[0-9a-fA-F]{2}|[a-zA-Z0-9%:+]){1,10}",
        Just("18446744073709551615".to_owned()),
    ]
}

fn any_media() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "application/json",
        "application/yaml",
        "application/json; charset=utf-8",
        "text/plain",
        "",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_a_success_or_a_problem(
        position in 0..ROUTES.len(),
        segments in prop::collection::vec(any_segment(), 2),
        query in prop_oneof![3 => Just(String::new()), 1 => "[a-z=&%0-9]{0,20}"],
        media in any_media(),
        body in any_body(),
        key in prop::option::of("[ -~]{0,20}"),
        matched in prop::option::of("[\"*0-9]{0,6}"),
    ) {
        thread_local! {
            static SERVED: (Runtime, World) = {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let world = World::new();
                runtime.block_on(async {
                    world.put("a", super::MANUAL).await;
                    world.register("w").await;
                });
                (runtime, world)
            };
        }
        let route = &ROUTES[position];
        let mut filling = segments.iter();
        let path = route.path.split('/').map(|part| match part.starts_with('{') {
            true => filling.next().unwrap().as_str(),
            false => part,
        });
        let mut path = path.collect::<Vec<_>>().join("/");
        if !query.is_empty() {
            path = format!("{path}?{query}");
        }
        prop_assume!(path.parse::<http::Uri>().is_ok());
        SERVED.with(|(runtime, world)| {
            let mut asking = world.ask(route.method.as_str(), &path).bytes(media, &body);
            if let Some(key) = &key {
                asking = asking.header("idempotency-key", key);
            }
            if let Some(matched) = &matched {
                asking = asking.header("if-match", matched);
            }
            let poll = route.path.ends_with("/poll");
            // A poll that is well formed would wait.
            let answer = runtime.block_on(async {
                let limit = std::time::Duration::from_millis(if poll { 200 } else { 60_000 });
                tokio::time::timeout(limit, asking.send()).await
            });
            let Ok(answer) = answer else {
                prop_assert!(poll, "{path} did not answer");
                return Ok(());
            };
            prop_assert!(answer.status < 500, "{answer:?}");
            if answer.status >= 400 {
                prop_assert!(!answer.code().is_empty());
            }
            Ok(())
        })?;
    }
}
