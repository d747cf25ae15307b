//! Real processes: exit codes, signals, what is left behind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::executor::port::recorder::Recorder;

/// Much longer than anything takes, so that only a fault reaches it.
const LIMIT: Duration = Duration::from_secs(60);

struct Bench {
    folder: tempfile::TempDir,
    shell: Shell,
}

impl Bench {
    fn new() -> Self {
        Self::with(ShellRules::permissive())
    }

    fn with(rules: ShellRules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shell = Shell::new(rules, folder.path().to_owned(), Duration::from_millis(200));
        Self { folder, shell }
    }

    async fn run(&self, params: Value) -> (Ending, Arc<Recorder>) {
        let port = Arc::new(Recorder::new(params));
        let ending = self.shell.run(port.clone()).await;
        (ending, port)
    }

    /// A script that runs `body` and says when it is ready through a file.
    fn script(&self, body: &str) -> (Value, std::path::PathBuf) {
        let ready = self.folder.path().join("ready");
        let script = format!("{body}\n");
        let env = json!({"READY": ready});
        (json!({"script": script, "env": env}), ready)
    }

    /// Runs a script, waits until it has written a process number, stops it, and gives the number.
    async fn stop_when_ready(&self, body: &str, reason: StopReason) -> (Ending, i32) {
        let (params, ready) = self.script(body);
        let port = Arc::new(Recorder::new(params));
        let shell = self.shell.clone();
        let running = {
            let port = port.clone();
            tokio::spawn(async move { shell.run(port).await })
        };
        let number = number_in(&ready).await;
        port.stop(reason);
        (running.await.unwrap(), number)
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, waiting).await;
    assert!(waited.is_ok(), "never: {what}");
}

async fn number_in(path: &Path) -> i32 {
    let read = || {
        fs::read_to_string(path)
            .ok()?
            .strip_suffix('\n')?
            .parse()
            .ok()
    };
    until("a process number is written", || read().is_some()).await;
    read().unwrap()
}

