//! SH: shards.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenure_machine::{Command, Counter};
use tenure_sim::clock::EPOCH_MS;
use tenure_sim::scope;
use tenure_sim::stage::holds;

use crate::{next_heartbeat, plan, under, under_seeds, words};

#[test]
fn sh_1_the_next_owner_of_a_shard_goes_on_from_the_checkpoint() {
    // 1,000 records to a checkpoint, and a heartbeat with the progress about every 200.
    under_seeds(&plan(2, 7_000), async |s| {
        let first = s.executor(0);
        s.define(
            "sync",
            "trigger: { manual: true }\noverlap: forbid\nrecovery: immediate\n",
            "total: 2000, pace_ms: 5, every: 1000",
        )
        .await?;
        let run = s.trigger("sync").await?;
        let epoch = s.works(0, run).await?;
        let progressed = || {
            let state = s.state();
            let task = state.task(run, 0)?;
            let committed = task.checkpoint.as_ref()?.offset;
            let progress = task.progress.filter(|progress| *progress >= 1_100)?;
            (committed == 1_000).then_some(progress)
        };
        let progress = s
            .until("it is beyond its checkpoint", 60_000, progressed)
            .await?;
        s.executor(1);
        let session = s.session(0).ok_or("no session")?;
        scope::pause(first);
        let next = s.works(1, run).await?;
        holds(next == epoch + 1, format!("epoch {next} after {epoch}"))?;
        let state = s.state();
        let progress = state
            .task(run, 0)
            .and_then(|task| task.last_progress)
            .unwrap_or(progress);
        holds(
            s.counter(Counter::ReplayedRecords) == 0,
            "replayed before it began",
        )?;
        // The old owner wakes up amid the work of the new one.
        let stale =
            s.counter(Counter::StaleEpochRejections) + s.counter(Counter::StaleSessionRejections);
        let from = s.log().len();
        scope::resume(first);
        s.pass(1_000).await;
        let log = s.log();
        let of_old = log[from..].iter().filter(|entry| match &entry.command {
            Command::Checkpoint { session: of, .. } | Command::ReportResult { session: of, .. } => {
                *of == session
            }
            Command::Heartbeat(beat) => beat.session == session,
            _ => false,
        });
        let of_old: Vec<_> = of_old.collect();
        holds(
            of_old.iter().all(|entry| !entry.done),
            "the old owner had an effect",
        )?;
        let counted = s.counter(Counter::StaleEpochRejections)
            + s.counter(Counter::StaleSessionRejections)
            - stale;
        holds(
            counted >= of_old.len() as u64,
            format!("{counted} refusals are counted"),
        )?;
        // Nor has what it says under the old epoch in its next session.
        let again = || s.session(0).filter(|new| *new != session);
        let again = s.until("it has a new session", 20_000, again).await?;
        let before = s.counter(Counter::StaleEpochRejections);
        for (what, body) in words(run, epoch) {
            let answer = s.say(again, what, body).await?;
            let refused = match what {
                "heartbeat" => answer["tasks"][0]["verdict"] == "lost",
                _ => answer["code"] == "stale_epoch",
            };
            holds(refused, format!("{what} under the old epoch: {answer}"))?;
        }
        let refused = s.counter(Counter::StaleEpochRejections) - before;
        holds(refused >= 4, format!("{refused} refusals are counted"))?;
        s.succeeds(run, 60_000).await?;
        let replayed = s.counter(Counter::ReplayedRecords);
        holds(
            replayed == progress - 1_000,
            format!("{replayed} records are counted as replayed, it had come to {progress}"),
        )?;
        // Each record is stored, and those behind the checkpoint may have been written twice. That none has been stored
        // by the old owner after one of the new is an invariant.
        let (accepted, _) = s.world.site.writes();
        holds(
            (2_000..=2_000 + replayed + 400).contains(&accepted),
            format!("{accepted} writes for 2000 records, {replayed} replayed"),
        )
    });
}

#[test]
fn sh_3_a_checkpoint_and_the_expiry_race_and_the_log_decides() {
    let (accepted, refused) = (AtomicBool::new(false), AtomicBool::new(false));
    let seeds = AtomicU64::new(0);
    under(24, &plan(2, 7_000), async |s| {
        let nth = seeds.fetch_add(1, Ordering::Relaxed);
        let first = s.executor(0);
        s.define(
            "sync",
            "trigger: { manual: true }\noverlap: forbid\nrecovery: immediate\n",
            "total: 60, pace_ms: 200, every: 1",
        )
        .await?;
        let run = s.trigger("sync").await?;
        let epoch = s.works(0, run).await?;
        let session = s.session(0).ok_or("no session")?;
        let beat_ms = next_heartbeat(s, session).await?;
        s.executor(1);
        // A checkpoint is on the wire when the executor is suspended; it arrives around the end of the lease.
        let network = &s.world.network;
        network.hold(first, "/checkpoint");
        let held = || (network.held(first) > 0).then_some(());
        s.until("a checkpoint is on the wire", 1_000, held).await?;
        scope::pause(first);
        let end_ms = beat_ms + 7_000;
        let heal_ms = end_ms - 120 + nth * 10;
        let now_ms = s.now_ms() - EPOCH_MS;
        s.pass(heal_ms - now_ms).await;
        network.release(first);
        let is_expiry = |command: &Command| match command {
            Command::ExpireSession { session: of, .. } => *of == session,
            Command::ExpireTask { task, .. } => (task.run, task.epoch) == (run, epoch),
            _ => false,
        };
        let expiry = || {
            s.log()
                .iter()
                .position(|entry| entry.done && is_expiry(&entry.command))
        };
        let at = s.until("the lease ends", 20_000, expiry).await?;
        s.works(1, run).await?;
        scope::resume(first);
        let log = s.log();
        let mut last = None;
        for (place, entry) in log.iter().enumerate() {
            let Command::Checkpoint {
                session: of,
                task,
                offset,
                ..
            } = &entry.command
            else {
                continue;
            };
            if *of != session || task.run != run {
                continue;
            }
            holds(
                !entry.done || place < at,
                "a checkpoint was accepted after the expiry",
            )?;
            if entry.done {
                last = Some(*offset);
                let raced = entry.at_ms >= heal_ms;
                accepted.fetch_or(raced, Ordering::Relaxed);
            } else {
                refused.store(true, Ordering::Relaxed);
            }
        }
        let state = s.state();
        let start = state.task(run, 0).and_then(|task| task.checkpoint.clone());
        // That the next owner starts where the last accepted one stands is an invariant, too.
        let start = start.map(|checkpoint| checkpoint.offset);
        holds(
            start >= last,
            format!("the next owner starts at {start:?}, {last:?} was committed"),
        )?;
        s.succeeds(run, 60_000).await
    });
    assert!(accepted.into_inner(), "no checkpoint was in time");
    assert!(refused.into_inner(), "no checkpoint was late");
}
