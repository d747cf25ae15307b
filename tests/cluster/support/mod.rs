//! What the tests of whole clusters share: real processes on loopback, clients, executors, and waiting for
//! conditions. Nothing here decides what is right; that is in the tests.
//!
//! There is no sleep for an outcome: a test waits until something is so, for up to [`LIMIT`], and shows the
//! ends of all logs when it gives up.

mod cluster;
mod executors;
mod ledger;
mod process;
mod serial;
mod wire;

pub(crate) use cluster::{Cluster, Settings, free_ports};
pub(crate) use executors::{
    CHECKPOINT_EVERY, Child, RECORDS, ShellExecutor, child_main, in_process,
};
pub(crate) use ledger::{assert_one_decision_each, fires_of, runs_of};
pub(crate) use process::{Process, output, tenure};
pub(crate) use serial::{Share, full, quick};
pub(crate) use wire::{Answer, Pinned, Wire};

use std::time::Duration;

use tenure_api::job::JobSpec;
use tokio::time::{Instant, sleep};

/// How long a condition may take to come true. Far longer than it should: the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(40);

/// Waits until `check` gives a value. Its error says what is still missing.
pub(crate) async fn eventually<T>(
    what: &str,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match check().await {
            Ok(value) => return value,
            Err(missing) if Instant::now() >= deadline => {
                panic!("{what}: not so after {} s: {missing}", LIMIT.as_secs())
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// `Ok` if it holds, for [`eventually`].
pub(crate) fn holds(condition: bool, missing: impl std::fmt::Display) -> Result<(), String> {
    if condition {
        Ok(())
    } else {
        Err(missing.to_string())
    }
}

/// A job out of YAML.
pub(crate) fn job(yaml: &str) -> JobSpec {
    JobSpec::from_yaml(yaml).unwrap_or_else(|errors| panic!("{errors}\n{yaml}"))
}

/// Milliseconds since the epoch, for jobs with an instant.
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_millis()).expect("before the year 292 million")
}
