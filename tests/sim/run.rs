//! One run: start, storm, calm, judgement.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use futures::future::select;
use tenure_machine::Counter;
use tokio::time::{Instant, sleep};

use crate::atlas::Watchdog;
use crate::chance;
use crate::cluster::Cluster;
use crate::faults::{self, Storm};
use crate::invariants::state_hash;
use crate::judge::{Judge, Seen, Violation};
use crate::network::name;
use crate::plan::Plan;
use crate::trace::Recorded;
use crate::workload::{Desk, FIRST_CLIENT, FIRST_HURRIED, Tally};
use crate::world::World;
use crate::{clock, scope, story, tell, trace};

const CLIENTS: usize = 2;
const READER: scope::Process = FIRST_CLIENT + CLIENTS + 1;
/// What is worth knowing of a run: that what the invariants are about did happen.
const COUNTERS: &[(&str, Counter)] = &[
    ("terms that began", Counter::Elections),
    ("instants decided as a run", Counter::Fires),
    ("instants decided as not run", Counter::FiresSkipped),
    ("runs that succeeded", Counter::RunsSucceeded),
    ("runs that ended otherwise", Counter::RunsNotSucceeded),
    ("sessions that expired", Counter::SessionsExpired),
    ("sessions that were replaced", Counter::SessionsReplaced),
    ("grants that expired", Counter::LeasesExpired),
    ("takeovers", Counter::Takeovers),
    ("attempts repeated", Counter::Retries),
    (
        "calls of stale sessions refused",
        Counter::StaleSessionRejections,
    ),
    (
        "calls under stale epochs refused",
        Counter::StaleEpochRejections,
    ),
    (
        "commands of stale terms refused",
        Counter::StaleTermRejections,
    ),
    ("second decisions refused", Counter::DuplicateFiresRefused),
];

/// How often a majority was well for so long that the log had to grow.
const OWED: &str = "stretches in which progress was owed";

/// Within so much virtual time after the storm all must be well. Leases of up to 20 s, the wait of a duplicate
/// instance (32 s) and retries lie in between.
const CALM: Duration = Duration::from_secs(180);

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Its trace.
    pub trace: Recorded,
    /// What was found to be wrong.
    pub violations: Vec<Violation>,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// What clients did.
    pub tally: Tally,
    /// Entries in the log.
    pub committed: u64,
    /// What the machine counted (terms, fires, takeovers, refusals of the late) and the invariants.
    pub counters: BTreeMap<&'static str, u64>,
    /// Writes that the sink took, and those it fenced off.
    pub writes: (u64, u64),
}

/// Says what was swallowed if the run itself panics, and so never comes to say it.
struct Unheard;

impl Drop for Unheard {
    #[allow(clippy::print_stderr, reason = "it is the last that is heard of a run")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            PANICS
                .with_borrow_mut(|panics| panics.drain(..).for_each(|panic| eprintln!("{panic}")));
        }
    }
}

type Watched = Weak<dyn Any + Send + Sync>;

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static WATCHED: RefCell<Vec<(&'static str, Watched)>> = const { RefCell::new(Vec::new()) };
}

/// tokio swallows the panic of a task; here it is a violation.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if clock::in_a_run() {
                PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            } else {
                before(panic);
            }
        }));
    });
}

/// Runs a seed on this thread.
pub fn run(seed: u64, keep_text: bool) -> Report {
    reported(simulated(seed, keep_text, async || live(seed, false).await))
}

/// Runs a seed on this thread, up to the first thing that is found.
pub fn run_to_first(seed: u64) -> Report {
    reported(simulated(seed, false, async || live(seed, true).await))
}

fn reported((mut report, complaints, trace): (Report, Vec<String>, Recorded)) -> Report {
    let at_us = report.virtual_ms * 1_000;
    let violations = complaints.into_iter().map(|what| Violation {
        sentence: "a run ends without a panic and leaves nothing behind".to_owned(),
        what,
        at_us,
        story: Vec::new(),
    });
    report.violations.extend(violations);
    Report { trace, ..report }
}

/// Has it noticed if this is still there when a run is over. What refers to itself in a circle would be, and
/// many runs would fill the memory.
pub(crate) fn must_not_outlive<T: Send + Sync + 'static>(what: &'static str, thing: &Arc<T>) {
    let thing: Arc<dyn Any + Send + Sync> = thing.clone();
    let watched = (what, Arc::downgrade(&thing));
    WATCHED.with_borrow_mut(|all| all.push(watched));
}

