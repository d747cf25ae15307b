//! The scenarios that a simulation can show, one function each; its name begins with the scenario's id.
//!
//! Each is a script on a calm world, under several seeds, with every invariant checked meanwhile. Time is
//! virtual, so limits are exact.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its own functions too"
)]

mod scenarios {
    mod ex;
    mod ha;
    mod sh;
    mod snapshots;
}

use serde_json::{Value, json};
use tenure::leader::LeaderConfig;
use tenure_machine::Command;
use tenure_raft::config::RaftConfig;
use tenure_sim::plan::Plan;
use tenure_sim::stage::{Stage, Told, play};

/// How many seeds each scenario is played under.
const SEEDS: u64 = 6;
/// The lease of the scenarios, with heartbeats every 10 s.
const LEASE_MS: u64 = 35_000;
/// What a decision may come late beside the time without a leader.
const LATE_MS: u64 = 1_000;

/// Three nodes with default timers and calm machines.
fn plan(executors: usize, lease_ttl_ms: u64) -> Plan {
    Plan {
        nodes: 3,
        raft: RaftConfig {
            max_command_bytes: 100 << 10,
            snapshot_chunk_bytes: 16 << 10,
            ..RaftConfig::default()
        },
        leader: LeaderConfig {
            grace_ms: lease_ttl_ms * 2 / 7,
            ..LeaderConfig::default()
        },
        executors,
        lease_ttl_ms,
        jobs: Vec::new(),
        drift_ppm: 0,
        storm_ms: 0,
        calm_ms: 0,
    }
}

fn under_seeds(plan: &Plan, script: impl AsyncFn(&Stage) -> Told) {
    under(SEEDS, plan, script);
}

fn under(seeds: u64, plan: &Plan, script: impl AsyncFn(&Stage) -> Told) {
    for seed in 1..=seeds {
        if let Err(what) = play(seed, plan, &script) {
            panic!("{what}");
        }
    }
}

const EVERY_SECOND: &str =
    "trigger: { every: 1s }\noverlap: allow\nmisfire: { policy: catch_up, grace: 1s, limit: 50 }\n";
const BY_HAND: &str = "trigger: { manual: true }\noverlap: allow\n";
const SHORT: &str = "total: 2, pace_ms: 20, every: 2";

/// Waits for the next heartbeat of a session; when it was committed.
async fn next_heartbeat(s: &Stage, session: u64) -> Result<u64, String> {
    let from = s.log().len();
    let beat = || {
        let log = s.log();
        let mut beats = log[from..].iter().filter(
            |entry| matches!(&entry.command, Command::Heartbeat(beat) if beat.session == session),
        );
        beats.find(|entry| entry.done).map(|entry| entry.at_ms)
    };
    s.until("a heartbeat", 30_000, beat).await
}

/// What an executor says of a task under an epoch: how it is called, and its body.
fn words(run: u64, epoch: u64) -> [(&'static str, Value); 5] {
    let task = json!({ "run": run, "shard": 0, "epoch": epoch });
    let with = |more: Value| {
        let mut body = task.clone();
        let more = more.as_object().cloned().unwrap_or_default();
        body.as_object_mut().unwrap().extend(more);
        body
    };
    let beat = json!({ "slots_used": 1, "healthy": true, "tasks": [&task] });
    let succeeded = json!({ "outcome": { "status": "succeeded" } });
    [
        ("heartbeat", beat),
        ("start", task.clone()),
        ("checkpoint", with(json!({ "offset": 1_000_000 }))),
        ("output", with(json!({ "seq": 0, "text": "late" }))),
        ("result", with(succeeded)),
    ]
}
