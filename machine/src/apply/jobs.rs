//! Commands about jobs: put, delete, pause, resume, trigger.

use std::collections::VecDeque;
use std::sync::Arc;

use super::fires::Range;
use super::{Applied, Entry};
use crate::state::{Job, RunState};
use crate::{
    CheckpointScope, Event, Execution, Expect, JobSpec, MAX_EXPRESSION_BYTES, MAX_JOBS, MAX_LABELS,
    MAX_LIVE_RUNS, MAX_NAME_BYTES, MAX_PARAMS_BYTES, MAX_QUEUE_LIMIT, MAX_REQUEST_KEY_BYTES,
    MAX_SHARDS, Name, Overlap, Recovery, Refusal, RefusalCode, Reply, RunKey, SkipReason, State,
    Superseded, Trigger, Undecided,
};

impl State {
    pub(super) fn put_job(
        &mut self,
        entry: &mut Entry<'_>,
        name: &Name,
        expect: Expect,
        definition: &Definition<'_>,
    ) -> Applied {
        check_spec(name, definition.spec)?;
        let present = self.jobs.get(name).cloned();
        check_expected(name, expect, present.as_deref())?;
        let reply = match present {
            Some(job) => self.change_job(entry, &job, definition),
            None => self.create_job(entry, name, definition),
        }?;
        if let Reply::Job { changed: true, .. } = reply {
            entry.events.push(Event::JobChanged { job: name.clone() });
        }
        Ok(reply)
    }

    fn create_job(
        &mut self,
        entry: &Entry<'_>,
        name: &Name,
        definition: &Definition<'_>,
    ) -> Applied {
        let Definition {
            spec,
            paused,
            next_at_ms,
            superseded: _,
        } = *definition;
        if self.jobs.len() >= MAX_JOBS {
            return Err(Refusal::new(
                RefusalCode::LimitExceeded,
                format!("the cluster holds {MAX_JOBS} jobs already"),
            ));
        }
        check_next(self.meta.fire_floor_ms, next_at_ms)?;
        let now_ms = self.meta.clock.calendar_ms;
        // `every` counts from the creation, which no plan knows before this entry.
        let next_at_ms = match spec.trigger {
            Trigger::Every { interval_ms } => {
                first_of_interval(interval_ms, now_ms, self.meta.fire_floor_ms)
            }
            Trigger::Cron { .. } | Trigger::At { .. } | Trigger::Manual => next_at_ms,
        };
        let job = Job {
            name: name.clone(),
            revision: entry.at.index,
            spec: spec.clone(),
            created_index: entry.at.index,
            created_at_ms: now_ms,
            updated_at_ms: now_ms,
            trigger_since_ms: now_ms,
            paused_at_ms: (paused == Some(true)).then_some(now_ms),
            last_fire_ms: None,
            next_fire_ms: next_at_ms,
            active: self.runs_left_over(name),
            waiting: VecDeque::new(),
        };
        self.index.add_job(&job);
        self.jobs.insert(name.clone(), Arc::new(job));
        Ok(Reply::Job {
            revision: entry.at.index,
            created: true,
            changed: true,
        })
    }

    fn change_job(
        &mut self,
        entry: &mut Entry<'_>,
        job: &Job,
        definition: &Definition<'_>,
    ) -> Applied {
        let Definition {
            spec,
            paused,
            next_at_ms,
            superseded,
        } = *definition;
        let now_ms = self.meta.clock.calendar_ms;
        let same_pause = paused.is_none_or(|paused| paused == job.paused_at_ms.is_some());
        if job.spec == *spec && same_pause {
            return Ok(Reply::Job {
                revision: job.revision,
                created: false,
                changed: false,
            });
        }
        if paused == Some(false) && job.paused_at_ms.is_some() {
            // The instants of the pause need their decision, which only a resume carries.
            return Err(Refusal::new(
                RefusalCode::Paused,
                format!("job {} is paused: resume it, then change it", job.name),
            ));
        }
        check_next(job.last_fire_ms.unwrap_or(0), next_at_ms)?;
        if job.spec.trigger != spec.trigger {
            self.supersede(entry, job, superseded, next_at_ms)?;
        }
        let revision = entry.at.index;
        self.edit_job(&job.name, |job| {
            if paused == Some(true) && job.paused_at_ms.is_none() {
                job.paused_at_ms = Some(now_ms);
            }
            job.spec = spec.clone();
            job.revision = revision;
            job.updated_at_ms = now_ms;
        });
        Ok(Reply::Job {
            revision,
            created: false,
            changed: true,
        })
    }

