//! The feed, the questions and the healing, over an archive in memory that a crash can hit.

use std::sync::Arc;

use tenure_machine::{
    Actor, CheckpointScope, Command, Event, Execution, FireDecision, History as Limits, JobSpec,
    LogPosition, Misfire, MisfirePolicy, Name, Outcome, Overlap, Proposal, Recovery, Reply, Retry,
    Run, RunKey, RunState, SkipReason, Stamp, State, TaskTemplate, Trigger,
};
use tenure_raft::state_machine::{Applied, ApplyObserver, PurgeBarrier};
use tenure_storage::archive::{
    Archive, ArchiveError, Change, Chunk, MemArchive, Page, Scan, Table,
};
use tenure_storage::wal::spawn_threads;

use super::*;
use crate::blocking::Blocking;
use crate::http::history::{History, HistoryError};
use crate::wakeups::Wakeups;

const DAY_MS: u64 = 86_400_000;

fn spec(keep: u32, max_age_ms: u64) -> Arc<JobSpec> {
    Arc::new(JobSpec {
        description: String::new(),
        trigger: Trigger::Manual,
        overlap: Overlap::Allow,
        queue_limit: 1,
        misfire: Misfire {
            policy: MisfirePolicy::Skip,
            grace_ms: 1,
            limit: 1,
        },
        retry: Retry {
            max_attempts: 1,
            initial_backoff_ms: 1,
            max_backoff_ms: 1,
            multiplier_milli: 1000,
            jitter_permille: 0,
        },
        timeout_ms: None,
        shards: 1,
        execution: Execution::AtLeastOnce,
        recovery: Recovery::Immediate,
        checkpoints: CheckpointScope::PerRun,
        task: TaskTemplate {
            capability: "x".into(),
            version: None,
            selector: Default::default(),
            params: "{}".into(),
        },
        history: Limits { keep, max_age_ms },
    })
}

fn finished(job: &str, id: u64, at_ms: u64, spec: &Arc<JobSpec>) -> Event {
    let run = Run {
        id,
        key: RunKey::Keyed(job.into(), Name::new(format!("k{id}"))),
        revision: 1,
        spec: spec.clone(),
        params: None,
        created_at_ms: at_ms,
        activated_at_ms: Some(at_ms),
        finished_at_ms: Some(at_ms),
        finished_lease_ms: Some(0),
        finished_index: Some(id),
        state: RunState::Succeeded,
        cancelled: None,
        open_tasks: 0,
    };
    Event::RunFinished {
        run: Arc::new(run),
        tasks: Vec::new(),
    }
}

fn decided(job: &str, first_ms: u64, last_ms: u64) -> Event {
    Event::Decided(FireDecision {
        job: job.into(),
        revision: 1,
        first_ms,
        last_ms,
        count: 1 + u64::from(last_ms > first_ms),
        run: None,
        skipped: Some(SkipReason::Paused),
        decided_at_ms: last_ms,
        index: 1,
        term: 1,
    })
}

fn entry(index: u64, events: Vec<Event>) -> Applied {
    Applied {
        at: LogPosition { term: 1, index },
        events,
    }
}

/// Entries are applied: the feed is told under the lock of the state, and hears of the events after it.
async fn apply(feed: &Feed, run: Vec<Applied>) {
    run.iter().for_each(|entry| become_visible(feed, entry));
    feed.applied(run).await;
}

/// The first half: from here on a reader may see the state.
fn become_visible(feed: &Feed, entry: &Applied) {
    let outcome = Outcome {
        reply: Ok(Reply::Done),
        events: entry.events.clone(),
    };
    let proposal = Proposal {
        stamp: Stamp::default(),
        term: None,
        actor: Actor::Scheduler,
        request: None,
        command: Command::PauseJob { name: "a".into() },
    };
    feed.checked(entry.at, Some((&proposal, &outcome)));
}