/// Whether a process runs. One that is dead and not reaped does not.
fn runs(number: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{number}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn failure(ending: Ending) -> (String, bool) {
    match ending {
        Ending::Failed { message, retryable } => (message, retryable),
        other => panic!("not a failure: {other:?}"),
    }
}

#[tokio::test]
async fn a_program_succeeds_and_its_lines_are_logged() {
    let bench = Bench::new();
    let (ending, port) = bench
        .run(json!({"script": "echo one; echo two >&2; printf three"}))
        .await;
    let Ending::Succeeded(value) = ending else {
        panic!("{ending:?}");
    };
    assert_eq!(value["exit_code"], 0);
    assert!(value["duration_ms"].is_u64());
    let mut lines = port.output();
    lines.sort();
    assert_eq!(lines, ["one", "three", "two"]);
}

#[tokio::test]
async fn exit_codes_mean_what_the_job_says() {
    let bench = Bench::new();
    for (code, ending) in [(0, "failed"), (24, "ok"), (30, "again"), (31, "failed")] {
        let params = json!({
            "script": format!("echo because; exit {code}"),
            "success_exit_codes": [24],
            "retryable_exit_codes": [30],
        });
        let (found, _) = bench.run(params).await;
        match ending {
            "ok" => assert!(matches!(found, Ending::Succeeded(_)), "{found:?}"),
            _ => assert_eq!(
                failure(found),
                (format!("exit code {code}: because"), ending == "again")
            ),
        }
    }
    let (found, _) = bench.run(json!({"script": "exit 3"})).await;
    assert_eq!(failure(found), ("exit code 3".to_owned(), true));
}

#[tokio::test]
async fn a_signal_is_a_failure() {
    let (ending, _) = Bench::new().run(json!({"script": "kill -9 $$"})).await;
    assert_eq!(failure(ending), ("ended by signal 9".to_owned(), true));
}

#[tokio::test]
async fn refusals_come_before_anything_runs() {
    let strict = Bench::with(ShellRules {
        enabled: true,
        ..ShellRules::default()
    });
    let (ending, _) = strict.run(json!({"script": "true"})).await;
    let (message, retryable) = failure(ending);
    assert!(message.starts_with("task.params.script: "), "{message}");
    assert!(!retryable);
    let (ending, _) = strict.run(json!({"argv": ["/no/such/program"]})).await;
    let (message, retryable) = failure(ending);
    assert!(message.contains("/no/such/program"), "{message}");
    assert!(!retryable);
}

#[tokio::test]
async fn input_environment_and_folder_reach_the_program() {
    let bench = Bench::new();
    let params = json!({
        "script": "cat; echo \"$LEVEL $TENURE_SHARD/$TENURE_SHARD_COUNT $TENURE_EPOCH\"; pwd; echo ${CARGO_PKG_NAME-unset}",
        "env": {"LEVEL": 3},
        "stdin": "input\n",
        "cwd": "/",
    });
    let (_, port) = bench.run(params).await;
    assert_eq!(port.output(), ["input", "3 2/4 19", "/", "unset"]);
}

#[tokio::test]
async fn an_interpreter_reads_the_script_from_a_file() {
    let params = json!({"script": "BEGIN { print 6 * 7 }", "interpreter": "/usr/bin/env"});
    let (ending, _) = Bench::new().run(params).await;
    // `env FILE` runs the file, which is not executable: the file was passed on.
    let (message, _) = failure(ending);
    assert!(message.starts_with("exit code 126"), "{message}");
    let params = json!({"script": "echo from a file", "interpreter": "/bin/sh"});
    let (_, port) = Bench::new().run(params).await;
    assert_eq!(port.output(), ["from a file"]);
}

#[tokio::test]
async fn output_without_end_stays_bounded() {
    let params = json!({
        "script": "head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; echo end",
        "output_tail_bytes": 10,
    });
    let (ending, port) = Bench::new().run(params).await;
    let Ending::Succeeded(value) = ending else {
        panic!("{ending:?}");
    };
    assert_eq!(value["output_tail"], "xxxxx\nend\n");
    assert_eq!(value["output_tail_truncated"], true);
    let lines = port.output();
    assert!(
        lines
            .iter()
            .all(|line| line.len() <= output::MAX_LINE_BYTES)
    );
    let bytes: usize = lines.iter().map(String::len).sum();
    assert_eq!(bytes, 3_000_003);
}

#[tokio::test]
async fn a_stop_gives_time_to_end_well() {
    let body =
        "trap 'echo farewell; exit 0' TERM; echo $$ > \"$READY\"; while :; do sleep 0.05; done";
    let mut bench = Bench::new();
    bench.shell.grace = LIMIT;
    let reason = StopReason::Cancelled("by hand".into());
    let (ending, number) = bench.stop_when_ready(body, reason.clone()).await;
    assert_eq!(ending, Ending::Stopped(reason));
    assert!(!runs(number));
}

#[tokio::test]
async fn a_grandchild_that_ignores_the_request_is_killed() {
    // The inner shell ignores SIGTERM, and so does what it starts.
    let body = "sh -c 'trap \"\" TERM; echo $$ > \"$READY\"; while :; do sleep 1; done' & wait";
    let bench = Bench::new();
    let (ending, number) = bench.stop_when_ready(body, StopReason::TimedOut).await;
    assert_eq!(ending, Ending::Stopped(StopReason::TimedOut));
    until("the grandchild is dead", || !runs(number)).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_leaves_the_group_is_found_and_killed() {
    let body =
        "setsid sh -c 'trap \"\" TERM; echo $$ > \"$READY\"; while :; do sleep 1; done' & wait";
    let bench = Bench::new();
    let reason = StopReason::LeaseLost("gone".into());
    let (ending, number) = bench.stop_when_ready(body, reason.clone()).await;
    assert_eq!(ending, Ending::Stopped(reason));
    until("what left the group is dead", || !runs(number)).await;
}

#[tokio::test]
async fn what_is_left_running_after_the_end_is_killed() {
    let bench = Bench::new();
    let body = "sh -c 'echo $$ > \"$READY\"; while :; do sleep 1; done' & until test -s \"$READY\"; do sleep 0.02; done";
    let (params, ready) = bench.script(body);
    let (ending, _) = bench.run(params).await;
    assert!(matches!(ending, Ending::Succeeded(_)), "{ending:?}");
    let number = number_in(&ready).await;
    until("the background process is dead", || !runs(number)).await;
}

#[tokio::test]
async fn a_dropped_task_is_killed() {
    let bench = Bench::new();
    let body = "sh -c 'trap \"\" TERM; echo $$ > \"$READY\"; while :; do sleep 1; done' & wait";
    let (params, ready) = bench.script(body);
    let port = Arc::new(Recorder::new(params));
    let shell = bench.shell.clone();
    let running = tokio::spawn(async move { shell.run(port).await });
    let number = number_in(&ready).await;
    running.abort();
    until("the grandchild is dead", || !runs(number)).await;
}

#[tokio::test]
async fn a_task_reaches_its_executor_through_the_socket() {
    let bench = Bench::new();
    let (params, ready) = bench.script(
        "echo \"$TENURE_TASK_SOCKET\" > \"$READY.tmp\"; mv \"$READY.tmp\" \"$READY\"; while test -e \"$READY\"; do sleep 0.02; done",
    );
    let port = Arc::new(Recorder::new(params));
    let shell = bench.shell.clone();
    let running = {
        let port = port.clone();
        tokio::spawn(async move { shell.run(port).await })
    };
    until("the socket is known", || ready.exists()).await;
    let socket = fs::read_to_string(&ready).unwrap();
    let request = channel::Request::Checkpoint {
        offset: 3,
        state: b"s".as_slice().into(),
    };
    let answer = channel::client::ask(Path::new(socket.trim()), &request, LIMIT).await;
    assert_eq!(answer.unwrap(), channel::Answer::Committed { offset: 3 });
    fs::remove_file(&ready).unwrap();
    assert!(matches!(running.await.unwrap(), Ending::Succeeded(_)));
    assert!(!Path::new(socket.trim()).exists());
    assert_eq!(*port.checkpoints.lock().unwrap(), [(3, b"s".to_vec())]);
}
