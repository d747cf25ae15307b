//! A directed script on the simulated world: a cluster, executors, chosen faults at chosen moments, and
//! conditions that are waited for in virtual time. So limits can be exact, and waiting costs nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure_api::JobName;
use tenure_api::jobs::JobChange;
use tenure_api::runs::TriggerRequest;
use tenure_machine::plan::schedule::Schedules;
use tenure_machine::{Command, Counter, Event, Name, Run, RunKey, State};
use tenure_sdk::{
    Client, Error, JobBody, Lane, Method, MetricsSnapshot, Precondition, Request, Transport as _,
};
use tokio::time::{Instant, sleep};

use crate::clock::{self, MachineClock};
use crate::invariants::state_hash;
use crate::judge::Face;
use crate::network::{HttpLink, name, url};
use crate::node::Crash;
use crate::plan::Plan;
use crate::run;
use crate::scope::{self, Process, WORLD};
use crate::site::FIRST_EXECUTOR;
use crate::tell;
use crate::traps::Moment;
use crate::workload::FIRST_CLIENT;
use crate::world::World;

/// Who speaks for a process that is not there.
const STRANGER: Process = 71;

/// What a script comes to: nothing, or what does not hold.
pub type Told = Result<(), String>;

/// An entry of the log, as it was committed.
#[derive(Clone)]
pub struct Logged {
    /// When it was first applied, in milliseconds of the run.
    pub at_ms: u64,
    /// The term its maker led in, if a leader's loop made it.
    pub term: Option<u64>,
    /// The command.
    pub command: Command,
    /// Whether it was carried out.
    pub done: bool,
    /// What happened.
    pub events: Vec<Event>,
    /// The lease clock behind it.
    pub lease_ms: u64,
}

/// The stage of one script.
pub struct Stage {
    /// The world.
    pub world: World,
    /// A client that knows all nodes.
    pub hand: Client,
    clocks: Vec<Arc<MachineClock>>,
    log: Arc<Mutex<Vec<Logged>>>,
}

/// Says what does not hold.
///
/// # Errors
/// It does not.
pub fn holds(condition: bool, what: impl Into<String>) -> Told {
    condition.then_some(()).ok_or_else(|| what.into())
}

/// Plays a script under a seed, and checks every invariant meanwhile.
///
/// # Errors
/// Says what does not hold, with the story before it.
pub fn play(seed: u64, plan: &Plan, script: impl AsyncFn(&Stage) -> Told) -> Told {
    let ended = run::simulated(seed, false, async || {
        let stage = Stage::set(plan).await;
        let told = script(&stage).await;
        if let Err(what) = told {
            stage
                .world
                .judge
                .complain("the script of the scenario", what);
        }
        let violations = stage.world.judge.violations();
        stage.world.site.dissolve();
        stage.world.cluster.dissolve();
        violations
    });
    let (violations, panics, _) = ended;
    if let Some(panic) = panics.first() {
        return Err(format!("seed {seed}: {panic}"));
    }
    match violations.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "seed {seed}: not true: {}\n{}\n{}",
            first.sentence,
            first.what,
            first.story.join("\n")
        )),
    }
}

impl Stage {
    async fn set(plan: &Plan) -> Self {
        // Each machine counts from another moment; all show the true wall time.
        let clocks = |from: u64, count: usize| {
            let base_ms = |at: usize| 10_000 * (from + at as u64);
            (0..count)
                .map(|at| MachineClock::new(0, base_ms(at), 0))
                .collect::<Vec<_>>()
        };
        let world = World::new(plan, clocks(1, plan.nodes)).await;
        world.site.calm();
        scope::spawn_in(WORLD, run::sample_often(world.cluster.clone()));
        let hand = world.client(FIRST_CLIENT);
        world.found(&hand).await;
        let log = Arc::new(Mutex::new(Vec::new()));
        let writer = log.clone();
        world.judge.traps.set(move |moment| {
            if let Moment::Committed {
                proposal, outcome, ..
            } = moment
            {
                let mut log = writer.lock().unwrap_or_else(PoisonError::into_inner);
                log.push(Logged {
                    at_ms: clock::true_ms(),
                    term: proposal.term,
                    command: proposal.command.clone(),
                    done: outcome.reply.is_ok(),
                    events: outcome.events.clone(),
                    lease_ms: proposal.stamp.lease_ms,
                });
            }
            false
        });
        Self {
            world,
            hand,
            clocks: clocks(50, plan.executors),
            log,
        }
    }