    /// Replaces the trigger of a job. The latest instant that is due and not decided keeps its place: it gets
    /// its one decision under the new definition. The due ones before it are decided here, and everything
    /// later follows the new trigger.
    fn supersede(
        &mut self,
        entry: &mut Entry<'_>,
        job: &Job,
        superseded: Option<Superseded>,
        next_at_ms: Option<u64>,
    ) -> Result<(), Refusal> {
        let now_ms = self.meta.clock.calendar_ms;
        let Some(Superseded {
            skipped,
            not_due_ms,
        }) = superseded
        else {
            return Err(moved_on(job));
        };
        let pending = job.next_fire_ms.is_some_and(|next| next <= now_ms);
        if not_due_ms.is_some_and(|next| next <= now_ms)
            || (!pending && not_due_ms != job.next_fire_ms)
        {
            return Err(moved_on(job));
        }
        if let Some(skipped) = skipped {
            let range = Range::of(&skipped);
            self.check_range(job, &range, skipped.next_at_ms)?;
            let reason = match job.paused_at_ms {
                Some(_) => SkipReason::Paused,
                None => SkipReason::Changed,
            };
            self.record_skip(entry, job, range, skipped.next_at_ms, reason);
        }
        self.edit_job(&job.name, |job| {
            job.trigger_since_ms = now_ms;
            if !pending {
                job.next_fire_ms = next_at_ms;
            }
        });
        Ok(())
    }

    pub(super) fn delete_job(
        &mut self,
        entry: &mut Entry<'_>,
        name: &Name,
        expect: Expect,
        undecided: Option<Undecided>,
    ) -> Applied {
        let job = self.require_job(name)?;
        check_expected(name, expect, Some(&job))?;
        let now_ms = self.meta.clock.calendar_ms;
        let due = |next_ms: Option<u64>| next_ms.is_some_and(|next| next <= now_ms);
        match undecided {
            Some(undecided) => {
                let range = Range::of(&undecided);
                self.check_range(&job, &range, undecided.next_at_ms)?;
                if due(undecided.next_at_ms) {
                    return Err(moved_on(&job));
                }
                let next_at_ms = undecided.next_at_ms;
                self.record_skip(entry, &job, range, next_at_ms, SkipReason::Deleted);
            }
            None if due(job.next_fire_ms) => return Err(moved_on(&job)),
            None => {}
        }
        for run in &job.waiting {
            self.end_waiting_run(entry, *run, "job deleted");
        }
        for run in &job.active {
            self.request_cancel(entry, *run, "job deleted");
        }
        if let Some(job) = self.jobs.remove(name) {
            self.index.remove_job(&job);
            let last_ms = job.last_fire_ms.unwrap_or(0);
            self.meta.fire_floor_ms = self.meta.fire_floor_ms.max(last_ms);
        }
        self.retire_shards(name);
        entry.events.push(Event::JobChanged { job: name.clone() });
        Ok(Reply::Job {
            revision: job.revision,
            created: false,
            changed: true,
        })
    }

