//! Snapshots on bad disks.

use tenure_raft::config::RaftConfig;
use tenure_raft::transport::Lane;
use tenure_raft::wire::PeerRequest;
use tenure_sim::cluster::Condition;
use tenure_sim::damage::newest_snapshot;
use tenure_sim::plan::Plan;
use tenure_sim::scope::Process;
use tenure_sim::stage::{Stage, holds, struck};
use tenure_sim::traps::Moment;

use crate::{EVERY_SECOND, LEASE_MS, SHORT, plan, under_seeds};

/// A plan in which the log is purged behind each snapshot.
fn purging() -> Plan {
    let calm = plan(1, LEASE_MS);
    let raft = RaftConfig {
        keep_log_entries: 0,
        ..calm.raft.clone()
    };
    Plan { raft, ..calm }
}

/// Stops a follower until the leader has purged what it lacks; the leader, and the follower, which is down.
async fn needs_a_snapshot(s: &Stage) -> Result<(Process, Process), String> {
    s.executor(0);
    s.define("tick", EVERY_SECOND, SHORT).await?;
    let leader = s.led().await?;
    let away = s.others(leader)[0];
    s.pass(2_000).await;
    let standing = s.world.cluster.standing(away);
    let has = standing.map_or(0, |standing| standing.last_log);
    s.kill(away);
    s.pass(5_000).await;
    let running = s.world.cluster.running(leader).ok_or("it does not run")?;
    let asked = running.consensus.node().trigger_snapshot().await;
    asked.map_err(|error| error.to_string())?;
    let purged = || {
        let standing = s.world.cluster.standing(leader)?;
        (standing.purged > has).then_some((leader, away))
    };
    s.until("the log is purged", 20_000, purged).await
}

#[test]
fn a_leader_whose_snapshot_decayed_makes_a_new_one() {
    under_seeds(&purging(), async |s| {
        let (leader, away) = needs_a_snapshot(s).await?;
        holds(s.world.cluster.claim_damage(leader), "not the first damage")?;
        let disk = s.world.cluster.disk(leader);
        let (path, bytes) = newest_snapshot(&disk).await.ok_or("no snapshot")?;
        disk.flip(&path, bytes / 2, 4).unwrap();
        s.start(away);
        s.pass(20_000).await;
        s.all_equal().await?;
        let leads = s.world.cluster.leaders() == [leader];
        holds(leads, "the lead was lost")
    });
}

#[test]
fn a_failed_sync_of_a_received_snapshot_ends_the_node() {
    under_seeds(&purging(), async |s| {
        let (_, away) = needs_a_snapshot(s).await?;
        let cluster = s.world.cluster.clone();
        let pieces = |moment: Moment<'_>| match moment {
            Moment::Sent {
                to,
                lane: Lane::Snapshot,
                ..
            } => Some(to),
            _ => None,
        };
        let fail = move |node| cluster.disk(node).fail_sync(0);
        let moment = s.at_the_moment(pieces, fail);
        s.start(away);
        struck(s, &moment, 20_000).await?;
        let ended = || matches!(s.world.cluster.condition(away), Condition::Ended(_)).then_some(());
        s.until("the node ends", 5_000, ended).await?;
        s.kill(away);
        s.start(away);
        s.pass(10_000).await;
        s.all_equal().await
    });
}

#[test]
fn the_end_of_a_snapshot_is_asked_for_until_it_is_answered() {
    under_seeds(&purging(), async |s| {
        let (leader, away) = needs_a_snapshot(s).await?;
        let ends = |moment: Moment<'_>| match moment {
            Moment::Sent {
                to,
                request: Some(PeerRequest::SnapshotInstall(_)),
                ..
            } => Some(to),
            _ => None,
        };
        // What it answers then is lost, under some of the seeds.
        let network = s.world.network.clone();
        let moment = s.at_the_moment(ends, move |node| network.cut(node, leader));
        s.start(away);
        struck(s, &moment, 20_000).await?;
        s.pass(400).await;
        s.heal();
        let caught_up = || {
            let [its, theirs] = [away, leader].map(|n| s.world.cluster.replica(n));
            (its?.applied == theirs?.applied).then_some(())
        };
        s.until("it catches up", 10_000, caught_up).await
    });
}
