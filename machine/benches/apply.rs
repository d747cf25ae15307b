//! How fast the machine is: `cargo bench -p tenure-machine --bench apply`.
//!
//! Prints a line a figure. With an argument that is a number it uses that many jobs (default 1,000,000).
//! These are figures of one core, without log, network and disk.

// A bench measures time; the machine itself never does.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a bench reads the clock and prints"
)]
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench reads the clock and prints"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tenure_machine::plan::{Budget, Planner};
use tenure_machine::*;

struct Bench {
    state: State,
    stamp: Stamp,
    index: u64,
}

impl Bench {
    fn apply(&mut self, command: Command, term: Option<u64>) -> Reply {
        self.index += 1;
        let at = LogPosition {
            term: 1,
            index: self.index,
        };
        let proposal = Proposal {
            stamp: self.stamp,
            term,
            actor: Actor::Scheduler,
            request: None,
            command,
        };
        let outcome = self.state.apply(at, &proposal);
        outcome.reply.expect("a bench proposes what is accepted")
    }

    fn register(&mut self, instance: &str, capacity: u32) -> u64 {
        let reply = self.apply(
            Command::RegisterSession(Registration {
                instance: Name::new(instance),
                version: "1.0.0".into(),
                capabilities: vec![Name::new("shell")],
                labels: BTreeMap::new(),
                capacity,
                lease_ttl_ms: 3_600_000,
            }),
            None,
        );
        match reply {
            Reply::Session { session, .. } => session,
            other => panic!("{other:?}"),
        }
    }
}

fn spec(interval_ms: u64, shards: u32) -> Arc<JobSpec> {
    Arc::new(JobSpec {
        description: String::new(),
        trigger: Trigger::Every { interval_ms },
        overlap: Overlap::Allow,
        queue_limit: 1000,
        misfire: Misfire {
            policy: MisfirePolicy::FireOnce,
            grace_ms: 30_000,
            limit: 10,
        },
        retry: Retry {
            max_attempts: 1,
            initial_backoff_ms: 1000,
            max_backoff_ms: 1000,
            multiplier_milli: 1000,
            jitter_permille: 0,
        },
        timeout_ms: Some(60_000),
        shards,
        execution: Execution::AtLeastOnce,
        recovery: Recovery::AfterLease,
        checkpoints: CheckpointScope::PerRun,
        task: TaskTemplate {
            capability: Name::new("shell"),
            version: None,
            selector: BTreeMap::new(),
            params: "{}".into(),
        },
        history: History {
            keep: 100,
            max_age_ms: 86_400_000,
        },
    })
}

fn report(what: &str, count: u64, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    println!(
        "{what}: {:.0}/s ({count} in {:.3} s)",
        count as f64 / seconds,
        seconds
    );
}

fn main() {
    let jobs = std::env::args()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(1_000_000u64);
    let mut bench = Bench {
        state: State::new(),
        stamp: Stamp {
            lease_ms: 0,
            calendar_ms: 1_767_225_600_000,
        },
        index: 0,
    };
    bench.apply(
        Command::Bootstrap {
            cluster_id: Name::new("bench"),
            generation: 1,
        },
        None,
    );
    put_jobs(&mut bench, jobs);
    plan_due(&mut bench);
    life_cycles(&mut bench, 100_000);
    heartbeats(&mut bench, 1, 200_000);
    heartbeats(&mut bench, 100, 5_000);
    clones(&mut bench);
}

/// A million jobs, of which a hundred are due after ten seconds.
fn put_jobs(bench: &mut Bench, jobs: u64) {
    let (soon, late) = (spec(10_000, 1), spec(86_400_000, 1));
    let since = Instant::now();
    for number in 0..jobs {
        let spec = if number % (jobs / 100).max(1) == 0 {
            &soon
        } else {
            &late
        };
        let Trigger::Every { interval_ms } = spec.trigger else {
            continue;
        };
        bench.apply(
            Command::PutJob {
                name: Name::new(format!("job-{number:07}")),
                expect: Expect::Absent,
                spec: spec.clone(),
                paused: None,
                next_at_ms: Some(bench.stamp.calendar_ms + interval_ms),
                superseded: None,
            },
            None,
        );
    }
    report("put job", jobs, since);
}

