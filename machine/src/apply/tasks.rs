//! Commands about tasks: grant, start, checkpoint, output, result, release, expiry.
//!
//! Invariant: whatever names an epoch that is not the task's present one, or a session that does not hold
//! it, changes nothing. The end of a tenure takes the holder away in its own entry, so from that log index
//! on the old number is refused, even before the next grant.

use std::sync::Arc;

use super::{Applied, Entry};
use crate::state::{Checkpoint, Counter, Job, Owner, Run, Task, TaskState};
use crate::{
    CheckpointScope, Event, MAX_CHECKPOINT_BYTES, MAX_MESSAGE_BYTES, MAX_OUTPUT_BYTES,
    MAX_OUTPUT_CHUNK_BYTES, MAX_RESULT_BYTES, Overlap, Refusal, RefusalCode, Reply, State,
    TaskOutcome, TaskRef,
};

/// What an executor says of the end of an attempt.
pub(super) struct Report<'a> {
    pub(super) outcome: &'a TaskOutcome,
    pub(super) progress: Option<u64>,
    pub(super) tail: &'a Option<String>,
}

impl State {
    pub(super) fn assign(
        &mut self,
        entry: &mut Entry<'_>,
        grant: TaskRef,
        session_id: u64,
    ) -> Applied {
        let (run, task) = self.require_task(grant)?;
        let session = self.require_session(session_id)?;
        let clock = self.meta.clock;
        if !task.state.is_waiting() || task.not_before_lease_ms > clock.lease_ms {
            return Err(Refusal::new(
                RefusalCode::NotGrantable,
                format!(
                    "the task is {:?}, not before {}",
                    task.state, task.not_before_lease_ms
                ),
            ));
        }
        let job = run.key.job().clone();
        let epoch = self.next_epoch(&run, &task);
        if grant.epoch != epoch {
            let code = if grant.epoch < epoch {
                RefusalCode::StaleEpoch
            } else {
                RefusalCode::FutureEpoch
            };
            return Err(Refusal::new(code, format!("the next epoch is {epoch}")));
        }
        if let Err(why) = self.fits(&session, &run) {
            return Err(Refusal::new(
                RefusalCode::NotEligible,
                format!("executor {}: {why}", session.instance),
            ));
        }
        let shard = self.shard_entry(&job, task.shard);
        shard.epoch = shard.epoch.max(epoch);
        let takeover = task.state == TaskState::Orphaned;
        self.edit_task((task.run, task.shard), |task| {
            task.state = TaskState::Assigned;
            task.epoch = epoch;
            task.output_seq = 0;
            task.last_instance = Some(session.instance.clone());
            task.owner = Some(Owner {
                session: session_id,
                granted_lease_ms: clock.lease_ms,
                deadline_lease_ms: clock.lease_ms.saturating_add(session.lease_ttl_ms),
                started_lease_ms: None,
            });
        });
        if takeover {
            self.count(Counter::Takeovers, 1);
        }
        entry.events.push(Event::Assigned {
            session: session_id,
            run: task.run,
            shard: task.shard,
        });
        Ok(Reply::Granted { epoch })
    }

