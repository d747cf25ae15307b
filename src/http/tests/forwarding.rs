//! A node that does not lead: it asks the one that does, once, and says so when there is none.

use std::sync::{Arc, Mutex};

use axum::Router;
use futures::future::BoxFuture;
use serde_json::json;
use tenure_machine::{Command, Stamp};
use tenure_raft::state_machine::Replica;

use super::super::{
    APPLIED_HEADER, Gateway, Limits, Meters, Parts, STATE_AGE_HEADER, router, serve_forwarded,
};
use super::{MANUAL, World};
use crate::blocking::Blocking;
use crate::consensus::{
    Committed, Consensus, ConsensusError, Draft, NewMember, NodeHint, Standing,
};
use crate::security::OsEntropy;
use crate::wakeups::Wakeups;
use crate::watch;

/// What becomes of what a follower sends.
#[derive(Clone)]
enum Link {
    /// It arrives.
    Whole,
    /// It fails like this.
    Fails(ConsensusError),
    /// Something else comes back.
    Says(Vec<u8>),
    /// Nothing ever comes back.
    Hangs,
    /// The node itself is at fault.
    Panics,
}

/// A node that follows the world's leader.
struct Follower {
    leader: Gateway,
    replica: Replica,
    standing: watch::Sender<Standing>,
    link: Mutex<Link>,
}

impl Follower {
    fn set(&self, link: Link) {
        *self.link.lock().unwrap() = link;
    }
}

fn not_leader() -> ConsensusError {
    ConsensusError::NotLeader { leader: None }
}

impl Consensus for Follower {
    fn propose(&self, _: Draft) -> BoxFuture<'_, Result<Committed, ConsensusError>> {
        Box::pin(std::future::ready(Err(not_leader())))
    }

    fn propose_all(
        &self,
        _: u64,
        commands: Vec<Command>,
    ) -> BoxFuture<'_, Vec<Result<Committed, ConsensusError>>> {
        let refused = commands.iter().map(|_| Err(not_leader())).collect();
        Box::pin(std::future::ready(refused))
    }

    fn read(&self) -> BoxFuture<'_, Result<Replica, ConsensusError>> {
        Box::pin(std::future::ready(Err(not_leader())))
    }

    fn stale(&self) -> Replica {
        self.replica.clone()
    }

    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    fn now(&self) -> Stamp {
        let Stamp {
            lease_ms,
            calendar_ms,
        } = self.replica.state.clock();
        Stamp {
            lease_ms,
            calendar_ms: calendar_ms + 250,
        }
    }

    fn forward(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
        let link = self.link.lock().unwrap().clone();
        Box::pin(async move {
            match link {
                Link::Whole => Ok(serve_forwarded(&self.leader, &request).await),
                Link::Fails(error) => Err(error),
                Link::Says(bytes) => Ok(bytes),
                Link::Hangs => std::future::pending().await,
                Link::Panics => panic!("planted"),
            }
        })
    }

    fn ask_archive(&self, _: u64, _: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
        Box::pin(std::future::ready(Err(not_leader())))
    }

    fn initialize(&self, _: Vec<NewMember>) -> BoxFuture<'_, Result<(), ConsensusError>> {
        Box::pin(std::future::ready(Err(not_leader())))
    }
}

/// A follower of the world's leader, with the state as it is now.
fn follower(world: &World) -> (Arc<Follower>, Router) {
    let standing = Standing {
        node: 2,
        term: 1,
        leads: false,
        leader: Some(NodeHint {
            id: 1,
            http_url: "http://127.0.0.1:1".into(),
        }),
        leader_age_ms: Some(20),
        applied: 77,
        members: world.solo.standing().borrow().members.clone(),
        ..Standing::default()
    };
    let follower = Arc::new(Follower {
        leader: world.gateway.clone(),
        replica: world.solo.stale(),
        standing: watch::channel(standing).0,
        link: Mutex::new(Link::Whole),
    });
    let parts = Parts {
        consensus: follower.clone(),
        history: world.history.clone(),
        wakeups: Wakeups::new(),
        tokens: world.tokens.clone(),
        meters: Meters::new(),
        limits: Limits::default(),
        blocking: Blocking::Threads,
    };
    (follower, router(Gateway::new(parts, &OsEntropy).unwrap()))
}

