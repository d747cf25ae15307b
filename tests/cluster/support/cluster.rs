//! Three real nodes in a folder of their own.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::config::{HttpSettings, Listen, LogSettings, MemberConfig, NodeConfig, RaftSettings};
use tenure::leader::LeaderConfig;
use tenure::security::{
    OsEntropy, Principal, generate_cluster_secret, issue_token, write_secret_file,
};
use tenure_api::cluster::{ClusterStatus, InitializeRequest, NewMember, Role};
use tenure_api::job::JobSpec;
use tenure_api::runs::{Run, TaskState, TriggerRequest};
use tenure_api::{JobName, NodeId, RunId, paths};
use tenure_sdk::{Client, JobBody, Precondition, RetryPolicy};

use super::process::{output, tenure};
use super::serial::Share;
use super::wire::Pinned;
use super::{LIMIT, Process, Wire, eventually, holds};

/// Below the ports that the system gives to connections that go out, so that a node finds its port free
/// when it comes back.
const FIRST_PORT: u16 = 15_000;
const PORTS: u16 = 16_000;

/// What differs from the defaults. The timers of consensus never do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// May run beside another test.
    pub(crate) light: bool,
    /// Overrides of `[raft]`, none of them a timer.
    pub(crate) raft: toml::Table,
    /// What a new leader gives each lease, where leases are short.
    pub(crate) grace_ms: Option<u64>,
}

impl Settings {
    pub(crate) fn light() -> Self {
        Self {
            light: true,
            ..Self::default()
        }
    }

    /// Snapshots and purges as often as can be, so that a node that was away misses the log it needs.
    pub(crate) fn frequent_snapshots() -> Self {
        let mut raft = toml::Table::new();
        raft.insert("snapshot_floor_bytes".into(), (64 << 10).into());
        raft.insert("keep_log_entries".into(), 20.into());
        Self {
            raft,
            ..Self::default()
        }
    }
}

/// A node's process and places.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) url: String,
    pub(crate) peer: String,
    pub(crate) data: PathBuf,
    pub(crate) process: Process,
}

/// A cluster. Everything ends with it.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) admin_token: String,
    pub(crate) admin_token_file: PathBuf,
    pub(crate) executor_token: String,
    pub(crate) executor_token_file: PathBuf,
    pub(crate) id: String,
    /// Last, so that the processes end before their folder goes.
    pub(crate) dir: TempDir,
    _share: Share,
}

/// The first of so many ports in a row that nobody listens on, each given once in this process.
pub(crate) fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Two runs of the tests at once begin at different places.
    let begin = u16::try_from(std::process::id().wrapping_mul(997) % u32::from(PORTS))
        .expect("below the modulus");
    loop {
        let step = NEXT.fetch_add(count, Ordering::Relaxed);
        let first = FIRST_PORT + (begin + step % PORTS) % PORTS;
        if (first..first + count).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
}

impl Cluster {
    /// Three nodes that run and have a leader.
    pub(crate) async fn start(settings: Settings) -> Self {
        let mut cluster = Self::prepare(settings).await;
        for node in &mut cluster.nodes {
            node.process.start();
        }
        cluster.initialize().await;
        cluster
    }

    /// Folders, secrets, configuration and identities; no process yet.
    pub(crate) async fn prepare(settings: Settings) -> Self {
        let share = if settings.light {
            Share::light()
        } else {
            Share::whole()
        };
        let dir = tempfile::Builder::new()
            .prefix("tenure-cluster-")
            .tempdir()
            .expect("a folder");
        let root = dir.path().to_owned();
        let secret = generate_cluster_secret(&OsEntropy).expect("random bytes");
        let secret_file = root.join("cluster.secret");
        write_secret_file(&secret_file, secret.expose()).expect("a file");
        let mut lines = String::new();
        let mut token = |name: &str, role| {
            let principal = Principal {
                name: name.parse().expect("a name"),
                role,
            };
            let (text, entry) = issue_token(&OsEntropy, principal).expect("random bytes");
            lines.push_str(&entry.line());
            lines.push('\n');
            let file = root.join(format!("{name}.token"));
            write_secret_file(&file, text.expose().as_bytes()).expect("a file");
            (text.expose().to_owned(), file)
        };
        let (admin_token, admin_token_file) = token("admin", Role::Admin);
        let (executor_token, executor_token_file) = token("executor", Role::Executor);
        let tokens_file = root.join("tokens");
        write_secret_file(&tokens_file, lines.as_bytes()).expect("a file");

        let id = format!("test-{}", std::process::id());
        let members: Vec<MemberConfig> = (1..=3)
            .map(|id| MemberConfig {
                id,
                http: format!("http://127.0.0.1:{}", free_ports(1)),
                peer: format!("127.0.0.1:{}", free_ports(1)),
            })
            .collect();
        let mut nodes = Vec::new();
        for member in &members {
            let http: SocketAddr = member
                .http
                .trim_start_matches("http://")
                .parse()
                .expect("an address");
            let config = NodeConfig {
                cluster_id: id.clone(),
                node_id: member.id,
                data_dir: root.join(format!("node{}", member.id)),
                tokens_file: tokens_file.clone(),
                cluster_secret_file: secret_file.clone(),
                listen: Listen {
                    http,
                    peer: member.peer.parse().expect("an address"),
                },
                members: members.clone(),
                raft: RaftSettings {
                    overrides: settings.raft.clone(),
                    ..RaftSettings::default()
                },
                leader: LeaderConfig {
                    grace_ms: settings
                        .grace_ms
                        .unwrap_or(LeaderConfig::default().grace_ms),
                    ..LeaderConfig::default()
                },
                // Small files are made quickly.
                log: LogSettings {
                    segment_bytes: 20 << 20,
                },
                http: HttpSettings::default(),
            };
            nodes.push(node(&root, member, &config).await);
        }
        Self {
            nodes,
            admin_token,
            admin_token_file,
            executor_token,
            executor_token_file,
            id,
            dir,
            _share: share,
        }
    }