    /// Forgets the shards of a job. Their epochs live on in the floor from which every new shard counts, so
    /// that no number is ever given twice (seed scenario SH-10). A job that only changes its number of shards
    /// keeps them all (seed scenario SH-8).
    fn retire_shards(&mut self, job: &Name) {
        let gone: Vec<_> = self
            .shards
            .range((job.clone(), 0)..=(job.clone(), u32::MAX))
            .map(|(key, shard)| (key.clone(), shard.epoch))
            .collect();
        for (key, epoch) in gone {
            self.meta.epoch_floor = self.meta.epoch_floor.max(epoch);
            self.shards.remove(&key);
        }
    }

    pub(super) fn pause_job(&mut self, entry: &mut Entry<'_>, name: &Name) -> Applied {
        let job = self.require_job(name)?;
        if job.paused_at_ms.is_some() {
            return Ok(Reply::Job {
                revision: job.revision,
                created: false,
                changed: false,
            });
        }
        let now_ms = self.meta.clock.calendar_ms;
        self.edit_job(name, |job| job.paused_at_ms = Some(now_ms));
        entry.events.push(Event::JobChanged { job: name.clone() });
        Ok(Reply::Job {
            revision: job.revision,
            created: false,
            changed: true,
        })
    }

    pub(super) fn resume_job(
        &mut self,
        entry: &mut Entry<'_>,
        name: &Name,
        skipped: Option<(u64, u64, u64)>,
        next_at_ms: Option<u64>,
    ) -> Applied {
        let job = self.require_job(name)?;
        if job.paused_at_ms.is_none() {
            return Ok(Reply::Job {
                revision: job.revision,
                created: false,
                changed: false,
            });
        }
        let range = skipped.map(|(first_ms, last_ms, count)| Range {
            first_ms,
            last_ms,
            count,
        });
        match &range {
            Some(range) => self.check_range(&job, range, next_at_ms)?,
            None if job.next_fire_ms != next_at_ms => {
                return Err(Refusal::new(
                    RefusalCode::CursorMismatch,
                    "the job's next instant has changed: plan the resume again",
                ));
            }
            None => {}
        }
        if let Some(range) = range {
            self.record_skip(entry, &job, range, next_at_ms, SkipReason::Paused);
        }
        self.edit_job(name, |job| job.paused_at_ms = None);
        entry.events.push(Event::JobChanged { job: name.clone() });
        Ok(Reply::Job {
            revision: job.revision,
            created: false,
            changed: true,
        })
    }

    pub(super) fn trigger_job(
        &mut self,
        entry: &mut Entry<'_>,
        name: &Name,
        key: Option<&Name>,
        params: Option<&String>,
    ) -> Applied {
        let job = self.require_job(name)?;
        if params.is_some_and(|params| params.len() > MAX_PARAMS_BYTES) {
            return Err(too_large("params", MAX_PARAMS_BYTES));
        }
        if key.is_some_and(|key| {
            key.as_str().is_empty() || key.as_str().len() > 2 * MAX_REQUEST_KEY_BYTES + 1
        }) {
            return Err(Refusal::new(
                RefusalCode::Invalid,
                "idempotency key is empty or too long",
            ));
        }
        let own = Name::new(format!("@{}", entry.at.index));
        let key = RunKey::Keyed(name.clone(), key.cloned().unwrap_or(own));
        let known = self.run_by_key(&key);
        #[cfg(feature = "planted-bugs")]
        let known = known.filter(|_| !tenure_planted::is(tenure_planted::Bug::RunKeyUnchecked));
        if let Some(run) = known {
            return Ok(Reply::Run {
                run,
                created: false,
            });
        }
        self.check_room()?;
        match self.admit(&job) {
            Ok(admission) => {
                let run = self.create_run(entry, &job, key, params.cloned(), admission);
                Ok(Reply::Run { run, created: true })
            }
            Err(SkipReason::Overlap) => Err(Refusal::new(
                RefusalCode::Overlap,
                format!(
                    "job {name} forbids overlap and run {} is live",
                    job.active.first().copied().unwrap_or_default()
                ),
            )),
            Err(_) => Err(Refusal::new(
                RefusalCode::BacklogFull,
                format!(
                    "job {name} has as many runs as its queue_limit {}",
                    job.spec.queue_limit
                ),
            )),
        }
    }

