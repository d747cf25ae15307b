//! The administration interface as methods.
//!
//! Every change carries an idempotency key, given or made, so that it can be repeated when its
//! outcome is unknown. Reads may be repeated anyway.

use crate::caller::{Call, Caller, Repeat};
use crate::environment::Environment;
use crate::error::{BuildError, Error};
use crate::http::HttpTransport;
use crate::metrics::MetricsSnapshot;
use crate::retry::RetryPolicy;
use crate::transport::{Method, Response, Transport};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use tenure_api::cluster::{ClusterStatus, Health, InitializeAnswer, InitializeRequest};
use tenure_api::executors::{DrainExecutorRequest, Executor, ExecutorsQuery};
use tenure_api::jobs::{Job, JobsQuery, NextFires, NextQuery, Preview, PutJobAnswer};
use tenure_api::ledger::{Fire, FiresQuery};
use tenure_api::runs::{
    CancelRequest, Explanation, OutputQuery, Run, RunOutput, RunsQuery, TriggerAnswer,
    TriggerRequest,
};
use tenure_api::{
    InstanceId, JobName, JobSpec, Millis, Page, Revision, RunId, Term, Timestamp, paths,
};

/// A client of one cluster. Cheap to clone; clones share connections and what they know.
#[derive(Clone)]
pub struct Client {
    caller: Arc<Caller>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// Makes a [`Client`].
#[derive(Default)]
pub struct ClientBuilder {
    nodes: Vec<String>,
    token: Option<String>,
    policy: RetryPolicy,
    transport: Option<Arc<dyn Transport>>,
    environment: Environment,
}

impl fmt::Debug for ClientBuilder {
    /// Leaves out the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientBuilder({:?})", self.nodes)
    }
}

impl ClientBuilder {
    /// Adds a node of the cluster: `http://host:port`. Any of them will do; more are better.
    #[must_use]
    pub fn node(mut self, address: impl Into<String>) -> Self {
        self.nodes.push(address.into());
        self
    }

    /// Adds nodes of the cluster.
    #[must_use]
    pub fn nodes<I, T>(mut self, addresses: I) -> Self
    where
        I: IntoIterator<Item = T>,
        T: Into<String>,
    {
        self.nodes.extend(addresses.into_iter().map(Into::into));
        self
    }

    /// The bearer token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long to try.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Another transport than HTTP, for tests and simulations.
    #[must_use]
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Another clock, chance and tasks, for tests and simulations.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Checks the settings. Nothing is sent yet.
    pub fn build(self) -> Result<Client, BuildError> {
        let transport = self
            .transport
            .unwrap_or_else(|| Arc::new(HttpTransport::new()));
        let caller = Caller::new(
            transport,
            self.environment,
            self.policy,
            &self.nodes,
            self.token,
        )?;
        Ok(Client {
            caller: Arc::new(caller),
        })
    }
}

/// What a put requires of the job that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing is said. The cluster refuses to replace a job that differs.
    None,
    /// There is no such job yet.
    Absent,
    /// There is such a job, of any revision.
    Exists,
    /// The job has this revision.
    Revision(Revision),
}

impl Precondition {
    fn header(self) -> Option<(&'static str, String)> {
        match self {
            Self::None => None,
            Self::Absent => Some(("if-none-match", "*".to_owned())),
            Self::Exists => Some(("if-match", "*".to_owned())),
            Self::Revision(revision) => Some(("if-match", format!("\"{revision}\""))),
        }
    }
}

/// A job file as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum JobBody {
    /// YAML text, checked by the cluster.
    Yaml(String),
    /// A job that was read before.
    Spec(Box<JobSpec>),
}

impl From<JobSpec> for JobBody {
    fn from(spec: JobSpec) -> Self {
        Self::Spec(Box::new(spec))
    }
}