    /// The epoch that the next grant of a task carries.
    pub(crate) fn next_epoch(&self, run: &Run, task: &Task) -> u64 {
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::EpochReused) && task.epoch > 0 {
            return task.epoch;
        }
        // A run of a job that was deleted, or whose shard was retired, counts on from what it has.
        self.shard_epoch(run.key.job(), task.shard).max(task.epoch) + 1
    }

    /// A start also renews the grant: a heartbeat that the executor composed before it asked to start does
    /// not list the task, and must not let the executor believe in a longer lease than the grant has.
    pub(super) fn start_task(&mut self, session: u64, grant: TaskRef) -> Applied {
        let (_, task) = self.require_holder(session, grant)?;
        let lease_ttl_ms = self.require_session(session)?.lease_ttl_ms;
        let clock = self.meta.clock;
        if task.state == TaskState::Assigned {
            self.edit_task((grant.run, grant.shard), |task| {
                task.state = TaskState::Running;
                task.attempt += 1;
                task.started_at_ms.get_or_insert(clock.calendar_ms);
                if let Some(owner) = &mut task.owner {
                    let deadline_ms = clock.lease_ms.saturating_add(lease_ttl_ms);
                    owner.deadline_lease_ms = owner.deadline_lease_ms.max(deadline_ms);
                    owner.started_lease_ms = Some(clock.lease_ms);
                }
            });
        }
        let started = self.tasks.get(&(grant.run, grant.shard)).unwrap_or(&task);
        let checkpoint = started.checkpoint.clone();
        #[cfg(feature = "planted-bugs")]
        let checkpoint = match self.tasks.get(&(grant.run, 0)) {
            Some(first) if tenure_planted::is(tenure_planted::Bug::CheckpointOfAnotherShard) => {
                first.checkpoint.clone()
            }
            _ => checkpoint,
        };
        Ok(Reply::Started {
            attempt: started.attempt,
            checkpoint,
            last_progress: started.last_progress,
            previous_epoch: started.previous_epoch,
        })
    }

    pub(super) fn checkpoint(
        &mut self,
        entry: &mut Entry<'_>,
        session: u64,
        grant: TaskRef,
        offset: u64,
        bytes: &Arc<[u8]>,
    ) -> Applied {
        if bytes.len() > MAX_CHECKPOINT_BYTES {
            return Err(Refusal::new(
                RefusalCode::CheckpointTooLarge,
                format!(
                    "{} bytes are over the limit of {MAX_CHECKPOINT_BYTES}",
                    bytes.len()
                ),
            ));
        }
        #[cfg(feature = "planted-bugs")]
        let (session, grant) = self.whoever_holds(session, grant);
        let (run, task) = self.require_running(session, grant)?;
        if let Some(committed) = &task.checkpoint
            && offset < committed.offset
        {
            return Err(Refusal::new(
                RefusalCode::CheckpointRegressed,
                format!(
                    "offset {offset} is behind the committed {}",
                    committed.offset
                ),
            ));
        }
        let checkpoint = Arc::new(Checkpoint {
            offset,
            state: bytes.clone(),
            epoch: grant.epoch,
        });
        let key = (grant.run, grant.shard);
        let advanced = task
            .checkpoint
            .as_ref()
            .is_none_or(|committed| offset > committed.offset);
        self.edit_task(key, |task| {
            task.checkpoint = Some(checkpoint.clone());
            if advanced {
                task.takeovers = 0;
                task.returns = 0;
            }
        });
        if run.spec.checkpoints == CheckpointScope::CarryOver && self.job_of(&run).is_some() {
            let shard = self.shard_entry(run.key.job(), grant.shard);
            shard.checkpoint = Some(checkpoint);
            shard.checkpoint_shards = run.spec.shards;
        }
        self.note_progress(entry, key, Some(offset));
        Ok(Reply::Checkpointed { offset })
    }

    pub(super) fn append_output(
        &mut self,
        entry: &mut Entry<'_>,
        session: u64,
        grant: TaskRef,
        seq: u32,
        text: &str,
    ) -> Applied {
        if text.len() > MAX_OUTPUT_CHUNK_BYTES {
            return Err(Refusal::new(
                RefusalCode::TooLarge,
                format!("a piece of output has at most {MAX_OUTPUT_CHUNK_BYTES} bytes"),
            ));
        }
        let (_, task) = self.require_running(session, grant)?;
        if seq != task.output_seq {
            let repeated = seq < task.output_seq;
            return if repeated {
                Ok(Reply::OutputTaken {
                    accepted_bytes: 0,
                    truncated: task.output_truncated,
                })
            } else {
                Err(Refusal::new(
                    RefusalCode::Invalid,
                    format!("the next piece of output is number {}", task.output_seq),
                ))
            };
        }
        self.edit_task((grant.run, grant.shard), |task| {
            task.output_seq = seq.saturating_add(1);
        });
        Ok(self.take_output(entry, grant, text))
    }

    /// Passes output on to the archive, as much as is still kept for the task.
    fn take_output(&mut self, entry: &mut Entry<'_>, grant: TaskRef, text: &str) -> Reply {
        let key = (grant.run, grant.shard);
        let kept = self
            .tasks
            .get(&key)
            .map_or(MAX_OUTPUT_BYTES, |task| task.output_bytes);
        let room = usize::try_from(MAX_OUTPUT_BYTES.saturating_sub(kept)).unwrap_or(usize::MAX);
        let piece = cut(text, room);
        let accepted_bytes = piece.len() as u64;
        let truncated = piece.len() < text.len();
        self.edit_task(key, |task| {
            task.output_bytes += accepted_bytes;
            task.output_truncated |= truncated;
        });
        if !piece.is_empty() {
            entry.events.push(Event::Output {
                run: grant.run,
                shard: grant.shard,
                epoch: grant.epoch,
                position_bytes: kept,
                text: piece.to_owned(),
            });
        }
        Reply::OutputTaken {
            accepted_bytes,
            truncated,
        }
    }

    pub(super) fn report_result(
        &mut self,
        entry: &mut Entry<'_>,
        session: u64,
        grant: TaskRef,
        report: &Report<'_>,
    ) -> Applied {
        self.require_session(session)?;
        let (run, task) = self.require_task(grant)?;
        if task.resulted == Some((grant.epoch, session)) {
            let retrying = !task.state.is_final();
            return Ok(Reply::ResultTaken {
                repeated: true,
                retrying,
            });
        }
        check_report(report)?;
        let (_, task) = self.require_running(session, grant)?;
        let key = (grant.run, grant.shard);
        self.note_progress(entry, key, report.progress);
        if let Some(tail) = report.tail {
            self.take_output(entry, grant, tail);
        }
        let cancelling = task.cancel_limit_lease_ms.is_some();
        let (end, message) = match report.outcome {
            TaskOutcome::Succeeded { value } => (TaskState::Succeeded, value.clone()),
            TaskOutcome::Failed { message, .. } => (
                TaskState::Failed,
                Some(cut(message, MAX_MESSAGE_BYTES).to_owned()),
            ),
            TaskOutcome::TimedOut => (TaskState::TimedOut, Some("the attempt timed out".into())),
            TaskOutcome::Cancelled if cancelling => (TaskState::Cancelled, None),
            TaskOutcome::Cancelled => {
                // The executor stopped the work of its own accord: that gives the task back.
                self.edit_task(key, |task| task.resulted = Some((grant.epoch, session)));
                let retrying = self.give_back(entry, &run, key);
                self.finish_if_over(entry, grant.run);
                return Ok(Reply::ResultTaken {
                    repeated: false,
                    retrying,
                });
            }
        };
        let retryable = !matches!(
            report.outcome,
            TaskOutcome::Failed {
                retryable: false,
                ..
            }
        );
        self.edit_task(key, |task| task.resulted = Some((grant.epoch, session)));
        let retrying = match end {
            TaskState::Failed | TaskState::TimedOut if cancelling => {
                self.end_task(key, TaskState::Cancelled, message);
                false
            }
            TaskState::Failed | TaskState::TimedOut => {
                self.fail_attempt(entry, &run, key, end, message, retryable)
            }
            _ => {
                self.end_task(key, end, message);
                false
            }
        };
        self.finish_if_over(entry, grant.run);
        Ok(Reply::ResultTaken {
            repeated: false,
            retrying,
        })
    }

    pub(super) fn require_task(&self, grant: TaskRef) -> Result<(Arc<Run>, Arc<Task>), Refusal> {
        let run = self.runs.get(&grant.run).cloned();
        let task = self.tasks.get(&(grant.run, grant.shard)).cloned();
        run.zip(task).ok_or_else(|| {
            Refusal::new(
                RefusalCode::UnknownTask,
                format!("no live task {} of run {}", grant.shard, grant.run),
            )
        })
    }

    /// The task, if this session holds it under this epoch.
    pub(super) fn require_holder(
        &self,
        session: u64,
        grant: TaskRef,
    ) -> Result<(Arc<Run>, Arc<Task>), Refusal> {
        self.require_session(session)?;
        let (run, task) = self.require_task(grant)?;
        let holds = task.epoch == grant.epoch
            && task
                .owner
                .as_ref()
                .is_some_and(|owner| owner.session == session);
        #[cfg(feature = "planted-bugs")]
        let holds = holds || tenure_planted::is(tenure_planted::Bug::EpochUnchecked);
        if holds {
            Ok((run, task))
        } else {
            Err(stale_epoch(grant, &task))
        }
    }

    fn require_running(
        &self,
        session: u64,
        grant: TaskRef,
    ) -> Result<(Arc<Run>, Arc<Task>), Refusal> {
        let (run, task) = self.require_holder(session, grant)?;
        if task.state == TaskState::Running {
            return Ok((run, task));
        }
        Err(Refusal::new(
            RefusalCode::NotStarted,
            "start the task first",
        ))
    }

    /// For the mistake that a checkpoint is taken for the present holder's.
    #[cfg(feature = "planted-bugs")]
    fn whoever_holds(&self, session: u64, grant: TaskRef) -> (u64, TaskRef) {
        let planted = tenure_planted::is(tenure_planted::Bug::CheckpointWithoutEpoch);
        let task = self.tasks.get(&(grant.run, grant.shard));
        match task.and_then(|task| Some((task.epoch, task.owner.as_ref()?.session))) {
            Some((epoch, holder)) if planted => (holder, TaskRef { epoch, ..grant }),
            _ => (session, grant),
        }
    }

    /// The job a run belongs to, unless that was deleted; a later job of the same name is another one.
    fn job_of(&self, run: &Run) -> Option<&Arc<Job>> {
        self.jobs
            .get(run.key.job())
            .filter(|job| run.id > job.created_index)
    }

    /// What the sink of a task's effects checks: within one run where runs are concurrent by wish.
    pub fn fencing_scope(run: &Run, shard: u32) -> String {
        match run.spec.overlap {
            Overlap::Allow => format!("{}/{shard}@{}", run.key.job(), run.id),
            _ => format!("{}/{shard}", run.key.job()),
        }
    }
}

