//! The job of the wire and the job of the machine, one into the other. Nothing else knows both.
//!
//! The two differ on purpose: the machine has no floating point and no `paused` in a definition, its name is
//! the key and not a part, and what the wire leaves out has a value there.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use tenure_api::ids::Capability;
use tenure_api::job as wire;
use tenure_api::{InstanceId, JobName, Millis, Timestamp};
use tenure_machine as machine;
use tenure_machine::Name;

use super::failure::Failure;

/// What `misfire.limit` is for policies that have none.
const NO_MISFIRE_LIMIT: u32 = 10;

/// The machine's definition of a job.
pub(crate) fn to_machine(spec: &wire::JobSpec) -> machine::JobSpec {
    machine::JobSpec {
        description: spec.description.clone(),
        trigger: trigger_to_machine(&spec.trigger),
        overlap: match spec.overlap {
            wire::Overlap::Allow => machine::Overlap::Allow,
            wire::Overlap::Forbid => machine::Overlap::Forbid,
            wire::Overlap::Replace => machine::Overlap::Replace,
            wire::Overlap::Queue => machine::Overlap::Queue,
        },
        queue_limit: spec.queue_limit,
        misfire: machine::Misfire {
            policy: match spec.misfire.policy {
                wire::MisfirePolicy::FireOnce => machine::MisfirePolicy::FireOnce,
                wire::MisfirePolicy::Skip => machine::MisfirePolicy::Skip,
                wire::MisfirePolicy::CatchUp => machine::MisfirePolicy::CatchUp,
            },
            grace_ms: spec.misfire.grace.get(),
            limit: spec.misfire.limit.unwrap_or(NO_MISFIRE_LIMIT),
        },
        retry: machine::Retry {
            max_attempts: spec.retry.max_attempts,
            initial_backoff_ms: spec.retry.initial_backoff.get(),
            max_backoff_ms: spec.retry.max_backoff.get(),
            multiplier_milli: thousandths(spec.retry.multiplier),
            jitter_permille: thousandths(spec.retry.jitter),
        },
        timeout_ms: spec.timeout.map(Millis::get),
        shards: spec.shards,
        execution: match spec.execution {
            wire::Execution::AtLeastOnce => machine::Execution::AtLeastOnce,
            wire::Execution::AtMostOnce => machine::Execution::AtMostOnce,
        },
        recovery: match spec.recovery {
            wire::Recovery::Immediate => machine::Recovery::Immediate,
            wire::Recovery::AfterLease => machine::Recovery::AfterLease,
            wire::Recovery::Never => machine::Recovery::Never,
        },
        checkpoints: match spec.checkpoints {
            wire::CheckpointPolicy::PerRun => machine::CheckpointScope::PerRun,
            wire::CheckpointPolicy::CarryOver => machine::CheckpointScope::CarryOver,
        },
        task: machine::TaskTemplate {
            capability: Name::new(&spec.task.capability),
            version: spec.task.version.clone(),
            selector: spec
                .task
                .selector
                .iter()
                .map(|(key, value)| (Name::new(key), Name::new(value)))
                .collect(),
            params: params_text(&spec.task.params),
        },
        history: machine::History {
            keep: spec.history.keep,
            max_age_ms: spec.history.max_age.get(),
        },
    }
}

/// The machine's form of a trigger.
pub(crate) fn trigger_to_machine(trigger: &wire::Trigger) -> machine::Trigger {
    match trigger {
        wire::Trigger::Cron { cron, timezone } => machine::Trigger::Cron {
            expression: cron.clone(),
            timezone: timezone.clone(),
        },
        wire::Trigger::Every { every } => machine::Trigger::Every {
            interval_ms: every.get(),
        },
        wire::Trigger::At { at } => machine::Trigger::At {
            instant_ms: at.as_unsigned_ms(),
        },
        wire::Trigger::Manual => machine::Trigger::Manual,
    }
}

/// The wire's form of a job's definition.
pub(crate) fn to_wire(
    name: &Name,
    spec: &machine::JobSpec,
    paused: bool,
) -> Result<wire::JobSpec, Failure> {
    let catches_up = spec.misfire.policy == machine::MisfirePolicy::CatchUp;
    Ok(wire::JobSpec {
        name: job_name(name)?,
        description: spec.description.clone(),
        trigger: match &spec.trigger {
            machine::Trigger::Cron {
                expression,
                timezone,
            } => wire::Trigger::Cron {
                cron: expression.clone(),
                timezone: timezone.clone(),
            },
            machine::Trigger::Every { interval_ms } => wire::Trigger::Every {
                every: Millis(*interval_ms),
            },
            machine::Trigger::At { instant_ms } => wire::Trigger::At {
                at: Timestamp::from_unsigned_ms(*instant_ms),
            },
            machine::Trigger::Manual => wire::Trigger::Manual,
        },
        overlap: match spec.overlap {
            machine::Overlap::Allow => wire::Overlap::Allow,
            machine::Overlap::Forbid => wire::Overlap::Forbid,
            machine::Overlap::Replace => wire::Overlap::Replace,
            machine::Overlap::Queue => wire::Overlap::Queue,
        },
        queue_limit: spec.queue_limit,
        misfire: wire::Misfire {
            policy: match spec.misfire.policy {
                machine::MisfirePolicy::FireOnce => wire::MisfirePolicy::FireOnce,
                machine::MisfirePolicy::Skip => wire::MisfirePolicy::Skip,
                machine::MisfirePolicy::CatchUp => wire::MisfirePolicy::CatchUp,
            },
            grace: Millis(spec.misfire.grace_ms),
            limit: catches_up.then_some(spec.misfire.limit),
        },
        retry: wire::Retry {
            max_attempts: spec.retry.max_attempts,
            initial_backoff: Millis(spec.retry.initial_backoff_ms),
            max_backoff: Millis(spec.retry.max_backoff_ms),
            multiplier: f64::from(spec.retry.multiplier_milli) / 1000.0,
            jitter: f64::from(spec.retry.jitter_permille) / 1000.0,
        },
        timeout: spec.timeout_ms.map(Millis),
        shards: spec.shards,
        execution: match spec.execution {
            machine::Execution::AtLeastOnce => wire::Execution::AtLeastOnce,
            machine::Execution::AtMostOnce => wire::Execution::AtMostOnce,
        },
        recovery: match spec.recovery {
            machine::Recovery::Immediate => wire::Recovery::Immediate,
            machine::Recovery::AfterLease => wire::Recovery::AfterLease,
            machine::Recovery::Never => wire::Recovery::Never,
        },
        checkpoints: match spec.checkpoints {
            machine::CheckpointScope::PerRun => wire::CheckpointPolicy::PerRun,
            machine::CheckpointScope::CarryOver => wire::CheckpointPolicy::CarryOver,
        },
        task: wire::TaskSpec {
            capability: capability(&spec.task.capability)?,
            version: spec.task.version.clone(),
            selector: labels(&spec.task.selector),
            params: params_map(&spec.task.params)?,
        },
        history: wire::History {
            keep: spec.history.keep,
            max_age: Millis(spec.history.max_age_ms),
        },
        paused,
    })
}