/// Does something in virtual time, where all that is random follows from a seed. What comes of it, the
/// panics that nobody else took note of and what the run left behind, and the trace.
pub(crate) fn simulated<T>(
    seed: u64,
    keep_text: bool,
    work: impl AsyncFnOnce() -> T,
) -> (T, Vec<String>, Recorded) {
    watch_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can be had");
    chance::reset(seed);
    scope::reset();
    story::reset();
    trace::reset(keep_text);
    PANICS.with_borrow_mut(Vec::clear);
    WATCHED.with_borrow_mut(Vec::clear);
    let unheard = Unheard;
    let done = runtime.block_on(async {
        clock::reset();
        work().await
    });
    drop(unheard);
    // The runtime drops what is left of the tasks.
    drop(runtime);
    clock::end();
    let mut complaints = PANICS.with_borrow_mut(std::mem::take);
    for (what, thing) in WATCHED.with_borrow_mut(std::mem::take) {
        if thing.strong_count() > 0 {
            complaints.push(format!(
                "{what}: {} references are left",
                thing.strong_count()
            ));
        }
    }
    (done, complaints, trace::take())
}

async fn live(seed: u64, to_first: bool) -> Report {
    let plan = Plan::draw();
    tell!(
        "seed {seed}: {} nodes, {} executors, lease {} ms, drift {} ppm, heartbeat {} ms, fast failover {}",
        plan.nodes,
        plan.executors,
        plan.lease_ttl_ms,
        plan.drift_ppm,
        plan.raft.heartbeat_interval_ms,
        plan.raft.fast_failover
    );
    let clocks = (0..plan.nodes).map(|_| faults::clock(plan.drift_ppm));
    let world = World::new(&plan, clocks.collect()).await;
    let (judge, cluster, site) = (&world.judge, &world.cluster, &world.site);
    let storm = Storm::new(cluster.clone(), site.clone(), &plan);
    let desk = Desk::new(judge.clone(), &plan);
    let owed = Arc::new(AtomicU64::new(0));
    let watchdog = Watchdog::new(Duration::from_millis(
        10_000 + 10 * plan.raft.election_timeout_max_ms,
    ));
    scope::spawn_in(
        scope::WORLD,
        sample(cluster.clone(), watchdog, owed.clone()),
    );

    let hand = world.client(FIRST_CLIENT + CLIENTS);
    let whole = async {
        let setting_up = async {
            world.found(&hand).await;
            desk.define_all(&hand).await;
        };
        let limit = Duration::from_secs(60);
        within(judge, "a new cluster takes its jobs", limit, setting_up).await;
        for at in 0..CLIENTS {
            let client = world.client(FIRST_CLIENT + at);
            let desk = desk.clone();
            scope::spawn_in(FIRST_CLIENT + at, async move { desk.work(client).await });
        }
        let (reader, reading) = (world.client(READER), desk.clone());
        scope::spawn_in(READER, async move { reading.look(reader).await });
        for node in 1..=plan.nodes {
            let client = world.hurried_client(FIRST_HURRIED + node, node);
            let (desk, storm) = (desk.clone(), storm.clone());
            scope::spawn_in(FIRST_HURRIED + node, async move {
                desk.hurry(client, || storm.stirs()).await;
            });
        }
        sleep(Duration::from_secs(2)).await;
        storm.rage(&plan).await;
        storm.end();
        for at in 0..CLIENTS {
            scope::kill(FIRST_CLIENT + at);
        }
        scope::kill(READER);
        for node in cluster.nodes() {
            scope::kill(FIRST_HURRIED + node);
        }
        let calming = calm(cluster, &storm, &desk, &hand);
        let well = within(judge, "after the storm all is well in time", CALM, calming).await;
        if well.is_none() {
            tell!("{}", unrest(cluster));
        }
        compare(cluster);
        show_archives(cluster);
    };
    if to_first {
        select(Box::pin(whole), Box::pin(something(judge))).await;
    } else {
        whole.await;
    }
    for panic in PANICS.with_borrow_mut(std::mem::take) {
        judge.complain("nothing panics", panic);
    }
    let replay = judge.replay();
    let traffic = world.network.traffic();
    world.site.dissolve();
    cluster.dissolve();
    Report {
        seed,
        trace: Recorded::default(),
        violations: judge.violations(),
        virtual_ms: clock::true_ms(),
        faults: storm.counts(),
        tally: desk.tally(),
        committed: judge.committed(),
        counters: COUNTERS
            .iter()
            .map(|(name, counter)| (*name, replay.counter(*counter)))
            .chain([(OWED, owed.load(Ordering::Relaxed))])
            .chain(judge.counts())
            .chain([
                ("runs with fast failover", plan.raft.fast_failover.into()),
                ("messages between nodes", traffic.peer),
                ("requests of clients and executors", traffic.http),
                ("messages lost", traffic.lost),
                ("messages that came late", traffic.resent),
                ("requests that came a second time", traffic.copied),
            ])
            .collect(),
        writes: site.writes(),
    }
}

/// Waits until something is found.
async fn something(judge: &Judge) {
    while !judge.found() && PANICS.with_borrow(Vec::is_empty) {
        sleep(Duration::from_millis(100)).await;
    }
}

