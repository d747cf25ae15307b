//! A cluster and what is around it: the same for a storm and for a directed script.

use std::sync::Arc;
use std::time::Duration;

use tenure::security::{Principal, TokenText, Tokens, issue_token};
use tenure_api::cluster::Role;
use tenure_sdk::{Client, RetryPolicy};
use tokio::time::sleep;

use crate::chance::SeededEntropy;
use crate::clock::{self, MachineClock};
use crate::cluster::Cluster;
use crate::judge::{Judge, Seen};
use crate::network::{Network, name};
use crate::node::NodeSettings;
use crate::plan::Plan;
use crate::run::must_not_outlive;
use crate::scope::{self, Process};
use crate::site::Site;
use crate::tell;
use crate::workload::{self, initialize};

/// Nodes that run, their network, the executors' site and the judge.
pub struct World {
    /// Who checks what they do.
    pub judge: Arc<Judge>,
    /// What they talk over.
    pub network: Arc<Network>,
    /// The nodes.
    pub cluster: Arc<Cluster>,
    /// Where executors run.
    pub site: Arc<Site>,
    nodes: usize,
    admin: TokenText,
}

/// A token and what the nodes know of it.
pub(crate) fn token(name: &str, role: Role) -> (TokenText, tenure::security::TokenEntry) {
    let principal = Principal {
        name: name.parse().expect("a valid name"),
        role,
    };
    issue_token(&SeededEntropy, principal).expect("the seed gives numbers")
}

impl World {
    /// The world of a plan, with its nodes started on machines with these clocks. There is no cluster yet.
    pub async fn new(plan: &Plan, clocks: Vec<Arc<MachineClock>>) -> Self {
        let judge = Judge::new();
        let network = Network::new();
        let (tap, answer_tap) = (judge.clone(), judge.clone());
        network.set_taps(
            Box::new(move |from, to, lane, bytes| tap.message(from, to, lane, bytes)),
            Arc::new(move |node, lane, request, answer| {
                answer_tap.answer(node, lane, request, answer);
            }),
        );
        let probe_tap = judge.clone();
        network.set_probe_tap(Box::new(move |probed| {
            probe_tap.show(&Seen::Probed(probed));
        }));
        let (admin, admin_entry) = token("admin", Role::Admin);
        let (worker, worker_entry) = token("worker", Role::Executor);
        let tokens = Tokens::new(vec![admin_entry, worker_entry]).expect("two tokens");
        let settings = NodeSettings {
            raft: plan.raft.clone(),
            leader: plan.leader.clone(),
            tokens: Arc::new(tokens),
        };
        let cluster = Cluster::new(clocks, settings, network.clone(), judge.clone()).await;
        for node in cluster.nodes() {
            cluster.start(node);
        }
        scope::spawn_in(scope::WORLD, watch_the_lead(cluster.clone()));
        let site = Site::new(
            network.clone(),
            judge.clone(),
            plan.nodes,
            worker.expose().to_owned(),
            plan.lease_ttl_ms,
        );
        must_not_outlive("the judge", &judge);
        must_not_outlive("the network", &network);
        must_not_outlive("the cluster", &cluster);
        must_not_outlive("the site", &site);
        Self {
            judge,
            network,
            cluster,
            site,
            nodes: plan.nodes,
            admin,
        }
    }

    /// A client that knows all nodes.
    pub fn client(&self, process: Process) -> Client {
        self.client_of(process, 1..=self.nodes)
    }

    /// A client that knows these nodes only.
    pub fn client_of(&self, process: Process, nodes: impl IntoIterator<Item = Process>) -> Client {
        workload::client(&self.network, process, nodes, self.admin.expose())
    }

    /// Makes clients that ask this node first, whoever leads, and give up soon.
    pub fn hurried_client(
        &self,
        process: Process,
        node: Process,
    ) -> impl Fn() -> Client + Send + Sync + use<> {
        let (network, token) = (self.network.clone(), self.admin.expose().to_owned());
        move || {
            let policy = RetryPolicy {
                attempt_timeout: Duration::from_millis(300),
                overall_timeout: Duration::from_millis(300),
                ..RetryPolicy::default()
            };
            workload::client_with(&network, process, [node], &token, policy)
        }
    }

    /// Makes the cluster, for as long as that takes.
    pub async fn found(&self, client: &Client) {
        initialize(client, self.nodes).await;
    }
}

/// Tells the judge for how long there is a leader, and the story who believes to lead.
async fn watch_the_lead(cluster: Arc<Cluster>) {
    let (mut before_us, mut leaders) = (clock::true_us(), Vec::new());
    loop {
        sleep(Duration::from_millis(50)).await;
        let term = |node| cluster.standing(node).map_or(0, |standing| standing.term);
        let now: Vec<_> = cluster
            .leaders()
            .into_iter()
            .map(|n| (n, term(n)))
            .collect();
        if now != leaders {
            let said = now
                .iter()
                .map(|(node, term)| format!("{} leads term {term}", name(*node)));
            let said: Vec<String> = said.collect();
            tell!(
                "by their own account: {}",
                if said.is_empty() {
                    "nobody leads".into()
                } else {
                    said.join(", ")
                }
            );
            leaders = now;
        }
        let now_us = clock::true_us();
        cluster.judge.show(&Seen::Passed {
            us: now_us - before_us,
            led: cluster.led_now(),
        });
        before_us = now_us;
    }
}