pub(super) fn stale_epoch(grant: TaskRef, task: &Task) -> Refusal {
    if grant.epoch > task.epoch {
        return Refusal::new(
            RefusalCode::FutureEpoch,
            format!(
                "epoch {} was never granted; the last is {}",
                grant.epoch, task.epoch
            ),
        );
    }
    let holder = match &task.owner {
        Some(owner) => format!("session {} holds epoch {}", owner.session, task.epoch),
        None => format!("epoch {} has ended", task.epoch),
    };
    Refusal::new(
        RefusalCode::StaleEpoch,
        format!("epoch {} is not current: {holder}", grant.epoch),
    )
}

fn check_report(report: &Report<'_>) -> Result<(), Refusal> {
    let tail = report.tail.as_ref().map_or(0, String::len);
    if tail > MAX_OUTPUT_CHUNK_BYTES {
        return Err(Refusal::new(
            RefusalCode::TooLarge,
            format!("output_tail has at most {MAX_OUTPUT_CHUNK_BYTES} bytes"),
        ));
    }
    if let TaskOutcome::Succeeded { value: Some(value) } = report.outcome
        && value.len() > MAX_RESULT_BYTES
    {
        return Err(Refusal::new(
            RefusalCode::TooLarge,
            format!("a result has at most {MAX_RESULT_BYTES} bytes"),
        ));
    }
    Ok(())
}

/// The longest prefix of `text` that has at most `limit` bytes and ends between characters.
fn cut(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
