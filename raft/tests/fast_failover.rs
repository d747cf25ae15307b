//! What follows when a leader's process is certainly dead, and when it only seems so. Real TCP.
//!
//! The timers wait for minutes, longer than a test does: whoever is elected here was not elected by them. This
//! also holds openraft to a use of its interface that it does not document: a follower gives the request of a
//! hand-over to itself.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::*;
use tenure_machine::{Command, Name};
use tenure_raft::config::RaftConfig;
use tenure_raft::propose::ReadError;
use tenure_raft::types::{Member, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// No timer ends while a test runs. The turns are far apart: the machine may be busy.
fn without_timers() -> RaftConfig {
    RaftConfig {
        heartbeat_interval_ms: 1_000,
        election_timeout_min_ms: 200_000,
        election_timeout_max_ms: 400_000,
        quorum_loss_probe_interval_ms: 800_000,
        ..RaftConfig::default()
    }
}

fn term(cluster: &Cluster, id: NodeId) -> u64 {
    cluster.node(id).standing().leadership.term
}

fn fast_failovers(cluster: &Cluster) -> u64 {
    let ids = cluster.ids().into_iter();
    ids.map(|id| cluster.node(id).standing().fast_failovers)
        .sum()
}

async fn all_caught_up(cluster: &Cluster) {
    for id in cluster.ids() {
        cluster.caught_up(id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_process_is_gone_is_replaced_without_a_timer() {
    let mut cluster = Cluster::running(3, without_timers()).await;
    commit(&cluster, "before").await;
    for round in 1..=2 {
        all_caught_up(&cluster).await;
        let killed = cluster.leader().await;
        let old_term = term(&cluster, killed);
        cluster.kill(killed).await;
        let leader = cluster.leader().await;
        assert_ne!(leader, killed);
        assert_eq!(term(&cluster, leader), old_term + 1, "one election");
        // That of the first round went with the process of its winner.
        assert_eq!(fast_failovers(&cluster), 1, "one node stood, once");
        let name = format!("after-{round}");
        commit(&cluster, &name).await;
        let read = cluster.node(leader).read(LIMIT).await;
        let state = read.expect("linearizable").state;
        assert!(has(&state, "before") && has(&state, &name));
        cluster.restart(killed).await;
        cluster.caught_up(killed).await;
    }
    cluster.no_failures();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_of_a_follower_is_nobodys_concern() {
    let mut cluster = Cluster::running(3, without_timers()).await;
    all_caught_up(&cluster).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let before = term(&cluster, leader);
    cluster.kill(follower).await;
    commit(&cluster, "after").await;
    cluster.restart(follower).await;
    cluster.caught_up(follower).await;
    assert_eq!(cluster.leader().await, leader);
    assert_eq!(
        (term(&cluster, leader), fast_failovers(&cluster)),
        (before, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_is_off_the_timers_do_it() {
    let config = RaftConfig {
        fast_failover: false,
        ..test_config()
    };
    let mut cluster = Cluster::running(3, config).await;
    let killed = cluster.leader().await;
    cluster.kill(killed).await;
    commit(&cluster, "after").await;
    assert_ne!(cluster.leader().await, killed);
    assert_eq!(fast_failovers(&cluster), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_a_vote_does_nothing() {
    let mut cluster = Cluster::running(1, without_timers()).await;
    for id in [2, 3] {
        cluster.add(id).await;
        let member = cluster.member(id);
        let added = cluster.node(1).add_learner(id, member, LIMIT).await;
        added.expect("added");
    }
    all_caught_up(&cluster).await;
    let before = term(&cluster, 1);
    cluster.kill(1).await;
    cluster.restart(1).await;
    // The only voter elects itself; by then the others have seen its port refuse.
    cluster.leader().await;
    all_caught_up(&cluster).await;
    assert_eq!(
        (term(&cluster, 1), fast_failovers(&cluster)),
        (before + 1, 0)
    );
}

/// Stands before a node's port, and can do what networks do.
struct Door {
    address: SocketAddr,
    to: SocketAddr,
    open: Option<JoinHandle<()>>,
    /// Connections that were closed without a word.
    probes: Arc<AtomicU64>,
}

impl Door {
    async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut door = Self {
            address: listener.local_addr().expect("bound"),
            to,
            open: None,
            probes: Arc::default(),
        };
        door.serve(listener);
        door
    }

    fn serve(&mut self, listener: TcpListener) {
        let (to, probes) = (self.to, self.probes.clone());
        self.open = Some(tokio::spawn(async move {
            let mut pipes = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let probes = probes.clone();
                pipes.spawn(async move { pass(stream, to, &probes).await.ok() });
            }
        }));
    }

    /// Breaks all connections through it; from now on it refuses.
    async fn shut(&mut self) {
        if let Some(open) = self.open.take() {
            open.abort();
            drop(open.await);
        }
    }

    async fn reopen(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("its port");
        self.serve(listener);
    }
}

async fn pass(mut from: TcpStream, to: SocketAddr, probes: &AtomicU64) -> std::io::Result<()> {
    let mut first = [0];
    if from.read(&mut first).await? == 0 {
        probes.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    let mut to = TcpStream::connect(to).await?;
    to.set_nodelay(true)?;
    from.set_nodelay(true)?;
    to.write_all(&first).await?;
    copy_bidirectional(&mut from, &mut to).await?;
    Ok(())
}

/// Three nodes, each behind a door.
async fn behind_doors() -> (Cluster, BTreeMap<NodeId, Door>) {
    let cluster = Cluster::start(3, without_timers()).await;
    let (mut doors, mut members) = (BTreeMap::new(), BTreeMap::new());
    for id in cluster.ids() {
        let door = Door::new(cluster.tcp(id).peer_address()).await;
        let member = Member {
            peer_address: door.address.to_string(),
            ..cluster.member(id)
        };
        doors.insert(id, door);
        members.insert(id, member);
    }
    let made = cluster.node(1).initialize(members).await;
    made.expect("initialised");
    let bootstrap = Command::Bootstrap {
        cluster_id: Name::new("test"),
        generation: 1,
    };
    commit_command(&cluster, bootstrap).await;
    all_caught_up(&cluster).await;
    (cluster, doors)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_to_a_port_that_answers_is_no_death() {
    let (cluster, mut doors) = behind_doors().await;
    let leader = cluster.leader().await;
    let before = term(&cluster, leader);
    for round in 0..3 {
        let probes = doors[&leader].probes.load(Ordering::Relaxed);
        for (_, door) in doors.iter_mut().filter(|(id, _)| **id != leader) {
            door.shut().await;
        }
        // As long as the doors are shut, nothing else tells the followers that it lives.
        eventually("the leader's port was looked at", || {
            let now = doors[&leader].probes.load(Ordering::Relaxed);
            (now > probes).then_some(())
        })
        .await;
        for (_, door) in doors.iter_mut().filter(|(id, _)| **id != leader) {
            door.reopen().await;
        }
        commit(&cluster, &format!("w-{round}")).await;
        all_caught_up(&cluster).await;
    }
    assert_eq!(cluster.leader().await, leader);
    assert_eq!(
        (term(&cluster, leader), fast_failovers(&cluster)),
        (before, 0)
    );
    let heard = cluster
        .tcp(leader)
        .transport()
        .stats()
        .rejected_handshakes();
    assert_eq!(heard, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusing_port_alone_is_no_death() {
    let (cluster, mut doors) = behind_doors().await;
    let leader = cluster.leader().await;
    let before = term(&cluster, leader);
    // What the leader dialled itself stays whole.
    doors.get_mut(&leader).expect("a door").shut().await;
    for round in 0..20 {
        commit(&cluster, &format!("w-{round}")).await;
    }
    all_caught_up(&cluster).await;
    assert_eq!(
        (term(&cluster, leader), fast_failovers(&cluster)),
        (before, 0)
    );
}

/// A false alarm costs an election, and no promise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_living_leader_that_is_taken_for_dead_steps_down_and_loses_nothing() {
    let (cluster, mut doors) = behind_doors().await;
    let old = cluster.leader().await;
    let before = term(&cluster, old);
    commit(&cluster, "before").await;
    all_caught_up(&cluster).await;
    doors.get_mut(&old).expect("a door").shut().await;
    let others: Vec<NodeId> = cluster.ids().into_iter().filter(|id| *id != old).collect();
    let leads = |id: &NodeId| cluster.node(*id).standing().leadership.leads().is_some();
    let end = Instant::now() + LIMIT;
    let new = loop {
        // Where its next connection is quicker than the look at its port, it is known to live.
        for id in &others {
            let door = doors.get_mut(id).expect("a door");
            door.shut().await;
            door.reopen().await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        if let Some(new) = others.iter().copied().find(leads) {
            break new;
        }
        assert!(Instant::now() < end, "no other node leads");
    };
    assert_eq!(term(&cluster, new), before + 1);
    propose(cluster.node(new), register("after"))
        .await
        .expect("committed");
    // The old one may not know yet; what it says is fresh or nothing.
    match cluster.node(old).read(LIMIT).await {
        Ok(read) => assert!(has(&read.state, "after"), "a stale read"),
        Err(ReadError::NotLeader { .. } | ReadError::NoQuorum | ReadError::Timeout) => {}
        Err(other) => panic!("unexpected {other:?}"),
    }
    doors.get_mut(&old).expect("a door").reopen().await;
    cluster.caught_up(old).await;
    let state = cluster.node(old).state();
    assert!(has(&state, "before") && has(&state, "after"));
    assert_eq!(
        (term(&cluster, old), fast_failovers(&cluster)),
        (before + 1, 1)
    );
    cluster.no_failures();
}
