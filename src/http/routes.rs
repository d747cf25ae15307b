//! The table of the interface: which method and path, who may, where it is answered, by what, and what it
//! takes and gives. Routing, authorization, admission, forwarding and the OpenAPI document all come from it.
//!
//! Invariant: what is not in this table does not exist, and what is in it needs a role unless it says
//! [`Access::Open`], which the health check alone does.

use futures::future::BoxFuture;
use http::Method;
use percent_encoding::percent_decode_str;
use tenure_api::cluster::Role;
use tenure_api::{cluster, executors, jobs, ledger, paths, protocol, runs};

use super::answer::Answer;
use super::call::Call;
use super::failure::Failure;
use super::gateway::Lane;
use super::openapi::{self, Body, Doc, NO_QUERY, page, parameters, shape};
use super::{admin, executor, poll};

/// What answers a request.
pub(crate) type Handler = fn(Call) -> BoxFuture<'static, Result<Answer, Failure>>;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anybody, without a token.
    Open,
    /// A token whose role allows this one.
    Role(Role),
}

/// Where a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the node that was asked.
    Here,
    /// By the leader; with `?consistency=stale` on the node that was asked.
    Read,
    /// By the leader, through the log.
    Change,
    /// By the leader, which may let it wait.
    Poll,
}

/// One row of the table.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) place: Place,
    pub(crate) lane: Lane,
    pub(crate) handler: Handler,
    pub(crate) doc: Doc,
}

impl Route {
    /// Whether the request may change something, so that its outcome matters when it is not known.
    pub(crate) fn changes(&self) -> bool {
        match self.place {
            Place::Change => true,
            Place::Here => self.method != Method::GET,
            Place::Read | Place::Poll => false,
        }
    }
}

