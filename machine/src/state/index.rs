//! Indexes of the state: what loops look for, in the order in which they look.

use std::collections::BTreeMap;

use imbl::{OrdMap, OrdSet};

use super::{Job, Run, Session, State, Task, TaskState};
use crate::{Name, RunKey};

/// What a task asks of an executor. Tasks that ask the same wait in the same queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// The capability it must have.
    pub capability: Name,
    /// The versions it may have.
    pub version: Option<String>,
    /// The labels it must carry.
    pub selector: BTreeMap<Name, Name>,
}

/// All indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// Jobs that are not paused, by their next instant.
    pub due: OrdSet<(u64, Name)>,
    /// Runs by what makes them unique.
    pub runs_by_key: OrdMap<RunKey, u64>,
    /// Waiting tasks by what they ask for, then by when they may be granted, run and shard.
    pub queues: OrdMap<Requirement, OrdSet<(u64, u64, u32)>>,
    /// How many tasks wait.
    pub queued: usize,
    /// How many tasks lost their owner and wait for the next grant.
    pub orphaned: usize,
    /// How many jobs are paused.
    pub paused: usize,
    /// Live sessions by instance.
    pub instances: OrdMap<Name, u64>,
    /// Sessions by their deadline.
    pub session_deadlines: OrdSet<(u64, u64)>,
    /// Held tasks by their deadline.
    pub task_deadlines: OrdSet<(u64, u64, u32)>,
    /// Held tasks by the time at which they are ended by force.
    pub task_limits: OrdSet<(u64, u64, u32)>,
    /// Held tasks by session.
    pub held: OrdSet<(u64, u64, u32)>,
    /// How many tasks each session holds.
    pub held_counts: OrdMap<u64, u32>,
    /// Live sessions by capability.
    pub capable: OrdSet<(Name, u64)>,
    /// Finished runs by the log index at which they ended.
    pub finished: OrdSet<(u64, u64)>,
    /// Idempotency results by log index.
    pub requests: OrdMap<u64, Name>,
    /// Ended sessions by the log index at which they ended.
    pub ended: OrdSet<(u64, u64)>,
}

impl Requirement {
    pub(crate) fn of(run: &Run) -> Self {
        let task = &run.spec.task;
        Self {
            capability: task.capability.clone(),
            version: task.version.clone(),
            selector: task.selector.clone(),
        }
    }
}

impl Index {
    pub(crate) fn edit_job(&mut self, before: JobKeys, job: &Job) {
        let after = JobKeys::of(job);
        if before == after {
            return;
        }
        if let Some(due) = before.due {
            self.due.remove(&(due, job.name.clone()));
        }
        self.paused -= usize::from(before.paused);
        self.add_job(job);
    }

    pub(crate) fn edit_task(&mut self, before: TaskKeys, run: &Run, task: &Task) {
        let after = TaskKeys::of(run, task);
        if before.waiting != after.waiting {
            self.remove_waiting(before.waiting, run, task);
            self.add_waiting(after.waiting, run, task);
        }
        self.orphaned += usize::from(after.orphaned);
        self.orphaned -= usize::from(before.orphaned);
        let id = (task.run, task.shard);
        if before.deadline != after.deadline {
            replace(
                &mut self.task_deadlines,
                before.deadline,
                after.deadline,
                id,
            );
        }
        if before.limit != after.limit {
            replace(&mut self.task_limits, before.limit, after.limit, id);
        }
        if before.session != after.session {
            #[cfg(feature = "planted-bugs")]
            if tenure_planted::is(tenure_planted::Bug::SlotLeakedOnCancel)
                && task.state == TaskState::Cancelled
            {
                return;
            }
            self.remove_held(before.session, id);
            self.add_held(after.session, id);
        }
    }

    pub(crate) fn add_job(&mut self, job: &Job) {
        if let Some(due) = JobKeys::of(job).due {
            self.due.insert((due, job.name.clone()));
        }
        self.paused += usize::from(job.paused_at_ms.is_some());
    }

    pub(crate) fn remove_job(&mut self, job: &Job) {
        if let Some(due) = JobKeys::of(job).due {
            self.due.remove(&(due, job.name.clone()));
        }
        self.paused -= usize::from(job.paused_at_ms.is_some());
    }

    pub(crate) fn add_run(&mut self, run: &Run) {
        self.runs_by_key.insert(run.key.clone(), run.id);
        if let Some(index) = run.finished_index {
            self.finished.insert((index, run.id));
        }
    }

    pub(crate) fn remove_run(&mut self, run: &Run) {
        self.runs_by_key.remove(&run.key);
        if let Some(index) = run.finished_index {
            self.finished.remove(&(index, run.id));
        }
    }

    pub(crate) fn add_task(&mut self, run: &Run, task: &Task) {
        let keys = TaskKeys::of(run, task);
        let id = (task.run, task.shard);
        self.add_waiting(keys.waiting, run, task);
        self.orphaned += usize::from(keys.orphaned);
        replace(&mut self.task_deadlines, None, keys.deadline, id);
        replace(&mut self.task_limits, None, keys.limit, id);
        self.add_held(keys.session, id);
    }

    pub(crate) fn remove_task(&mut self, run: &Run, task: &Task) {
        let keys = TaskKeys::of(run, task);
        let id = (task.run, task.shard);
        self.remove_waiting(keys.waiting, run, task);
        self.orphaned -= usize::from(keys.orphaned);
        replace(&mut self.task_deadlines, keys.deadline, None, id);
        replace(&mut self.task_limits, keys.limit, None, id);
        self.remove_held(keys.session, id);
    }

