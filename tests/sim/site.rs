//! The executors' side: processes with the real SDK, their handler, and the sink it writes to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure_sdk::{
    Clock as _, Environment, Executor, ExecutorHandle, MetricsSnapshot, Request, Response,
    RetryPolicy, Running, Spawn, TaskContext, TaskError,
};
use tokio::sync::oneshot;

use crate::chance::{self, SeededEntropy};
use crate::clock::MachineClock;
use crate::judge::{Ack, Call, Judge, Seen};
use crate::network::{HttpLink, Network, Witness, name, url};
use crate::scope::{self, Process, WORLD};
use crate::tell;

/// The first executor process.
pub const FIRST_EXECUTOR: Process = 10;

/// A store that keeps the highest token it has seen for each scope, and takes nothing below it.
#[derive(Default)]
struct Sink {
    highest: BTreeMap<String, (u64, u64)>,
    accepted: u64,
    fenced: u64,
}

/// What a write carries.
#[derive(Debug, Clone)]
struct Write {
    scope: String,
    token: (u64, u64),
    run: u64,
    shard: u32,
    record: u64,
}

/// All executors of a run, and their sink.
pub struct Site {
    network: Arc<Network>,
    judge: Arc<Judge>,
    nodes: usize,
    token: String,
    lease_ttl_ms: u64,
    /// How many writes in a thousand arrive very late.
    late_per_mille: AtomicU64,
    sink: Mutex<Sink>,
    handles: Mutex<BTreeMap<Process, ExecutorHandle>>,
}

/// Tasks of the SDK are tasks of its process.
#[derive(Debug, Clone, Copy)]
pub struct ScopedSpawn;

struct Handle(tokio::task::AbortHandle);

impl Running for Handle {
    fn abort(&self) {
        self.0.abort();
    }
}

impl Spawn for ScopedSpawn {
    fn spawn(&self, future: tenure_sdk::BoxFuture<'static, ()>) -> Box<dyn Running> {
        Box::new(Handle(scope::spawn(future).abort_handle()))
    }
}

/// The world of one simulated SDK process.
pub fn environment(clock: Arc<MachineClock>) -> Environment {
    Environment {
        clock,
        entropy: Arc::new(SeededEntropy),
        spawn: Arc::new(ScopedSpawn),
    }
}

/// Tells the judge what executors are told.
struct Hears(Arc<Judge>);

impl Witness for Hears {
    fn asks(&self) -> u64 {
        self.0.committed()
    }

    fn answered(&self, request: &Request, asked: u64, answer: &Response) {
        if answer.status / 100 != 2 {
            return;
        }
        let body = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
        let (said, told) = (body(&request.body), body(&answer.body));
        let number = |value: &Value, field| value[field].as_u64().unwrap_or(u64::MAX);
        let grant = || {
            (
                number(&said, "run"),
                number(&said, "shard"),
                number(&said, "epoch"),
            )
        };
        let words: Vec<&str> = request.path.split('/').skip(3).collect();
        let ack = match words.as_slice() {
            ["sessions"] => Ack::Registered(number(&told, "session")),
            ["sessions", session, "heartbeat"] => Ack::Renewed(session.parse().unwrap_or(u64::MAX)),
            ["sessions", _, "start"] => Ack::Started(grant()),
            ["sessions", _, "result"] => Ack::Ended(grant()),
            _ => return,
        };
        let committed = asked;
        self.0.show(&Seen::Acknowledged(&Call { committed, ack }));
    }
}

