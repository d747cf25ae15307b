//! Clients: they define, trigger, read, pause and cancel, with time-outs and repeats, through the real SDK.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_api::cluster::{InitializeRequest, NewMember};
use tenure_api::jobs::{Job, JobChange};
use tenure_api::ledger::FiresQuery;
use tenure_api::runs::{Consistency, RunsQuery, TriggerRequest};
use tenure_api::time::Timestamp;
use tenure_api::{ErrorCode, JobName, RunId};
use tenure_sdk::{Client, Error, JobBody, Precondition, RetryPolicy};
use tokio::time::sleep;

use crate::chance;
use crate::clock::MachineClock;
use crate::judge::{Ack, Call, Face, Judge, Seen};
use crate::network::{HttpLink, Network, url};
use crate::plan::Plan;
use crate::scope::Process;
use crate::site::environment;

/// The first client process.
pub const FIRST_CLIENT: Process = 60;

/// Before the first of the clients that are in a hurry when the lead may change, one a node.
pub const FIRST_HURRIED: Process = 80;

/// What clients have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that were acknowledged.
    pub acknowledged: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Calls whose outcome the client does not know.
    pub unknown: u64,
    /// Calls that certainly did nothing.
    pub unavailable: u64,
}

/// What all clients of a run share.
pub struct Desk {
    judge: Arc<Judge>,
    jobs: Vec<(String, String)>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    tally: Tally,
    /// The highest acknowledged revision of each job.
    revisions: BTreeMap<String, u64>,
    runs: Vec<u64>,
    keys: u64,
}

/// A client that knows these nodes of the cluster.
pub fn client(
    network: &Arc<Network>,
    process: Process,
    nodes: impl IntoIterator<Item = Process>,
    token: &str,
) -> Client {
    let policy = RetryPolicy {
        attempt_timeout: Duration::from_millis(chance::one_of(&[300, 1_000, 3_000])),
        overall_timeout: Duration::from_millis(chance::one_of(&[2_000, 10_000])),
        ..RetryPolicy::default()
    };
    client_with(network, process, nodes, token, policy)
}

/// A client that tries for so long.
pub fn client_with(
    network: &Arc<Network>,
    process: Process,
    nodes: impl IntoIterator<Item = Process>,
    token: &str,
    policy: RetryPolicy,
) -> Client {
    Client::builder()
        .nodes(nodes.into_iter().map(url))
        .token(token)
        .retry(policy)
        .transport(Arc::new(HttpLink {
            network: network.clone(),
            process,
            witness: None,
        }))
        .environment(environment(MachineClock::new(0, 5_000, 0)))
        .build()
        .expect("the settings are valid")
}

