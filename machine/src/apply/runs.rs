//! Runs: how they begin, end and are cancelled, and how what is over leaves the live state.

use std::sync::Arc;

use super::{Applied, Entry};
use crate::state::{Counter, Job, Run, RunState, Shard, Task, TaskState};
use crate::{
    CANCEL_GRACE_MS, CheckpointScope, Event, FINISHED_LINGER_MS, MAX_FINISHED_RUNS,
    MAX_MESSAGE_BYTES, Overlap, REQUEST_RETENTION_MS, Refusal, RefusalCode, Reply, RunKey,
    SWEEP_BATCH, State,
};

impl State {
    pub(super) fn insert_new_run(
        &mut self,
        entry: &mut Entry<'_>,
        id: u64,
        job: &Job,
        key: RunKey,
        params: Option<String>,
    ) {
        let run = Run {
            id,
            key,
            revision: job.revision,
            spec: job.spec.clone(),
            params,
            created_at_ms: self.meta.clock.calendar_ms,
            activated_at_ms: None,
            finished_at_ms: None,
            finished_lease_ms: None,
            finished_index: None,
            state: RunState::Waiting,
            cancelled: None,
            open_tasks: job.spec.shards,
        };
        entry.events.push(Event::RunCreated(Arc::new(run.clone())));
        self.insert_run(run);
    }

    /// Ends a run whose tasks are all over, or that never began, and lets the next one of its job begin.
    pub(super) fn finish_run(&mut self, entry: &mut Entry<'_>, id: u64, state: RunState) {
        let clock = self.meta.clock;
        let index = entry.at.index;
        self.edit_run(id, |run| {
            run.state = state;
            run.finished_at_ms = Some(clock.calendar_ms);
            run.finished_lease_ms = Some(clock.lease_ms);
            run.finished_index = Some(index);
        });
        let Some(run) = self.runs.get(&id).cloned() else {
            return;
        };
        let counter = match state {
            RunState::Succeeded => Counter::RunsSucceeded,
            _ => Counter::RunsNotSucceeded,
        };
        self.count(counter, 1);
        let tasks = self.tasks_of(id).cloned().collect();
        entry.events.push(Event::RunFinished {
            run: run.clone(),
            tasks,
        });
        self.edit_job(run.key.job(), |job| {
            job.active.retain(|active| *active != id);
            job.waiting.retain(|waiting| *waiting != id);
        });
        self.activate_next(entry, run.key.job());
    }

    /// Lets the first waiting run of a job begin, if nothing is in its way: no active run at all, or, where
    /// the job allows overlap by now, none that shares its fencing scope.
    fn activate_next(&mut self, entry: &mut Entry<'_>, name: &crate::Name) {
        let Some(job) = self.jobs.get(name) else {
            return;
        };
        let Some(next) = job.waiting.front().copied() else {
            return;
        };
        let concurrent = |id: &u64| {
            self.runs
                .get(id)
                .is_none_or(|run| run.spec.overlap == Overlap::Allow)
        };
        let free = job.active.is_empty()
            || (job.spec.overlap == Overlap::Allow && job.active.iter().all(concurrent));
        if free {
            self.edit_job(name, |job| job.waiting.pop_front());
            activate_run(self, entry, next);
        }
    }

    /// The live runs of a job that was deleted under this name. A new job of the name counts them as its
    /// own, so that its first run waits for them: no fencing scope has two owners.
    pub(super) fn runs_left_over(&self, name: &crate::Name) -> Vec<u64> {
        let scheduled = RunKey::Scheduled(name.clone(), 0);
        let keyed = RunKey::Keyed(name.clone(), crate::Name::new(""));
        [scheduled, keyed]
            .into_iter()
            .flat_map(|from| {
                let kind = std::mem::discriminant(&from);
                self.index
                    .runs_by_key
                    .range(from..)
                    .take_while(move |(key, _)| {
                        key.job() == name && std::mem::discriminant(*key) == kind
                    })
                    .map(|(_, id)| *id)
            })
            .filter(|id| self.runs.get(id).is_some_and(|run| !run.state.is_final()))
            .collect()
    }

    /// Ends a run if its last task is over. The worst fate of a task is the run's.
    pub(super) fn finish_if_over(&mut self, entry: &mut Entry<'_>, id: u64) {
        let Some(run) = self.runs.get(&id) else {
            return;
        };
        if run.state.is_final() || run.open_tasks > 0 {
            return;
        }
        let rank = |state: TaskState| match state {
            TaskState::Succeeded => 0,
            TaskState::Cancelled => 1,
            TaskState::TimedOut => 2,
            TaskState::Failed => 3,
            _ => 4,
        };
        let worst = self
            .tasks_of(id)
            .map(|task| rank(task.state))
            .max()
            .unwrap_or(0);
        let state = match worst {
            0 => RunState::Succeeded,
            1 => RunState::Cancelled,
            2 => RunState::TimedOut,
            3 => RunState::Failed,
            _ => RunState::Unknown,
        };
        self.finish_run(entry, id, state);
    }

