//! What holds after every command.

use std::collections::{BTreeMap, BTreeSet};

use tenure_machine::{
    Command, Event, Meta, Name, Outcome, Proposal, Record, Reply, Run, RunState, Stamp, State,
};

#[derive(Default)]
pub(crate) struct Promises {
    /// The highest epoch granted, by job name and shard, over deletion and re-creation.
    epochs: BTreeMap<(Name, u32), u64>,
    /// The last instant decided, by job name.
    decided: BTreeMap<Name, u64>,
    sessions: u64,
    audit: Option<(u64, [u8; 32])>,
}

impl Promises {
    pub(crate) fn check(
        &mut self,
        before: &State,
        after: &State,
        proposal: &Proposal,
        outcome: &Outcome,
    ) {
        assert!(after.check(), "the indexes follow from the entities");
        nothing_goes_back(before, after);
        one_owner_a_scope(after);
        no_run_is_forgotten(after);
        if outcome.reply.is_err() {
            assert_eq!(
                essence(before),
                essence(after),
                "a refused command changed something: {proposal:?}: {:?}",
                outcome.reply
            );
        }
        self.epochs_grow(after, proposal, outcome);
        for event in &outcome.events {
            match event {
                Event::Decided(decision) => {
                    let last = self.decided.insert(decision.job.clone(), decision.last_ms);
                    assert!(
                        last.is_none_or(|last| last < decision.first_ms),
                        "decided twice: {decision:?} after {last:?}"
                    );
                    assert!(decision.first_ms <= decision.last_ms);
                }
                Event::SessionOpened(session) => {
                    assert!(session.id > self.sessions);
                    self.sessions = session.id;
                }
                Event::Audited(record) => {
                    let (seq, hash) = self.audit.unwrap_or((0, [0; 32]));
                    assert_eq!((record.seq, record.previous), (seq + 1, hash));
                    assert_eq!(record.hash, record.link());
                    self.audit = Some((record.seq, record.hash));
                }
                _ => {}
            }
        }
    }

    fn epochs_grow(&mut self, after: &State, proposal: &Proposal, outcome: &Outcome) {
        // An answer from memory grants nothing.
        let assigned = outcome
            .events
            .iter()
            .any(|event| matches!(event, Event::Assigned { .. }));
        if let (Command::Assign { task, .. }, Ok(Reply::Granted { epoch }), true) =
            (&proposal.command, &outcome.reply, assigned)
        {
            let job = after.run(task.run).unwrap().key.job().clone();
            let highest = self.epochs.entry((job, task.shard)).or_default();
            assert!(*epoch > *highest, "epoch {epoch} after {highest}");
            *highest = *epoch;
        }
    }
}

fn nothing_goes_back(before: &State, after: &State) {
    let (old, new) = (before.meta(), after.meta());
    assert!(new.clock.lease_ms >= old.clock.lease_ms);
    assert!(new.clock.calendar_ms >= old.clock.calendar_ms);
    assert!(new.generation >= old.generation);
    assert!(new.audit_seq >= old.audit_seq);
    assert!(new.epoch_floor >= old.epoch_floor);
    assert!(new.grace_until_lease_ms >= old.grace_until_lease_ms);
    for job in before.jobs_after(None) {
        if let Some(now) = after.job(&job.name) {
            assert!(now.revision >= job.revision);
            assert!(now.last_fire_ms >= job.last_fire_ms);
        }
        for shard in before.shards_of(&job.name) {
            assert!(after.shard_epoch(&job.name, shard.index) >= shard.epoch);
        }
    }
}

fn one_owner_a_scope(state: &State) {
    let mut scopes = BTreeSet::new();
    for run in state.runs_before(None) {
        for task in state.tasks_of(run.id).filter(|task| task.owner.is_some()) {
            let scope = State::fencing_scope(run, task.shard);
            assert!(scopes.insert(scope.clone()), "two owners of {scope}");
        }
    }
}

/// Each run that is not over stands where something will bring it forward.
fn no_run_is_forgotten(state: &State) {
    for job in state.jobs_after(None) {
        assert!(
            job.waiting.is_empty() || !job.active.is_empty(),
            "{} waits for nothing",
            job.name
        );
        let stands = |ids: &mut dyn Iterator<Item = u64>, wanted: RunState| {
            for id in ids {
                assert_eq!(state.run(id).map(|run| run.state), Some(wanted), "run {id}");
            }
        };
        stands(&mut job.active.iter().copied(), RunState::Active);
        stands(&mut job.waiting.iter().copied(), RunState::Waiting);
    }
    for run in state.runs_before(None) {
        check_run(state, run);
    }
}

fn check_run(state: &State, run: &Run) {
    let open = state
        .tasks_of(run.id)
        .filter(|task| !task.state.is_final())
        .count();
    let job = state.job(run.key.job());
    match run.state {
        RunState::Waiting => {
            let waits = job.is_some_and(|job| job.waiting.contains(&run.id));
            assert!(waits, "waiting run {} is forgotten", run.id);
        }
        RunState::Active => {
            assert_eq!(open, run.open_tasks as usize, "run {}", run.id);
            assert!(open > 0, "run {} has nothing left to do", run.id);
            assert!(
                job.is_none_or(|job| job.active.contains(&run.id)),
                "active run {} is not its job's",
                run.id
            );
        }
        _ => assert_eq!(open, 0, "run {} is over, its tasks are not", run.id),
    }
    for task in state.tasks_of(run.id) {
        let held = !task.state.is_final() && !task.state.is_waiting();
        assert_eq!(held, task.owner.is_some(), "task {}/{}", run.id, task.shard);
        if let Some(owner) = &task.owner {
            assert!(state.session(owner.session).is_some(), "its owner is gone");
            assert!(task.epoch <= state.shard_epoch(run.key.job(), task.shard));
        }
    }
}

/// The state without what a refused command may change: clocks, counters, idempotency results.
fn essence(state: &State) -> Vec<Record> {
    state
        .records()
        .filter_map(|record| match record {
            Record::Counter(..) | Record::Request(_) => None,
            Record::Meta(meta) => Some(Record::Meta(Meta {
                clock: Stamp::default(),
                ..meta
            })),
            other => Some(other),
        })
        .collect()
}