impl JobBody {
    fn encode(&self) -> Result<(&'static str, Bytes), Error> {
        match self {
            Self::Yaml(text) => Ok((paths::YAML, Bytes::from(text.clone().into_bytes()))),
            Self::Spec(spec) => Ok((paths::JSON, encode(spec)?)),
        }
    }
}

fn encode<T: Serialize>(body: &T) -> Result<Bytes, Error> {
    let json = serde_json::to_vec(body).map_err(|fault| Error::Protocol(fault.to_string()))?;
    Ok(Bytes::from(json))
}

impl Client {
    /// Starts the settings of a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Counters of this client.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.caller.counters.snapshot()
    }

    /// The highest term any answer has carried.
    pub fn highest_term(&self) -> Term {
        Term(self.caller.highest_term())
    }

    /// A key for a change that the caller wants to repeat itself.
    pub fn new_idempotency_key(&self) -> String {
        self.caller.environment.unique_key()
    }

    // Jobs.

    /// Stores a job under its name.
    pub async fn put_job(
        &self,
        name: &JobName,
        job: &JobBody,
        precondition: Precondition,
    ) -> Result<PutJobAnswer, Error> {
        let (kind, body) = job.encode()?;
        let mut call = self.change(Method::Put, paths::job(name), None);
        call.headers.push(("content-type", kind.to_owned()));
        call.headers.extend(precondition.header());
        call.body = body;
        self.caller.json(call).await
    }

    /// Reads a job.
    pub async fn job(&self, name: &JobName) -> Result<Job, Error> {
        self.get(paths::job(name)).await
    }

    /// One page of the jobs.
    pub async fn jobs_page(&self, query: &JobsQuery) -> Result<Page<Job>, Error> {
        self.get(paths::jobs(query)).await
    }

    /// All jobs, page by page.
    pub fn jobs(&self, query: JobsQuery) -> Pages<Job> {
        Pages::new(self.clone(), query.cursor.clone(), move |cursor| {
            paths::jobs(&JobsQuery {
                cursor,
                ..query.clone()
            })
        })
    }

    /// Removes a job. With a revision, only if it still has that one.
    pub async fn delete_job(
        &self,
        name: &JobName,
        if_match: Option<Revision>,
    ) -> Result<(), Error> {
        let mut call = self.change(Method::Delete, paths::job(name), None);
        let precondition = if_match.map_or(Precondition::None, Precondition::Revision);
        call.headers.extend(precondition.header());
        self.caller.send(call).await.map(|_| ())
    }

    /// Pauses a job: instants that fall due are decided as skipped.
    pub async fn pause_job(&self, name: &JobName) -> Result<Job, Error> {
        self.post(paths::job_pause(name), None, None::<&()>).await
    }

    /// Resumes a job.
    pub async fn resume_job(&self, name: &JobName) -> Result<Job, Error> {
        self.post(paths::job_resume(name), None, None::<&()>).await
    }

    /// Starts a run by hand. The same key never starts a second one.
    pub async fn trigger_job(
        &self,
        name: &JobName,
        request: &TriggerRequest,
        idempotency_key: Option<String>,
    ) -> Result<TriggerAnswer, Error> {
        self.post(paths::job_trigger(name), idempotency_key, Some(request))
            .await
    }

    /// The next instants a job is due.
    pub async fn next_fires(&self, name: &JobName, count: u32) -> Result<NextFires, Error> {
        self.get(paths::job_next(name, &NextQuery { count: Some(count) }))
            .await
    }

    /// What a job file would do. Stores nothing.
    pub async fn preview_job(&self, job: &JobBody, count: u32) -> Result<Preview, Error> {
        let (kind, body) = job.encode()?;
        let path = paths::jobs_preview(&NextQuery { count: Some(count) });
        let mut call = self.caller.call(Method::Post, path, Repeat::Harmless);
        call.headers.push(("content-type", kind.to_owned()));
        call.body = body;
        self.caller.json(call).await
    }

    /// One page of a job's ledger.
    pub async fn fires_page(
        &self,
        name: &JobName,
        query: &FiresQuery,
    ) -> Result<Page<Fire>, Error> {
        self.get(paths::job_fires(name, query)).await
    }

    /// A job's ledger, page by page.
    pub fn fires(&self, name: &JobName, query: FiresQuery) -> Pages<Fire> {
        let name = name.clone();
        Pages::new(self.clone(), query.cursor.clone(), move |cursor| {
            paths::job_fires(
                &name,
                &FiresQuery {
                    cursor,
                    ..query.clone()
                },
            )
        })
    }

    /// What was decided for one instant.
    pub async fn fire(&self, name: &JobName, instant: Timestamp) -> Result<Fire, Error> {
        self.get(paths::job_fire(name, instant)).await
    }

    // Runs.

    /// Reads a run with its tasks.
    pub async fn run(&self, id: RunId) -> Result<Run, Error> {
        self.get(paths::run(id)).await
    }

    /// One page of the runs.
    pub async fn runs_page(&self, query: &RunsQuery) -> Result<Page<Run>, Error> {
        self.get(paths::runs(query)).await
    }

    /// All runs, page by page.
    pub fn runs(&self, query: RunsQuery) -> Pages<Run> {
        Pages::new(self.clone(), query.cursor.clone(), move |cursor| {
            paths::runs(&RunsQuery {
                cursor,
                ..query.clone()
            })
        })
    }

    /// Cancels a run.
    pub async fn cancel_run(&self, id: RunId, reason: Option<String>) -> Result<Run, Error> {
        self.post(paths::run_cancel(id), None, Some(&CancelRequest { reason }))
            .await
    }

    /// Why a run is where it is.
    pub async fn explain_run(&self, id: RunId) -> Result<Explanation, Error> {
        self.get(paths::run_explain(id)).await
    }

    /// What a run's shard wrote.
    pub async fn run_output(&self, id: RunId, query: &OutputQuery) -> Result<RunOutput, Error> {
        self.get(paths::run_output(id, query)).await
    }

    // Executors.

    /// Reads an executor with the tasks it holds.
    pub async fn executor(&self, instance: &InstanceId) -> Result<Executor, Error> {
        self.get(paths::executor(instance)).await
    }

    /// One page of the executors.
    pub async fn executors_page(&self, query: &ExecutorsQuery) -> Result<Page<Executor>, Error> {
        self.get(paths::executors(query)).await
    }

    /// All executors, page by page.
    pub fn executors(&self, query: ExecutorsQuery) -> Pages<Executor> {
        Pages::new(self.clone(), query.cursor.clone(), move |cursor| {
            paths::executors(&ExecutorsQuery {
                cursor,
                ..query.clone()
            })
        })
    }

    /// Asks an executor to finish what it has and leave.
    pub async fn drain_executor(
        &self,
        instance: &InstanceId,
        deadline: Millis,
    ) -> Result<Executor, Error> {
        let request = DrainExecutorRequest { deadline };
        self.post(paths::executor_drain(instance), None, Some(&request))
            .await
    }

    // The cluster.

    /// The cluster as the asked node sees it.
    pub async fn cluster(&self) -> Result<ClusterStatus, Error> {
        self.get(paths::CLUSTER.to_owned()).await
    }

    /// Makes a cluster out of empty nodes, once.
    pub async fn initialize(&self, request: &InitializeRequest) -> Result<InitializeAnswer, Error> {
        // An empty cluster has no memory for keys. A repetition is answered `already_initialized`,
        // which would look like a failure, so it is the caller who decides.
        let path = paths::CLUSTER_INITIALIZE.to_owned();
        let mut call = self.caller.call(Method::Post, path, Repeat::OnlyIfNotDone);
        call.headers.push(("content-type", paths::JSON.to_owned()));
        call.body = encode(request)?;
        self.caller.json(call).await
    }

    /// Whether a node lives and can serve.
    pub async fn health(&self) -> Result<Health, Error> {
        self.get(paths::HEALTHZ.to_owned()).await
    }

    /// The metrics of the asked node, in Prometheus text form.
    pub async fn metrics_text(&self) -> Result<String, Error> {
        let call = self
            .caller
            .call(Method::Get, paths::METRICS.to_owned(), Repeat::Harmless);
        let response = self.caller.send(call).await?;
        String::from_utf8(response.body.to_vec())
            .map_err(|fault| Error::Protocol(fault.to_string()))
    }

    /// The OpenAPI document.
    pub async fn openapi(&self) -> Result<serde_json::Value, Error> {
        self.get(paths::OPENAPI.to_owned()).await
    }

    /// Any request, for what has no method here. A key makes a change safe to repeat.
    pub async fn request(
        &self,
        method: Method,
        path: String,
        body: Bytes,
        idempotency_key: Option<String>,
    ) -> Result<Response, Error> {
        let mut call = match method {
            Method::Get => self.caller.call(method, path, Repeat::Harmless),
            Method::Post | Method::Put | Method::Delete => {
                self.change(method, path, idempotency_key)
            }
        };
        if !body.is_empty() {
            call.headers.push(("content-type", paths::JSON.to_owned()));
        }
        call.body = body;
        self.caller.send(call).await
    }

    async fn get<T: DeserializeOwned>(&self, path: String) -> Result<T, Error> {
        self.caller
            .json(self.caller.call(Method::Get, path, Repeat::Harmless))
            .await
    }

    async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: String,
        idempotency_key: Option<String>,
        body: Option<&B>,
    ) -> Result<T, Error> {
        let mut call = self.change(Method::Post, path, idempotency_key);
        if let Some(body) = body {
            call.headers.push(("content-type", paths::JSON.to_owned()));
            call.body = encode(body)?;
        }
        self.caller.json(call).await
    }

    /// A change. It carries a key, so repeating it is harmless.
    fn change(&self, method: Method, path: String, key: Option<String>) -> Call {
        let mut call = self.caller.call(method, path, Repeat::Harmless);
        let key = key.unwrap_or_else(|| self.new_idempotency_key());
        call.headers.push((paths::IDEMPOTENCY_KEY_HEADER, key));
        call
    }
}

