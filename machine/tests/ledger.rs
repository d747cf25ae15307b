//! Promise 1 of the design: for every job and every instant it was due there is exactly one decision.
//!
//! Leaders come and go, plans are lost or applied in part, clocks jump both ways, jobs are paused and resumed,
//! the state goes through a snapshot. In the end the ledger of each job is compared with its schedule.

// A test stops where something is not as it must be.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tenure_machine::plan::Planner;
use tenure_machine::plan::schedule::Schedules;
use tenure_machine::*;

const START_MS: u64 = 1_767_225_600_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Both clocks, in milliseconds.
    Pass(u64),
    /// The wall clock alone, in milliseconds.
    Jump(i64),
    /// A plan of which at most so many commands reach the log.
    Plan(usize),
    /// Another leader; what the last one planned reaches the log late.
    NewLeader,
    Pause(u8),
    Resume(u8),
    Snapshot,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u64..90_000).prop_map(Step::Pass),
        1 => (-7_200_000i64..7_200_000).prop_map(Step::Jump),
        6 => prop_oneof![2 => Just(usize::MAX), 1 => 0usize..5].prop_map(Step::Plan),
        1 => Just(Step::NewLeader),
        1 => (0u8..5).prop_map(Step::Pause),
        2 => (0u8..5).prop_map(Step::Resume),
        1 => Just(Step::Snapshot),
    ]
}

fn spec(trigger: Trigger, overlap: Overlap, policy: MisfirePolicy, limit: u32) -> Arc<JobSpec> {
    Arc::new(JobSpec {
        description: String::new(),
        trigger,
        overlap,
        queue_limit: 3,
        misfire: Misfire {
            policy,
            grace_ms: 20_000,
            limit,
        },
        retry: Retry {
            max_attempts: 1,
            initial_backoff_ms: 0,
            max_backoff_ms: 0,
            multiplier_milli: 1000,
            jitter_permille: 0,
        },
        timeout_ms: None,
        shards: 1,
        execution: Execution::AtLeastOnce,
        recovery: Recovery::Immediate,
        checkpoints: CheckpointScope::PerRun,
        task: TaskTemplate {
            capability: Name::new("shell"),
            version: None,
            selector: BTreeMap::new(),
            params: "{}".into(),
        },
        history: History {
            keep: 1,
            max_age_ms: 1,
        },
    })
}

fn jobs() -> Vec<Arc<JobSpec>> {
    let cron = |expression: &str, timezone: &str| Trigger::Cron {
        expression: expression.into(),
        timezone: timezone.into(),
    };
    let every = |interval_ms| Trigger::Every { interval_ms };
    use MisfirePolicy::{CatchUp, FireOnce, Skip};
    vec![
        spec(cron("* * * * * *", "UTC"), Overlap::Allow, FireOnce, 1),
        spec(
            cron("*/7 * * * *", "Europe/Berlin"),
            Overlap::Queue,
            CatchUp,
            100,
        ),
        spec(every(1_000), Overlap::Forbid, CatchUp, 3),
        spec(every(13_777), Overlap::Replace, Skip, 1),
        spec(
            Trigger::At {
                instant_ms: START_MS + 60_000,
            },
            Overlap::Allow,
            Skip,
            1,
        ),
    ]
}

struct Cluster {
    state: State,
    planner: Planner,
    stamp: Stamp,
    at: LogPosition,
    lost: Vec<(u64, Command)>,
    decisions: Vec<FireDecision>,
}