fn ids(archive: &dyn Archive) -> Vec<u64> {
    let scan = tenure_storage::archive::Scan {
        from: Some(keys::run(0)),
        until: Some(keys::run(u64::MAX)),
        limit: 10_000,
        ..Default::default()
    };
    let page = archive.scan(Table::Runs, &scan).unwrap();
    page.records
        .iter()
        .filter_map(|(key, _)| keys::run_in(key))
        .collect()
}

fn start(archive: &Arc<MemArchive>) -> Arc<Feed> {
    start_over(archive.clone())
}

fn start_over(archive: Arc<dyn Archive>) -> Arc<Feed> {
    Feed::start(
        archive,
        Wakeups::new(),
        Arc::default(),
        &spawn_threads(),
        |why| panic!("{why}"),
    )
    .unwrap()
}

#[test]
fn entries_that_come_again_after_a_restart_change_nothing() {
    let archive = Arc::new(MemArchive::empty());
    let spec = spec(100, DAY_MS);
    let run = [
        entry(5, vec![finished("a", 5, 10, &spec)]),
        entry(9, vec![decided("a", 1, 1)]),
    ];
    Feeder::new(archive.clone()).unwrap().take(&run).unwrap();
    // The next process hears the same entries in other groups, and one more.
    let mut again = Feeder::new(archive.clone()).unwrap();
    let more = [
        run[1].clone(),
        entry(12, vec![finished("a", 12, 20, &spec)]),
    ];
    again.take(&run[..1]).unwrap();
    again.take(&more).unwrap();
    assert_eq!(ids(&*archive), [5, 12]);
    assert_eq!(archive.applied_index().unwrap(), Some(12));
    assert_eq!(archive.count(Table::FireLedger).unwrap(), 1);
}

#[test]
fn a_barrier_survives_a_crash_and_so_does_what_came_before_it() {
    let archive = Arc::new(MemArchive::empty());
    let spec = spec(100, DAY_MS);
    let mut feeder = Feeder::new(archive.clone()).unwrap();
    feeder
        .take(&[entry(5, vec![finished("a", 5, 10, &spec)])])
        .unwrap();
    feeder.make_durable(7).unwrap();
    feeder
        .take(&[entry(9, vec![finished("a", 9, 10, &spec)])])
        .unwrap();
    let after = archive.crash(0).unwrap();
    assert_eq!(after.applied_index().unwrap(), Some(7));
    assert_eq!(ids(&after), [5]);
}

#[test]
fn runs_leave_by_count_and_by_age_with_their_output() {
    let archive = Arc::new(MemArchive::empty());
    let mut feeder = Feeder::new(archive.clone()).unwrap();
    let few = spec(3, 365 * DAY_MS);
    for id in 1..=200 {
        let output = Event::Output {
            run: id,
            shard: 0,
            epoch: 1,
            position_bytes: 0,
            text: "x".into(),
        };
        feeder
            .take(&[entry(id, vec![output, finished("few", id, id, &few)])])
            .unwrap();
    }
    let kept = ids(&*archive);
    assert!(
        kept.len() < 3 + 2 * 16 && kept.ends_with(&[198, 199, 200]),
        "{kept:?}"
    );
    assert_eq!(archive.count(Table::RunOutput).unwrap(), kept.len() as u64);

    // Another job's runs are old; the first job stands still and is found by the slow walk.
    let young = spec(1_000, DAY_MS);
    for id in 1_001..=1_200 {
        let at_ms = 400 * DAY_MS + id;
        feeder
            .take(&[entry(id, vec![finished("young", id, at_ms, &young)])])
            .unwrap();
    }
    for id in 2_001..=2_100 {
        let at_ms = 402 * DAY_MS + id;
        feeder
            .take(&[entry(id, vec![finished("young", id, at_ms, &young)])])
            .unwrap();
    }
    assert_eq!(ids(&*archive), (2_001..=2_100).collect::<Vec<_>>());
}

