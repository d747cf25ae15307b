//! Decisions about due instants. A decision and the move of the cursor are one entry.

use super::jobs::Admission;
use super::{Applied, Entry};
use crate::event::FireDecision;
use crate::state::{Counter, Job};
use crate::{Event, Name, Refusal, RefusalCode, Reply, RunKey, SkipReason, State, Undecided};

/// A range of due instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first_ms: u64,
    pub(super) last_ms: u64,
    pub(super) count: u64,
}

impl Range {
    pub(super) fn of(undecided: &Undecided) -> Self {
        Self {
            first_ms: undecided.first_ms,
            last_ms: undecided.last_ms,
            count: undecided.count,
        }
    }
}

impl State {
    pub(super) fn fire(
        &mut self,
        entry: &mut Entry<'_>,
        name: &Name,
        revision: u64,
        scheduled_at_ms: u64,
        next_at_ms: Option<u64>,
    ) -> Applied {
        let job = self.require_fireable(name, revision)?;
        let range = Range {
            first_ms: scheduled_at_ms,
            last_ms: scheduled_at_ms,
            count: 1,
        };
        self.check_range(&job, &range, next_at_ms)?;
        let admission = match self.check_room().map_err(|_| SkipReason::BacklogFull) {
            Ok(()) => self.admit(&job),
            Err(full) => Err(full),
        };
        let admission = match admission {
            Ok(admission) => admission,
            Err(reason) => {
                self.record_skip(entry, &job, range, next_at_ms, reason);
                return Ok(Reply::Fired { run: None });
            }
        };
        let key = RunKey::Scheduled(name.clone(), scheduled_at_ms);
        if let Some(run) = self.run_by_key(&key) {
            return Err(Refusal::new(
                RefusalCode::DuplicateFire,
                format!("run {run} stands for this instant already"),
            ));
        }
        self.move_cursor(name, scheduled_at_ms, next_at_ms);
        self.count(Counter::Fires, 1);
        entry.events.push(Event::Decided(FireDecision {
            run: Some(entry.at.index),
            skipped: None,
            ..self.decision(entry, &job, range)
        }));
        let run = self.create_run(entry, &job, key, None, admission);
        Ok(Reply::Fired { run: Some(run) })
    }

    pub(super) fn skip_fires(
        &mut self,
        entry: &mut Entry<'_>,
        name: &Name,
        revision: u64,
        range: Range,
        next_at_ms: Option<u64>,
        reason: SkipReason,
    ) -> Applied {
        let job = self.require_fireable(name, revision)?;
        self.check_range(&job, &range, next_at_ms)?;
        self.record_skip(entry, &job, range, next_at_ms, reason);
        Ok(Reply::Fired { run: None })
    }

    fn require_fireable(&self, name: &Name, revision: u64) -> Result<std::sync::Arc<Job>, Refusal> {
        let job = self.require_job(name)?;
        if job.revision != revision {
            return Err(Refusal::new(
                RefusalCode::StaleRevision,
                format!(
                    "planned for revision {revision}, the job is at {}",
                    job.revision
                ),
            ));
        }
        if job.paused_at_ms.is_some() {
            return Err(Refusal::new(
                RefusalCode::Paused,
                format!("job {name} is paused"),
            ));
        }
        Ok(job)
    }

    /// A range must begin where the cursor stands, be due, and move the cursor forward. This is what makes
    /// a second decision about an instant impossible.
    pub(super) fn check_range(
        &self,
        job: &Job,
        range: &Range,
        next_at_ms: Option<u64>,
    ) -> Result<(), Refusal> {
        #[cfg(feature = "planted-bugs")]
        let job = &match tenure_planted::is(tenure_planted::Bug::DuplicateFire) {
            true => Job {
                next_fire_ms: Some(range.first_ms),
                ..job.clone()
            },
            false => job.clone(),
        };
        if job.next_fire_ms != Some(range.first_ms) {
            return Err(Refusal::new(
                RefusalCode::DuplicateFire,
                match job.next_fire_ms {
                    Some(next) => format!(
                        "instant {} is not where the cursor stands: {next}",
                        range.first_ms
                    ),
                    None => format!("instant {} is not due: nothing is", range.first_ms),
                },
            ));
        }
        let single = range.first_ms == range.last_ms;
        // Instants of a trigger are a second apart or more; only the first may stand off the second.
        let most = (range.last_ms.saturating_sub(range.first_ms) / 1000).saturating_add(2);
        if range.last_ms < range.first_ms
            || range.count == 0
            || (single && range.count != 1)
            || (!single && !(2..=most).contains(&range.count))
        {
            return Err(Refusal::new(
                RefusalCode::Invalid,
                "the range of instants is malformed",
            ));
        }
        if range.last_ms > self.meta.clock.calendar_ms {
            return Err(Refusal::new(
                RefusalCode::NotDue,
                format!(
                    "due at {}, it is {}",
                    range.last_ms, self.meta.clock.calendar_ms
                ),
            ));
        }
        if next_at_ms.is_some_and(|next| next <= range.last_ms) {
            return Err(Refusal::new(
                RefusalCode::Invalid,
                "the cursor must move forward",
            ));
        }
        Ok(())
    }

    pub(super) fn record_skip(
        &mut self,
        entry: &mut Entry<'_>,
        job: &Job,
        range: Range,
        next_at_ms: Option<u64>,
        reason: SkipReason,
    ) {
        self.move_cursor(&job.name, range.last_ms, next_at_ms);
        self.count(Counter::FiresSkipped, range.count);
        entry.events.push(Event::Decided(FireDecision {
            run: None,
            skipped: Some(reason),
            ..self.decision(entry, job, range)
        }));
    }

    fn move_cursor(&mut self, name: &Name, last_ms: u64, next_at_ms: Option<u64>) {
        #[cfg(feature = "planted-bugs")]
        let next_at_ms = next_at_ms.filter(|_| {
            !(tenure_planted::is(tenure_planted::Bug::CursorLost) && last_ms.is_multiple_of(5))
        });
        self.edit_job(name, |job| {
            job.last_fire_ms = Some(last_ms);
            job.next_fire_ms = next_at_ms;
        });
    }

    fn decision(&self, entry: &Entry<'_>, job: &Job, range: Range) -> FireDecision {
        FireDecision {
            job: job.name.clone(),
            revision: job.revision,
            first_ms: range.first_ms,
            last_ms: range.last_ms,
            count: range.count,
            run: None,
            skipped: None,
            decided_at_ms: self.meta.clock.calendar_ms,
            index: entry.at.index,
            term: entry.at.term,
        }
    }

    /// Creates a run that was admitted. Its id is the log index of the entry.
    pub(super) fn create_run(
        &mut self,
        entry: &mut Entry<'_>,
        job: &Job,
        key: RunKey,
        params: Option<String>,
        admission: Admission,
    ) -> u64 {
        let id = entry.at.index;
        if admission == Admission::Replace {
            for run in &job.waiting {
                self.end_waiting_run(entry, *run, "replaced by a later run");
            }
            for run in &job.active {
                self.request_cancel(entry, *run, "replaced by a later run");
            }
        }
        // A replaced run that nobody holds ends at once; then nothing is left to wait for.
        let free = self
            .jobs
            .get(&job.name)
            .is_none_or(|job| job.active.is_empty());
        let waits = admission != Admission::Now && !free;
        self.insert_new_run(entry, id, job, key, params);
        if waits {
            self.edit_job(&job.name, |job| job.waiting.push_back(id));
        } else {
            super::activate_run(self, entry, id);
        }
        id
    }
}
