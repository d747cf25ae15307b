//! Every path, header and query of the interface, written once for server, command line and SDK.
//!
//! Constants with `{…}` are route patterns for the server. Functions make the paths a client
//! sends; what they are given is percent-encoded.

use crate::executors::ExecutorsQuery;
use crate::ids::{InstanceId, JobName, RunId, SessionId};
use crate::jobs::{JobsQuery, NextQuery};
use crate::ledger::FiresQuery;
use crate::runs::{OutputQuery, RunsQuery};
use crate::time::Timestamp;
use std::fmt::{Display, Write as _};

/// Header of every answer: the highest term the node has seen.
pub const TERM_HEADER: &str = "tenure-term";
/// Header of every answer whose node knows the leader: `http://host:port`.
pub const LEADER_HEADER: &str = "tenure-leader";
/// Header that marks a request a node has already forwarded once.
pub const FORWARDED_HEADER: &str = "tenure-forwarded";
/// Header that makes a mutation safe to repeat.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// The longest idempotency key, in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 128;
/// Media type of JSON bodies.
pub const JSON: &str = "application/json";
/// Media type of YAML job files.
pub const YAML: &str = "application/yaml";

/// Route of the list of jobs.
pub const JOBS: &str = "/v1/jobs";
/// Route that validates a job file and stores nothing. No job can have this name in the way: it
/// is a POST, and jobs take PUT, GET and DELETE.
pub const JOBS_PREVIEW: &str = "/v1/jobs/preview";
/// Route of one job.
pub const JOB: &str = "/v1/jobs/{name}";
/// Route that pauses a job.
pub const JOB_PAUSE: &str = "/v1/jobs/{name}/pause";
/// Route that resumes a job.
pub const JOB_RESUME: &str = "/v1/jobs/{name}/resume";
/// Route that starts a run by hand.
pub const JOB_TRIGGER: &str = "/v1/jobs/{name}/trigger";
/// Route of the next fires of a job.
pub const JOB_NEXT: &str = "/v1/jobs/{name}/next";
/// Route of a job's ledger.
pub const JOB_FIRES: &str = "/v1/jobs/{name}/fires";
/// Route of one decision in a job's ledger.
pub const JOB_FIRE: &str = "/v1/jobs/{name}/fires/{instant}";
/// Route of the list of runs.
pub const RUNS: &str = "/v1/runs";
/// Route of one run.
pub const RUN: &str = "/v1/runs/{id}";
/// Route that cancels a run.
pub const RUN_CANCEL: &str = "/v1/runs/{id}/cancel";
/// Route that explains a run.
pub const RUN_EXPLAIN: &str = "/v1/runs/{id}/explain";
/// Route of a run's output.
pub const RUN_OUTPUT: &str = "/v1/runs/{id}/output";
/// Route of the list of executors.
pub const EXECUTORS: &str = "/v1/executors";
/// Route of one executor.
pub const EXECUTOR: &str = "/v1/executors/{instance}";
/// Route that drains an executor.
pub const EXECUTOR_DRAIN: &str = "/v1/executors/{instance}/drain";
/// Route of the cluster's status.
pub const CLUSTER: &str = "/v1/cluster";
/// Route that makes a cluster out of empty nodes.
pub const CLUSTER_INITIALIZE: &str = "/v1/cluster/initialize";
/// Route of the OpenAPI document.
pub const OPENAPI: &str = "/v1/openapi.json";
/// Route of the metrics.
pub const METRICS: &str = "/metrics";
/// Route of the health check.
pub const HEALTHZ: &str = "/healthz";

/// Route that registers an executor.
pub const SESSIONS: &str = "/v1/executor/sessions";
/// Route that ends a session (DELETE).
pub const SESSION: &str = "/v1/executor/sessions/{session}";
/// Route that renews a lease.
pub const SESSION_HEARTBEAT: &str = "/v1/executor/sessions/{session}/heartbeat";
/// Route that asks for work.
pub const SESSION_POLL: &str = "/v1/executor/sessions/{session}/poll";
/// Route that starts a task.
pub const SESSION_START: &str = "/v1/executor/sessions/{session}/start";
/// Route that commits a checkpoint.
pub const SESSION_CHECKPOINT: &str = "/v1/executor/sessions/{session}/checkpoint";
/// Route that appends output.
pub const SESSION_OUTPUT: &str = "/v1/executor/sessions/{session}/output";
/// Route that reports a result.
pub const SESSION_RESULT: &str = "/v1/executor/sessions/{session}/result";
/// Route that gives a shard back.
pub const SESSION_RELEASE: &str = "/v1/executor/sessions/{session}/release";
/// Route that says the executor drains.
pub const SESSION_DRAIN: &str = "/v1/executor/sessions/{session}/drain";

/// Path of the list of jobs.
pub fn jobs(query: &JobsQuery) -> String {
    PathBuilder::new(JOBS)
        .query("prefix", query.prefix.as_ref())
        .query("paused", query.paused)
        .query("capability", query.capability.as_ref())
        .query("limit", query.limit)
        .query("cursor", query.cursor.as_ref())
        .query("consistency", query.consistency)
        .done()
}

