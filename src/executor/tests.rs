//! The whole executor on the real SDK, against a cluster of one answer at a time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_api::paths;
use tenure_api::protocol::{
    Assignment, Checkpoint, HeartbeatAnswer, HeartbeatRequest, Outcome, OutputRequest, PollAnswer,
    RegisterAnswer, RegisterRequest, ResultRequest, Resume, StartAnswer, TaskKey, TaskVerdict,
    TriggerKind, Verdict,
};
use tenure_api::{Epoch, FencingToken, Generation, Revision, RunId, SessionId};
use tenure_sdk::{
    BoxFuture, ExecutorHandle, Request, Response, Stopped, Transport, TransportError,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::executor::shell::rules::ShellRules;

const LIMIT: Duration = Duration::from_secs(60);

/// What the cluster knows and was told.
#[derive(Debug, Default)]
struct Told {
    registered: Option<RegisterRequest>,
    output: String,
    result: Option<ResultRequest>,
    calls: BTreeMap<String, u32>,
}

/// Grants one task, once, and keeps what it is told.
struct Cluster {
    assignment: Assignment,
    told: Mutex<Told>,
    /// Changes with every call, so that a test can wait for what it wants to see.
    news: watch::Sender<u64>,
    lose: watch::Sender<bool>,
}

impl Cluster {
    fn new(capability: &str, params: Value) -> Arc<Self> {
        let key = TaskKey {
            run: RunId(41),
            shard: 2,
            epoch: Epoch(19),
        };
        let assignment = Assignment {
            key,
            shard_count: 4,
            attempt: 1,
            job: "count-words".parse().unwrap(),
            revision: Revision(3),
            scheduled_at_ms: 1_780_000_000_000,
            capability: capability.parse().unwrap(),
            params,
            timeout_ms: None,
            fencing_token: FencingToken::new(Generation(1), Epoch(19)),
            fencing_scope: "count-words/2".into(),
            generation: Generation(1),
            checkpoint: None,
            trigger: TriggerKind::Scheduled,
            deadline_in_ms: 60_000,
        };
        Arc::new(Self {
            assignment,
            told: Mutex::default(),
            news: watch::channel(0).0,
            lose: watch::channel(false).0,
        })
    }

    fn answer(&self, request: &Request) -> Value {
        let mut told = self.told.lock().unwrap();
        let path = request.path.clone();
        let call = path.rsplit('/').next().unwrap_or_default().to_owned();
        *told.calls.entry(call.clone()).or_default() += 1;
        let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        match call.as_str() {
            _ if path == paths::SESSIONS => {
                told.registered = serde_json::from_value(body).ok();
                json(&RegisterAnswer {
                    session: SessionId(12),
                    lease_ttl_ms: 60_000,
                    heartbeat_interval_ms: 20,
                    generation: Generation(1),
                })
            }
            "heartbeat" => {
                let request: HeartbeatRequest = serde_json::from_value(body).unwrap();
                let lost = *self.lose.borrow();
                let verdict = if lost { Verdict::Lost } else { Verdict::Keep };
                let tasks = request.tasks.iter().map(|held| TaskVerdict {
                    key: held.key,
                    verdict,
                    reason: None,
                });
                json(&HeartbeatAnswer {
                    lease_ttl_ms: 60_000,
                    tasks: tasks.collect(),
                    draining: false,
                    drain_deadline_in_ms: None,
                })
            }
            "poll" => {
                let first = !told.calls.contains_key("start");
                let assignments = first.then(|| self.assignment.clone());
                json(&PollAnswer {
                    assignments: Vec::from_iter(assignments),
                    ..PollAnswer::default()
                })
            }
            "start" => json(&StartAnswer {
                attempt: 1,
                resume: Resume {
                    checkpoint: Some(Checkpoint {
                        offset: 5,
                        state: b"five".to_vec().into(),
                        epoch: Epoch(18),
                    }),
                    ..Resume::default()
                },
            }),
            "output" => {
                let request: OutputRequest = serde_json::from_value(body).unwrap();
                told.output.push_str(&request.text);
                json!({"accepted_bytes": request.text.len(), "truncated": false})
            }
            "result" => {
                told.result = serde_json::from_value(body).ok();
                json!({"state": "succeeded"})
            }
            _ => json!({}),
        }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Told) -> bool) {
        let mut news = self.news.subscribe();
        let seen = news.wait_for(|_| holds(&self.told.lock().unwrap()));
        let seen = tokio::time::timeout(LIMIT, seen).await;
        assert!(seen.is_ok(), "never: {what}; {:?}", self.told);
    }
}

