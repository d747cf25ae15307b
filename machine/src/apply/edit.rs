//! Changes of one entity together with its indexes, so that no caller can forget the one for the other.

use std::sync::Arc;

use crate::state::{EndedSession, Job, JobKeys, Run, Session, SessionEnd, Task, TaskKeys};
use crate::{MAX_ENDED_SESSIONS, Name, State};

impl State {
    pub(crate) fn edit_job<T>(
        &mut self,
        name: &Name,
        change: impl FnOnce(&mut Job) -> T,
    ) -> Option<T> {
        let job = self.jobs.get_mut(name)?;
        let before = JobKeys::of(job);
        let job = Arc::make_mut(job);
        let result = change(job);
        self.index.edit_job(before, job);
        Some(result)
    }

    pub(crate) fn edit_run<T>(&mut self, id: u64, change: impl FnOnce(&mut Run) -> T) -> Option<T> {
        let run = self.runs.get_mut(&id)?;
        // The key of a run never changes; its end comes once.
        let before = run.finished_index;
        let run = Arc::make_mut(run);
        let result = change(run);
        if before != run.finished_index {
            self.index.add_run(run);
        }
        Some(result)
    }

    pub(crate) fn edit_task<T>(
        &mut self,
        id: (u64, u32),
        change: impl FnOnce(&mut Task) -> T,
    ) -> Option<T> {
        let run = self.runs.get(&id.0)?;
        let task = self.tasks.get_mut(&id)?;
        let before = TaskKeys::of(run, task);
        let task = Arc::make_mut(task);
        let result = change(task);
        self.index.edit_task(before, run, task);
        Some(result)
    }

    pub(crate) fn edit_session<T>(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut Session) -> T,
    ) -> Option<T> {
        let session = self.sessions.get_mut(&id)?;
        let before_ms = session.deadline_lease_ms;
        let session = Arc::make_mut(session);
        let result = change(session);
        self.index.edit_session(before_ms, session);
        Some(result)
    }

    pub(crate) fn insert_run(&mut self, run: Run) {
        self.index.add_run(&run);
        self.runs.insert(run.id, Arc::new(run));
    }

    pub(crate) fn insert_task(&mut self, task: Task) {
        if let Some(run) = self.runs.get(&task.run) {
            self.index.add_task(run, &task);
            self.tasks.insert((task.run, task.shard), Arc::new(task));
        }
    }

    /// Takes a run and its tasks out of the live state.
    pub(crate) fn remove_run(&mut self, id: u64) {
        let Some(run) = self.runs.remove(&id) else {
            return;
        };
        for shard in 0..run.spec.shards {
            if let Some(task) = self.tasks.remove(&(id, shard)) {
                self.index.remove_task(&run, &task);
            }
        }
        self.index.remove_run(&run);
    }

    pub(crate) fn insert_session(&mut self, session: Session) {
        self.index.add_session(&session);
        self.sessions.insert(session.id, Arc::new(session));
    }

    /// Takes a session out of the live ones and remembers why.
    pub(crate) fn remove_session(
        &mut self,
        id: u64,
        why: SessionEnd,
        ended_index: u64,
    ) -> Option<Arc<Session>> {
        let session = self.sessions.remove(&id)?;
        self.index.remove_session(&session);
        if self.ended.len() >= MAX_ENDED_SESSIONS
            && let Some((index, oldest)) = self.index.ended.get_min().copied()
        {
            self.index.ended.remove(&(index, oldest));
            self.ended.remove(&oldest);
        }
        let instance = session.instance.clone();
        self.index.ended.insert((ended_index, id));
        self.ended.insert(
            id,
            Arc::new(EndedSession {
                id,
                instance,
                why,
                ended_index,
            }),
        );
        Some(session)
    }
}
