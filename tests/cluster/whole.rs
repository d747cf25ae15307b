//! What a new user does first: `tenure dev`, and `scripts/bootstrap.sh local`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Process, Share, eventually, free_ports, holds, output, tenure};

/// The root of the repository.
fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

struct Dev {
    dir: PathBuf,
    base_port: u16,
    process: Process,
}

impl Dev {
    fn new(root: &Path) -> Self {
        let dir = root.join("dev");
        let base_port = free_ports(14);
        let arguments = [
            "dev",
            "--plain",
            "--dir",
            &dir.display().to_string(),
            "--base-port",
            &base_port.to_string(),
        ];
        let process = Process::new("dev", tenure(), arguments, root.join("dev.log"));
        Self {
            dir,
            base_port,
            process,
        }
    }

    async fn cli(&self, arguments: &[&str]) -> Result<Value, String> {
        let nodes: Vec<String> = (1..=3)
            .map(|node| format!("http://127.0.0.1:{}", self.base_port + node))
            .collect();
        let mut command = Command::new(tenure());
        command
            .args(arguments)
            .args(["-o", "json"])
            .env("TENURE_NODES", nodes.join(","))
            .env("TENURE_TOKEN_FILE", self.dir.join("admin.token"));
        let output = output(command).await;
        if output.status.success() {
            // Some have nothing to say to a program.
            Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Waits until so many runs of a job have succeeded.
    async fn succeeded(&mut self, job: &str, count: usize) {
        eventually(&format!("{count} runs of {job}"), async || {
            assert!(self.process.runs(), "{}", self.process.last_words());
            let runs = self
                .cli(&["run", "list", "--job", job, "--state", "succeeded"])
                .await?;
            let found = runs["items"].as_array().unwrap().len();
            holds(found >= count, runs)
        })
        .await;
    }

    async fn interrupted(&mut self) {
        self.process.signal(Signal::INT);
        let status = self.process.ended().await;
        assert_eq!(status.code(), Some(0), "{}", self.process.last_words());
        for node in 1..=3 {
            let free = std::net::TcpListener::bind(("127.0.0.1", self.base_port + node));
            assert!(free.is_ok(), "node {node} still runs");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_runs_the_examples_stops_cleanly_and_goes_on() {
    let _share = Share::whole();
    let root = tempfile::tempdir().unwrap();
    let mut dev = Dev::new(root.path());
    dev.process.start();
    dev.succeeded("every-second", 3).await;
    let run = dev.cli(&["job", "trigger", "word-count"]).await.unwrap()["run"].to_string();
    dev.succeeded("word-count", 1).await;
    let run = dev.cli(&["run", "get", &run]).await.unwrap();
    assert_eq!(
        (&run["state"], &run["shard_count"]),
        (&"succeeded".into(), &4.into()),
        "{run}"
    );
    let report = std::fs::read_to_string(dev.dir.join("word-count/report.txt")).unwrap();
    let pages = report.lines().filter(|line| line.ends_with(".md")).count();
    assert!(pages > 10 && report.contains("./jobs.md"), "{report}");
    // It asks the node where that is, whatever the port.
    dev.succeeded("http-ping", 1).await;
    let first = dev.cli(&["cluster", "status"]).await.unwrap();
    // A task has another session than the terminal: what is typed there does not reach it.
    std::fs::write(root.path().join("session.yaml"), SESSION).unwrap();
    let file = root.path().join("session.yaml").display().to_string();
    dev.cli(&["job", "apply", "-f", &file]).await.unwrap();
    let run = dev.cli(&["job", "trigger", "session"]).await.unwrap()["run"].to_string();
    dev.succeeded("session", 1).await;
    let said = dev.cli(&["run", "logs", &run]).await.unwrap()["pieces"][0]["text"].clone();
    let session = said.as_str().unwrap().trim();
    assert!(session.parse::<u32>().unwrap() > 0, "{said}");
    // Read from the same file, not with `getsid`: in a container the session of the test may
    // have begun outside, which is 0 here.
    let own = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own = own.rsplit(") ").next().unwrap().split(' ').nth(3);
    assert_ne!(Some(session), own);
    dev.cli(&["job", "delete", "session"]).await.unwrap();
    // What the user does to the examples stays.
    dev.cli(&["job", "pause", "cron-minute"]).await.unwrap();
    dev.cli(&["job", "delete", "http-ping"]).await.unwrap();
    let own = dev.dir.join("word-count.yaml");
    std::fs::write(&own, OWN_WORD_COUNT).unwrap();
    let own = own.display().to_string();
    dev.cli(&["job", "apply", "-f", &own]).await.unwrap();
    dev.interrupted().await;

    dev.process.start();
    eventually("the same cluster is back", async || {
        let now = dev.cli(&["cluster", "status"]).await?;
        holds(
            now["cluster_id"] == first["cluster_id"]
                && now["term"].as_u64() > first["term"].as_u64(),
            now,
        )
    })
    .await;
    let before = dev.cli(&["job", "get", "every-second"]).await.unwrap()["last_fire_at"].clone();
    eventually("it goes on", async || {
        let now = dev.cli(&["job", "get", "every-second"]).await?;
        holds(now["last_fire_at"].as_str() > before.as_str(), now)
    })
    .await;
    let jobs = dev.cli(&["job", "list"]).await.unwrap();
    let seen: Vec<(&str, &Value, &str)> = jobs["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["spec"])
        .map(|spec| {
            let said = spec["description"].as_str().unwrap_or_default();
            (spec["name"].as_str().unwrap(), &spec["paused"], said)
        })
        .collect();
    let names: Vec<&str> = seen.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, ["cron-minute", "every-second", "word-count"]);
    assert_eq!(seen[0].1, true, "{jobs}");
    assert_eq!(seen[2].2, "mine", "{jobs}");
    let fires = ["job", "fires", "every-second", "--limit", "500"];
    let ledger = dev.cli(&fires).await.unwrap();
    assert_no_gap(ledger["items"].as_array().unwrap());
    dev.interrupted().await;
}

/// Prints the session it runs in.
const SESSION: &str = r#"
name: session
trigger: { manual: true }
task: { capability: shell, params: { script: "cut -d' ' -f6 /proc/self/stat" } }
"#;

const OWN_WORD_COUNT: &str = r#"
name: word-count
description: mine
trigger: { manual: true }
task: { capability: shell, params: { script: "true" } }
"#;

/// From the latest to the earliest, each decision begins where the one before ended.
fn assert_no_gap(fires: &[Value]) {
    assert!(fires.len() > 3, "{fires:#?}");
    let ms = |value: &Value| {
        let at: tenure_api::Timestamp = value.as_str().unwrap().parse().unwrap();
        at.as_ms()
    };
    for pair in fires.windows(2) {
        let (later, earlier) = (&pair[0], &pair[1]);
        let end = earlier.get("through").unwrap_or(&earlier["scheduled_at"]);
        assert_eq!(ms(&later["scheduled_at"]), ms(end) + 1_000, "{pair:#?}");
    }
}

async fn bootstrap(arguments: &[&str]) -> Output {
    let mut command = Command::new(project().join("scripts/bootstrap.sh"));
    command.args(arguments);
    output(command).await
}

async fn bootstrapped(arguments: &[&str]) -> String {
    let output = bootstrap(arguments).await;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {text}");
    text
}

/// Stops the nodes of a failed test.
struct Bootstrapped(PathBuf);

impl Drop for Bootstrapped {
    fn drop(&mut self) {
        if self.0.exists() {
            let mut destroy = Command::new(project().join("scripts/bootstrap.sh"));
            let _ = destroy
                .arg("destroy")
                .arg("--yes")
                .arg("--dir")
                .arg(&self.0)
                .output();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_local_can_be_run_again_at_every_stage() {
    let _share = Share::light();
    let root = tempfile::tempdir().unwrap();
    let cleanup = Bootstrapped(root.path().join("local"));
    let dir = cleanup.0.display().to_string();
    let port = free_ports(14).to_string();
    let binary = tenure().display().to_string();
    let up = [
        "local",
        "--dir",
        &dir,
        "--base-port",
        &port,
        "--binary",
        &binary,
    ];
    let said = bootstrapped(&up).await;
    assert!(said.contains("Initialized cluster"), "{said}");
    let status = bootstrapped(&["status", "--dir", &dir]).await;
    assert_eq!(status.matches("ready").count(), 3, "{status}");
    let again = bootstrapped(&up).await;
    assert!(
        !again.contains("Initialized cluster"),
        "initialized once: {again}"
    );
    assert_eq!(
        pids(&status),
        pids(&bootstrapped(&["status", "--dir", &dir]).await),
        "nothing was restarted"
    );
    bootstrapped(&["stop", "--dir", &dir]).await;
    assert_eq!(
        bootstrap(&["status", "--dir", &dir]).await.status.code(),
        Some(1),
        "it is down"
    );
    bootstrapped(&["start", "--dir", &dir, "--binary", &binary]).await;
    let back = bootstrapped(&["status", "--dir", &dir]).await;
    assert_eq!(back.matches("ready").count(), 3, "{back}");
    assert_eq!(
        status.lines().next(),
        back.lines().next(),
        "the same cluster"
    );
    assert_eq!(
        bootstrap(&["destroy", "--dir", &dir]).await.status.code(),
        Some(2),
        "it asks first"
    );
    bootstrapped(&["destroy", "--yes", "--dir", &dir]).await;
    assert!(!cleanup.0.exists());
}

fn pids(status: &str) -> Vec<&str> {
    status
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect()
}