/// Path of one job.
pub fn job(name: &JobName) -> String {
    fill(JOB, name)
}

/// Path that pauses a job.
pub fn job_pause(name: &JobName) -> String {
    fill(JOB_PAUSE, name)
}

/// Path that resumes a job.
pub fn job_resume(name: &JobName) -> String {
    fill(JOB_RESUME, name)
}

/// Path that starts a run by hand.
pub fn job_trigger(name: &JobName) -> String {
    fill(JOB_TRIGGER, name)
}

/// Path of the next fires of a job.
pub fn job_next(name: &JobName, query: &NextQuery) -> String {
    PathBuilder::new(&fill(JOB_NEXT, name))
        .query("count", query.count)
        .done()
}

/// Path that validates a job file and stores nothing.
pub fn jobs_preview(query: &NextQuery) -> String {
    PathBuilder::new(JOBS_PREVIEW)
        .query("count", query.count)
        .done()
}

/// Path of a job's ledger.
pub fn job_fires(name: &JobName, query: &FiresQuery) -> String {
    PathBuilder::new(&fill(JOB_FIRES, name))
        .query("from", query.from)
        .query("to", query.to)
        .query("limit", query.limit)
        .query("cursor", query.cursor.as_ref())
        .query("consistency", query.consistency)
        .done()
}

/// Path of one decision in a job's ledger.
pub fn job_fire(name: &JobName, instant: Timestamp) -> String {
    let encoded = encode(&instant.to_string());
    fill(JOB_FIRE, name).replace("{instant}", &encoded)
}

/// Path of the list of runs.
pub fn runs(query: &RunsQuery) -> String {
    PathBuilder::new(RUNS)
        .query("job", query.job.as_ref())
        .query("state", query.state)
        .query("limit", query.limit)
        .query("cursor", query.cursor.as_ref())
        .query("consistency", query.consistency)
        .done()
}

/// Path of one run.
pub fn run(id: RunId) -> String {
    fill(RUN, id)
}

/// Path that cancels a run.
pub fn run_cancel(id: RunId) -> String {
    fill(RUN_CANCEL, id)
}

/// Path that explains a run.
pub fn run_explain(id: RunId) -> String {
    fill(RUN_EXPLAIN, id)
}

/// Path of a run's output.
pub fn run_output(id: RunId, query: &OutputQuery) -> String {
    PathBuilder::new(&fill(RUN_OUTPUT, id))
        .query("shard", query.shard)
        .query("consistency", query.consistency)
        .done()
}

/// Path of the list of executors.
pub fn executors(query: &ExecutorsQuery) -> String {
    PathBuilder::new(EXECUTORS)
        .query("limit", query.limit)
        .query("cursor", query.cursor.as_ref())
        .query("consistency", query.consistency)
        .done()
}

/// Path of one executor.
pub fn executor(instance: &InstanceId) -> String {
    fill(EXECUTOR, instance)
}

/// Path that drains an executor.
pub fn executor_drain(instance: &InstanceId) -> String {
    fill(EXECUTOR_DRAIN, instance)
}

/// Path below a session: one of the `SESSION…` routes, filled in.
pub fn session(route: &str, session: SessionId) -> String {
    fill(route, session)
}

/// Puts `value` in place of the first `{…}` of a route.
fn fill(route: &str, value: impl Display) -> String {
    match (route.find('{'), route.find('}')) {
        (Some(open), Some(close)) if open < close => {
            let encoded = encode(&value.to_string());
            format!("{}{encoded}{}", &route[..open], &route[close + 1..])
        }
        _ => route.to_owned(),
    }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Builds a path with a query.
struct PathBuilder {
    path: String,
    separator: char,
}

impl PathBuilder {
    fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            separator: '?',
        }
    }

    fn query(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            self.path.push(self.separator);
            self.path.push_str(name);
            self.path.push('=');
            self.path.push_str(&encode(&value.to_string()));
            self.separator = '&';
        }
        self
    }

    fn done(self) -> String {
        self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::{Consistency, RunState};

    #[test]
    fn paths_are_filled_and_encoded() {
        let name = JobName::new("nightly-report").unwrap();
        assert_eq!(job_trigger(&name), "/v1/jobs/nightly-report/trigger");
        let instant: Timestamp = "2026-12-01T02:00:00Z".parse().unwrap();
        assert_eq!(
            job_fire(&name, instant),
            "/v1/jobs/nightly-report/fires/2026-12-01T02%3A00%3A00.000Z"
        );
        assert_eq!(
            session(SESSION_POLL, SessionId(12)),
            "/v1/executor/sessions/12/poll"
        );
        let query = RunsQuery {
            job: Some(name),
            state: Some(RunState::TimedOut),
            cursor: Some("a&b=c".into()),
            consistency: Some(Consistency::Stale),
            limit: None,
        };
        assert_eq!(
            runs(&query),
            "/v1/runs?job=nightly-report&state=timed_out&cursor=a%26b%3Dc&consistency=stale"
        );
        assert_eq!(jobs(&JobsQuery::default()), "/v1/jobs");
    }
}
