//! Which conditions an executor fails for a run that waits (seed scenario EX-7).
//!
//! `apply` stops at the first condition that fails; a person wants all of them. A test holds the two together:
//! an executor that fails nothing here is one that `apply` would grant the task to.

use tenure_api::runs::{Condition, ExecutorVerdict, FailedCondition};
use tenure_machine::plan::MAX_EXPLAINED;
use tenure_machine::{Run, Session, State};

use crate::http::convert::instance_id;
use crate::http::failure::Failure;

/// Every executor, at most [`MAX_EXPLAINED`], and what it fails.
pub(crate) fn of_executors(
    state: &State,
    run: &Run,
    now_lease_ms: u64,
) -> Result<Vec<ExecutorVerdict>, Failure> {
    state
        .sessions_after(None)
        .take(MAX_EXPLAINED)
        .map(|session| {
            let fails = failed_conditions(state, session, run, now_lease_ms);
            Ok(ExecutorVerdict {
                instance_id: instance_id(&session.instance)?,
                eligible: fails.is_empty(),
                fails,
            })
        })
        .collect()
}

fn failed_conditions(
    state: &State,
    session: &Session,
    run: &Run,
    now_lease_ms: u64,
) -> Vec<FailedCondition> {
    let wanted = &run.spec.task;
    let mut fails = Vec::new();
    let mut fail = |condition, detail: String| fails.push(FailedCondition { condition, detail });
    let deadline_ms = state.effective_deadline(session.deadline_lease_ms);
    if deadline_ms <= now_lease_ms {
        let over_ms = now_lease_ms - deadline_ms;
        fail(
            Condition::Online,
            format!("its lease ran out {over_ms} ms ago"),
        );
    }
    if session.drain_limit_lease_ms.is_some() {
        fail(Condition::NotDraining, "it is draining".into());
    }
    if !session.healthy {
        fail(
            Condition::Healthy,
            "its own probe says that it is not well".into(),
        );
    }
    if !session.capabilities.contains(&wanted.capability) {
        fail(
            Condition::Capability,
            format!("wants {}, which it does not offer", wanted.capability),
        );
    }
    if let Some(requirement) = &wanted.version
        && !satisfies(requirement, &session.version)
    {
        fail(
            Condition::Version,
            format!("wants {requirement}; it has {}", session.version),
        );
    }
    for (key, value) in &wanted.selector {
        match session.labels.get(key) {
            Some(found) if found == value => {}
            Some(found) => fail(
                Condition::Selector,
                format!("wants {key}={value}; it has {key}={found}"),
            ),
            None => fail(
                Condition::Selector,
                format!("wants {key}={value}; it has no label {key}"),
            ),
        }
    }
    if state.free_slots(session) == 0 {
        fail(
            Condition::FreeSlot,
            format!(
                "its {} slots are taken, {} of them by the cluster",
                session.capacity,
                state.held_count(session.id)
            ),
        );
    }
    fails
}

fn satisfies(requirement: &str, version: &str) -> bool {
    let requirement = semver::VersionReq::parse(requirement);
    let version = semver::Version::parse(version);
    matches!((requirement, version), (Ok(requirement), Ok(version)) if requirement.matches(&version))
}