async fn within<T>(
    judge: &Judge,
    sentence: &str,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    let done = tokio::time::timeout(limit, work).await.ok();
    if done.is_none() {
        judge.complain(sentence, format!("not within {limit:?}"));
    }
    done
}

/// Looks at every replica now and then.
async fn sample(cluster: Arc<Cluster>, mut watchdog: Watchdog, owed: Arc<AtomicU64>) {
    loop {
        sleep(Duration::from_millis(chance::between(500, 2_000))).await;
        compare(&cluster);
        if let Some(what) = watchdog.look(&cluster) {
            let sentence = "a majority that is well takes what it is given";
            cluster.judge.complain(sentence, what);
        }
        owed.store(watchdog.owed, Ordering::Relaxed);
    }
}

/// Shows what each node that has all facts keeps of what is over.
fn show_archives(cluster: &Cluster) {
    for node in cluster.nodes() {
        if let Some(running) = cluster.running(node).filter(|r| r.feed.complete()) {
            cluster.judge.show(&Seen::Archived {
                node,
                archive: &*running.archive,
            });
        }
    }
}

/// The same without a watch over progress.
pub(crate) async fn sample_often(cluster: Arc<Cluster>) {
    loop {
        sleep(Duration::from_millis(chance::between(100, 1_000))).await;
        compare(&cluster);
    }
}

fn compare(cluster: &Cluster) {
    for node in cluster.nodes() {
        if let Some(replica) = cluster.replica(node) {
            cluster.judge.sample(node, &replica);
        }
    }
}

/// Waits until all is well: one leader, every due instant decided, every run ended, every replica equal.
async fn calm(cluster: &Arc<Cluster>, storm: &Storm, desk: &Desk, hand: &tenure_sdk::Client) {
    loop {
        storm.mend();
        if cluster.agreed_leader().is_some() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    tell!("a leader is agreed on");
    // What fell due in the storm is decided while the jobs still fire.
    let began = Instant::now();
    while !decided(cluster) || began.elapsed() < Duration::from_secs(3) {
        storm.mend();
        sleep(Duration::from_millis(100)).await;
    }
    tell!("every due instant is decided");
    // A node may still end of a fault that was put in before, and without it there may be no majority.
    let mending = pin!(async {
        loop {
            storm.mend();
            sleep(Duration::from_millis(100)).await;
        }
    });
    select(pin!(desk.pause_all(hand)), mending).await;
    while !unrest(cluster).is_empty() {
        storm.mend();
        sleep(Duration::from_millis(100)).await;
    }
    tell!("all is well");
}

/// Whether the cursor of each job is ahead of the calendar clock.
fn decided(cluster: &Cluster) -> bool {
    let state = cluster.judge.replay();
    let now_ms = clock::EPOCH_MS + clock::true_ms();
    state.jobs_after(None).all(|job| {
        let due = job.next_fire_ms.filter(|_| job.paused_at_ms.is_none());
        due.is_none_or(|due| due + 2_000 > now_ms)
    })
}

/// What is not yet well, in words; nothing if all is.
fn unrest(cluster: &Cluster) -> String {
    if cluster.agreed_leader().is_none() {
        let views: Vec<String> = cluster
            .nodes()
            .into_iter()
            .map(|node| match cluster.standing(node) {
                Some(standing) => format!(
                    "{} term {} leads {} leader {:?} applied {}",
                    name(node),
                    standing.term,
                    standing.leads,
                    standing.leader.map(|leader| leader.id),
                    standing.applied
                ),
                None => format!("{} {:?}", name(node), cluster.condition(node)),
            })
            .collect();
        return format!("no leader is agreed on: {views:?}");
    }
    let state = cluster.judge.replay();
    let live: Vec<String> = state
        .runs_before(None)
        .filter(|run| !run.state.is_final())
        .map(|run| {
            let tasks: Vec<String> = state
                .tasks_of(run.id)
                .filter(|task| !task.state.is_final())
                .map(|task| format!("{}: {:?} {:?}", task.shard, task.state, task.owner))
                .collect();
            format!(
                "run {} of {} {:?} {tasks:?}",
                run.id,
                run.key.job(),
                run.state
            )
        })
        .collect();
    if !live.is_empty() {
        return format!("runs are live: {live:?}");
    }
    let mut ends = Vec::new();
    for node in cluster.nodes() {
        if cluster.is_left_out(node) {
            continue;
        }
        let Some(running) = cluster.running(node) else {
            return format!("{} does not run", name(node));
        };
        if !running.feed.complete() {
            return format!("the archive of {} misses facts", name(node));
        }
        let replica = running.consensus.node().stale();
        ends.push((replica.applied, state_hash(&replica.state)));
    }
    ends.dedup();
    if ends.len() > 1 {
        return format!("replicas are not equal: {ends:?}");
    }
    String::new()
}
