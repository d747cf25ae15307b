//! The cluster of a script, and the names that the script has for what is in it.

use std::collections::BTreeMap;

use tenure_machine::codec::{self, Kind};
use tenure_machine::plan::Planner;
use tenure_machine::{
    Actor, AuditRecord, Command, Event, FireDecision, LogPosition, Name, Outcome, Proposal, Record,
    Reply, RequestKey, Role, Stamp, State, StateBuilder,
};

pub(crate) struct World {
    pub(crate) state: State,
    replica: State,
    pub(crate) planner: Planner,
    pub(crate) term: u64,
    pub(crate) stamp: Stamp,
    index: u64,
    /// Sessions by the name of their process.
    pub(crate) sessions: BTreeMap<String, u64>,
    run_names: BTreeMap<u64, String>,
    /// What each process believes to hold: the epoch by process, run and shard, and whether it started.
    pub(crate) believes: BTreeMap<(String, u64, u32), (u64, bool)>,
    pub(crate) ledger: Vec<FireDecision>,
    pub(crate) audit: Vec<AuditRecord>,
    pub(crate) held: Vec<(u64, Command)>,
    pub(crate) request: Option<RequestKey>,
    /// Who asks for the next command, if not the one who asks for all others.
    pub(crate) by: Option<Name>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            state: State::new(),
            replica: State::new(),
            planner: Planner::default(),
            term: 1,
            stamp: Stamp {
                lease_ms: 0,
                calendar_ms: 1_767_225_600_000, // 2026-01-01T00:00:00Z
            },
            index: 0,
            sessions: BTreeMap::new(),
            run_names: BTreeMap::new(),
            believes: BTreeMap::new(),
            ledger: Vec::new(),
            audit: Vec::new(),
            held: Vec::new(),
            request: None,
            by: None,
        };
        let bootstrap = Command::Bootstrap {
            cluster_id: Name::new("golden"),
            generation: 1,
        };
        world.apply(bootstrap).reply.expect("a new cluster");
        let office = Command::TermStarted { grace_ms: 0 };
        world.lead(office).reply.expect("a first leader");
        world
    }

    /// A command that someone asks for.
    pub(crate) fn apply(&mut self, command: Command) -> Outcome {
        self.propose(command, None)
    }

    /// A command of the present leader.
    pub(crate) fn lead(&mut self, command: Command) -> Outcome {
        self.propose(command, Some(self.term))
    }

    pub(crate) fn propose(&mut self, command: Command, term: Option<u64>) -> Outcome {
        self.index += 1;
        let at = LogPosition {
            term: self.term,
            index: self.index,
        };
        let actor = match term {
            Some(_) => Actor::Scheduler,
            None => Actor::Principal {
                name: self.by.take().unwrap_or_else(|| Name::new("story")),
                role: Role::Admin,
            },
        };
        let proposal = Proposal {
            stamp: self.stamp,
            term,
            actor,
            request: self.request.take(),
            command,
        };
        // What is applied has been through its bytes, as in a real log.
        let bytes = codec::encode(Kind::LogEntry, &proposal).expect("it can be written");
        let read: Proposal = codec::decode(Kind::LogEntry, &bytes).expect("it can be read");
        assert_eq!(read, proposal);
        let outcome = self.state.apply(at, &proposal);
        assert_eq!(
            outcome,
            self.replica.apply(at, &read),
            "replicas answer alike"
        );
        assert!(self.state.check(), "the indexes follow from the entities");
        self.note(&outcome);
        outcome
    }

    fn note(&mut self, outcome: &Outcome) {
        for event in &outcome.events {
            match event {
                Event::RunCreated(run) => {
                    let name = format!("run{}", self.run_names.len() + 1);
                    self.run_names.insert(run.id, name);
                }
                Event::Decided(decision) => self.ledger.push(decision.clone()),
                Event::Audited(record) => {
                    assert_eq!(record.seq, self.audit.len() as u64 + 1);
                    assert_eq!(record.hash, record.link());
                    let previous = self.audit.last().map_or([0; 32], |last| last.hash);
                    assert_eq!(record.previous, previous);
                    self.audit.push(record.clone());
                }
                Event::Assigned {
                    session,
                    run,
                    shard,
                } => {
                    let Ok(Reply::Granted { epoch }) = outcome.reply else {
                        panic!("an assignment without a grant");
                    };
                    let process = self.process(*session);
                    self.believes
                        .insert((process, *run, *shard), (epoch, false));
                }
                _ => {}
            }
        }
    }

    /// The state through its records and their bytes.
    pub(crate) fn restore(&mut self) -> usize {
        let mut builder = StateBuilder::new();
        let mut count = 0;
        for record in self.state.records() {
            let bytes = codec::encode(Kind::SnapshotRecord, &record).expect("it can be written");
            let read: Record = codec::decode(Kind::SnapshotRecord, &bytes).expect("it can be read");
            assert_eq!(read, record);
            builder.push(read);
            count += 1;
        }
        let restored = builder.finish().expect("the records make a state");
        assert!(restored.check());
        assert_eq!(restored.hash(), self.state.hash());
        assert_eq!(restored.index(), self.state.index());
        self.state = restored;
        count
    }

    pub(crate) fn finish(&self) {
        assert_eq!(self.state.hash(), self.replica.hash(), "replicas are alike");
    }

    pub(crate) fn process(&self, session: u64) -> String {
        self.sessions
            .iter()
            .find(|(_, id)| **id == session)
            .map_or_else(|| format!("session {session}"), |(name, _)| name.clone())
    }

    pub(crate) fn run_name(&self, id: u64) -> String {
        self.run_names
            .get(&id)
            .cloned()
            .unwrap_or_else(|| format!("run@{id}"))
    }

    pub(crate) fn run_id(&self, name: &str) -> u64 {
        self.run_names
            .iter()
            .find(|(_, known)| *known == name)
            .map_or(999_999, |(id, _)| *id)
    }
}