/// A definition ready to be put.
pub(crate) fn to_machine_arc(spec: &wire::JobSpec) -> Arc<machine::JobSpec> {
    Arc::new(to_machine(spec))
}

/// Parameters as the JSON text that is kept.
pub(crate) fn params_text(params: &Map<String, Value>) -> String {
    // A map with text keys can always be written.
    serde_json::to_string(params).unwrap_or_default()
}

/// Parameters from the JSON text that is kept.
pub(crate) fn params_map(text: &str) -> Result<Map<String, Value>, Failure> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(text).map_err(|error| unreadable("params", &error))
}

/// A job's name. What the state holds came in through the wire's own check.
pub(crate) fn job_name(name: &Name) -> Result<JobName, Failure> {
    JobName::new(name.as_str()).map_err(|error| unreadable(name.as_str(), &error))
}

/// An instance's name.
pub(crate) fn instance_id(name: &Name) -> Result<InstanceId, Failure> {
    InstanceId::new(name.as_str()).map_err(|error| unreadable(name.as_str(), &error))
}

/// A capability's name.
pub(crate) fn capability(name: &Name) -> Result<Capability, Failure> {
    Capability::new(name.as_str()).map_err(|error| unreadable(name.as_str(), &error))
}

/// Labels as text.
pub(crate) fn labels(labels: &BTreeMap<Name, Name>) -> BTreeMap<String, String> {
    labels
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect()
}

fn unreadable(what: &str, error: &dyn std::fmt::Display) -> Failure {
    tracing::error!(what, %error, "the state holds what the interface cannot show");
    Failure::new(
        tenure_api::ErrorCode::Internal,
        format!("the state holds what the interface cannot show: {what}: {error}"),
    )
}

/// A small factor in thousandths. The wire's check has bounded it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the range of the type just before"
)]
fn thousandths(factor: f64) -> u32 {
    (factor * 1000.0).round().clamp(0.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
name: nightly-report
description: numbers
trigger: { cron: "0 2 * * *", timezone: Europe/Berlin }
overlap: queue
queue_limit: 7
misfire: { policy: catch_up, grace: 45s, limit: 3 }
retry: { max_attempts: 4, initial_backoff: 2s, max_backoff: 1m, multiplier: 1.5, jitter: 0.25 }
timeout: 10m
shards: 4
recovery: immediate
checkpoints: carry_over
task:
  capability: shell
  version: ">=2.1, <3"
  selector: { gpu: "true" }
  params: { argv: [echo, hi], n: 1 }
history: { keep: 5, max_age: 2d }
"#;

    #[test]
    fn a_job_comes_back_as_it_went_in() {
        let others = [
            FULL.to_owned(),
            FULL.replace(
                "{ cron: \"0 2 * * *\", timezone: Europe/Berlin }",
                "{ every: 90s }",
            ),
            FULL.replace(
                "{ cron: \"0 2 * * *\", timezone: Europe/Berlin }",
                "{ at: 2026-12-01T02:00:00Z }",
            ),
            "name: a\ntrigger: {manual: true}\nexecution: at_most_once\ntask: {capability: x}\n"
                .to_owned(),
            "name: a\ntrigger: {manual: true}\noverlap: allow\nmisfire: {policy: skip}\ntask: {capability: x}\n"
                .to_owned(),
            "name: a\ntrigger: {manual: true}\noverlap: replace\nrecovery: never\ntask: {capability: x}\n"
                .to_owned(),
        ];
        for text in others {
            let spec = wire::JobSpec::from_yaml(&text).unwrap();
            let name = Name::new(&spec.name);
            let back = to_wire(&name, &to_machine(&spec), spec.paused).unwrap();
            assert_eq!(back, spec, "{text}");
        }
    }

    #[test]
    fn factors_are_whole_thousandths() {
        let cases = [
            (1.0, 1000),
            (1.5, 1500),
            (0.2, 200),
            (0.0004, 0),
            (2.0006, 2001),
        ];
        for (factor, milli) in cases {
            assert_eq!(thousandths(factor), milli, "{factor}");
        }
    }
}