/// Makes the cluster.
pub async fn initialize(client: &Client, nodes: usize) {
    let members = (1..=nodes as u64)
        .map(|id| NewMember {
            id: id.into(),
            peer_address: format!("n{id}:7002"),
            api_url: url(id as Process),
        })
        .collect();
    let request = InitializeRequest { members };
    while let Err(error) = client.initialize(&request).await {
        if error.code() == Some(ErrorCode::AlreadyInitialized) {
            return;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

impl Desk {
    /// The desk of a run.
    pub fn new(judge: Arc<Judge>, plan: &Plan) -> Arc<Self> {
        Arc::new(Self {
            judge,
            jobs: plan.jobs.clone(),
            known: Mutex::default(),
        })
    }

    fn known<R>(&self, look: impl FnOnce(&mut Known) -> R) -> R {
        look(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What was done so far.
    pub fn tally(&self) -> Tally {
        self.known(|known| known.tally)
    }

    fn count<T>(&self, result: &Result<T, Error>) {
        if let Err(error) = result
            && error.code() == Some(ErrorCode::Internal)
        {
            let sentence = "no request makes a node fail in a way that should not happen";
            self.judge.complain(sentence, error.to_string());
        }
        self.known(|known| {
            let tally = &mut known.tally;
            match result {
                Ok(_) => tally.acknowledged += 1,
                Err(Error::Refused(_)) => tally.refused += 1,
                Err(Error::Unavailable { .. }) => tally.unavailable += 1,
                Err(_) => tally.unknown += 1,
            }
        });
    }

    /// Notes what a client was told, whose call was made when so many entries were committed.
    fn acknowledged(&self, committed: u64, ack: Ack) {
        if let Ack::Job { name, revision, .. } = &ack {
            self.known(|known| {
                let highest = known.revisions.entry(name.clone()).or_default();
                *highest = (*highest).max(*revision);
            });
        }
        self.judge
            .show(&Seen::Acknowledged(&Call { committed, ack }));
    }

    /// Defines all jobs, for as long as that takes.
    pub async fn define_all(&self, client: &Client) {
        for (name, file) in &self.jobs {
            while !self.put(client, name, file.clone()).await {
                sleep(Duration::from_millis(200)).await;
            }
        }
    }

    async fn put(&self, client: &Client, name: &str, file: String) -> bool {
        // Somebody else may have deleted it: then the revision that is known says nothing.
        let known = self.known(|known| known.revisions.get(name).copied());
        let precondition = match known {
            Some(revision) if chance::happens(800) => Precondition::Revision(revision.into()),
            _ => Precondition::None,
        };
        self.put_under(client, name, file, precondition).await
    }

    async fn put_under(
        &self,
        client: &Client,
        name: &str,
        file: String,
        precondition: Precondition,
    ) -> bool {
        let committed = self.judge.committed();
        let wanted = description(&file).to_owned();
        let body = JobBody::Yaml(file);
        let put = client.put_job(&job_name(name), &body, precondition).await;
        self.count(&put);
        match put {
            Ok(answer) => {
                if answer.job.spec.description != wanted {
                    let what = format!("{name}: {:?}, not {wanted:?}", answer.job);
                    self.judge
                        .complain("who put a job is shown it as it was put", what);
                }
                let ack = Ack::Job {
                    name: name.to_owned(),
                    revision: answer.job.revision.get(),
                    description: wanted,
                    changed: answer.change != JobChange::Unchanged,
                };
                self.acknowledged(committed, ack);
                true
            }
            Err(error) => {
                if error.code() == Some(ErrorCode::InvalidJob) {
                    let sentence = "the jobs of a plan are valid";
                    self.judge.complain(sentence, error.to_string());
                }
                false
            }
        }
    }

    /// The name and the file of some job.
    fn some_job(&self) -> &(String, String) {
        &self.jobs[chance::between(0, self.jobs.len() as u64) as usize]
    }

    /// Works until it is killed.
    pub async fn work(&self, client: Client) {
        loop {
            sleep(Duration::from_millis(chance::between(50, 1_500))).await;
            let (name, file) = self.some_job().clone();
            match chance::between(0, 100) {
                0..40 => self.trigger(&client, &name).await,
                40..60 => self.read(&client, &name).await,
                60..70 => {
                    let file = format!("{file}description: edition {}\n", chance::between(0, 4));
                    let file = if chance::happens(300) {
                        with_another_trigger(&file)
                    } else {
                        file
                    };
                    self.put(&client, &name, file).await;
                }
                70..72 => self.remake(&client, &name, file).await,
                72..76 => {
                    let committed = self.judge.committed();
                    let paused = client.pause_job(&job_name(&name)).await;
                    self.changed(committed, &name, true, paused);
                }
                76..86 => {
                    let committed = self.judge.committed();
                    let resumed = client.resume_job(&job_name(&name)).await;
                    self.changed(committed, &name, false, resumed);
                }
                86..92 => self.cancel(&client).await,
                92..96 => self.list_something(&client).await,
                _ => {
                    let status = client.cluster().await;
                    self.count(&status);
                }
            }
        }
    }

    /// Reads and writes one after the other, as long as the lead may be changing, until it is killed. Several
    /// do so, each through another node: a leader that has been replaced and does not know it would be caught.
    pub async fn hurry(&self, client: impl Fn() -> Client, stirs: impl Fn() -> bool) {
        loop {
            if !stirs() {
                sleep(Duration::from_millis(chance::between(10, 60))).await;
                continue;
            }
            sleep(Duration::from_millis(chance::between(1, 20))).await;
            // A client that has asked before would know who leads and ask there.
            let client = client();
            if chance::happens(100) {
                self.list_something(&client).await;
                continue;
            }
            // One job, so that what is read has just been written.
            let (name, file) = self.jobs[0].clone();
            if chance::happens(600) {
                self.read(&client, &name).await;
            } else {
                let edition = chance::between(0, 1_000_000);
                let file = format!("{file}description: edition {edition}\n");
                let any = Precondition::Exists;
                self.put_under(&client, &name, file, any).await;
            }
        }
    }

    /// A job was paused, or is not any more.
    fn changed(&self, committed: u64, name: &str, paused: bool, changed: Result<Job, Error>) {
        self.count(&changed);
        if changed.is_ok() {
            let name = name.to_owned();
            self.acknowledged(committed, Ack::Paused { name, paused });
        }
    }

    /// Triggers under a key, and repeats under the same key when the outcome is unknown; now and then also
    /// when it is known.
    async fn trigger(&self, client: &Client, name: &str) {
        let key = self.known(|known| {
            known.keys += 1;
            format!("key-{}", known.keys)
        });
        let committed = self.judge.committed();
        // Whether something may have happened under the key.
        let mut maybe_done = false;
        for _ in 0..4 {
            let request = TriggerRequest::default();
            let answer = client
                .trigger_job(&job_name(name), &request, Some(key.clone()))
                .await;
            self.count(&answer);
            match answer {
                Ok(answer) => {
                    let Some(run) = answer.run else { return };
                    let run = run.get();
                    self.known(|known| known.runs.push(run));
                    let key = key.clone();
                    self.acknowledged(committed, Ack::Trigger { key, run });
                    maybe_done = true;
                    if chance::happens(700) {
                        return;
                    }
                }
                Err(Error::Refused(_)) => return,
                Err(Error::Unavailable { .. }) if !maybe_done && chance::happens(500) => {
                    return self.acknowledged(committed, Ack::Nothing { key });
                }
                Err(Error::Unavailable { .. }) => {}
                Err(_) => maybe_done = true,
            }
            sleep(Duration::from_millis(chance::between(0, 2_000))).await;
        }
    }

    /// Reads until it is killed. Who only reads stays with the node that answers.
    pub async fn look(&self, client: Client) {
        loop {
            sleep(Duration::from_millis(chance::between(50, 600))).await;
            if chance::happens(400) {
                self.list_something(&client).await;
                continue;
            }
            match self.known(|known| some_of(&known.runs)) {
                Some(run) if chance::happens(500) => {
                    let committed = self.judge.committed();
                    let found = client.run(RunId(run)).await;
                    self.count(&found);
                    match found {
                        Ok(found) => {
                            let state = found.state;
                            let ended = state.is_final().then(|| state.to_string());
                            self.acknowledged(committed, Ack::Run { run, ended });
                        }
                        Err(error) if error.code() == Some(ErrorCode::NotFound) => {
                            self.acknowledged(committed, Ack::Missing { run });
                        }
                        Err(_) => {}
                    }
                    if chance::happens(300) {
                        self.count(&client.explain_run(RunId(run)).await);
                        let output = client.run_output(RunId(run), &Default::default()).await;
                        self.count(&output);
                    }
                }
                _ => {
                    self.read(&client, &self.some_job().0).await;
                }
            }
        }
    }

    async fn read(&self, client: &Client, name: &str) {
        let committed = self.judge.committed();
        let job = client.job(&job_name(name)).await;
        self.count(&job);
        let name = name.to_owned();
        match job {
            Ok(job) => {
                let face = Face::from(&job);
                self.acknowledged(committed, Ack::Read { name, face });
            }
            Err(error) if error.code() == Some(ErrorCode::NotFound) => {
                self.acknowledged(committed, Ack::NoJob { name });
            }
            Err(_) => {}
        }
    }

    /// Lists the newest runs, as they are or as some node has them.
    async fn list(&self, client: &Client) {
        let current = chance::happens(500);
        // What is over stays in the state for a while; only the runs of one job come from the archive at once.
        let job = chance::happens(700).then(|| self.some_job().0.clone());
        let query = RunsQuery {
            job: job.as_deref().map(job_name),
            limit: Some(chance::one_of(&[10, 100])),
            consistency: (!current).then_some(Consistency::Stale),
            ..RunsQuery::default()
        };
        let committed = self.judge.committed();
        let page = client.runs_page(&query).await;
        self.count(&page);
        if let Ok(page) = page {
            let ack = Ack::Listed {
                job,
                runs: page.items.iter().map(|run| run.id.get()).collect(),
                whole: page.next_cursor.is_none(),
                current,
            };
            self.acknowledged(committed, ack);
        }
    }

    async fn list_something(&self, client: &Client) {
        match chance::happens(600) {
            true => self.list(client).await,
            false => self.ledger(client).await,
        }
    }

    /// Lists the latest decisions of a job, as they are or as some node has them; now and then also the one about an
    /// instant, and what comes next.
    async fn ledger(&self, client: &Client) {
        let current = chance::happens(500);
        let job = self.some_job().0.clone();
        let name = job_name(&job);
        let query = FiresQuery {
            limit: Some(chance::one_of(&[10, 100])),
            consistency: (!current).then_some(Consistency::Stale),
            ..FiresQuery::default()
        };
        let committed = self.judge.committed();
        let page = client.fires_page(&name, &query).await;
        self.count(&page);
        let Ok(page) = page else { return };
        let ms = |instant: Timestamp| u64::try_from(instant.as_ms()).unwrap_or(0);
        let fires = page.items.iter().map(|fire| {
            let last = fire.through.unwrap_or(fire.scheduled_at);
            (ms(fire.scheduled_at), ms(last), fire.run.map(RunId::get))
        });
        let fires: Vec<_> = fires.collect();
        if let Some((first_ms, last_ms, run)) = fires.first().copied()
            && chance::happens(200)
        {
            let instant = page.items[0].scheduled_at;
            let fire = client.fire(&name, instant).await;
            self.count(&fire);
            if fire.is_ok_and(|fire| fire.run.map(RunId::get) != run) {
                let what = format!("{job} from {first_ms} to {last_ms}, run {run:?}");
                self.judge
                    .complain("one decision is told as in the list", what);
            }
            self.count(&client.next_fires(&name, 5).await);
        }
        let ack = Ack::Ledger {
            job,
            fires,
            whole: page.next_cursor.is_none(),
            current,
        };
        self.acknowledged(committed, ack);
    }

    async fn cancel(&self, client: &Client) {
        if let Some(run) = self.known(|known| some_of(&known.runs)) {
            let committed = self.judge.committed();
            let cancelled = client.cancel_run(RunId(run), None).await;
            self.count(&cancelled);
            if cancelled.is_ok() {
                self.acknowledged(committed, Ack::Cancelled { run });
            }
        }
    }

    /// Deletes a job, and makes it again until it is there.
    async fn remake(&self, client: &Client, name: &str, file: String) {
        let committed = self.judge.committed();
        let deleted = client.delete_job(&job_name(name), None).await;
        self.count(&deleted);
        if deleted.is_ok() {
            let name = name.to_owned();
            self.acknowledged(committed, Ack::Deleted { name });
        }
        sleep(Duration::from_millis(chance::between(0, 3_000))).await;
        while !self.put(client, name, file.clone()).await {
            sleep(Duration::from_millis(chance::between(50, 1_000))).await;
        }
    }

    /// Lets no job fire any more, for as long as that takes.
    pub async fn pause_all(&self, client: &Client) {
        for (name, _) in &self.jobs {
            loop {
                let committed = self.judge.committed();
                let paused = client.pause_job(&job_name(name)).await;
                let done = match &paused {
                    Ok(_) => true,
                    Err(error) => error.code().is_some_and(|code| !code.retryable()),
                };
                self.changed(committed, name, true, paused);
                if done {
                    break;
                }
                sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// One of these: as likely as not one of the last.
fn some_of(runs: &[u64]) -> Option<u64> {
    let all = runs.len() as u64;
    let from = match chance::happens(500) {
        true => all.saturating_sub(5),
        false => 0,
    };
    (all > 0).then(|| runs[chance::between(from, all) as usize])
}

/// The description in the file of a job.
fn description(file: &str) -> &str {
    let mut lines = file.lines().rev();
    let last = lines.find_map(|line| line.strip_prefix("description: "));
    last.unwrap_or_default()
}

/// The file of a job with an interval instead of what triggers it now.
fn with_another_trigger(file: &str) -> String {
    let every = format!("trigger: {{ every: {}s }}", chance::between(1, 6));
    let lines = file
        .lines()
        .map(|line| match line.starts_with("trigger: ") {
            true => every.as_str(),
            false => line,
        });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

pub(crate) fn job_name(name: &str) -> JobName {
    name.parse().expect("names of a plan are valid")
}