#[tokio::test]
async fn a_request_goes_to_the_leader_and_its_answer_comes_back() {
    let world = World::new();
    let (_, node) = follower(&world);
    let put = world
        .ask_at(&node, "operator", "PUT", "/v1/jobs/a")
        .header("if-none-match", "*");
    let put = put
        .header("x-request-id", "r-1")
        .yaml(&format!("name: a\n{MANUAL}"))
        .send()
        .await;
    assert_eq!(put.status, 201);
    assert_eq!(put.header("content-type"), "application/json");
    assert_eq!(put.header("x-request-id"), "r-1");
    let etag = put.header("etag").to_owned();
    // The leader knows who asked, and knew it without the token.
    let key = world.ask_at(&node, "operator", "POST", "/v1/jobs/a/trigger");
    let first = key.header("idempotency-key", "k").send().await.ok();
    let same = world.ask_as("operator", "POST", "/v1/jobs/a/trigger");
    assert_eq!(
        same.header("idempotency-key", "k").send().await.ok()["run"],
        first["run"]
    );
    // Preconditions, queries and refusals cross too.
    let stale = world
        .ask_at(&node, "admin", "DELETE", "/v1/jobs/a")
        .header("if-match", "\"1\"");
    assert_eq!(
        stale.send().await.failed(),
        (412, "precondition_failed".into())
    );
    let read = world
        .ask_at(&node, "viewer", "GET", "/v1/jobs/a")
        .send()
        .await;
    assert_eq!(read.header("etag"), etag);
    let list = world
        .ask_at(&node, "viewer", "GET", "/v1/jobs?prefix=b")
        .send()
        .await;
    assert_eq!(list.ok()["items"], json!([]));
    let session = world.ask_at(&node, "executor", "POST", "/v1/executor/sessions");
    let session = session
        .json(&json!({"instance_id": "w", "version": "1.0.0", "capabilities": ["work"], "capacity": 1}))
        .send()
        .await
        .ok();
    world.plan().await;
    let path = format!("/v1/executor/sessions/{}/poll", session["session"]);
    let poll = world
        .ask_at(&node, "executor", "POST", &path)
        .json(&json!({"max": 1, "wait_ms": 0}));
    assert_eq!(poll.send().await.ok()["assignments"][0]["job"], "a");
    let metrics = world
        .ask_at(&node, "viewer", "GET", "/metrics")
        .send()
        .await;
    assert!(
        metrics.text.contains("tenure_http_forwarded_total 7"),
        "{}",
        metrics.text
    );
}

#[tokio::test]
async fn authentication_and_authorization_happen_where_the_request_arrives() {
    let world = World::new();
    let (node, service) = follower(&world);
    node.set(Link::Fails(ConsensusError::OutcomeUnknown(
        "must not be asked".into(),
    )));
    let stranger = world
        .ask_at(&service, "", "DELETE", "/v1/jobs/a")
        .send()
        .await;
    assert_eq!(stranger.failed(), (401, "unauthenticated".into()));
    let viewer = world
        .ask_at(&service, "viewer", "DELETE", "/v1/jobs/a")
        .send()
        .await;
    assert_eq!(viewer.failed(), (403, "forbidden".into()));
}

#[tokio::test]
async fn a_stale_read_stays_here_and_says_how_old_it_is() {
    let world = World::new();
    world.put("a", MANUAL).await;
    let (node, service) = follower(&world);
    node.set(Link::Fails(not_leader()));
    world.put("b", MANUAL).await;
    let stale = world
        .ask_at(&service, "viewer", "GET", "/v1/jobs?consistency=stale")
        .send()
        .await;
    assert_eq!(stale.header(APPLIED_HEADER), "77");
    assert_eq!(stale.header(STATE_AGE_HEADER), "250");
    assert_eq!(stale.ok()["items"].as_array().unwrap().len(), 1);
    for path in [
        "/v1/jobs/a",
        "/v1/jobs/a/next",
        "/v1/jobs/a/fires",
        "/v1/runs",
        "/v1/executors",
    ] {
        let path = format!("{path}?consistency=stale");
        assert_eq!(
            world
                .ask_at(&service, "viewer", "GET", &path)
                .send()
                .await
                .status,
            200,
            "{path}"
        );
    }
    let fresh = world
        .ask_at(&service, "viewer", "GET", "/v1/jobs")
        .send()
        .await;
    assert_eq!(fresh.failed(), (503, "no_leader".into()));
    let cluster = world
        .ask_at(&service, "viewer", "GET", "/v1/cluster")
        .send()
        .await
        .ok();
    assert_eq!(
        (&cluster["node"], &cluster["leader"]),
        (&json!(2), &json!(1))
    );
}

