//! The cluster as this node sees it: status, initialisation, health, metrics, and the OpenAPI document.

use http::StatusCode;
use tenure_api::cluster::{
    ClusterCounts, ClusterStatus, Health, InitializeAnswer, InitializeRequest, Member, MemberState,
};
use tenure_api::ids::{Generation, NodeId, Term};
use tenure_api::paths::JSON;
use tenure_api::{ErrorCode, Timestamp};
use tenure_machine::State;

use crate::consensus::{ConsensusError, MemberStanding, NewMember, Standing};
use crate::http::answer::Answer;
use crate::http::call::Call;
use crate::http::failure::Failure;
use crate::http::{metrics, openapi};

/// What every node of this version can do.
const FEATURE_LEVEL: u32 = 1;
/// The most members a new cluster may have. More voters only make each write slower.
const MAX_MEMBERS: usize = 7;
/// The longest address or URL of a member, in bytes.
const MAX_ADDRESS_BYTES: usize = 300;

/// `GET /v1/cluster`
pub(crate) async fn status(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let standing = call.shared.consensus.standing().borrow().clone();
    let state = call.shared.consensus.stale().state;
    let meta = state.meta();
    Ok(Answer::json(&ClusterStatus {
        cluster_id: meta.cluster_id.as_ref().map(ToString::to_string),
        initialized: meta.cluster_id.is_some(),
        generation: Generation(meta.generation),
        feature_level: FEATURE_LEVEL,
        node: NodeId(standing.node),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        leader: standing.leader.as_ref().map(|leader| NodeId(leader.id)),
        leader_url: standing
            .leader
            .as_ref()
            .map(|leader| leader.http_url.clone()),
        term: Term(standing.term),
        has_quorum: standing.has_leader(),
        committed_index: standing.committed,
        applied_index: standing.applied,
        clock_at: Timestamp::from_unsigned_ms(meta.clock.calendar_ms),
        lease_clock_ms: meta.clock.lease_ms,
        members: standing
            .members
            .iter()
            .map(|member| self::member(&standing, member))
            .collect(),
        counts: counts(&state),
    }))
}

fn member(standing: &Standing, member: &MemberStanding) -> Member {
    let is_leader = standing
        .leader
        .as_ref()
        .is_some_and(|leader| leader.id == member.id);
    let state = match (is_leader, member.voter) {
        (true, _) => MemberState::Leader,
        (false, false) => MemberState::Learner,
        (false, true) if standing.leads || member.id == standing.node => MemberState::Follower,
        (false, true) => MemberState::Unknown,
    };
    Member {
        id: NodeId(member.id),
        peer_address: member.peer_address.clone(),
        api_url: member.http_url.clone(),
        voter: member.voter,
        state,
        matched_index: member.matched,
        lag_entries: member
            .matched
            .map(|matched| standing.last_log.saturating_sub(matched)),
        last_contact_ms: None,
    }
}

fn counts(state: &State) -> ClusterCounts {
    let index = state.index();
    let orphaned = index.orphaned as u64;
    ClusterCounts {
        jobs: state.job_count() as u64,
        jobs_paused: index.paused as u64,
        runs_live: state.run_count().saturating_sub(index.finished.len()) as u64,
        tasks_queued: (state.queued_count() as u64).saturating_sub(orphaned),
        tasks_orphaned: orphaned,
        tasks_running: index.held.len() as u64,
        executors_online: state.session_count() as u64,
    }
}

/// `POST /v1/cluster/initialize`
pub(crate) async fn initialize(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let request: InitializeRequest = call.json()?;
    let members = check_members(request)?;
    let already = || Failure::new(ErrorCode::AlreadyInitialized, "the cluster has been made");
    if cluster_id(&call).is_some() {
        return Err(already());
    }
    match call.shared.consensus.initialize(members).await {
        Ok(()) => {}
        // It has members already, or another call was faster.
        Err(ConsensusError::NotLeader { .. }) => return Err(already()),
        Err(error) => return Err(error.into()),
    }
    // The first leader gives the cluster its identity. The request's own time limit bounds the wait.
    let mut standing = call.shared.consensus.standing();
    loop {
        standing.borrow_and_update();
        if let Some(cluster_id) = cluster_id(&call) {
            return Ok(Answer::json(&InitializeAnswer { cluster_id }));
        }
        if standing.changed().await.is_err() {
            return Err(ConsensusError::Stopping.into());
        }
    }
}

fn check_members(request: InitializeRequest) -> Result<Vec<NewMember>, Failure> {
    let count = request.members.len();
    if count == 0 || count > MAX_MEMBERS {
        let detail = format!("a cluster begins with 1 to {MAX_MEMBERS} members");
        return Err(Failure::invalid("members", detail));
    }
    let mut members: Vec<NewMember> = Vec::with_capacity(count);
    for (position, member) in request.members.into_iter().enumerate() {
        let fault = |field: &str, why: &str| {
            let path = format!("members[{position}].{field}");
            Failure::invalid(&path, format!("{path}: {why}"))
        };
        let id = member.id.get();
        if id == 0 || members.iter().any(|other| other.id == id) {
            return Err(fault(
                "id",
                "must be above zero and different for each member",
            ));
        }
        if !is_address(&member.peer_address) {
            return Err(fault("peer_address", "must be host:port"));
        }
        let authority = member.api_url.strip_prefix("http://");
        if !authority.is_some_and(is_address) {
            return Err(fault("api_url", "must be http://host:port"));
        }
        members.push(NewMember {
            id,
            peer_address: member.peer_address,
            http_url: member.api_url,
        });
    }
    Ok(members)
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let plain = text.len() <= MAX_ADDRESS_BYTES && text.bytes().all(|b| b.is_ascii_graphic());
    plain && !host.is_empty() && !host.contains(['/', '@', '?', '#']) && port.parse::<u16>().is_ok()
}

/// `GET /healthz`. Open to everybody, so it says nothing but yes or no.
pub(crate) async fn health(call: Call) -> Result<Answer, Failure> {
    let asks_ready = match call.query.as_str() {
        "" => false,
        "ready" | "ready=" | "ready=true" => true,
        _ => return Err(Failure::invalid("query", "the only parameter is ready")),
    };
    let standing = call.shared.consensus.standing().borrow().clone();
    let initialized = cluster_id(&call).is_some();
    let ready = initialized && standing.has_leader();
    let answer = Answer::json(&Health {
        live: true,
        ready,
        initialized,
    });
    Ok(if asks_ready && !ready {
        answer.with_status(StatusCode::SERVICE_UNAVAILABLE)
    } else {
        answer
    })
}

/// `GET /metrics`
pub(crate) async fn metrics(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    let text = metrics::render(&call.shared);
    Ok(Answer::of(
        StatusCode::OK,
        metrics::TEXT_MEDIA,
        text.into_bytes(),
    ))
}

/// `GET /v1/openapi.json`
pub(crate) async fn openapi(call: Call) -> Result<Answer, Failure> {
    call.no_query()?;
    Ok(Answer::of(
        StatusCode::OK,
        JSON,
        openapi::document().to_vec(),
    ))
}

/// The cluster that this node belongs to, as far as it knows.
fn cluster_id(call: &Call) -> Option<String> {
    let state = call.shared.consensus.stale().state;
    state.meta().cluster_id.as_ref().map(ToString::to_string)
}