#[test]
fn decisions_leave_by_age_even_of_jobs_that_never_run() {
    let archive = Arc::new(MemArchive::empty());
    let mut feeder = Feeder::new(archive.clone()).unwrap();
    feeder
        .take(&[entry(1, vec![decided("quiet", 1, 2)])])
        .unwrap();
    for index in 2..60 {
        let at_ms = 31 * DAY_MS + index * 1_000;
        feeder
            .take(&[entry(index, vec![decided("loud", at_ms, at_ms)])])
            .unwrap();
    }
    assert_eq!(archive.count(Table::FireLedger).unwrap(), 58);
}

#[tokio::test]
async fn questions_see_everything_that_was_applied_before() {
    let archive = Arc::new(MemArchive::empty());
    let feed = start(&archive);
    let history = ArchiveHistory::new(archive.clone(), feed.clone(), Blocking::Threads);
    let spec = spec(100, DAY_MS);
    for id in 1..=50 {
        apply(
            &feed,
            vec![entry(
                id,
                vec![
                    finished("a", id, id, &spec),
                    decided("a", id * 10, id * 10 + 3),
                ],
            )],
        )
        .await;
        assert!(history.run(id).await.unwrap().is_some(), "run {id}");
    }
    let of_a = history.runs_before(Some("a".into()), 40, 3).await.unwrap();
    assert_eq!(
        of_a.iter().map(|one| one.run.id).collect::<Vec<_>>(),
        [39, 38, 37]
    );
    assert!(
        history
            .runs_before(Some("b".into()), 40, 3)
            .await
            .unwrap()
            .is_empty()
    );
    let all = history.runs_before(None, u64::MAX, 2).await.unwrap();
    assert_eq!(
        all.iter().map(|one| one.run.id).collect::<Vec<_>>(),
        [50, 49]
    );
    let at = |instant| history.decision_at("a".into(), instant);
    assert_eq!(
        at(102).await.unwrap().map(|found| found.first_ms),
        Some(100)
    );
    assert_eq!(at(105).await.unwrap(), None);
    let some = history.decisions("a".into(), 100, 121, 10).await.unwrap();
    assert_eq!(
        some.iter().map(|found| found.first_ms).collect::<Vec<_>>(),
        [120, 110, 100]
    );
}

