//! A cluster that random operations work on, with two replicas and the promises checked all the time.

mod commands;
mod promises;

use tenure_machine::codec::{self, Kind};
use tenure_machine::plan::Planner;
use tenure_machine::{
    Actor, Command, Heartbeat, HeldTask, LogPosition, Name, Outcome, Proposal, Record,
    Registration, RequestKey, Stamp, State, StateBuilder, TaskOutcome, TaskRef, TaskState,
};

use promises::Promises;

/// One random operation: what, and three choices that what it needs is drawn from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    kind: u8,
    x: u8,
    y: u8,
    z: u8,
}

impl From<(u8, u8, u8, u8)> for Op {
    fn from((kind, x, y, z): (u8, u8, u8, u8)) -> Self {
        Self { kind, x, y, z }
    }
}

pub(crate) struct World {
    pub(crate) state: State,
    replica: State,
    restored: Option<State>,
    planner: Planner,
    stamp: Stamp,
    index: u64,
    term: u64,
    /// Whether clocks may jump to the end of time.
    wild: bool,
    promises: Promises,
}

impl World {
    pub(crate) fn new(wild: bool) -> Self {
        let mut world = Self {
            state: State::new(),
            replica: State::new(),
            restored: None,
            planner: Planner::default(),
            stamp: Stamp {
                lease_ms: 0,
                calendar_ms: 1_767_225_600_000,
            },
            index: 0,
            term: 1,
            wild,
            promises: Promises::default(),
        };
        let bootstrap = Command::Bootstrap {
            cluster_id: Name::new("model"),
            generation: 1,
        };
        world.apply(bootstrap, None, None);
        world.lead(Command::TermStarted { grace_ms: 0 });
        world
    }

    /// The state as a snapshot carries it, which from now on sees the tail of the log only.
    pub(crate) fn cut(&mut self) {
        let mut builder = StateBuilder::new();
        for record in self.state.records() {
            let bytes = codec::encode(Kind::SnapshotRecord, &record).unwrap();
            let read: Record = codec::decode(Kind::SnapshotRecord, &bytes).unwrap();
            assert_eq!(read, record);
            builder.push(read);
        }
        self.restored = Some(builder.finish().unwrap());
    }

    pub(crate) fn step(&mut self, op: Op) {
        match op.kind % 16 {
            0..=2 => self.plan(),
            3 => self.tick(op),
            4 => self.change_leader(op),
            _ => {
                let (command, term, request) = commands::command(self, op);
                self.apply(command, term, request);
            }
        }
    }

    fn tick(&mut self, op: Op) {
        let stamp = &mut self.stamp;
        let by_ms = [1, 999, 1000, 10_000, 35_000, 61_000, 3_600_000][usize::from(op.x % 7)];
        match op.y % 8 {
            0 => stamp.calendar_ms = stamp.calendar_ms.saturating_sub(by_ms),
            1 => stamp.calendar_ms = stamp.calendar_ms.saturating_add(by_ms),
            2 => stamp.lease_ms = stamp.lease_ms.saturating_add(by_ms),
            3 if self.wild && op.z == 0 => stamp.lease_ms = u64::MAX - u64::from(op.x),
            4 if self.wild && op.z == 1 => stamp.calendar_ms = u64::MAX - u64::from(op.x),
            _ => {
                stamp.lease_ms = stamp.lease_ms.saturating_add(by_ms);
                stamp.calendar_ms = stamp.calendar_ms.saturating_add(by_ms);
            }
        }
    }

    fn change_leader(&mut self, op: Op) {
        self.term += 1 + u64::from(op.x % 3);
        self.planner = Planner::default();
        let grace_ms = [0, 10_000, u64::MAX][usize::from(op.y % 3)];
        let grace_ms = if self.wild {
            grace_ms
        } else {
            grace_ms % 20_000
        };
        self.lead(Command::TermStarted { grace_ms });
    }

    /// What a leader proposes now, in order and right away: all of it is accepted.
    fn plan(&mut self) {
        for command in self.planner.plan(&self.state, self.stamp) {
            let outcome = self.lead(command.clone());
            assert!(
                outcome.reply.is_ok(),
                "planned and refused: {command:?}: {:?}",
                outcome.reply
            );
        }
    }