    /// Makes the cluster and waits for its leader.
    pub(crate) async fn initialize(&mut self) {
        let members = self.nodes.iter().map(|node| NewMember {
            id: NodeId(node.id),
            peer_address: node.peer.clone(),
            api_url: node.url.clone(),
        });
        let request = InitializeRequest {
            members: members.collect(),
        };
        let first = self.wire(0);
        eventually("the first node makes the cluster", async || {
            for node in &mut self.nodes {
                assert!(
                    node.process.runs(),
                    "a node ended at its start\n{}",
                    node.process.last_words()
                );
            }
            let answer = first.post(paths::CLUSTER_INITIALIZE, &request).await;
            let answer = answer.map_err(|error| error.to_string())?;
            let made = answer.status == 200 || answer.code() == "already_initialized";
            holds(made, answer.text())
        })
        .await;
        self.all_ready().await;
    }

    // Who is asked.

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.url.clone()).collect()
    }

    /// The administrator's client, patient enough for any failover.
    pub(crate) fn client(&self) -> Client {
        let policy = RetryPolicy {
            overall_timeout: LIMIT,
            ..RetryPolicy::default()
        };
        let client = Client::builder()
            .nodes(self.urls())
            .token(&self.admin_token)
            .retry(policy);
        client.build().expect("a client")
    }

    /// A client that talks to one node only, wherever the leader is.
    pub(crate) fn client_of(&self, place: usize) -> Client {
        let url = self.nodes[place].url.clone();
        let client = Client::builder().node(&url).token(&self.admin_token);
        client.transport(Pinned::to(url)).build().expect("a client")
    }

    /// One node's interface, as the owner of the executors' sessions.
    pub(crate) fn executor_wire(&self, place: usize) -> Wire {
        Wire::new(self.nodes[place].url.clone(), &self.executor_token)
    }

    /// One node's interface, as the administrator.
    pub(crate) fn wire(&self, place: usize) -> Wire {
        Wire::new(self.nodes[place].url.clone(), &self.admin_token)
    }

    /// The program with the environment of an administrator, run to its end.
    pub(crate) async fn cli(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(tenure());
        command
            .args(arguments)
            .env("TENURE_NODES", self.urls().join(","))
            .env("TENURE_TOKEN_FILE", &self.admin_token_file);
        output(command).await
    }

    // How it is.

    /// One node's view, without asking others.
    pub(crate) async fn view(&self, place: usize) -> Result<ClusterStatus, String> {
        let answer = self
            .wire(place)
            .get(paths::CLUSTER)
            .await
            .map_err(|error| error.to_string())?;
        if answer.status == 200 {
            Ok(answer.read())
        } else {
            Err(answer.text())
        }
    }

    /// The place of the node that leads, of those that run.
    pub(crate) async fn leader(&mut self) -> usize {
        let alive: Vec<usize> = (0..self.nodes.len())
            .filter(|place| self.nodes[*place].process.runs())
            .collect();
        eventually("a leader", async || {
            let mut seen = Vec::new();
            for place in &alive {
                let view = self.view(*place).await;
                match &view {
                    Ok(view) if view.leader == Some(view.node) && view.has_quorum => {
                        return Ok(*place);
                    }
                    Ok(view) => seen.push(format!("node {} follows {:?}", view.node, view.leader)),
                    Err(why) => seen.push(why.clone()),
                }
            }
            Err(seen.join("; "))
        })
        .await
    }

    /// A node that runs and does not lead.
    pub(crate) async fn follower(&mut self) -> usize {
        let leader = self.leader().await;
        let follower = (0..self.nodes.len())
            .find(|place| *place != leader && self.nodes[*place].process.runs());
        follower.expect("a second node runs")
    }

    /// Waits until every node that runs says that it can serve.
    pub(crate) async fn all_ready(&mut self) {
        for place in 0..self.nodes.len() {
            if !self.nodes[place].process.runs() {
                continue;
            }
            let wire = self.wire(place);
            let node = &mut self.nodes[place];
            eventually("the node is ready", async || {
                assert!(
                    node.process.runs(),
                    "the node ended\n{}",
                    node.process.last_words()
                );
                let answer = wire
                    .get(paths::HEALTHZ)
                    .await
                    .map_err(|error| error.to_string())?;
                holds(answer.json()["ready"] == true, answer.text())
            })
            .await;
        }
    }

    /// Waits until all nodes have applied the same, and their answers from their own state are the same.
    pub(crate) async fn all_alike(&mut self) {
        eventually("all nodes have applied the same", async || {
            let mut indexes = Vec::new();
            for place in 0..self.nodes.len() {
                indexes.push(self.view(place).await?.applied_index);
            }
            let alike = indexes.iter().all(|index| *index == indexes[0]);
            holds(alike, format!("{indexes:?}"))?;
            let mut states = Vec::new();
            for place in 0..self.nodes.len() {
                states.push(self.own_state(place).await?);
            }
            let alike = states.iter().all(|state| *state == states[0]);
            holds(alike, format!("{states:#?}"))
        })
        .await;
    }

    /// What one node knows by itself: jobs, executors, the newest runs, and the counters of its state.
    async fn own_state(&self, place: usize) -> Result<Vec<Value>, String> {
        let wire = self.wire(place);
        let mut found = Vec::new();
        for path in [paths::JOBS, paths::RUNS, paths::EXECUTORS] {
            let path = format!("{path}?consistency=stale&limit=500");
            let answer = wire.get(&path).await.map_err(|error| error.to_string())?;
            let mut items = answer.json()["items"].take();
            // How long a lease still lasts is a matter of when one asks.
            for item in items.as_array_mut().into_iter().flatten() {
                item.as_object_mut()
                    .map(|item| item.remove("lease_remaining_ms"));
            }
            found.push(items);
        }
        for counter in [
            "fires_total",
            "runs_succeeded_total",
            "elections_total",
            "takeovers_total",
        ] {
            found.push(json!(wire.metric(counter).await?));
        }
        Ok(found)
    }

    // What is done to it.

    pub(crate) fn kill(&mut self, place: usize) {
        self.nodes[place].process.kill();
    }

    pub(crate) fn restart(&mut self, place: usize) {
        self.nodes[place].process.start();
    }

    pub(crate) async fn put(&self, spec: JobSpec) -> JobName {
        let name = spec.name.clone();
        let body = JobBody::Spec(Box::new(spec));
        let put = self
            .client()
            .put_job(&name, &body, Precondition::None)
            .await;
        put.unwrap_or_else(|error| panic!("{name}: {error}"));
        name
    }

    pub(crate) async fn trigger(&self, job: &JobName) -> RunId {
        let answer = self
            .client()
            .trigger_job(job, &TriggerRequest::default(), None)
            .await;
        answer.expect("triggered").run.expect("a run")
    }

    pub(crate) async fn run(&self, id: RunId) -> Run {
        self.client()
            .run(id)
            .await
            .unwrap_or_else(|error| panic!("run {id}: {error}"))
    }

    /// Waits until a run has ended.
    pub(crate) async fn ended(&self, id: RunId) -> Run {
        eventually(&format!("run {id} ends"), async || {
            let run = self.run(id).await;
            if run.state.is_final() {
                Ok(run)
            } else {
                Err(format!("{run:#?}"))
            }
        })
        .await
    }

    /// Waits until the only task of a run, or its first, is in a state.
    pub(crate) async fn task_is(&self, id: RunId, state: TaskState) -> tenure_api::runs::Task {
        eventually(&format!("run {id} is {state}"), async || {
            let run = self.run(id).await;
            match run.tasks.first() {
                Some(task) if task.state == state => Ok(task.clone()),
                _ => Err(format!("{run:#?}")),
            }
        })
        .await
    }

    /// A counter of the replicated state, from whichever node runs.
    pub(crate) async fn counter(&mut self, name: &str) -> f64 {
        let place = self.leader().await;
        self.wire(place)
            .metric(name)
            .await
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until a counter of the replicated state has a value that fits.
    pub(crate) async fn counter_is(&mut self, name: &str, fits: impl Fn(f64) -> bool) -> f64 {
        let place = self.leader().await;
        let wire = self.wire(place);
        eventually(name, async || {
            let value = wire.metric(name).await?;
            if fits(value) {
                Ok(value)
            } else {
                Err(format!("{name} is {value}"))
            }
        })
        .await
    }
}

async fn node(root: &Path, member: &MemberConfig, config: &NodeConfig) -> Node {
    let file = root.join(format!("node{}.toml", member.id));
    std::fs::write(&file, toml::to_string(config).expect("TOML")).expect("a file");
    let mut init = Command::new(tenure());
    init.args(["node", "init", "--config"]).arg(&file);
    let done = output(init).await;
    assert!(done.status.success(), "{done:?}");
    let arguments = [
        "server".into(),
        "--config".into(),
        file.display().to_string(),
    ];
    let log = root.join(format!("node{}.log", member.id));
    Node {
        id: member.id,
        url: member.http.clone(),
        peer: member.peer.clone(),
        data: config.data_dir.clone(),
        process: Process::new(format!("node {}", member.id), tenure(), arguments, log),
    }
}