type PathOf = Box<dyn Fn(Option<String>) -> String + Send + Sync>;

/// A list that is read page by page. At most one page is held.
pub struct Pages<T> {
    client: Client,
    path_of: PathOf,
    cursor: Option<String>,
    ended: bool,
    items: VecDeque<T>,
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} items held)", self.items.len())
    }
}

impl<T: DeserializeOwned + Send> Pages<T> {
    fn new(
        client: Client,
        cursor: Option<String>,
        path_of: impl Fn(Option<String>) -> String + Send + Sync + 'static,
    ) -> Self {
        Self {
            client,
            path_of: Box::new(path_of),
            cursor,
            ended: false,
            items: VecDeque::new(),
        }
    }

    /// The next item, `None` after the last. After an error, the same page is asked for again.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Ok(Some(item));
            }
            match self.next_page().await? {
                None => return Ok(None),
                Some(items) => self.items.extend(items),
            }
        }
    }

    /// The next whole page, `None` after the last. An empty page is possible.
    pub async fn next_page(&mut self) -> Result<Option<Vec<T>>, Error> {
        if self.ended {
            return Ok(None);
        }
        let page: Page<T> = self.client.get((self.path_of)(self.cursor.clone())).await?;
        if page.next_cursor.is_some() && page.next_cursor == self.cursor {
            // It would never end.
            return Err(Error::Protocol(
                "a page names itself as the next".to_owned(),
            ));
        }
        self.cursor = page.next_cursor;
        self.ended = self.cursor.is_none();
        Ok(Some(page.items))
    }

    /// All that is left, but at most `most` items.
    pub async fn collect(mut self, most: usize) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        while all.len() < most {
            match self.next().await? {
                Some(item) => all.push(item),
                None => break,
            }
        }
        Ok(all)
    }
}