/// What is over later than the state is from would come without its neighbours that still run.
#[tokio::test]
async fn a_list_is_of_one_moment_although_the_archive_is_further() {
    let world = World::new();
    world.put("a", &format!("overlap: allow\n{MANUAL}")).await;
    let trigger = async || {
        let answer = world.ask("POST", "/v1/jobs/a/trigger").send().await.ok();
        answer["run"].as_u64().unwrap()
    };
    let cancel = async |run: u64| {
        let path = format!("/v1/runs/{run}/cancel");
        world.ask("POST", &path).send().await.ok();
    };
    let (over, live) = (trigger().await, trigger().await);
    cancel(over).await;
    let (_, service) = follower(&world);
    trigger().await;
    let later = trigger().await;
    cancel(later).await;
    cancel(live).await;
    for path in [
        "/v1/runs?consistency=stale",
        "/v1/runs?consistency=stale&job=a",
    ] {
        let page = world
            .ask_at(&service, "viewer", "GET", path)
            .send()
            .await
            .ok();
        let ids: Vec<_> = page["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| (run["id"].as_u64().unwrap(), run["state"].clone()))
            .collect();
        assert_eq!(
            ids,
            [(live, json!("queued")), (over, json!("cancelled"))],
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_link_that_fails_says_what_may_have_happened() {
    let world = World::new();
    let (node, service) = follower(&world);
    let lost = ConsensusError::OutcomeUnknown("the link broke".into());
    for (link, change, read) in [
        (
            Link::Fails(lost),
            (504, "outcome_unknown"),
            (503, "no_leader"),
        ),
        (
            Link::Fails(not_leader()),
            (503, "no_leader"),
            (503, "no_leader"),
        ),
        (
            Link::Fails(ConsensusError::Stopping),
            (503, "no_leader"),
            (503, "no_leader"),
        ),
        (
            Link::Fails(ConsensusError::Overloaded),
            (503, "overloaded"),
            (503, "overloaded"),
        ),
        (
            Link::Says(b"rubbish".to_vec()),
            (504, "outcome_unknown"),
            (503, "no_leader"),
        ),
    ] {
        node.set(link);
        let answer = world
            .ask_at(&service, "admin", "POST", "/v1/jobs/a/pause")
            .send()
            .await;
        assert_eq!(answer.failed(), (change.0, change.1.into()));
        let answer = world
            .ask_at(&service, "admin", "GET", "/v1/jobs")
            .send()
            .await;
        assert_eq!(answer.failed(), (read.0, read.1.into()));
        assert_eq!(answer.header("retry-after"), "1");
    }
}

#[tokio::test]
async fn a_forwarded_request_is_never_forwarded_again() {
    let world = World::new();
    let (_, service) = follower(&world);
    // Node 1 was deposed and takes node 2 for the leader, while node 2 takes node 1 for it.
    world.solo.set_leads(false);
    let answer = world
        .ask_at(&service, "admin", "GET", "/v1/jobs")
        .send()
        .await;
    assert_eq!(answer.failed(), (503, "no_leader".into()));
}

#[tokio::test]
async fn a_node_without_a_leader_says_whether_it_ever_had_one() {
    let world = World::new();
    let (node, service) = follower(&world);
    node.standing.send_modify(|standing| standing.leader = None);
    let answer = world
        .ask_at(&service, "admin", "POST", "/v1/jobs/a/pause")
        .send()
        .await;
    assert_eq!(answer.failed(), (503, "no_leader".into()));
    assert_eq!(answer.header("tenure-leader"), "");
    node.standing
        .send_modify(|standing| standing.members.clear());
    let answer = world
        .ask_at(&service, "admin", "POST", "/v1/jobs/a/pause")
        .send()
        .await;
    assert_eq!(answer.failed(), (503, "not_initialized".into()));
}

#[tokio::test]
async fn bytes_from_a_peer_that_are_no_request_get_an_answer() {
    let world = World::new();
    let (node, service) = follower(&world);
    for bytes in [Vec::new(), b"TN".to_vec(), vec![0; 64]] {
        let answer = serve_forwarded(&world.gateway, &bytes).await;
        node.set(Link::Says(answer));
        let answer = world
            .ask_at(&service, "admin", "GET", "/v1/jobs")
            .send()
            .await;
        assert_eq!(answer.failed(), (400, "invalid_request".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_waited_for_without_end() {
    let world = World::new();
    let (node, service) = follower(&world);
    node.set(Link::Hangs);
    let change = world.ask_at(&service, "admin", "POST", "/v1/jobs/a/pause");
    assert_eq!(
        change.send().await.failed(),
        (504, "outcome_unknown".into())
    );
    let read = world.ask_at(&service, "admin", "GET", "/v1/jobs");
    assert_eq!(read.send().await.failed(), (503, "overloaded".into()));
}

#[tokio::test]
async fn no_panic_gets_out() {
    let world = World::new();
    let (node, service) = follower(&world);
    node.set(Link::Panics);
    let answer = world.ask_at(&service, "admin", "GET", "/v1/jobs");
    let answer = answer.header("x-request-id", "r-9").send().await;
    assert_eq!(answer.failed(), (500, "internal".into()));
    let detail = answer.json()["detail"].clone();
    assert_eq!(detail, "the handler failed; request r-9");
    node.set(Link::Whole);
    let after = world
        .ask_at(&service, "admin", "GET", "/v1/jobs")
        .send()
        .await;
    assert_eq!(after.status, 200, "the place it took is free again");
}