fn json<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap()
}

/// The cluster as a network.
struct Wire(Arc<Cluster>);

impl Transport for Wire {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        Box::pin(async move {
            let body = self.0.answer(&request);
            self.0.news.send_modify(|count| *count += 1);
            Ok(Response {
                status: 200,
                headers: vec![("tenure-term".into(), "7".into())],
                body: body.to_string().into_bytes().into(),
            })
        })
    }
}

struct Running {
    cluster: Arc<Cluster>,
    handle: ExecutorHandle,
    ended: JoinHandle<Result<Stopped, ExecutorError>>,
    folder: tempfile::TempDir,
}

impl Running {
    fn start(capability: &str, params: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = ExecutorConfig {
            nodes: vec!["http://127.0.0.1:1".into()],
            state_dir: folder.path().join("state"),
            work_dir: folder.path().to_owned(),
            shell: ShellRules::permissive(),
            ..ExecutorConfig::default()
        };
        let cluster = Cluster::new(capability, params);
        let wire = Arc::new(Wire(cluster.clone()));
        let token = "tnr_token".to_owned();
        let executor = BuiltinExecutor::new(config, token, |builder| builder.transport(wire));
        let executor = executor.unwrap();
        Self {
            cluster,
            handle: executor.handle(),
            ended: tokio::spawn(executor.run()),
            folder,
        }
    }

    /// Drains, and looks at what is left on the disk: the identity, and no task's folder.
    async fn leave(self) {
        self.handle.drain(LIMIT);
        let ended = tokio::time::timeout(LIMIT, self.ended).await;
        assert_eq!(ended.unwrap().unwrap().unwrap(), Stopped::Drained);
        assert!(self.folder.path().join("state/instance-id").exists());
        let left = std::fs::read_dir(self.folder.path()).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["state"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_task_goes_from_its_grant_to_its_result() {
    let script = "echo \"from $TENURE_CHECKPOINT_OFFSET, $(cat \"$TENURE_CHECKPOINT_FILE\")\"; \
                  echo \"token $TENURE_FENCING_TOKEN term $TENURE_TERM\"";
    let running = Running::start("shell", json!({"script": script}));
    let cluster = running.cluster.clone();
    cluster
        .until("a result", |told| told.result.is_some())
        .await;
    {
        let told = cluster.told.lock().unwrap();
        let registered = told.registered.as_ref().unwrap();
        let names = registered.capabilities.iter().map(|name| name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["http", "shell"]);
        let result = told.result.as_ref().unwrap();
        assert_eq!(result.key, cluster.assignment.key);
        let Outcome::Succeeded { value: Some(value) } = &result.outcome else {
            panic!("{result:?}");
        };
        assert_eq!(value["exit_code"], 0);
        assert_eq!(
            told.output,
            "from 5, five\ntoken 0000000001.00000000000000000019 term 7\n"
        );
    }
    running.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_in_parameters_are_final_failures_with_a_path() {
    let running = Running::start("shell", json!({"argv": ["true"], "cmd": "x"}));
    let cluster = running.cluster.clone();
    cluster
        .until("a result", |told| told.result.is_some())
        .await;
    let outcome = cluster
        .told
        .lock()
        .unwrap()
        .result
        .as_ref()
        .unwrap()
        .outcome
        .clone();
    let Outcome::Failed { message, retryable } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(message.starts_with("task.params.cmd: "), "{message}");
    assert!(!retryable);
    running.leave().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_lost_is_killed_and_reports_nothing() {
    let script = "trap '' TERM; echo $$; while :; do sleep 1; done";
    let running = Running::start("shell", json!({"script": script}));
    let cluster = running.cluster.clone();
    cluster
        .until("the task's number", |told| told.output.ends_with('\n'))
        .await;
    let number = cluster.told.lock().unwrap().output.trim().to_owned();
    let status = PathBuf::from(format!("/proc/{number}/stat"));
    assert!(status.exists());
    cluster.lose.send_replace(true);
    let gone = async {
        let ended = |text: String| {
            text.rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim().starts_with('Z'))
        };
        while !std::fs::read_to_string(&status).map_or(true, ended) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(LIMIT, gone).await.is_ok(),
        "{number} still runs"
    );
    running.leave().await;
    assert!(cluster.told.lock().unwrap().result.is_none());
}