    /// For the mistake that a new leader counts from its clock.
    #[cfg(feature = "planted-bugs")]
    pub(super) fn cursors_from_now(&mut self) {
        let now_ms = self.meta.clock.calendar_ms;
        for job in self.jobs.values().cloned().collect::<Vec<_>>() {
            if let Trigger::Every { interval_ms } = job.spec.trigger {
                let next_ms = first_of_interval(interval_ms, job.created_at_ms, now_ms);
                self.edit_job(&job.name, |job| job.next_fire_ms = next_ms);
            }
        }
    }

    pub(super) fn require_job(&self, name: &Name) -> Result<Arc<Job>, Refusal> {
        self.jobs
            .get(name)
            .cloned()
            .ok_or_else(|| Refusal::new(RefusalCode::UnknownJob, format!("no job {name}")))
    }

    pub(super) fn check_room(&self) -> Result<(), Refusal> {
        if self.runs.len() < MAX_LIVE_RUNS {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::LimitExceeded,
            format!("the cluster holds {MAX_LIVE_RUNS} live runs already"),
        ))
    }

    /// Whether a new run may come, and whether it has to wait.
    pub(super) fn admit(&self, job: &Job) -> Result<Admission, SkipReason> {
        let live = job.active.len() + job.waiting.len();
        let limit = job.spec.queue_limit as usize;
        match job.spec.overlap {
            _ if live == 0 => Ok(Admission::Now),
            Overlap::Allow if live < limit => Ok(Admission::Now),
            Overlap::Allow => Err(SkipReason::BacklogFull),
            #[cfg(feature = "planted-bugs")]
            Overlap::Forbid if tenure_planted::is(tenure_planted::Bug::OverlapUnchecked) => {
                Ok(Admission::Now)
            }
            Overlap::Forbid => Err(SkipReason::Overlap),
            Overlap::Replace => Ok(Admission::Replace),
            Overlap::Queue if job.waiting.len() < limit => Ok(Admission::Wait),
            Overlap::Queue => Err(SkipReason::BacklogFull),
        }
    }
}

/// What a put says about a job.
pub(super) struct Definition<'a> {
    pub(super) spec: &'a Arc<JobSpec>,
    pub(super) paused: Option<bool>,
    pub(super) next_at_ms: Option<u64>,
    pub(super) superseded: Option<Superseded>,
}

/// The cursor does not stand where the command was planned for.
fn moved_on(job: &Job) -> Refusal {
    Refusal::new(
        RefusalCode::CursorMismatch,
        format!(
            "instants of job {} came due or were decided: plan it again",
            job.name
        ),
    )
}

/// How a new run comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Its tasks are queued at once.
    Now,
    /// It waits behind the others.
    Wait,
    /// The others are cancelled; it waits until the active one has ended.
    Replace,
}

fn check_expected(name: &Name, expect: Expect, present: Option<&Job>) -> Result<(), Refusal> {
    let found = match (expect, present) {
        (Expect::Any, _) | (Expect::Absent, None) => return Ok(()),
        (Expect::Revision(revision), Some(job)) if job.revision == revision => return Ok(()),
        (_, Some(job)) => format!("job {name} is at revision {}", job.revision),
        (_, None) => format!("there is no job {name}"),
    };
    Err(Refusal::new(RefusalCode::RevisionMismatch, found))
}

/// The first instant of an interval that counts from `created_ms`, later than both.
fn first_of_interval(interval_ms: u64, created_ms: u64, floor_ms: u64) -> Option<u64> {
    let decided = floor_ms
        .saturating_sub(created_ms)
        .checked_div(interval_ms)?;
    let steps = decided.checked_add(1)?.checked_mul(interval_ms)?;
    created_ms.checked_add(steps)
}

