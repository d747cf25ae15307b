//! Three nodes with real files and real TCP: elections, failures, restarts, reads.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use support::*;
use tenure_machine::Command;
use tenure_raft::config::RaftConfig;
use tenure_raft::contacts::Contact;
use tenure_raft::propose::{AdminError, ForwardError, ProposeError, ReadError};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_committed_read_and_heard_everywhere() {
    let cluster = Cluster::running(3, test_config()).await;
    let leader = cluster.leader().await;
    let done = propose(cluster.node(leader), register("w"))
        .await
        .expect("committed");
    done.reply.expect("accepted");
    let read = cluster
        .node(leader)
        .read(LIMIT)
        .await
        .expect("linearizable");
    assert!(has(&read.state, "w") && read.applied >= Some(done.at));
    for id in cluster.ids() {
        cluster.caught_up(id).await;
        assert!(has(&cluster.node(id).state(), "w"), "node {id} has it");
        eventually("its events were heard", || {
            let heard = cluster.above(id).heard.lock().unwrap();
            heard.contains(&done.at).then_some(())
        })
        .await;
    }
    cluster.no_failures();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_says_who_leads_and_forwards() {
    let cluster = Cluster::running(3, test_config()).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let refused = propose(cluster.node(follower), register("w"))
        .await
        .expect_err("no leader");
    let ProposeError::NotLeader { leader: Some(hint) } = &refused else {
        panic!("unexpected {refused:?}");
    };
    assert!(refused.did_not_happen());
    assert_eq!(
        (hint.id, hint.member.clone()),
        (leader, Some(cluster.member(leader)))
    );
    let read = cluster
        .node(follower)
        .read(LIMIT)
        .await
        .expect_err("no leader");
    assert!(matches!(read, ReadError::NotLeader { leader: Some(hint) } if hint.id == leader));
    let answer = cluster
        .node(follower)
        .forward(Bytes::from("hello"), LIMIT)
        .await;
    let expected = format!("node {leader} heard \"hello\" from node {follower}");
    assert_eq!(answer.expect("answered"), Bytes::from(expected));
    let itself = cluster
        .node(leader)
        .forward(Bytes::from("hello"), LIMIT)
        .await;
    assert_eq!(itself, Err(ForwardError::IsLeader));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_catches_up_by_the_log() {
    let mut cluster = Cluster::running(3, test_config()).await;
    commit(&cluster, "before").await;
    let killed = cluster.leader().await;
    let old_term = cluster.node(killed).standing().leadership.term;
    cluster.kill(killed).await;
    commit(&cluster, "meanwhile").await;
    let leader = cluster.leader().await;
    assert_ne!(leader, killed);
    assert!(cluster.node(leader).standing().leadership.term > old_term);
    eventually("the leader sees the dead port", || {
        let contact = cluster.node(leader).standing().contacts.remove(&killed);
        (contact == Some(Contact::Refused)).then_some(())
    })
    .await;
    cluster.restart(killed).await;
    cluster.caught_up(killed).await;
    let state = cluster.node(killed).state();
    assert!(has(&state, "before") && has(&state, "meanwhile"));
    assert!(
        cluster.above(killed).replaced.lock().unwrap().is_empty(),
        "no snapshot was needed"
    );
    cluster.no_failures();
}

/// Takes snapshots early and keeps hardly any log.
fn impatient() -> RaftConfig {
    RaftConfig {
        snapshot_floor_bytes: 4 << 10,
        keep_log_entries: 5,
        snapshot_chunk_bytes: 4 << 10,
        ..test_config()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_after_the_purge_takes_a_snapshot() {
    let mut cluster = Cluster::running(3, impatient()).await;
    let late = cluster.follower().await;
    cluster.caught_up(late).await;
    let had = cluster.node(late).standing().last_log;
    cluster.kill(late).await;
    for n in 0..200 {
        commit(&cluster, &format!("w-{n}")).await;
    }
    let leader = cluster.leader().await;
    eventually("the leader purged what the late node needs", || {
        let purged = cluster.node(leader).standing().purged.map(|at| at.index);
        (purged > had).then_some(())
    })
    .await;
    let barriers = cluster.above(leader).barriers.lock().unwrap().clone();
    let purged = cluster.node(leader).standing().purged;
    assert!(barriers.last() >= purged.as_ref(), "the barrier came first");
    cluster.restart(late).await;
    cluster.caught_up(late).await;
    assert!(
        !cluster.above(late).replaced.lock().unwrap().is_empty(),
        "by a snapshot"
    );
    let leader = cluster.leader().await;
    let goal = cluster.node(leader).stale();
    eventually("the states are the same", || {
        let replica = cluster.node(late).stale();
        (replica.applied == goal.applied).then(|| {
            assert_eq!(replica.state.hash(), goal.state.hash());
        })
    })
    .await;
    // What it took must carry it over a restart of its own.
    cluster.kill(late).await;
    cluster.restart(late).await;
    cluster.caught_up(late).await;
    assert!(has(&cluster.node(late).state(), "w-0"));
    cluster.no_failures();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_missing_after_all_nodes_died() {
    let mut cluster = Cluster::running(3, impatient()).await;
    for round in 0..3 {
        for n in 0..30 {
            commit(&cluster, &format!("w-{round}-{n}")).await;
        }
        for id in cluster.ids() {
            cluster.kill(id).await;
        }
        for id in 1..=3 {
            cluster.restart(id).await;
        }
        let leader = cluster.leader().await;
        let read = cluster
            .node(leader)
            .read(LIMIT)
            .await
            .expect("linearizable");
        for n in 0..30 {
            assert!(
                has(&read.state, &format!("w-{round}-{n}")),
                "round {round}: {n} is there"
            );
        }
    }
    cluster.no_failures();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_of_an_earlier_term_is_refused_even_by_the_same_node() {
    let cluster = Cluster::running(3, test_config()).await;
    let (first, second) = (cluster.leader().await, cluster.follower().await);
    let old = cluster
        .node(first)
        .standing()
        .leadership
        .leads()
        .expect("leads");
    let start = || vec![Command::TermStarted { grace_ms: 1 }];
    let done = cluster.node(first).propose_all(old, start(), LIMIT).await;
    done[0]
        .as_ref()
        .expect("committed")
        .reply
        .as_ref()
        .expect("accepted");

    cluster
        .node(first)
        .transfer_leadership(second, LIMIT)
        .await
        .expect("moved");
    assert_eq!(cluster.leader().await, second);
    let refused = cluster.node(first).propose_all(old, start(), LIMIT).await;
    assert!(
        matches!(
            refused[0],
            Err(ProposeError::NotLeader { .. } | ProposeError::StaleTerm { .. })
        ),
        "{refused:?}"
    );

    cluster
        .node(second)
        .transfer_leadership(first, LIMIT)
        .await
        .expect("moved back");
    assert_eq!(cluster.leader().await, first);
    let refused = cluster.node(first).propose_all(old, start(), LIMIT).await;
    let present = cluster.node(first).standing().leadership.term;
    assert!(present > old);
    assert_eq!(
        refused[0],
        Err(ProposeError::StaleTerm {
            asked: old,
            present
        })
    );
    cluster.no_failures();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_leader_keep_their_order() {
    let cluster = Cluster::running(3, test_config()).await;
    let leader = cluster.leader().await;
    let term = cluster
        .node(leader)
        .standing()
        .leadership
        .leads()
        .expect("leads");
    let commands = (0..200).map(|n| register(&format!("w-{n}"))).collect();
    let done = cluster
        .node(leader)
        .propose_all(term, commands, LIMIT)
        .await;
    let indexes: Vec<u64> = done
        .into_iter()
        .map(|d| d.expect("committed").at.index)
        .collect();
    assert_eq!(indexes.len(), 200);
    assert!(
        indexes.windows(2).all(|pair| pair[0] < pair[1]),
        "{indexes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_acknowledged_and_nothing_is_read() {
    let mut cluster = Cluster::running(3, test_config()).await;
    let leader = cluster.leader().await;
    for id in cluster.ids() {
        if id != leader {
            cluster.kill(id).await;
        }
    }
    let wait = Duration::from_millis(1_500);
    let node = cluster.node(leader).clone();
    // Refused if the leader knows by then, of unknown outcome if it was appended: never committed.
    let outcome = node.propose(draft(register("w")), wait).await;
    assert!(outcome.is_err(), "{outcome:?}");
    let read = node.read(wait).await.expect_err("no majority");
    assert!(matches!(
        read,
        ReadError::NoQuorum | ReadError::Timeout | ReadError::NotLeader { .. }
    ));
    cluster.restart(1 + leader % 3).await;
    commit(&cluster, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_proposal_too_many_is_refused_at_once() {
    let config = RaftConfig {
        max_inflight_proposals: 1,
        ..test_config()
    };
    let cluster = Cluster::running(3, config).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader).clone();
    // Applying stops at the next events, so at the latest the second proposal waits.
    cluster.above(leader).hold.store(true, Ordering::Relaxed);
    let waiting = tokio::spawn({
        let node = node.clone();
        async move {
            for name in ["a", "b"] {
                let mut outcome = Err(ProposeError::Overloaded);
                while outcome == Err(ProposeError::Overloaded) {
                    tokio::task::yield_now().await;
                    outcome = propose(&node, register(name)).await;
                }
                outcome.expect("committed in the end");
            }
        }
    });
    let end = Instant::now() + LIMIT;
    loop {
        let third = node
            .propose(draft(register("c")), Duration::from_millis(1))
            .await;
        if third == Err(ProposeError::Overloaded) {
            break;
        }
        assert!(Instant::now() < end, "never refused: {third:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    cluster.above(leader).hold.store(false, Ordering::Relaxed);
    waiting.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_over_the_limit_is_refused() {
    let config = RaftConfig {
        max_command_bytes: 4 << 10,
        ..test_config()
    };
    let cluster = Cluster::running(3, config).await;
    let leader = cluster.leader().await;
    let refused = propose(cluster.node(leader), register(&"x".repeat(8 << 10))).await;
    assert!(
        matches!(refused, Err(ProposeError::TooLarge { .. })),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_replaced_by_another() {
    let mut cluster = Cluster::running(3, test_config()).await;
    commit(&cluster, "before").await;
    let leader = cluster.leader().await;
    let again = cluster.node(leader).initialize(cluster.members()).await;
    assert_eq!(again, Err(AdminError::AlreadyInitialized));
    cluster.add(4).await;
    let member = cluster.member(4);
    cluster
        .node(leader)
        .add_learner(4, member, LIMIT)
        .await
        .expect("added");
    let gone = cluster.follower().await;
    let voters: BTreeSet<u64> = (1..=4).filter(|id| *id != gone).collect();
    cluster
        .node(leader)
        .change_membership(voters.clone(), LIMIT)
        .await
        .expect("changed");
    cluster.kill(gone).await;
    commit(&cluster, "after").await;
    cluster.caught_up(4).await;
    let state = cluster.node(4).state();
    assert!(has(&state, "before") && has(&state, "after"));
    let leadership = cluster.node(4).standing().leadership;
    assert_eq!(
        leadership.voters.into_iter().collect::<BTreeSet<_>>(),
        voters
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_node_says_so() {
    let cluster = Cluster::running(3, test_config()).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader).clone();
    let mut leadership = node.leadership();
    node.shutdown().await;
    let refused = node.propose(draft(register("w")), LIMIT).await;
    assert_eq!(refused, Err(ProposeError::Stopped));
    leadership.until(|l| l.leads().is_none()).await;
    cluster.no_failures();
}