    // Looking.

    /// The state after all that was committed.
    pub fn state(&self) -> State {
        self.world.judge.replay()
    }

    /// What the machine counted.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.state().counter(counter)
    }

    /// The log since this stage was set.
    pub fn log(&self) -> Vec<Logged> {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The runs that were made for due instants of a job, with the instants.
    pub fn fired(&self, job: &str) -> Vec<(u64, u64)> {
        let events = self.log().into_iter().flat_map(|entry| entry.events);
        let fired = events.filter_map(|event| match event {
            Event::RunCreated(run) => match &run.key {
                RunKey::Scheduled(of, instant_ms) if of.as_str() == job => {
                    Some((*instant_ms, run.id))
                }
                _ => None,
            },
            _ => None,
        });
        fired.collect()
    }

    /// A run as it ended, if it did.
    pub fn finished(&self, id: u64) -> Option<Arc<Run>> {
        let mut events = self.log().into_iter().flat_map(|entry| entry.events);
        events.find_map(|event| match event {
            Event::RunFinished { run, .. } if run.id == id => Some(run),
            _ => None,
        })
    }

    /// The next instant at which a job is due, in milliseconds since 1970.
    pub fn due(&self, job: &str) -> Option<u64> {
        let job = Name::from(job);
        self.state().job(&job)?.next_fire_ms
    }

    /// The instants at which a job is due between two times.
    pub fn instants(&self, job: &str, after_ms: u64, until_ms: u64) -> u64 {
        let state = self.state();
        let job = state.job(&Name::from(job)).cloned();
        let Some(job) = job else { return 0 };
        let anchor_ms = job.created_at_ms;
        let counted = Schedules::default().count(&job.spec.trigger, anchor_ms, after_ms, until_ms);
        counted.ok().flatten().map_or(0, |counted| counted.count)
    }

    /// The session that an executor has now.
    pub fn session(&self, executor: usize) -> Option<u64> {
        let instance = Name::from(format!("executor-{executor}").as_str());
        Some(self.state().session_of(&instance)?.id)
    }

    /// The term that a node is in.
    pub fn term(&self, node: Process) -> u64 {
        let standing = self.world.cluster.standing(node);
        standing.map_or(0, |standing| standing.term)
    }

    /// The nodes but this one.
    pub fn others(&self, node: Process) -> Vec<Process> {
        let nodes = self.world.cluster.nodes().into_iter();
        nodes.filter(|other| *other != node).collect()
    }

    // Waiting.

    /// The true time, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        clock::EPOCH_MS + clock::true_ms()
    }

    /// Lets time pass.
    pub async fn pass(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }

    /// Waits until something is there, for at most so long.
    ///
    /// # Errors
    /// It was not there in time.
    pub async fn until<T>(
        &self,
        what: &str,
        limit_ms: u64,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, String> {
        let began = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if began.elapsed() > Duration::from_millis(limit_ms) {
                return Err(format!("{what}: not within {limit_ms} ms"));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until all running nodes agree on a leader.
    ///
    /// # Errors
    /// They do not in time.
    pub async fn led(&self) -> Result<Process, String> {
        let agreed = || self.world.cluster.agreed_leader();
        self.until("a leader is agreed on", 20_000, agreed).await
    }

    /// Waits until a node leads in a later term than `term`.
    ///
    /// # Errors
    /// None does in time.
    pub async fn led_after(&self, term: u64, limit_ms: u64) -> Result<Process, String> {
        let next = || {
            let leaders = self.world.cluster.leaders();
            leaders.into_iter().find(|node| self.term(*node) > term)
        };
        self.until("a leader of a later term", limit_ms, next).await
    }

    /// Waits until a run has ended well.
    ///
    /// # Errors
    /// It did not, in time.
    pub async fn succeeds(&self, run: u64, limit_ms: u64) -> Told {
        let what = format!("run {run} ends");
        let ended = self.until(&what, limit_ms, || self.finished(run)).await?;
        let state = ended.state;
        holds(
            state == tenure_machine::RunState::Succeeded,
            format!("run {run} ended as {state:?}"),
        )
    }

    /// Waits until all nodes run, and are equal.
    ///
    /// # Errors
    /// They are not, in time.
    pub async fn all_equal(&self) -> Told {
        let equal = || {
            let nodes = self.world.cluster.nodes();
            let replicas = nodes.iter().map(|node| self.world.cluster.replica(*node));
            let replicas = replicas.collect::<Option<Vec<_>>>()?;
            let first = replicas.first()?;
            let same = replicas
                .iter()
                .all(|replica| replica.applied == first.applied);
            same.then_some(())?;
            let hash = state_hash(&first.state);
            replicas
                .iter()
                .all(|replica| state_hash(&replica.state) == hash)
                .then_some(())
        };
        self.until("all nodes are equal", 30_000, equal).await
    }

    // Doing.

    /// Defines a job that counts. The rest of its file comes with `lines`.
    ///
    /// # Errors
    /// The cluster does not take it.
    pub async fn define(&self, job: &str, lines: &str, params: &str) -> Told {
        let file = format!(
            "name: {job}\n{lines}task:\n  capability: count\n  params: {{ {params}, fails_per_mille: 0 }}\n"
        );
        let (name, mut last) = (job_name(job), String::new());
        for _ in 0..50 {
            let body = JobBody::Yaml(file.clone());
            match self.hand.put_job(&name, &body, Precondition::None).await {
                Ok(_) => return Ok(()),
                Err(error) => last = error.to_string(),
            }
            self.pass(100).await;
        }
        Err(format!("{job} cannot be defined: {last}"))
    }

    /// Starts a run by hand.
    ///
    /// # Errors
    /// The cluster does not take it.
    pub async fn trigger(&self, job: &str) -> Result<u64, String> {
        let request = TriggerRequest::default();
        let key = Some(format!("by-hand-{}", clock::true_us()));
        let answer = self.hand.trigger_job(&job_name(job), &request, key).await;
        let run = answer.map_err(|error| error.to_string())?.run;
        run.map(|run| run.get()).ok_or("no run".to_owned())
    }

    /// Reads a job.
    ///
    /// # Errors
    /// As the SDK's.
    pub async fn read(&self, client: &Client, job: &str) -> Result<Face, Error> {
        let read = client.job(&job_name(job)).await?;
        Ok(Face::from(&read))
    }

    /// Gives a job another description; its revision, and whether that is new.
    ///
    /// # Errors
    /// As the SDK's.
    pub async fn describe(
        &self,
        client: &Client,
        job: &str,
        description: &str,
    ) -> Result<(u64, bool), Error> {
        let name = job_name(job);
        let mut spec = client.job(&name).await?.spec;
        spec.description = description.to_owned();
        let body = JobBody::from(spec);
        let put = client.put_job(&name, &body, Precondition::Exists).await?;
        let changed = put.change != JobChange::Unchanged;
        Ok((put.job.revision.get(), changed))
    }

    /// Says to the leader what a process of an executor would say in a session, and whatever it would not say
    /// any more. The answer, or the problem with its `code`.
    ///
    /// # Errors
    /// There is none.
    pub async fn say(&self, session: u64, what: &str, body: Value) -> Result<Value, String> {
        let leader = self.led().await?;
        let link = HttpLink {
            network: self.world.network.clone(),
            process: STRANGER,
            witness: None,
        };
        let request = Request {
            node: url(leader),
            method: Method::Post,
            path: format!("/v1/executor/sessions/{session}/{what}"),
            headers: vec![
                (
                    "authorization",
                    format!("Bearer {}", self.world.site.token()),
                ),
                ("content-type", "application/json".to_owned()),
            ],
            body: body.to_string().into(),
            timeout: Duration::from_secs(5),
            lane: Lane::Call,
        };
        let answer = link.send(request).await.map_err(|e| e.to_string())?;
        serde_json::from_slice(&answer.body).map_err(|e| e.to_string())
    }

    /// Starts an executor.
    pub fn executor(&self, executor: usize) -> Process {
        let process = FIRST_EXECUTOR + executor;
        self.executor_at(process, executor);
        process
    }

    /// What the process of an executor has counted.
    ///
    /// # Errors
    /// It was never started.
    pub fn counted(&self, process: Process) -> Result<MetricsSnapshot, String> {
        let counted = self.world.site.metrics(process);
        counted.ok_or_else(|| format!("{} was never started", name(process)))
    }

    /// Starts a process of an executor, on the machine of that executor.
    pub fn executor_at(&self, process: Process, executor: usize) {
        let clock = self.clocks[executor].clone();
        let instance = format!("executor-{executor}");
        self.world.site.start(process, instance, clock);
    }

    /// Waits until an executor owns a task of a run and has started it; the task's epoch.
    ///
    /// # Errors
    /// It does not, in time.
    pub async fn works(&self, executor: usize, run: u64) -> Result<u64, String> {
        let what = format!("executor-{executor} works on run {run}");
        self.until(&what, 60_000, || {
            let state = self.state();
            let task = state.task(run, 0)?;
            let owner = task.owner.as_ref()?;
            let started = owner.started_lease_ms.is_some();
            (started && Some(owner.session) == self.session(executor)).then_some(task.epoch)
        })
        .await
    }

    /// Ends a node's process and what it would still have said.
    pub fn kill(&self, node: Process) {
        self.world.cluster.crash(node, Crash::Kill);
    }

    /// Starts a node again.
    pub fn start(&self, node: Process) {
        self.world.cluster.start(node);
    }

    /// Cuts what one process says to others.
    pub fn cut(&self, from: Process, to: &[Process]) {
        tell!("{} is not heard any more", name(from));
        to.iter().for_each(|to| self.world.network.cut(from, *to));
    }

    /// Cuts both directions.
    pub fn part(&self, one: Process, others: &[Process]) {
        self.cut(one, others);
        for other in others {
            self.world.network.cut(*other, one);
        }
    }

    /// Heals the cuts between these.
    pub fn join(&self, one: Process, others: &[Process]) {
        for other in others {
            self.world.network.heal(one, *other);
            self.world.network.heal(*other, one);
        }
    }

    /// Heals all cuts.
    pub fn heal(&self) {
        tell!("all cuts heal");
        self.world.network.heal_all();
    }

    /// At the next moment that `at` names a process for, does something to it. Returns what tells when.
    pub fn at_the_moment(
        &self,
        mut at: impl FnMut(Moment<'_>) -> Option<Process> + Send + 'static,
        act: impl Fn(Process) + Send + Sync + 'static,
    ) -> Arc<Mutex<Option<Process>>> {
        let struck = Arc::new(Mutex::new(None));
        let (told, act) = (struck.clone(), Arc::new(act));
        self.world.judge.traps.set(move |moment| {
            let Some(process) = at(moment) else {
                return false;
            };
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
            // Not here: locks are held.
            let act = act.clone();
            scope::spawn_in(WORLD, async move { act(process) });
            true
        });
        struck
    }
}

/// Waits until a moment came; whom it struck.
///
/// # Errors
/// It did not, in time.
pub async fn struck(
    stage: &Stage,
    moment: &Mutex<Option<Process>>,
    limit_ms: u64,
) -> Result<Process, String> {
    let look = || *moment.lock().unwrap_or_else(PoisonError::into_inner);
    stage.until("the moment comes", limit_ms, look).await
}

fn job_name(name: &str) -> JobName {
    name.parse().expect("names of a script are valid")
}