/// A cursor never goes back over an instant that was decided.
fn check_next(decided_ms: u64, next_at_ms: Option<u64>) -> Result<(), Refusal> {
    match next_at_ms {
        Some(next) if next <= decided_ms => Err(Refusal::new(
            RefusalCode::CursorMismatch,
            format!("the next instant {next} is not after {decided_ms}: plan it again"),
        )),
        _ => Ok(()),
    }
}

fn too_large(what: &str, limit: usize) -> Refusal {
    Refusal::new(
        RefusalCode::TooLarge,
        format!("{what} is over the limit of {limit} bytes"),
    )
}

/// The last line of defence: what the API lets through must keep within the bounds of the state.
fn check_spec(name: &Name, spec: &JobSpec) -> Result<(), Refusal> {
    let invalid = |detail: &str| Err(Refusal::new(RefusalCode::Invalid, detail));
    if !name.is_job_name() {
        return invalid("a job's name is [a-z0-9][a-z0-9._-]{0,127}");
    }
    if spec.shards == 0 || spec.shards > MAX_SHARDS {
        return invalid("shards must be 1 to 1024");
    }
    if spec.queue_limit == 0 || spec.queue_limit > MAX_QUEUE_LIMIT {
        return invalid("queue_limit must be 1 to 1000");
    }
    if spec.misfire.limit == 0 || spec.misfire.limit > MAX_QUEUE_LIMIT {
        return invalid("misfire.limit must be 1 to 1000");
    }
    if spec.retry.max_attempts == 0 {
        return invalid("retry.max_attempts must be at least 1");
    }
    if spec.retry.multiplier_milli < 1000 || spec.retry.jitter_permille > 1000 {
        return invalid("retry.multiplier must be at least 1 and retry.jitter at most 1");
    }
    if let Trigger::Cron {
        expression,
        timezone,
    } = &spec.trigger
        && (expression.len() > MAX_EXPRESSION_BYTES || timezone.len() > MAX_EXPRESSION_BYTES)
    {
        return Err(too_large("trigger.cron", MAX_EXPRESSION_BYTES));
    }
    if spec.timeout_ms == Some(0) {
        return invalid("timeout must be longer than 0");
    }
    if matches!(spec.trigger, Trigger::Every { interval_ms } if interval_ms < 1000) {
        return invalid("trigger.every must be at least 1s");
    }
    if spec.execution == Execution::AtMostOnce
        && (spec.recovery != Recovery::Never || spec.retry.max_attempts != 1)
    {
        return invalid("at_most_once goes with recovery never and retry.max_attempts 1");
    }
    if spec.overlap == Overlap::Allow && spec.checkpoints == CheckpointScope::CarryOver {
        return invalid("checkpoints carry_over does not go with overlap allow");
    }
    let task = &spec.task;
    if !task.capability.is_label() || task.selector.len() > MAX_LABELS {
        return invalid("task.capability or task.selector is out of bounds");
    }
    if !task
        .selector
        .iter()
        .all(|(key, value)| key.is_label() && value.is_label())
    {
        return invalid("task.selector keys and values are 1 to 128 printable characters");
    }
    if let Some(version) = &task.version
        && (version.len() > MAX_NAME_BYTES || semver::VersionReq::parse(version).is_err())
    {
        return invalid("task.version is not a semantic-version requirement");
    }
    if task.params.len() > MAX_PARAMS_BYTES {
        return Err(too_large("task.params", MAX_PARAMS_BYTES));
    }
    if spec.description.len() > 1024 {
        return Err(too_large("description", 1024));
    }
    Ok(())
}

impl State {
    /// Ends a run that has not begun.
    pub(super) fn end_waiting_run(&mut self, entry: &mut Entry<'_>, id: u64, reason: &str) {
        self.edit_run(id, |run| run.cancelled = Some(reason.to_owned()));
        self.finish_run(entry, id, RunState::Cancelled);
    }
}
