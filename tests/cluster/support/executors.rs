//! Executors: inside the test, as a child process on the SDK, and the built-in one.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_api::{RunId, Timestamp};
use tenure_sdk::{ContextError, Executor, TaskContext, TaskError};
use tokio::task::JoinHandle;

use super::{Cluster, Process, tenure};

/// The runs whose handler was started, by job and instant, once for each start.
pub(crate) type Starts = BTreeMap<(String, Timestamp), Vec<RunId>>;

/// What a handler was given, counted.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Starts>>);

impl Seen {
    fn note(&self, task: &TaskContext) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (task.job().as_str().to_owned(), task.scheduled_at());
        seen.entry(key).or_default().push(task.run());
    }

    /// The runs whose handler was started for an instant of a job, once for each start.
    pub(crate) fn starts(&self) -> Starts {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// An executor inside the test, with the capability `count`, whose handler counts and returns.
pub(crate) struct InProcess {
    pub(crate) seen: Seen,
    task: JoinHandle<()>,
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts an executor inside the test.
pub(crate) fn in_process(cluster: &Cluster, instance: &str, capacity: u32) -> InProcess {
    let seen = Seen::default();
    let noted = seen.clone();
    let executor = Executor::builder()
        .nodes(cluster.urls())
        .token(&cluster.executor_token)
        .instance_id(instance)
        .capacity(capacity)
        .handler("count", move |task: TaskContext| {
            noted.note(&task);
            async { Ok::<(), TaskError>(()) }
        })
        .build()
        .expect("an executor");

    let task = tokio::spawn(async move {
        let _ = executor.run().await;
    });
    InProcess { seen, task }
}

/// The built-in executor with the capability `shell`.
pub(crate) struct ShellExecutor {
    pub(crate) process: Process,
}

impl ShellExecutor {
    pub(crate) fn start(cluster: &Cluster, instance: &str, flags: &[&str]) -> Self {
        let place = cluster.dir.path();
        let state = place.join(format!("{instance}.state"));
        let nodes = cluster.urls().join(",");
        let arguments = [
            "executor",
            "--nodes",
            &nodes,
            "--token-file",
            &cluster.executor_token_file.display().to_string(),
            "--state-dir",
            &state.display().to_string(),
            "--instance-id",
            instance,
            "--enable-shell",
            "--allow-scripts",
            "--disable-http",
        ];
        let arguments = arguments.iter().chain(flags).copied();
        let log = place.join(format!("{instance}.log"));
        let mut process = Process::new(instance, tenure(), arguments, log);
        process.start();
        Self { process }
    }
}

/// An executor on the SDK in a process of its own, so that it can be killed and paused: the test program
/// itself, started again. Its handlers are below.
pub(crate) struct Child {
    pub(crate) process: Process,
}

/// The test that is the child's `main`.
const CHILD_TEST: &str = "child_executor";
const CHILD_NODES: &str = "TENURE_CHILD_NODES";
const CHILD_TOKEN: &str = "TENURE_CHILD_TOKEN";
const CHILD_INSTANCE: &str = "TENURE_CHILD_INSTANCE";
const CHILD_LEASE_MS: &str = "TENURE_CHILD_LEASE_MS";
const CHILD_SINK: &str = "TENURE_CHILD_SINK";

impl Child {
    /// Starts one. What its handlers do goes into the folder `sink`.
    pub(crate) fn start(cluster: &Cluster, instance: &str, lease_ms: u64, sink: &Path) -> Self {
        let program = std::env::current_exe().expect("the test program");
        let log = cluster.dir.path().join(format!("{instance}.log"));
        let arguments = [CHILD_TEST, "--exact", "--nocapture", "--test-threads=1"];
        let mut process = Process::new(instance, &program, arguments, log)
            .env(CHILD_NODES, cluster.urls().join(","))
            .env(CHILD_TOKEN, &cluster.executor_token)
            .env(CHILD_INSTANCE, instance)
            .env(CHILD_LEASE_MS, lease_ms.to_string())
            .env(CHILD_SINK, sink.display().to_string());
        process.start();
        Self { process }
    }
}

/// Runs an executor if this process is a child; otherwise there is nothing to do.
pub(crate) fn child_main() {
    let Ok(nodes) = std::env::var(CHILD_NODES) else {
        return;
    };
    let given = |name: &str| std::env::var(name).expect(name);
    let sink = PathBuf::from(given(CHILD_SINK));
    let lease = Duration::from_millis(given(CHILD_LEASE_MS).parse().expect("a number"));
    let (ticks, records) = (sink.clone(), sink);
    let executor = Executor::builder()
        .nodes(nodes.split(','))
        .token(given(CHILD_TOKEN))
        .instance_id(given(CHILD_INSTANCE))
        .capacity(4)
        .lease_ttl(lease)
        .handler("tick", move |task| tick(task, ticks.clone()))
        .handler("records", move |task| work_through(task, records.clone()))
        .build()
        .expect("an executor");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let end = runtime.block_on(executor.run_until_signal());
    println!("ended: {end:?}");
}

/// Adds a line to a file of the sink. One write of a short line at the end of a file is whole.
fn add_line(sink: &Path, file: &str, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(sink.join(file))?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Writes a line with its epoch again and again, until the file `enough` is there. What it writes is the
/// handler-visible work of EX-4; the last line says why it stopped.
async fn tick(task: TaskContext, sink: PathBuf) -> Result<(), TaskError> {
    loop {
        if let Err(stopped) = task.check() {
            return Err(told(stopped));
        }
        add_line(&sink, "ticks", &task.epoch().to_string())?;
        if sink.join("enough").exists() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn told(stopped: ContextError) -> TaskError {
    println!("stopped: {stopped}");
    TaskError::from(stopped)
}

/// How many records a shard of the job `records` has.
pub(crate) const RECORDS: u64 = 400;
/// A checkpoint is committed after so many.
pub(crate) const CHECKPOINT_EVERY: u64 = 50;

/// Works through numbered records: each effect is a file that is made once, however often it is tried, so
/// the sink is idempotent. A line in `tries` tells of each try.
async fn work_through(task: TaskContext, sink: PathBuf) -> Result<(), TaskError> {
    let shard = task.shard();
    let from = task.resume_offset();
    let epoch = task.epoch();
    add_line(&sink, "owners", &format!("{shard} {epoch} {from}"))?;
    for record in from..RECORDS {
        task.check().map_err(told)?;
        let effect = sink.join(format!("record-{shard}-{record}"));
        let made = std::fs::File::create_new(&effect).is_ok();
        add_line(&sink, "tries", &format!("{shard} {record} {epoch} {made}"))?;
        let done = record + 1;
        task.progress(done);
        if done % CHECKPOINT_EVERY == 0 {
            task.checkpoint(done, format!("{epoch}"))
                .await
                .map_err(told)?;
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    Ok(())
}
