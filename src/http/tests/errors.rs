//! Each refusal and failure has one code, and each code one status.

use tenure_api::ErrorCode;
use tenure_machine::{Refusal, RefusalCode};

use super::super::failure::{Failure, code_of};
use super::World;
use crate::consensus::ConsensusError;

#[test]
fn refusals_have_the_codes_that_clients_know() {
    let table = [
        (RefusalCode::Bootstrap, "not_initialized", 503),
        (RefusalCode::StaleTerm, "stale_term", 409),
        (RefusalCode::StaleSession, "stale_session", 409),
        (RefusalCode::SessionReplaced, "session_replaced", 409),
        (RefusalCode::SessionExpired, "session_expired", 410),
        (RefusalCode::SessionClosed, "stale_session", 409),
        (RefusalCode::StaleEpoch, "stale_epoch", 409),
        (RefusalCode::FutureEpoch, "stale_epoch", 409),
        (RefusalCode::UnknownJob, "not_found", 404),
        (RefusalCode::UnknownRun, "not_found", 404),
        (RefusalCode::UnknownTask, "unknown_task", 404),
        (RefusalCode::UnknownExecutor, "not_found", 404),
        (RefusalCode::RevisionMismatch, "precondition_failed", 412),
        (RefusalCode::StaleRevision, "precondition_failed", 412),
        (RefusalCode::DuplicateFire, "precondition_failed", 412),
        (RefusalCode::NotDue, "precondition_failed", 412),
        (RefusalCode::Paused, "paused", 409),
        (RefusalCode::NotPaused, "precondition_failed", 412),
        (RefusalCode::BacklogFull, "backlog_full", 409),
        (
            RefusalCode::CheckpointRegressed,
            "checkpoint_regressed",
            409,
        ),
        (RefusalCode::CheckpointTooLarge, "checkpoint_too_large", 413),
        (RefusalCode::TooLarge, "payload_too_large", 413),
        (RefusalCode::Invalid, "invalid_request", 400),
        (RefusalCode::LimitExceeded, "limit_exceeded", 409),
        (
            RefusalCode::IdempotencyConflict,
            "idempotency_conflict",
            422,
        ),
        (RefusalCode::NotGrantable, "precondition_failed", 412),
        (RefusalCode::NotEligible, "precondition_failed", 412),
        (RefusalCode::NotExpired, "precondition_failed", 412),
        (RefusalCode::AlreadyFinal, "already_final", 409),
        (RefusalCode::NotStarted, "not_started", 409),
        (RefusalCode::CursorMismatch, "precondition_failed", 412),
        (RefusalCode::Overlap, "overlap", 409),
        (RefusalCode::InstanceConflict, "rate_limited", 429),
        (RefusalCode::NotOwner, "forbidden", 403),
    ];
    for (refused, name, status) in table {
        let code = code_of(refused);
        assert_eq!(
            (code.as_str(), code.status()),
            (name, status),
            "{refused:?}"
        );
        // A refused command changed nothing, and the client must be told so.
        assert!(code.had_no_side_effect(), "{refused:?}");
        let failure = Failure::from(Refusal::new(refused, "why"));
        let Failure::Problem(problem) = failure else {
            panic!("{refused:?}");
        };
        assert_eq!((problem.code, problem.detail.as_str()), (code, "why"));
    }
}

#[test]
fn failures_of_consensus_say_whether_anything_happened() {
    let not_leader = Failure::from(ConsensusError::NotLeader { leader: None });
    assert_eq!(not_leader, Failure::NotLeader);
    for (error, code) in [
        (ConsensusError::Overloaded, ErrorCode::Overloaded),
        (ConsensusError::Stopping, ErrorCode::NoLeader),
        (
            ConsensusError::OutcomeUnknown("x".into()),
            ErrorCode::OutcomeUnknown,
        ),
    ] {
        let Failure::Problem(problem) = Failure::from(error.clone()) else {
            panic!("{error:?}");
        };
        assert_eq!(problem.code, code, "{error:?}");
        let unsure = matches!(error, ConsensusError::OutcomeUnknown(_));
        assert_eq!(problem.code.had_no_side_effect(), !unsure, "{error:?}");
    }
}

#[tokio::test]
async fn a_cluster_that_exists_is_not_made_again() {
    let world = World::new();
    let member = serde_json::json!({"id": 1, "peer_address": "h:1", "api_url": "http://h:2"});
    let ask = |members: serde_json::Value| {
        let body = serde_json::json!({"members": members});
        world
            .ask("POST", "/v1/cluster/initialize")
            .json(&body)
            .send()
    };
    let again = ask(serde_json::json!([member])).await;
    assert_eq!(again.failed(), (409, "already_initialized".into()));
    for (members, path) in [
        (serde_json::json!([]), "members"),
        (serde_json::json!([member, member]), "members[1].id"),
        (
            serde_json::json!([{"id": 0, "peer_address": "h:1", "api_url": "http://h:2"}]),
            "members[0].id",
        ),
        (
            serde_json::json!([{"id": 1, "peer_address": "h", "api_url": "http://h:2"}]),
            "members[0].peer_address",
        ),
        (
            serde_json::json!([{"id": 1, "peer_address": "h:1", "api_url": "h:2"}]),
            "members[0].api_url",
        ),
    ] {
        let answer = ask(members).await;
        assert_eq!(answer.failed(), (400, "invalid_request".into()));
        assert_eq!(answer.json()["path"], path, "{answer:?}");
    }
    let status = world.get("/v1/cluster").await.ok();
    assert_eq!(
        (&status["initialized"], &status["has_quorum"]),
        (&true.into(), &true.into())
    );
    assert_eq!(status["members"][0]["state"], "leader");
}