fn plan_due(bench: &mut Bench) {
    for number in 0..100 {
        bench.register(&format!("node-{number:03}"), 1000);
    }
    let mut planner = Planner::new(Budget::default());
    let since = Instant::now();
    for _ in 0..1000 {
        assert!(planner.plan(&bench.state, bench.stamp).is_empty());
    }
    report("plan, nothing due", 1000, since);
    bench.stamp.calendar_ms += 10_000;
    let since = Instant::now();
    let mut planned = 0;
    for _ in 0..100 {
        planned = planner.plan(&bench.state, bench.stamp).len();
    }
    report(&format!("plan, {planned} fires due"), 100, since);
    for command in planner.plan(&bench.state, bench.stamp) {
        bench.apply(command, Some(1));
    }
    let since = Instant::now();
    for _ in 0..100 {
        planned = planner.plan(&bench.state, bench.stamp).len();
    }
    report(
        &format!("plan, {planned} grants over 100 executors"),
        100,
        since,
    );
}

/// fire → assign → start → result, one after another.
fn life_cycles(bench: &mut Bench, cycles: u64) {
    let name = Name::new("cycle");
    let put = Command::PutJob {
        name: name.clone(),
        expect: Expect::Absent,
        spec: spec(1000, 1),
        paused: None,
        next_at_ms: Some(bench.stamp.calendar_ms + 1000),
        superseded: None,
    };
    let Reply::Job { revision, .. } = bench.apply(put, None) else {
        panic!("a job");
    };
    let session = bench.register("cycler", 10);
    let since = Instant::now();
    for epoch in 1..=cycles {
        bench.stamp.calendar_ms += 1000;
        let scheduled_at_ms = bench.stamp.calendar_ms;
        let fire = Command::Fire {
            job: name.clone(),
            revision,
            scheduled_at_ms,
            next_at_ms: Some(scheduled_at_ms + 1000),
        };
        bench.apply(fire, Some(1));
        let task = TaskRef {
            run: bench.index,
            shard: 0,
            epoch,
        };
        bench.apply(Command::Assign { task, session }, Some(1));
        bench.apply(Command::StartTask { session, task }, None);
        let result = Command::ReportResult {
            session,
            task,
            outcome: TaskOutcome::Succeeded { value: None },
            progress: None,
            output_tail: None,
        };
        bench.apply(result, None);
        if epoch % 1000 == 0 {
            bench.apply(Command::Sweep, Some(1));
        }
    }
    report("run life cycle of 4 entries", cycles, since);
}

fn heartbeats(bench: &mut Bench, held: u32, beats: u64) {
    let session = bench.register(&format!("holder-{held}"), held);
    let name = Name::new(format!("held-{held}"));
    bench.apply(
        Command::PutJob {
            name: name.clone(),
            expect: Expect::Absent,
            spec: spec(86_400_000, held),
            paused: None,
            next_at_ms: None,
            superseded: None,
        },
        None,
    );
    let trigger = Command::TriggerJob {
        name,
        key: None,
        params: None,
    };
    bench.apply(trigger, None);
    let run = bench.index;
    let tasks: Vec<HeldTask> = (0..held)
        .map(|shard| {
            let task = TaskRef {
                run,
                shard,
                epoch: 1,
            };
            bench.apply(Command::Assign { task, session }, Some(1));
            bench.apply(Command::StartTask { session, task }, None);
            HeldTask {
                task,
                progress: Some(1),
            }
        })
        .collect();
    let since = Instant::now();
    for _ in 0..beats {
        bench.stamp.lease_ms += 1;
        bench.apply(
            Command::Heartbeat(Heartbeat {
                session,
                slots_used: held,
                healthy: true,
                tasks: tasks.clone(),
            }),
            None,
        );
    }
    report(&format!("heartbeat that lists {held}"), beats, since);
}

fn clones(bench: &mut Bench) {
    let since = Instant::now();
    let mut kept = Vec::with_capacity(1000);
    for _ in 0..1000 {
        kept.push(bench.state.clone());
    }
    report("clone for a snapshot", 1000, since);
    let since = Instant::now();
    let count = bench.state.records().count() as u64;
    report("records of a snapshot", count, since);
}
