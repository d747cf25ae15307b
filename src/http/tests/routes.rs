//! Who may do what, and what the one way in does with every request.

use std::sync::Arc;
use std::time::Duration;

use tenure_api::cluster::Role;
use tenure_raft::transport::strangers::Strangers;
use tokio::sync::Semaphore;

use super::super::routes::{Access, ROUTES};
use super::super::{Limits, REQUEST_ID_HEADER};
use super::World;
use crate::listener::Guest;

/// A path that fits a pattern.
fn filled(pattern: &str) -> String {
    let parts = pattern.split('/').map(|part| match part {
        "{id}" | "{session}" => "7",
        "{instant}" => "2026-12-01T02:00:00Z",
        part if part.starts_with('{') => "x",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn no_route_answers_without_a_token_but_the_health_check() {
    let world = World::new();
    for route in &ROUTES {
        let path = filled(route.path);
        let method = route.method.as_str();
        let answer = world.ask_as("", method, &path).send().await;
        if route.access == Access::Open {
            assert_eq!(answer.status, 200, "{method} {path}");
            continue;
        }
        assert_eq!(
            answer.failed(),
            (401, "unauthenticated".into()),
            "{method} {path}"
        );
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tenure\"");
    }
    let open: Vec<_> = ROUTES
        .iter()
        .filter(|route| route.access == Access::Open)
        .map(|route| route.path)
        .collect();
    assert_eq!(open, ["/healthz"]);
}

#[tokio::test]
async fn a_role_opens_what_it_includes_and_nothing_else() {
    let world = World::new();
    for route in &ROUTES {
        let Access::Role(needed) = route.access else {
            continue;
        };
        for (who, role) in [
            ("admin", Role::Admin),
            ("operator", Role::Operator),
            ("viewer", Role::Viewer),
            ("executor", Role::Executor),
        ] {
            let path = filled(route.path);
            let method = route.method.as_str();
            let answer = world.ask_as(who, method, &path).send().await;
            let refused = answer.status == 403 && answer.code() == "forbidden";
            assert_eq!(!refused, role.allows(needed), "{who}: {method} {path}");
            assert_ne!(answer.status, 401, "{who}: {method} {path}");
        }
    }
}

#[tokio::test]
async fn a_wrong_token_is_no_token() {
    let world = World::new();
    for value in [
        "Bearer",
        "Bearer ",
        "Bearer tnr_x",
        "Basic YTpi",
        "tnr_x",
        "Bearer tnr_x tnr_y",
    ] {
        let asking = world.ask_as("", "GET", "/v1/jobs");
        let answer = asking.header("authorization", value).send().await;
        assert_eq!(answer.status, 401, "{value}");
    }
    let twice = world
        .ask("GET", "/v1/jobs")
        .header("authorization", "Bearer x");
    assert_eq!(twice.send().await.status, 401, "two headers are none");
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there_are_problems_too() {
    let world = World::new();
    for path in [
        "/",
        "/v1",
        "/v1/job",
        "/v1/jobs/",
        "/v1/jobs/a/b",
        "/v1/jobs//next",
        "/V1/jobs",
    ] {
        let answer = world.ask("GET", path).send().await;
        assert_eq!(answer.failed(), (404, "not_found".into()), "{path}");
        let said = answer.json()["detail"].as_str().unwrap().to_owned();
        let expected = format!("there is no path {path}; GET /v1/openapi.json names all of them");
        assert_eq!(said, expected);
        let hidden = world.ask_as("", "GET", path).send().await;
        assert_eq!(hidden.status, 401, "{path}");
    }
    let long = world
        .ask("GET", &format!("/{}", "x".repeat(4_000)))
        .send()
        .await;
    assert!(long.text.len() < 1_000, "{}", long.text.len());
    let answer = world.ask("PATCH", "/v1/jobs/x").send().await;
    assert_eq!(answer.failed(), (405, "method_not_allowed".into()));
    assert_eq!(answer.header("allow"), "GET, PUT, DELETE");
    let answer = world.ask("DELETE", "/v1/jobs").send().await;
    assert_eq!(answer.header("allow"), "GET");
}

#[tokio::test]
async fn a_job_may_be_called_preview() {
    let world = World::new();
    world.put("preview", super::MANUAL).await;
    let job = world.get("/v1/jobs/preview").await.ok();
    assert_eq!(job["spec"]["name"], "preview");
    let preview = world
        .ask("POST", "/v1/jobs/preview")
        .yaml(&format!("name: other\n{}", super::MANUAL));
    assert_eq!(preview.send().await.ok()["change"], "created");
}

#[tokio::test]
async fn every_answer_says_term_leader_and_request() {
    let world = World::new();
    for path in ["/v1/jobs", "/healthz", "/nowhere"] {
        let answer = world.ask_as("viewer", "GET", path).send().await;
        assert_eq!(answer.header("tenure-term"), "1", "{path}");
        assert_eq!(
            answer.header("tenure-leader"),
            "http://127.0.0.1:1",
            "{path}"
        );
        assert!(!answer.header(REQUEST_ID_HEADER).is_empty(), "{path}");
    }
    let named = world
        .ask("GET", "/v1/jobs")
        .header(REQUEST_ID_HEADER, "mine-7");
    assert_eq!(named.send().await.header(REQUEST_ID_HEADER), "mine-7");
    let odd = world
        .ask("GET", "/v1/jobs")
        .header(REQUEST_ID_HEADER, "a b");
    assert_ne!(odd.send().await.header(REQUEST_ID_HEADER), "a b");
    let head = world.ask("HEAD", "/v1/jobs").send().await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}

#[tokio::test]
async fn a_client_is_known_by_a_token_and_by_nothing_else() {
    let world = World::new();
    let strangers = Strangers::new(1);
    let asked = async |who: &str, path: &str| {
        let places = Arc::new(Semaphore::new(1));
        let stranger = strangers.enter([10, 0, 0, 1].into());
        let guest = Arc::new(Guest::new(stranger, places));
        let asking = world.ask_as(who, "GET", path).extension(guest.clone());
        asking.send().await;
        guest.is_known()
    };
    assert!(!asked("", "/healthz").await);
    assert!(!asked("", "/v1/jobs").await);
    assert!(asked("viewer", "/healthz").await);
    assert!(asked("viewer", "/v1/jobs").await);
    // Whatever it may do: it is somebody.
    assert!(asked("executor", "/v1/jobs").await);
}

#[tokio::test]
async fn a_stranger_is_told_nothing_of_the_cluster() {
    let world = World::new();
    for leads in [true, false] {
        world.solo.set_leads(leads);
        for path in [
            "/healthz",
            "/healthz?ready",
            "/healthz?other",
            "/v1/jobs",
            "/nowhere",
        ] {
            for (header, value) in [("x-other", "1"), ("authorization", "Bearer tnr_wrong")] {
                let answer = world.ask_as("", "GET", path).header(header, value);
                let answer = answer.send().await;
                for name in ["tenure-term", "tenure-leader", REQUEST_ID_HEADER] {
                    assert_eq!(answer.header(name), "", "{path}: {name}");
                }
            }
            let named = world.ask_as("", "GET", path).header(REQUEST_ID_HEADER, "m");
            assert_eq!(named.send().await.header(REQUEST_ID_HEADER), "m", "{path}");
        }
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let world = World::with_limits(Limits {
        body_bytes: 100,
        ..Limits::default()
    });
    let long = format!("{:200}", "{}");
    let answer = world
        .ask("POST", "/v1/jobs/x/trigger")
        .text("application/json", &long);
    assert_eq!(
        answer.send().await.failed(),
        (413, "payload_too_large".into())
    );
    let announced = world
        .ask("POST", "/v1/jobs/x/trigger")
        .header("content-length", "101");
    assert_eq!(
        announced.send().await.failed(),
        (413, "payload_too_large".into())
    );
}

#[tokio::test]
async fn a_full_node_says_so_and_keeps_its_health_check() {
    let world = World::with_limits(Limits {
        admin_requests: 0,
        ..Limits::default()
    });
    let answer = world.ask("GET", "/v1/jobs").send().await;
    assert_eq!(answer.failed(), (503, "overloaded".into()));
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(world.ask_as("", "GET", "/healthz").send().await.status, 200);
    let other = world.register("lane-of-its-own").await;
    assert!(other > 0, "executors have places of their own");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_not_waited_for() {
    let world = World::new();
    let never = futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let token = world.secrets["admin"].clone();
    let request = http::Request::builder()
        .method("POST")
        .uri("/v1/jobs/x/trigger")
        .header("authorization", format!("Bearer {token}"))
        .body(axum::body::Body::from_stream(never))
        .unwrap();
    let began = tokio::time::Instant::now();
    let answer = super::send(world.router.clone(), request).await;
    assert_eq!(answer.failed(), (408, "request_timeout".into()));
    assert!(began.elapsed() >= Duration::from_secs(10));
}

#[tokio::test]
async fn health_tells_strangers_yes_or_no_and_nothing_more() {
    let world = World::new();
    let health = world.ask_as("", "GET", "/healthz").send().await.ok();
    assert_eq!(
        health,
        serde_json::json!({"live": true, "ready": true, "initialized": true})
    );
    world.solo.set_leads(false);
    let live = world.ask_as("", "GET", "/healthz").send().await;
    assert_eq!(
        live.ok(),
        serde_json::json!({"live": true, "ready": false, "initialized": true})
    );
    let ready = world.ask_as("", "GET", "/healthz?ready").send().await;
    assert_eq!(ready.status, 503);
}

#[tokio::test]
async fn metrics_tell_of_the_state_and_of_this_node() {
    let world = World::new();
    world
        .put("a", "trigger: {every: 1s}\ntask: {capability: work}\n")
        .await;
    world
        .put("b", &format!("paused: true\n{}", super::MANUAL))
        .await;
    world.register("w1").await;
    world.after(1_000).await;
    let answer = world.get("/metrics").await;
    assert!(
        answer
            .header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    for line in [
        "tenure_leader 1",
        "tenure_no_leader 0",
        "tenure_wall_clock_jumps_total 0",
        "tenure_archive_incomplete 0",
        "tenure_term 1",
        "tenure_jobs 2",
        "tenure_jobs_paused 1",
        "tenure_fires_total 1",
        "tenure_executors_online 1",
        "tenure_capacity_used_ratio 0.250",
        "tenure_tasks{state=\"held\"} 1",
        "tenure_dispatch_failures_total{reason=\"session_lost\"} 0",
        "tenure_fire_lateness_seconds_count 1",
        "tenure_http_requests_total{method=\"PUT\",route=\"/v1/jobs/{name}\",status=\"2xx\"} 2",
    ] {
        assert!(
            answer.text.lines().any(|found| found == line),
            "{line}\n{}",
            answer.text
        );
    }
    // Every line is a comment or a name with a value, and every name is explained before.
    let mut explained = String::new();
    for line in answer.text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            explained = rest.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(&explained), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}

#[tokio::test]
async fn the_openapi_document_is_served() {
    let world = World::new();
    let document = world.get("/v1/openapi.json").await.ok();
    assert_eq!(document["info"]["title"], "Tenure");
    assert!(document["paths"]["/v1/jobs/{name}"]["put"].is_object());
}