    fn lead(&mut self, command: Command) -> Outcome {
        self.apply(command, Some(self.term), None)
    }

    pub(crate) fn apply(
        &mut self,
        command: Command,
        term: Option<u64>,
        request: Option<RequestKey>,
    ) -> Outcome {
        self.index += 1;
        let at = LogPosition {
            term: self.term,
            index: self.index,
        };
        let proposal = Proposal {
            stamp: self.stamp,
            term,
            actor: Actor::Scheduler,
            request,
            command,
        };
        let before = self.state.clone();
        let outcome = self.state.apply(at, &proposal);
        assert_eq!(outcome, self.replica.apply(at, &proposal));
        if let Some(restored) = &mut self.restored {
            assert_eq!(outcome, restored.apply(at, &proposal));
        }
        self.promises
            .check(&before, &self.state, &proposal, &outcome);
        outcome
    }

    pub(crate) fn finish(&self) {
        let hash = self.state.hash().unwrap();
        assert_eq!(hash, self.replica.hash().unwrap());
        if let Some(restored) = &self.restored {
            assert_eq!(hash, restored.hash().unwrap());
            assert_eq!(self.state.index(), restored.index());
        }
    }

    /// Executors that do what they are told, until nothing is left to do.
    pub(crate) fn behave(&mut self) {
        let jobs: Vec<_> = self
            .state
            .jobs_after(None)
            .map(|job| job.name.clone())
            .collect();
        for name in jobs {
            self.apply(Command::PauseJob { name }, None, None);
        }
        self.stamp.lease_ms = self.stamp.lease_ms.max(self.state.clock().lease_ms);
        self.stamp.calendar_ms = self.stamp.calendar_ms.max(self.state.clock().calendar_ms);
        let open = |state: &State| state.runs_before(None).any(|run| !run.state.is_final());
        let mut rounds = 0;
        while open(&self.state) {
            rounds += 1;
            assert!(rounds < 2000, "the queue does not drain: {:#?}", self.state);
            self.stamp.lease_ms += 5_000;
            self.stamp.calendar_ms += 5_000;
            let registration = Registration {
                instance: Name::new("good"),
                version: "2.4.0".into(),
                capabilities: vec![Name::new("shell"), Name::new("http")],
                labels: [(Name::new("gpu"), Name::new("true"))].into(),
                capacity: 100,
                lease_ttl_ms: 35_000,
            };
            if self.state.session_of(&registration.instance).is_none() {
                self.apply(Command::RegisterSession(registration), None, None);
            }
            self.plan();
            self.work();
        }
    }

    /// The good executor renews, starts and ends all it holds.
    fn work(&mut self) {
        let Some(session) = self.state.session_of(&Name::new("good")).cloned() else {
            return;
        };
        let held: Vec<_> = self.state.held_by(session.id).cloned().collect();
        let beat = Heartbeat {
            session: session.id,
            slots_used: 0,
            healthy: true,
            tasks: held
                .iter()
                .map(|task| HeldTask {
                    task: TaskRef {
                        run: task.run,
                        shard: task.shard,
                        epoch: task.epoch,
                    },
                    progress: None,
                })
                .collect(),
        };
        self.apply(Command::Heartbeat(beat), None, None);
        for task in held {
            let grant = TaskRef {
                run: task.run,
                shard: task.shard,
                epoch: task.epoch,
            };
            if task.state == TaskState::Assigned {
                let start = Command::StartTask {
                    session: session.id,
                    task: grant,
                };
                assert!(self.apply(start, None, None).reply.is_ok());
            }
            let outcome = match task.cancel_limit_lease_ms {
                Some(_) => TaskOutcome::Cancelled,
                None => TaskOutcome::Succeeded { value: None },
            };
            let result = Command::ReportResult {
                session: session.id,
                task: grant,
                outcome,
                progress: None,
                output_tail: None,
            };
            assert!(self.apply(result, None, None).reply.is_ok());
        }
    }
}