impl Cluster {
    fn apply(&mut self, command: Command, term: Option<u64>) -> Result<Reply, Refusal> {
        self.at.index += 1;
        let proposal = Proposal {
            stamp: self.stamp,
            term,
            actor: Actor::Scheduler,
            request: None,
            command,
        };
        let outcome = self.state.apply(self.at, &proposal);
        for event in outcome.events {
            if let Event::Decided(decision) = event {
                self.decisions.push(decision);
            }
        }
        outcome.reply
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Pass(ms) => {
                self.stamp.lease_ms += ms;
                self.stamp.calendar_ms += ms;
            }
            Step::Jump(ms) => {
                self.stamp.calendar_ms = self.stamp.calendar_ms.saturating_add_signed(ms);
            }
            Step::Plan(reach) => {
                let mut commands = self.planner.plan(&self.state, self.stamp);
                let late = commands.split_off(reach.min(commands.len()));
                for command in commands {
                    self.apply(command, Some(self.at.term)).expect("planned");
                }
                self.lost
                    .extend(late.into_iter().map(|command| (self.at.term, command)));
            }
            Step::NewLeader => {
                self.at.term += 1;
                self.planner = Planner::default();
                let office = Command::TermStarted { grace_ms: 0 };
                self.apply(office, Some(self.at.term)).expect("office");
                for (term, command) in std::mem::take(&mut self.lost) {
                    let late = self.apply(command, Some(term));
                    assert_eq!(late.unwrap_err().code, RefusalCode::StaleTerm);
                }
            }
            Step::Pause(job) => {
                let name = Name::new(format!("job{job}"));
                self.apply(Command::PauseJob { name }, None).expect("pause");
            }
            Step::Resume(job) => {
                let job = self.state.job(&Name::new(format!("job{job}"))).cloned();
                let now_ms = self.stamp.calendar_ms.max(self.state.clock().calendar_ms);
                let resume = self.planner.resume(&job.expect("a job"), now_ms);
                self.apply(resume, None).expect("resume");
            }
            Step::Snapshot => {
                let mut builder = StateBuilder::new();
                self.state.records().for_each(|record| builder.push(record));
                self.state = builder.finish().expect("a state");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_decision_for_each_due_instant(steps in prop::collection::vec(step(), 1..80)) {
        let mut cluster = Cluster {
            state: State::new(),
            planner: Planner::default(),
            stamp: Stamp { lease_ms: 0, calendar_ms: START_MS },
            at: LogPosition { term: 1, index: 0 },
            lost: Vec::new(),
            decisions: Vec::new(),
        };
        let bootstrap = Command::Bootstrap { cluster_id: Name::new("c"), generation: 1 };
        cluster.apply(bootstrap, None).unwrap();
        let specs = jobs();
        let mut schedules = Schedules::default();
        for (number, spec) in specs.iter().enumerate() {
            let put = Command::PutJob {
                name: Name::new(format!("job{number}")),
                expect: Expect::Absent,
                spec: spec.clone(),
                paused: None,
                next_at_ms: schedules.next_after(&spec.trigger, START_MS, START_MS).unwrap(),
                superseded: None,
            };
            cluster.apply(put, None).unwrap();
        }
        for step in steps {
            cluster.step(step);
        }
        for number in 0..5 {
            cluster.step(Step::Resume(number));
        }
        // Plans until nothing is due any more.
        while cluster
            .planner
            .plan(&cluster.state, cluster.stamp)
            .iter()
            .any(|command| matches!(command, Command::Fire { .. } | Command::SkipFires { .. }))
        {
            cluster.step(Step::Plan(usize::MAX));
        }
        let now_ms = cluster.state.clock().calendar_ms;
        for (number, spec) in specs.iter().enumerate() {
            let name = Name::new(format!("job{number}"));
            let mut cursor_ms = START_MS;
            for decision in cluster.decisions.iter().filter(|decision| decision.job == name) {
                let first = schedules.next_after(&spec.trigger, START_MS, cursor_ms).unwrap();
                prop_assert_eq!(first, Some(decision.first_ms), "missing or double before {:?}", decision);
                let counted = schedules
                    .count(&spec.trigger, START_MS, cursor_ms, decision.last_ms)
                    .unwrap()
                    .unwrap();
                prop_assert_eq!((counted.last_ms, counted.count), (decision.last_ms, decision.count));
                cursor_ms = decision.last_ms;
            }
            let left = schedules.count(&spec.trigger, START_MS, cursor_ms, now_ms).unwrap();
            prop_assert_eq!(left, None, "undecided at the end: {}", name);
        }
        prop_assert_eq!(cluster.state.counter(Counter::DuplicateFiresRefused), 0);
    }
}

#[test]
fn a_long_absence_of_many_jobs_is_decided_in_plans_of_bounded_size() {
    let jobs = 40;
    let mut cluster = Cluster {
        state: State::new(),
        planner: Planner::default(),
        stamp: Stamp {
            lease_ms: 0,
            calendar_ms: START_MS,
        },
        at: LogPosition { term: 1, index: 0 },
        lost: Vec::new(),
        decisions: Vec::new(),
    };
    let bootstrap = Command::Bootstrap {
        cluster_id: Name::new("c"),
        generation: 1,
    };
    cluster.apply(bootstrap, None).unwrap();
    let trigger = Trigger::Every { interval_ms: 1000 };
    for number in 0..jobs {
        let put = Command::PutJob {
            name: Name::new(format!("job{number}")),
            expect: Expect::Absent,
            spec: spec(trigger.clone(), Overlap::Forbid, MisfirePolicy::Skip, 1),
            paused: None,
            next_at_ms: Some(START_MS + 1000),
            superseded: None,
        };
        cluster.apply(put, None).unwrap();
    }
    let absence_s = 12_000;
    cluster.stamp.calendar_ms += absence_s * 1000;
    let instants = |commands: &[Command]| -> u64 {
        let counts = commands.iter().map(|command| match command {
            Command::SkipFires { count, .. } => *count,
            Command::Fire { .. } => 1,
            _ => 0,
        });
        counts.sum()
    };
    let mut plans = 0;
    let mut decided = 0;
    loop {
        let planned = instants(&cluster.planner.plan(&cluster.state, cluster.stamp));
        if planned == 0 {
            break;
        }
        // At most what one plan walks through, and the last job of it.
        assert!(planned <= 50_000 + 10_000, "{planned} in one plan");
        cluster.step(Step::Plan(usize::MAX));
        decided += planned;
        plans += 1;
    }
    assert!(plans > 5, "{plans} plans");
    assert_eq!(decided, jobs * absence_s);
}