impl Site {
    /// A site without executors.
    pub fn new(
        network: Arc<Network>,
        judge: Arc<Judge>,
        nodes: usize,
        token: String,
        lease_ttl_ms: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            network,
            judge,
            nodes,
            token,
            lease_ttl_ms,
            late_per_mille: AtomicU64::new(20),
            sink: Mutex::default(),
            handles: Mutex::default(),
        })
    }

    /// The token of the executors.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// From now on no write arrives very late.
    pub fn calm(&self) {
        self.late_per_mille.store(0, Ordering::Relaxed);
    }

    /// How many writes the sink took and refused.
    pub fn writes(&self) -> (u64, u64) {
        let sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        (sink.accepted, sink.fenced)
    }

    /// Starts an executor process under an instance id. It runs until it is killed or replaced.
    pub fn start(self: &Arc<Self>, process: Process, instance: String, clock: Arc<MachineClock>) {
        tell!("{} starts as {instance}", name(process));
        let site = self.clone();
        scope::spawn_in(process, async move {
            let pace = clock.clone();
            let handler_site = site.clone();
            let executor = Executor::builder()
                .nodes((1..=site.nodes).map(url))
                .token(site.token.clone())
                .instance_id(instance)
                .version("1.0.0")
                .capacity(chance::between(2, 6) as u32)
                .lease_ttl(Duration::from_millis(site.lease_ttl_ms))
                .cancel_grace(Duration::from_secs(2))
                .retry(RetryPolicy::default())
                .transport(Arc::new(HttpLink {
                    network: site.network.clone(),
                    process,
                    witness: Some(Arc::new(Hears(site.judge.clone()))),
                }))
                .environment(environment(clock))
                .handler("count", move |task| {
                    count(handler_site.clone(), process, pace.clone(), task)
                })
                .build()
                .expect("the settings are valid");
            site.handles(|handles| handles.insert(process, executor.handle()));
            let end = executor.run().await;
            tell!("{} ended: {end:?}", name(process));
        });
    }

    fn handles<R>(&self, look: impl FnOnce(&mut BTreeMap<Process, ExecutorHandle>) -> R) -> R {
        look(&mut self.handles.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the last process of an executor has counted.
    pub fn metrics(&self, process: Process) -> Option<MetricsSnapshot> {
        self.handles(|handles| Some(handles.get(&process)?.metrics()))
    }

    /// Takes all apart. An executor knows its handler, and that its site.
    pub fn dissolve(&self) {
        let handles = self.handles(std::mem::take);
        drop(handles);
    }

    /// A write on its way. It arrives even if its sender dies or is suspended meanwhile.
    async fn write(self: &Arc<Self>, write: Write) -> Result<(), TaskError> {
        let (done, taken) = oneshot::channel();
        let delay_us = if chance::happens(self.late_per_mille.load(Ordering::Relaxed)) {
            chance::between(100_000, 20_000_000)
        } else {
            chance::between(500, 4_000)
        };
        let site = self.clone();
        scope::spawn_in(WORLD, async move {
            tokio::time::sleep(Duration::from_micros(delay_us)).await;
            // A writer that is gone learns nothing.
            let _ = done.send(site.arrive(&write));
        });
        match taken.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(TaskError::retryable("fenced off by the sink")),
            Err(_) => Err(TaskError::retryable("the sink did not answer")),
        }
    }

    fn arrive(&self, write: &Write) -> bool {
        let accepted = {
            let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
            let highest = sink.highest.entry(write.scope.clone()).or_default();
            let accepted = write.token >= *highest;
            *highest = (*highest).max(write.token);
            if accepted {
                sink.accepted += 1;
            } else {
                sink.fenced += 1;
            }
            accepted
        };
        self.judge.show(&Seen::Stored {
            scope: &write.scope,
            token: write.token,
            run: write.run,
            shard: write.shard,
            record: write.record,
            accepted,
        });
        accepted
    }
}

fn number(params: &Value, name: &str) -> u64 {
    params.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// The handler: stores its records one after the other, and commits a checkpoint after every few.
async fn count(
    site: Arc<Site>,
    process: Process,
    clock: Arc<MachineClock>,
    task: TaskContext,
) -> Result<Value, TaskError> {
    let params = task.raw_params().clone();
    let total = number(&params, "total").max(1);
    let every = number(&params, "every").max(1);
    let pace = Duration::from_millis(number(&params, "pace_ms"));
    let (run, shard) = (task.run().get(), task.shard());
    let epoch = task.epoch().get();
    let worked = || {
        site.judge.show(&Seen::Worked {
            process,
            run,
            shard,
            epoch,
            total,
        });
    };
    worked();
    let mut at = task.resume_offset();
    // A checkpoint that is carried over counts on from run to run.
    let end = at.div_ceil(total).max(1) * total;
    while at < end {
        clock.sleep(pace).await;
        worked();
        task.check()?;
        if chance::happens(number(&params, "fails_per_mille")) {
            return Err(TaskError::retryable("a planned failure"));
        }
        let write = Write {
            scope: task.fencing_scope().to_owned(),
            token: task.fencing_token().pair(),
            run,
            shard,
            record: at % total,
        };
        site.write(write).await?;
        worked();
        at += 1;
        task.progress(at);
        if at.is_multiple_of(every) || at == end {
            checkpoint(&site, &task, at).await?;
            worked();
        }
    }
    Ok(Value::from(at))
}

async fn checkpoint(site: &Site, task: &TaskContext, offset: u64) -> Result<(), TaskError> {
    let committed = site.judge.committed();
    match task.checkpoint(offset, offset.to_le_bytes()).await {
        Ok(()) => {
            let ack = Ack::Checkpoint {
                run: task.run().get(),
                shard: task.shard(),
                epoch: task.epoch().get(),
                offset,
            };
            site.judge
                .show(&Seen::Acknowledged(&Call { committed, ack }));
            Ok(())
        }
        // Whether it was committed is not known; the next one says the same and more.
        Err(tenure_sdk::ContextError::Unavailable(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