/// A run ended and a reader sees so, but the events are not handed over yet: the thread that applies was held
/// up in between. (Found as a list of runs that lacked one.)
#[tokio::test]
async fn a_question_waits_for_facts_that_are_not_handed_over_yet() {
    let archive = Arc::new(MemArchive::empty());
    let feed = start(&archive);
    let history = ArchiveHistory::new(archive.clone(), feed.clone(), Blocking::Threads);
    let entry = entry(7, vec![finished("a", 7, 7, &spec(100, DAY_MS))]);
    become_visible(&feed, &entry);
    let question = history.run(7);
    futures::pin_mut!(question);
    // However often it looks.
    for _ in 0..20 {
        assert!(futures::poll!(&mut question).is_pending());
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    feed.applied(vec![entry]).await;
    assert!(question.await.unwrap().is_some());
}

#[tokio::test]
async fn while_facts_are_missing_there_is_no_answer_rather_than_a_short_one() {
    let spec = spec(100, DAY_MS);
    let own = Arc::new(MemArchive::empty());
    let feed = start(&own);
    let history = ArchiveHistory::new(own.clone(), feed.clone(), Blocking::Threads);
    apply(&feed, vec![entry(1, vec![finished("a", 1, 1, &spec)])]).await;
    assert!(history.run(1).await.unwrap().is_some());
    feed.replaced(LogPosition { term: 1, index: 9 }, State::default())
        .await;
    apply(&feed, vec![entry(10, vec![finished("a", 10, 10, &spec)])]).await;
    let incomplete = Some(HistoryError::Incomplete);
    assert_eq!(history.run(1).await.err(), incomplete);
    let list = history.runs_before(Some("a".into()), 11, 5).await;
    assert_eq!(list.err(), incomplete);
    // Nor while it is filled.
    let filling = feed.fill().await.unwrap();
    assert_eq!(history.run(1).await.err(), incomplete);
    drop(filling);
    assert_eq!(feed.accept_gap().await, Some(10));
    assert!(history.run(1).await.unwrap().is_some());
}

#[tokio::test]
async fn an_archive_behind_its_snapshot_is_filled_from_another_and_goes_on() {
    let spec = spec(1_000, DAY_MS);
    let leaders = Arc::new(MemArchive::empty());
    let mut leader = Feeder::new(leaders.clone()).unwrap();
    for id in 1..=300 {
        leader
            .take(&[entry(id, vec![finished("a", id, id, &spec)])])
            .unwrap();
    }

    let own = Arc::new(MemArchive::empty());
    Feeder::new(own.clone())
        .unwrap()
        .take(&[entry(1, vec![finished("a", 1, 1, &spec)])])
        .unwrap();
    let feed = start(&own);
    feed.restored(LogPosition {
        term: 1,
        index: 250,
    });
    assert!(!feed.complete());
    // What is applied meanwhile is not written: the gap must stay visible to a restart.
    apply(
        &feed,
        vec![entry(300, vec![finished("a", 300, 300, &spec)])],
    )
    .await;
    feed.make_durable(LogPosition {
        term: 1,
        index: 300,
    })
    .await
    .unwrap();
    assert_eq!(own.applied_index().unwrap(), Some(1));

    // An export that does not reach far enough is refused by the leader's side.
    let filling = feed.fill().await.unwrap();
    assert_eq!(filling.at_least, 300);
    let ask = |at_least, cursor| ArchiveQuestion {
        at_least,
        cursor,
        max_bytes: 4_096,
    };
    assert!(matches!(
        serve_export(&*leaders, true, &ask(301, None)),
        ArchiveAnswer::Behind
    ));
    assert!(matches!(
        serve_export(&*leaders, false, &ask(1, None)),
        ArchiveAnswer::Incomplete
    ));
    let mut cursor = None;
    let mut chunks = 0;
    loop {
        let ArchiveAnswer::Chunk {
            bytes,
            cursor: next,
        } = serve_export(&*leaders, true, &ask(filling.at_least, cursor))
        else {
            panic!("refused");
        };
        filling.chunks.send(bytes).await.unwrap();
        chunks += 1;
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert!(chunks > 3, "{chunks} chunks");
    filling.done.await.unwrap().unwrap();
    assert!(feed.complete());
    apply(
        &feed,
        vec![entry(301, vec![finished("a", 301, 301, &spec)])],
    )
    .await;
    feed.settled().await;
    assert_eq!(ids(&*own), (1..=301).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_filling_that_breaks_off_leaves_the_gap_visible() {
    let own = Arc::new(MemArchive::empty());
    let feed = start(&own);
    feed.restored(LogPosition { term: 1, index: 5 });
    let filling = feed.fill().await.unwrap();
    // Nothing was applied since, but the snapshot covers more than the archive has.
    assert_eq!(filling.at_least, 5);
    drop(filling.chunks);
    assert!(filling.done.await.unwrap().is_err());
    assert!(!feed.complete());
}

#[tokio::test]
async fn a_gap_that_nobody_can_fill_is_accepted_and_what_comes_next_is_kept() {
    let spec = spec(1_000, DAY_MS);
    let own = Arc::new(MemArchive::empty());
    let feed = start(&own);
    feed.restored(LogPosition { term: 1, index: 5 });
    apply(&feed, vec![entry(6, vec![finished("a", 6, 6, &spec)])]).await;
    assert_eq!(feed.accept_gap().await, Some(6));
    assert!(feed.complete());
    // For good: the next process does not look for it again.
    let after = own.crash(0).unwrap();
    assert_eq!(after.applied_index().unwrap(), Some(6));
    apply(&feed, vec![entry(7, vec![finished("a", 7, 7, &spec)])]).await;
    feed.settled().await;
    assert_eq!(ids(&*own), [7]);
    assert_eq!(own.applied_index().unwrap(), Some(7));
}

/// An archive whose barriers wait until they are let through.
struct Held {
    inner: MemArchive,
    reached: std::sync::mpsc::Sender<()>,
    go_on: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl Archive for Held {
    fn apply(&self, index: u64, changes: &[Change]) -> Result<bool, ArchiveError> {
        self.inner.apply(index, changes)
    }
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
        self.inner.get(table, key)
    }
    fn scan(&self, table: Table, scan: &Scan) -> Result<Page, ArchiveError> {
        self.inner.scan(table, scan)
    }
    fn count(&self, table: Table) -> Result<u64, ArchiveError> {
        self.inner.count(table)
    }
    fn applied_index(&self) -> Result<Option<u64>, ArchiveError> {
        self.inner.applied_index()
    }
    fn barrier(&self) -> Result<Option<u64>, ArchiveError> {
        self.reached.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        self.inner.barrier()
    }
    fn verify(&self) -> Result<(), ArchiveError> {
        self.inner.verify()
    }
    fn export(&self, cursor: Option<&[u8]>, max_bytes: usize) -> Result<Chunk, ArchiveError> {
        self.inner.export(cursor, max_bytes)
    }
    fn import(&self, chunk: &[u8]) -> Result<bool, ArchiveError> {
        self.inner.import(chunk)
    }
}

/// A gap is closed, which takes the time of a barrier, and another one opens meanwhile on the thread that applies.
#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_opens_while_another_is_closed_is_not_forgotten() {
    let (reached, at_barrier) = std::sync::mpsc::channel();
    let (go_on, wait) = std::sync::mpsc::channel();
    let own = Arc::new(Held {
        inner: MemArchive::empty(),
        reached,
        go_on: std::sync::Mutex::new(wait),
    });
    let feed = start_over(own.clone());
    let at = |index| LogPosition { term: 1, index };
    feed.restored(at(5));
    let closing = {
        let feed = feed.clone();
        tokio::spawn(async move { feed.accept_gap().await })
    };
    at_barrier.recv().unwrap();
    feed.replaced(at(100), State::default()).await;
    go_on.send(()).unwrap();
    assert_eq!(closing.await.unwrap(), Some(5));
    assert!(!feed.complete());
    // Nor does the barrier of a snapshot claim what is missing.
    feed.make_durable(at(100)).await.unwrap();
    assert_eq!(own.applied_index().unwrap(), Some(5));
}

/// The last entries that this node applied had no facts. It says all the same that it has all facts up to there: whoever
/// asks for them would wait for facts that never come.
#[tokio::test]
async fn an_archive_catches_up_with_entries_without_facts() {
    let own = Arc::new(MemArchive::empty());
    let feed = start(&own);
    apply(
        &feed,
        vec![entry(3, vec![finished("a", 3, 3, &spec(100, DAY_MS))])],
    )
    .await;
    for index in 4..=9 {
        feed.checked(LogPosition { term: 1, index }, None);
    }
    let asked = ArchiveQuestion {
        at_least: 9,
        cursor: None,
        max_bytes: 4_096,
    };
    assert!(matches!(
        serve_export(&*own, true, &asked),
        ArchiveAnswer::Behind
    ));
    feed.catch_up().await.unwrap();
    assert_eq!(own.applied_index().unwrap(), Some(9));
    assert_eq!(ids(&*own), [3]);
    assert!(matches!(
        serve_export(&*own, true, &asked),
        ArchiveAnswer::Chunk { .. }
    ));
    // One that misses facts claims nothing.
    feed.replaced(LogPosition { term: 1, index: 50 }, State::default())
        .await;
    feed.checked(LogPosition { term: 1, index: 51 }, None);
    feed.catch_up().await.unwrap();
    assert_eq!(own.applied_index().unwrap(), Some(9));
}
