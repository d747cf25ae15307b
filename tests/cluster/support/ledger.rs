//! The first promise, checked from outside: one decision for each instant.

use std::collections::BTreeMap;

use tenure_api::ledger::{Fire, FiresQuery};
use tenure_api::protocol::TriggerKind;
use tenure_api::runs::{Consistency, Run, RunsQuery};
use tenure_api::{JobName, RunId};
use tenure_sdk::Client;

const MOST: usize = 1_000_000;
const PAGE: u32 = 500;

/// The ledger of a job, the earliest decision first.
pub(crate) async fn fires_of(
    client: &Client,
    job: &JobName,
    consistency: Consistency,
) -> Vec<Fire> {
    let query = FiresQuery {
        limit: Some(PAGE),
        consistency: Some(consistency),
        ..FiresQuery::default()
    };
    let fires = client.fires(job, query).collect(MOST).await;
    let mut fires = fires.unwrap_or_else(|error| panic!("ledger of {job}: {error}"));
    fires.sort_by_key(|fire| fire.scheduled_at);
    fires
}

/// The runs of a job, the earliest first.
pub(crate) async fn runs_of(client: &Client, job: &JobName, consistency: Consistency) -> Vec<Run> {
    let query = RunsQuery {
        job: Some(job.clone()),
        limit: Some(PAGE),
        consistency: Some(consistency),
        ..RunsQuery::default()
    };
    let runs = client.runs(query).collect(MOST).await;
    let mut runs = runs.unwrap_or_else(|error| panic!("runs of {job}: {error}"));
    runs.sort_by_key(|run| run.id);
    runs
}

/// Every instant from the first to the last decision has exactly one decision, and the scheduled runs are
/// exactly those that the ledger speaks of, one for each instant.
///
/// The ledger keeps one record for an instant, so that two decisions would look like one there: it is the
/// runs, each under a number of its own, that would show the second.
pub(crate) fn assert_one_decision_each(job: &JobName, every_ms: i64, fires: &[Fire], runs: &[Run]) {
    let mut expected_ms = None;
    for fire in fires {
        assert_eq!(fire.trigger, TriggerKind::Scheduled);
        let first_ms = fire.scheduled_at.as_ms();
        let last_ms = fire.through.unwrap_or(fire.scheduled_at).as_ms();
        if let Some(expected_ms) = expected_ms {
            assert_eq!(
                first_ms, expected_ms,
                "{job}: missing or double before {fire:#?}"
            );
        }
        let instants = u64::try_from((last_ms - first_ms) / every_ms + 1).expect("in order");
        assert_eq!(fire.instants, instants, "{job}: {fire:#?}");
        assert_eq!(
            fire.decision.made_run(),
            fire.run.is_some(),
            "{job}: {fire:#?}"
        );
        expected_ms = Some(last_ms + every_ms);
    }
    let decided: BTreeMap<i64, RunId> = fires
        .iter()
        .filter_map(|fire| Some((fire.scheduled_at.as_ms(), fire.run?)))
        .collect();
    let scheduled = runs
        .iter()
        .filter(|run| run.trigger == TriggerKind::Scheduled);
    let mut made = BTreeMap::new();
    for run in scheduled {
        let before = made.insert(run.scheduled_at.as_ms(), run.id);
        assert_eq!(
            before, None,
            "{job}: two runs for {}: {run:#?}",
            run.scheduled_at
        );
    }
    assert_eq!(made, decided, "{job}: runs and ledger differ");
}