    fn add_waiting(&mut self, not_before_ms: Option<u64>, run: &Run, task: &Task) {
        let Some(at_ms) = not_before_ms else { return };
        let queue = self.queues.entry(Requirement::of(run)).or_default();
        if queue.insert((at_ms, task.run, task.shard)).is_none() {
            self.queued += 1;
        }
    }

    fn remove_waiting(&mut self, not_before_ms: Option<u64>, run: &Run, task: &Task) {
        let Some(at_ms) = not_before_ms else { return };
        let requirement = Requirement::of(run);
        let Some(queue) = self.queues.get_mut(&requirement) else {
            return;
        };
        if queue.remove(&(at_ms, task.run, task.shard)).is_some() {
            self.queued -= 1;
        }
        if queue.is_empty() {
            self.queues.remove(&requirement);
        }
    }

    fn add_held(&mut self, session: Option<u64>, id: (u64, u32)) {
        let Some(session) = session else { return };
        self.held.insert((session, id.0, id.1));
        *self.held_counts.entry(session).or_default() += 1;
    }

    fn remove_held(&mut self, session: Option<u64>, id: (u64, u32)) {
        let Some(session) = session else { return };
        self.held.remove(&(session, id.0, id.1));
        match self.held_counts.get_mut(&session) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                self.held_counts.remove(&session);
            }
        }
    }

    pub(crate) fn add_session(&mut self, session: &Session) {
        self.instances.insert(session.instance.clone(), session.id);
        self.session_deadlines
            .insert((session.deadline_lease_ms, session.id));
        for capability in &session.capabilities {
            self.capable.insert((capability.clone(), session.id));
        }
    }

    /// A session changes its deadline only: who it is and what it can do stays.
    pub(crate) fn edit_session(&mut self, deadline_before_ms: u64, session: &Session) {
        if deadline_before_ms != session.deadline_lease_ms {
            self.session_deadlines
                .remove(&(deadline_before_ms, session.id));
            self.session_deadlines
                .insert((session.deadline_lease_ms, session.id));
        }
    }

    pub(crate) fn remove_session(&mut self, session: &Session) {
        self.session_deadlines
            .remove(&(session.deadline_lease_ms, session.id));
        if self.instances.get(&session.instance) == Some(&session.id) {
            self.instances.remove(&session.instance);
        }
        for capability in &session.capabilities {
            self.capable.remove(&(capability.clone(), session.id));
        }
    }

    /// The indexes of a state, from its entities alone.
    pub(crate) fn of(state: &State) -> Self {
        let mut index = Self::default();
        for job in state.jobs.values() {
            index.add_job(job);
        }
        for run in state.runs.values() {
            index.add_run(run);
        }
        for task in state.tasks.values() {
            if let Some(run) = state.runs.get(&task.run) {
                index.add_task(run, task);
            }
        }
        for session in state.sessions.values() {
            index.add_session(session);
        }
        for request in state.requests.values() {
            index.requests.insert(request.index, request.key.clone());
        }
        for ended in state.ended.values() {
            index.ended.insert((ended.ended_index, ended.id));
        }
        index
    }
}

/// Where a job stands in the indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobKeys {
    due: Option<u64>,
    paused: bool,
}

impl JobKeys {
    pub(crate) fn of(job: &Job) -> Self {
        let due = match job.paused_at_ms {
            None => job.next_fire_ms,
            Some(_) => None,
        };
        Self {
            due,
            paused: job.paused_at_ms.is_some(),
        }
    }
}

/// Where a task stands in the indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskKeys {
    waiting: Option<u64>,
    orphaned: bool,
    session: Option<u64>,
    deadline: Option<u64>,
    limit: Option<u64>,
}

impl TaskKeys {
    pub(crate) fn of(run: &Run, task: &Task) -> Self {
        Self {
            waiting: task.state.is_waiting().then_some(task.not_before_lease_ms),
            orphaned: task.state == TaskState::Orphaned,
            session: task.owner.as_ref().map(|owner| owner.session),
            deadline: task.owner.as_ref().map(|owner| owner.deadline_lease_ms),
            limit: task_limit(run, task),
        }
    }
}

fn replace(
    index: &mut OrdSet<(u64, u64, u32)>,
    before: Option<u64>,
    after: Option<u64>,
    id: (u64, u32),
) {
    if let Some(before) = before {
        index.remove(&(before, id.0, id.1));
    }
    if let Some(after) = after {
        index.insert((after, id.0, id.1));
    }
}

/// When a held task is ended by force: when its cancellation or its time-out is overdue.
pub(crate) fn task_limit(run: &Run, task: &Task) -> Option<u64> {
    let owner = task.owner.as_ref()?;
    let overdue = match (owner.started_lease_ms, run.spec.timeout_ms) {
        (Some(started), Some(timeout)) => Some(
            started
                .saturating_add(timeout)
                .saturating_add(crate::TIMEOUT_GRACE_MS),
        ),
        _ => None,
    };
    match (task.cancel_limit_lease_ms, overdue) {
        (Some(cancel), Some(timeout)) => Some(cancel.min(timeout)),
        (cancel, timeout) => cancel.or(timeout),
    }
}
