//! How long a cluster takes no writes after its leader's process was killed, in virtual time.
//!
//! A calm cluster of three with the default timers, a steady load of writes, one kill. No faults besides: this
//! measures, the storms of [`crate::run`] judge.

use std::sync::Arc;
use std::time::Duration;

use tenure::leader::LeaderConfig;
use tenure_api::cluster::Role;
use tenure_raft::config::RaftConfig;
use tenure_sdk::{Client, JobBody, Precondition, RetryPolicy};
use tokio::time::{Instant, sleep};

use crate::cluster::Cluster;
use crate::judge::Judge;
use crate::network::Network;
use crate::node::{Crash, NodeSettings};
use crate::run::simulated;
use crate::scope::{self, Process};
use crate::workload::{FIRST_CLIENT, client_with, initialize, job_name};
use crate::world::token;
use crate::{chance, faults};

const NODES: usize = 3;
const WRITERS: usize = 4;
/// Far more than any failover takes.
const LIMIT: Duration = Duration::from_secs(60);

/// What a kill of the leader's process came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failover {
    /// From the kill to the next acknowledged write, in virtual microseconds.
    pub took_us: u64,
    /// By how many terms the cluster went on: more than one where followers stood against each other.
    pub terms: u64,
}

/// Measures one seed; `None` if the cluster did not come up or did not come back.
pub fn measure(seed: u64, fast_failover: bool) -> Option<Failover> {
    let (measured, _, _) = simulated(seed, false, async || {
        let (admin, entry) = token("admin", Role::Admin);
        let tokens = tenure::security::Tokens::new(vec![entry]).ok()?;
        let settings = NodeSettings {
            raft: RaftConfig {
                fast_failover,
                max_command_bytes: 100 << 10,
                ..RaftConfig::default()
            },
            leader: LeaderConfig::default(),
            tokens: Arc::new(tokens),
        };
        let network = Network::new();
        let clocks = (0..NODES).map(|_| faults::clock(0)).collect();
        let cluster = Cluster::new(clocks, settings, network.clone(), Judge::new()).await;
        for node in cluster.nodes() {
            cluster.start(node);
        }
        let hand = client(&network, FIRST_CLIENT, admin.expose());
        let measured = tokio::time::timeout(
            LIMIT,
            kill_one(&cluster, &hand, || {
                for at in 1..=WRITERS {
                    let writer = client(&network, FIRST_CLIENT + at, admin.expose());
                    scope::spawn_in(FIRST_CLIENT + at, write_on(writer, at));
                }
            }),
        );
        let measured = measured.await.ok().flatten();
        for at in 1..=WRITERS {
            scope::kill(FIRST_CLIENT + at);
        }
        cluster.dissolve();
        measured
    });
    measured
}

async fn kill_one(cluster: &Arc<Cluster>, hand: &Client, load: impl FnOnce()) -> Option<Failover> {
    initialize(hand, NODES).await;
    // The hand knows who leads.
    write(hand, "first", Precondition::None).await;
    load();
    sleep(Duration::from_millis(chance::between(1_000, 1_500))).await;
    let leader = cluster.agreed_leader()?;
    let term = cluster.standing(leader)?.term;
    cluster.crash(leader, Crash::Kill);
    let began = Instant::now();
    write(hand, "next", Precondition::None).await;
    let took_us = began.elapsed().as_micros() as u64;
    let led = cluster.led(LIMIT).await?;
    Some(Failover {
        took_us,
        terms: cluster.standing(led)?.term - term,
    })
}

/// A client that asks again at once.
fn client(network: &Arc<Network>, process: Process, token: &str) -> Client {
    let pause = Duration::from_millis(5);
    let policy = RetryPolicy {
        initial_backoff: pause,
        max_backoff: pause,
        attempt_timeout: Duration::from_secs(1),
        overall_timeout: LIMIT,
    };
    client_with(network, process, 1..=NODES, token, policy)
}

/// Writes until it is acknowledged.
async fn write(client: &Client, name: &str, precondition: Precondition) {
    let body = JobBody::Yaml(format!(
        "name: {name}\ntrigger: {{ manual: true }}\ntask: {{ capability: none }}\n\
         description: edition {}\n",
        chance::between(0, 1_000_000)
    ));
    let name = job_name(name);
    while client.put_job(&name, &body, precondition).await.is_err() {
        sleep(Duration::from_millis(1)).await;
    }
}

async fn write_on(client: Client, writer: usize) {
    let name = format!("job-{writer}");
    write(&client, &name, Precondition::None).await;
    loop {
        write(&client, &name, Precondition::Exists).await;
        sleep(Duration::from_millis(chance::between(0, 10))).await;
    }
}