    pub(super) fn cancel_run(&mut self, entry: &mut Entry<'_>, id: u64, reason: &str) -> Applied {
        let Some(run) = self.runs.get(&id).cloned() else {
            return Err(Refusal::new(
                RefusalCode::UnknownRun,
                format!("no live run {id}"),
            ));
        };
        if reason.len() > MAX_MESSAGE_BYTES {
            return Err(Refusal::new(
                RefusalCode::TooLarge,
                "the reason is over 4096 bytes",
            ));
        }
        match run.state {
            RunState::Waiting => self.end_waiting_run(entry, id, reason),
            RunState::Active => self.request_cancel(entry, id, reason),
            _ => {
                return Err(Refusal::new(
                    RefusalCode::AlreadyFinal,
                    format!("run {id} is over: {:?}", run.state),
                ));
            }
        }
        let pending = self.runs.get(&id).filter(|run| !run.state.is_final());
        Ok(Reply::Cancelling {
            pending: pending.map_or(0, |run| run.open_tasks),
        })
    }

    /// Ends the tasks that nobody runs; asks the holders of the others to stop.
    pub(super) fn request_cancel(&mut self, entry: &mut Entry<'_>, id: u64, reason: &str) {
        let reason = reason.to_owned();
        self.edit_run(id, |run| run.cancelled.get_or_insert(reason).len());
        let limit_ms = self.meta.clock.lease_ms.saturating_add(CANCEL_GRACE_MS);
        let tasks: Vec<_> = self.tasks_of(id).cloned().collect();
        for task in tasks {
            let key = (task.run, task.shard);
            match &task.owner {
                _ if task.state.is_final() => {}
                // No handler runs under a grant that was not started, and none will: its start is refused.
                _ if task.state != TaskState::Running => {
                    self.end_task(key, TaskState::Cancelled, None);
                }
                None => {}
                Some(_) if task.cancel_limit_lease_ms.is_some() => {}
                Some(owner) => {
                    let session = owner.session;
                    self.edit_task(key, |task| task.cancel_limit_lease_ms = Some(limit_ms));
                    entry.events.push(Event::CancelRequested {
                        session,
                        run: task.run,
                        shard: task.shard,
                    });
                }
            }
        }
        self.finish_if_over(entry, id);
    }

    /// Removes what has been kept long enough, the oldest first, at most a batch. Returns how much.
    pub(super) fn sweep(&mut self) -> u32 {
        let now_ms = self.meta.clock.lease_ms;
        let mut removed = 0;
        while removed < SWEEP_BATCH {
            let Some(id) = self.oldest_finished_over(now_ms) else {
                break;
            };
            self.remove_run(id);
            removed += 1;
        }
        while removed < SWEEP_BATCH {
            let Some((index, key)) = self.index.requests.get_min().cloned() else {
                break;
            };
            let at_ms = self
                .requests
                .get(&key)
                .map_or(0, |record| record.at_lease_ms);
            if at_ms.saturating_add(REQUEST_RETENTION_MS) > now_ms {
                break;
            }
            self.index.requests.remove(&index);
            self.requests.remove(&key);
            removed += 1;
        }
        u32::try_from(removed).unwrap_or(u32::MAX)
    }

    /// The finished run that has to leave the live state next.
    pub(crate) fn oldest_finished_over(&self, now_lease_ms: u64) -> Option<u64> {
        let (_, id) = self.index.finished.get_min()?;
        let ended_ms = self.runs.get(id)?.finished_lease_ms?;
        let old = ended_ms.saturating_add(FINISHED_LINGER_MS) <= now_lease_ms;
        (old || self.index.finished.len() > MAX_FINISHED_RUNS).then_some(*id)
    }
}

/// Queues the tasks of a run.
pub(crate) fn activate_run(state: &mut State, entry: &mut Entry<'_>, id: u64) {
    let clock = state.meta.clock;
    state.edit_run(id, |run| {
        run.state = RunState::Active;
        run.activated_at_ms = Some(clock.calendar_ms);
    });
    let Some(run) = state.runs.get(&id).cloned() else {
        return;
    };
    let job = run.key.job().clone();
    state.edit_job(&job, |job| job.active.push(id));
    for shard in 0..run.spec.shards {
        let checkpoint = match run.spec.checkpoints {
            CheckpointScope::PerRun => None,
            #[cfg(feature = "planted-bugs")]
            CheckpointScope::CarryOver
                if tenure_planted::is(tenure_planted::Bug::AnotherShardCarriedOver) =>
            {
                let another = state.shard(&job, (shard + 1) % run.spec.shards);
                another.and_then(|another| another.checkpoint.clone())
            }
            CheckpointScope::CarryOver => state
                .shard(&job, shard)
                .filter(|shard| shard.checkpoint_shards == run.spec.shards)
                .and_then(|shard| shard.checkpoint.clone()),
        };
        state.insert_task(Task {
            run: id,
            shard,
            state: TaskState::Queued,
            epoch: 0,
            owner: None,
            attempt: 0,
            failures: 0,
            takeovers: 0,
            returns: 0,
            not_before_lease_ms: clock.lease_ms,
            checkpoint,
            progress: None,
            last_progress: None,
            previous_epoch: None,
            replay: None,
            cancel_limit_lease_ms: None,
            resulted: None,
            output_seq: 0,
            output_bytes: 0,
            output_truncated: false,
            message: None,
            last_instance: None,
            started_at_ms: None,
            finished_at_ms: None,
        });
    }
    entry.events.push(Event::TasksQueued { run: id });
}

impl State {
    /// The shard's record, made if it has none yet.
    pub(super) fn shard_entry(&mut self, job: &crate::Name, index: u32) -> &mut Shard {
        let floor = self.meta.epoch_floor;
        let shard = self.shards.entry((job.clone(), index)).or_insert_with(|| {
            Arc::new(Shard {
                job: job.clone(),
                index,
                epoch: floor,
                checkpoint: None,
                checkpoint_shards: 0,
            })
        });
        Arc::make_mut(shard)
    }
}
