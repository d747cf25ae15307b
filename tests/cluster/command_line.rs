//! The command line against a real cluster: what it prints for programs, and its exit codes.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Cluster, Settings, ShellExecutor, eventually, holds, output, tenure};

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a command that must succeed.
async fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = cluster.cli(arguments).await;
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {}",
        text(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must succeed, and reads its JSON.
async fn json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["-o", "json"]].concat();
    let text = done(cluster, &arguments).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

/// Runs a command that must end with this code.
async fn fails(cluster: &Cluster, code: i32, arguments: &[&str]) -> String {
    let output = cluster.cli(arguments).await;
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {}",
        text(&output)
    );
    String::from_utf8(output.stderr).unwrap()
}

async fn run_is(cluster: &Cluster, run: &str, state: &str) {
    eventually("the run's state", async || {
        let found = json(cluster, &["run", "get", run]).await;
        holds(found["state"] == state, found)
    })
    .await;
}

const GREET: &str = r#"
name: greet
trigger: { cron: "0 2 * * *", timezone: Europe/Berlin }
task:
  capability: shell
  params: { script: "echo hello from $TENURE_JOB" }
"#;
const SLEEP: &str = r#"
name: sleep
trigger: { manual: true }
task:
  capability: shell
  params: { script: "sleep 600" }
"#;
const UNFIT: &str = r#"
name: unfit
trigger: { manual: true }
task: { capability: shell, selector: { gpu: "true" } }
"#;

#[tokio::test(flavor = "multi_thread")]
async fn from_apply_to_drain() {
    let mut cluster = Cluster::start(Settings::light()).await;
    let mut executor = ShellExecutor::start(&cluster, "worker", &["--stop-grace", "1s"]);
    cluster
        .counter_is("executors_online", |online| online == 1.0)
        .await;
    let jobs = cluster.dir.path().join("jobs");
    std::fs::create_dir(&jobs).unwrap();
    for (name, body) in [
        ("greet.yaml", GREET),
        ("sleep.yaml", SLEEP),
        ("unfit.yaml", UNFIT),
    ] {
        std::fs::write(jobs.join(name), body).unwrap();
    }
    let folder = jobs.display().to_string();

    // Jobs.
    done(&cluster, &["job", "apply", "--dry-run", "-f", &folder]).await;
    assert_eq!(
        json(&cluster, &["job", "list"]).await["items"],
        Value::Array(Vec::new())
    );
    let applied = json(&cluster, &["job", "apply", "-f", &folder]).await;
    let changes: Vec<&str> = applied
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["change"].as_str().unwrap())
        .collect();
    assert_eq!(changes, ["created"; 3]);
    let again = json(&cluster, &["job", "apply", "-f", &folder]).await;
    assert!(
        again
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["change"] == "unchanged"),
        "{again}"
    );
    let listed = json(&cluster, &["job", "list"]).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
    let table = done(&cluster, &["job", "list"]).await;
    assert!(
        table.contains("greet") && table.contains("sleep"),
        "{table}"
    );
    let got = json(&cluster, &["job", "get", "greet"]).await;
    assert_eq!(got["spec"]["trigger"]["timezone"], "Europe/Berlin");
    let next = json(&cluster, &["job", "next", "greet", "--count", "3"]).await;
    assert_eq!(next["fires"].as_array().unwrap().len(), 3);

    // Runs.
    let run =
        json(&cluster, &["job", "trigger", "greet", "--key", "once"]).await["run"].to_string();
    let same =
        json(&cluster, &["job", "trigger", "greet", "--key", "once"]).await["run"].to_string();
    assert_eq!(run, same);
    run_is(&cluster, &run, "succeeded").await;
    assert!(
        done(&cluster, &["run", "logs", &run])
            .await
            .contains("hello from greet")
    );
    let runs = json(&cluster, &["run", "list", "--job", "greet"]).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1);
    let long = json(&cluster, &["job", "trigger", "sleep"]).await["run"].to_string();
    run_is(&cluster, &long, "running").await;
    done(&cluster, &["run", "cancel", &long, "--reason", "enough"]).await;
    run_is(&cluster, &long, "cancelled").await;
    assert_eq!(
        json(&cluster, &["job", "fires", "greet"]).await["items"],
        Value::Array(Vec::new()),
        "a trigger by hand is no fire"
    );
    let waits = json(&cluster, &["job", "trigger", "unfit"]).await["run"].to_string();
    let why = json(&cluster, &["run", "explain", &waits]).await;
    assert_eq!(
        why["executors"][0]["fails"][0]["condition"], "selector",
        "{why}"
    );
    assert!(
        done(&cluster, &["run", "explain", &waits])
            .await
            .contains("gpu")
    );

    // Executors and cluster.
    let executors = json(&cluster, &["executors", "list"]).await;
    assert_eq!(executors["items"][0]["instance_id"], "worker");
    assert_eq!(
        json(&cluster, &["executors", "get", "worker"]).await["state"],
        "online"
    );
    let status = json(&cluster, &["cluster", "status"]).await;
    assert_eq!(
        (&status["cluster_id"], &status["has_quorum"]),
        (&cluster.id.clone().into(), &true.into())
    );
    assert_eq!(status["members"].as_array().unwrap().len(), 3);

    exit_codes(&cluster, &folder).await;
    done(&cluster, &["job", "pause", "greet"]).await;
    assert_eq!(
        json(&cluster, &["job", "get", "greet"]).await["spec"]["paused"],
        true
    );
    done(&cluster, &["job", "resume", "greet"]).await;
    done(&cluster, &["job", "delete", "greet"]).await;
    fails(&cluster, 3, &["job", "get", "greet"]).await;
    done(
        &cluster,
        &["executors", "drain", "worker", "--deadline", "5s"],
    )
    .await;
    let status = executor.process.ended().await;
    assert_eq!(status.code(), Some(0), "{}", executor.process.last_words());
}

async fn exit_codes(cluster: &Cluster, folder: &str) {
    fails(cluster, 2, &["job", "frobnicate"]).await;
    let said = fails(cluster, 2, &["job", "get"]).await;
    assert!(
        said.contains("Usage: tenure job get [OPTIONS] <NAME>"),
        "{said}"
    );
    fails(cluster, 3, &["job", "get", "nobody"]).await;
    fails(cluster, 3, &["job", "fires", "nobody"]).await;
    fails(cluster, 3, &["run", "list", "--job", "nobody"]).await;
    fails(cluster, 3, &["run", "get", "999999999"]).await;
    let bad = format!("{folder}/../bad.yaml");
    std::fs::write(
        &bad,
        "name: bad\ntrigger: { evry: 1s }\ntask: { capability: x }\n",
    )
    .unwrap();
    let said = fails(cluster, 4, &["job", "apply", "-f", &bad]).await;
    assert!(said.contains("trigger"), "{said}");
    fails(
        cluster,
        4,
        &["job", "delete", "greet", "--if-revision", "77"],
    )
    .await;
    let elsewhere = [
        "--nodes",
        "http://127.0.0.1:9",
        "--timeout",
        "1s",
        "job",
        "list",
    ];
    fails(cluster, 5, &elsewhere).await;
    let token = cluster.executor_token_file.display().to_string();
    fails(cluster, 6, &["--token-file", &token, "job", "list"]).await;
    let mut nobody = Command::new(tenure());
    nobody
        .args(["job", "list"])
        .env("TENURE_NODES", cluster.urls().join(","))
        .env("TENURE_TOKEN", "tnr_wrong");
    let refused = output(nobody).await;
    assert_eq!(refused.status.code(), Some(6), "{}", text(&refused));
}