/// What a lookup found.
pub(crate) enum Found {
    /// The route and the decoded values of its placeholders.
    Route(&'static Route, Vec<String>),
    /// The path is there with these methods.
    Path(Vec<&'static Method>),
    /// No such path.
    Nothing,
}

/// Looks up a request. A path without placeholders goes before one with.
pub(crate) fn find(method: &Method, path: &str) -> Found {
    let mut methods = Vec::new();
    let mut best: Option<(&'static Route, Vec<String>)> = None;
    for route in &ROUTES {
        let Some(values) = matches(route.path, path) else {
            continue;
        };
        if route.method != *method {
            methods.push(&route.method);
            continue;
        }
        let plainer = best
            .as_ref()
            .is_none_or(|(_, others)| values.len() < others.len());
        if plainer {
            best = Some((route, values));
        }
    }
    match best {
        Some((route, values)) => Found::Route(route, values),
        None if methods.is_empty() => Found::Nothing,
        None => Found::Path(methods),
    }
}

/// The decoded values of a pattern's placeholders, if the path fits.
fn matches(pattern: &str, path: &str) -> Option<Vec<String>> {
    let mut values = Vec::new();
    let mut segments = path.split('/');
    for wanted in pattern.split('/') {
        let found = segments.next()?;
        if wanted.starts_with('{') {
            let value = percent_decode_str(found).decode_utf8().ok()?;
            if value.is_empty() {
                return None;
            }
            values.push(value.into_owned());
        } else if wanted != found {
            return None;
        }
    }
    segments.next().is_none().then_some(values)
}

/// Makes a row. `ROLE PLACE LANE METHOD path => handler, "summary", query, body, answer;`
macro_rules! routes {
    ($($access:ident $place:ident $lane:ident $method:ident $path:ident => $handler:path,
        $summary:literal, $query:expr, $body:expr, $answer:expr;)*) => {
        [$(Route {
            method: Method::$method,
            path: paths::$path,
            access: routes!(@access $access),
            place: Place::$place,
            lane: Lane::$lane,
            handler: |call| Box::pin($handler(call)),
            doc: Doc { summary: $summary, query: $query, body: $body, answer: $answer },
        },)*]
    };
    (@access Open) => { Access::Open };
    (@access $role:ident) => { Access::Role(Role::$role) };
}

/// How many routes there are.
pub(crate) const ROUTE_COUNT: usize = 34;

/// Every route.
pub(crate) static ROUTES: [Route; ROUTE_COUNT] = routes! {
    Viewer Read Admin GET JOBS => admin::jobs::list,
        "Lists jobs by name.", parameters::<jobs::JobsQuery>, Body::None, page::<jobs::Job>;
    Viewer Read Admin POST JOBS_PREVIEW => admin::jobs::preview,
        "Checks a job file and shows when it would be due. Stores nothing.",
        parameters::<jobs::NextQuery>, Body::JobFile, shape::<jobs::Preview>;
    Viewer Read Admin GET JOB => admin::jobs::get,
        "Reads a job.", NO_QUERY, Body::None, shape::<jobs::Job>;
    Operator Change Admin PUT JOB => admin::jobs::put,
        "Creates or changes a job. A job that exists needs `If-Match`, unless nothing changes.",
        NO_QUERY, Body::JobFile, shape::<jobs::PutJobAnswer>;
    Operator Change Admin DELETE JOB => admin::jobs::delete,
        "Removes a job and cancels its live runs.", NO_QUERY, Body::None, shape::<protocol::Done>;
    Operator Change Admin POST JOB_PAUSE => admin::jobs::pause,
        "Stops a job from firing.", NO_QUERY, Body::None, shape::<jobs::Job>;
    Operator Change Admin POST JOB_RESUME => admin::jobs::resume,
        "Lets a paused job fire again. The instants of the pause are decided as skipped.",
        NO_QUERY, Body::None, shape::<jobs::Job>;
    Operator Change Admin POST JOB_TRIGGER => admin::jobs::trigger,
        "Starts a run by hand. The same `Idempotency-Key` never starts a second one.",
        NO_QUERY, Body::OptionalJson(shape::<runs::TriggerRequest>), shape::<runs::TriggerAnswer>;
    Viewer Read Admin GET JOB_NEXT => admin::jobs::next_fires,
        "Shows the next instants a job is due.",
        parameters::<jobs::NextQuery>, Body::None, shape::<jobs::NextFires>;
    Viewer Read Admin GET JOB_FIRES => admin::fires::list,
        "Lists what was decided for a job's instants, the latest first.",
        parameters::<ledger::FiresQuery>, Body::None, page::<ledger::Fire>;
    Viewer Read Admin GET JOB_FIRE => admin::fires::get,
        "Says what was decided for one instant, and why.",
        NO_QUERY, Body::None, shape::<ledger::Fire>;
    Viewer Read Admin GET RUNS => admin::runs::list,
        "Lists runs, the newest first.",
        parameters::<runs::RunsQuery>, Body::None, page::<runs::Run>;
    Viewer Read Admin GET RUN => admin::runs::get,
        "Reads a run with its tasks.", NO_QUERY, Body::None, shape::<runs::Run>;
    Operator Change Admin POST RUN_CANCEL => admin::runs::cancel,
        "Cancels a run.", NO_QUERY, Body::OptionalJson(shape::<runs::CancelRequest>),
        shape::<runs::Run>;
    Viewer Read Admin GET RUN_EXPLAIN => admin::runs::explain,
        "Says why a run is where it is.", NO_QUERY, Body::None, shape::<runs::Explanation>;
    Viewer Read Admin GET RUN_OUTPUT => admin::runs::output,
        "Reads what a task wrote.", parameters::<runs::OutputQuery>, Body::None,
        shape::<runs::RunOutput>;
    Viewer Read Admin GET EXECUTORS => admin::executors::list,
        "Lists executors by instance.", parameters::<executors::ExecutorsQuery>, Body::None,
        page::<executors::Executor>;
    Viewer Read Admin GET EXECUTOR => admin::executors::get,
        "Reads an executor with the tasks it holds.", NO_QUERY, Body::None,
        shape::<executors::Executor>;
    Operator Change Admin POST EXECUTOR_DRAIN => admin::executors::drain,
        "Asks an executor to finish what it has and leave.", NO_QUERY,
        Body::Json(shape::<executors::DrainExecutorRequest>), shape::<executors::Executor>;
    Viewer Here Admin GET CLUSTER => admin::cluster::status,
        "Shows the cluster as the asked node sees it.", NO_QUERY, Body::None,
        shape::<cluster::ClusterStatus>;
    Admin Here Admin POST CLUSTER_INITIALIZE => admin::cluster::initialize,
        "Makes a cluster out of empty nodes, once.", NO_QUERY,
        Body::Json(shape::<cluster::InitializeRequest>), shape::<cluster::InitializeAnswer>;
    Viewer Here Admin GET OPENAPI => admin::cluster::openapi,
        "The OpenAPI document.", NO_QUERY, Body::None, openapi::any_object;
    Viewer Here Admin GET METRICS => admin::cluster::metrics,
        "The metrics of the asked node, in Prometheus text form.", NO_QUERY, Body::None,
        openapi::text;
    Open Here Free GET HEALTHZ => admin::cluster::health,
        "Says whether the node lives. With `?ready`: 503 unless it can serve.",
        openapi::ready_parameter, Body::None, shape::<cluster::Health>;
    Executor Change Executor POST SESSIONS => executor::register,
        "Registers an executor process. An earlier session of the same instance ends.",
        NO_QUERY, Body::Json(shape::<protocol::RegisterRequest>),
        shape::<protocol::RegisterAnswer>;
    Executor Change Executor DELETE SESSION => executor::close,
        "Ends a session. What it still holds is orphaned.", NO_QUERY, Body::None,
        shape::<protocol::Done>;
    Executor Change Executor POST SESSION_HEARTBEAT => executor::heartbeat,
        "Renews the lease of a session and of the tasks it names.", NO_QUERY,
        Body::Json(shape::<protocol::HeartbeatRequest>), shape::<protocol::HeartbeatAnswer>;
    Executor Poll Poll POST SESSION_POLL => poll::poll,
        "Asks for work, and waits for it.", NO_QUERY, Body::Json(shape::<protocol::PollRequest>),
        shape::<protocol::PollAnswer>;
    Executor Change Executor POST SESSION_START => executor::start,
        "Asks to run a handler.", NO_QUERY, Body::Json(shape::<protocol::StartRequest>),
        shape::<protocol::StartAnswer>;
    Executor Change Executor POST SESSION_CHECKPOINT => executor::checkpoint,
        "Commits a checkpoint.", NO_QUERY, Body::Json(shape::<protocol::CheckpointRequest>),
        shape::<protocol::CheckpointAnswer>;
    Executor Change Executor POST SESSION_OUTPUT => executor::output,
        "Appends to a task's output.", NO_QUERY, Body::Json(shape::<protocol::OutputRequest>),
        shape::<protocol::OutputAnswer>;
    Executor Change Executor POST SESSION_RESULT => executor::result,
        "Reports how an attempt ended.", NO_QUERY, Body::Json(shape::<protocol::ResultRequest>),
        shape::<protocol::ResultAnswer>;
    Executor Change Executor POST SESSION_RELEASE => executor::release,
        "Gives a shard back without using up an attempt.", NO_QUERY,
        Body::Json(shape::<protocol::ReleaseRequest>), shape::<protocol::Done>;
    Executor Change Executor POST SESSION_DRAIN => executor::drain,
        "Says that the executor takes no more work and will leave.", NO_QUERY,
        Body::Json(shape::<protocol::DrainRequest>), shape::<protocol::Done>;
};
