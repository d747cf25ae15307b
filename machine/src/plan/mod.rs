//! `plan`: what a leader should propose, from a state and the two clocks.
//!
//! Pure, like `apply`, but free to change between versions: what it says is checked when it is applied.
//! That is why cron tables, time-zone data and placement live here and never in `apply`; time-zone data
//! differs between hosts, so the next instant travels in the command.
//!
//! Invariant: nothing here scans all jobs, runs or tasks. Each plan walks an index from its smallest entry
//! and stops at the first one that is not due, or at its budget.

mod explain;
mod fires;
mod leases;
mod placement;
pub mod schedule;

pub use explain::{Explanation, KeptCheckpoint, MAX_EXPLAINED, Obstacle, TaskExplanation, explain};

use std::collections::BTreeSet;

use crate::{Command, Expect, Name, Overlap, Stamp, State, Superseded};
use schedule::Schedules;

/// How much one plan may hold. What is left over comes with the next plan.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Decisions about due instants.
    pub fires: usize,
    /// Grants.
    pub grants: usize,
    /// Expiries and forced ends.
    pub ends: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            fires: 2048,
            grants: 2048,
            ends: 2048,
        }
    }
}

/// Makes plans. Keeps parsed cron expressions between them, which changes their speed and nothing else.
#[derive(Debug, Default)]
pub struct Planner {
    schedules: Schedules,
    budget: Budget,
}

impl Planner {
    /// A planner with a budget.
    pub fn new(budget: Budget) -> Self {
        Self {
            schedules: Schedules::default(),
            budget,
        }
    }

    /// What to propose at `now`, in this order: expiries first, so that what they free can be granted next.
    pub fn plan(&mut self, state: &State, now: Stamp) -> Vec<Command> {
        // A clock that fell behind the state's does not turn it back.
        let clock = state.clock();
        let now = Stamp {
            lease_ms: now.lease_ms.max(clock.lease_ms),
            calendar_ms: now.calendar_ms.max(clock.calendar_ms),
        };
        let mut commands = Vec::new();
        leases::plan(state, now.lease_ms, self.budget.ends, &mut commands);
        fires::plan(
            &mut self.schedules,
            state,
            now.calendar_ms,
            self.budget.fires,
            &mut commands,
        );
        let replaced = replaced(state, &commands);
        placement::plan(
            state,
            now.lease_ms,
            self.budget.grants,
            &replaced,
            &mut commands,
        );
        leases::plan_sweep(state, now.lease_ms, &mut commands);
        commands
    }

    /// The resume of a paused job: its undecided instants as a range, and the next one.
    pub fn resume(&mut self, job: &crate::Job, now_calendar_ms: u64) -> Command {
        fires::resume(&mut self.schedules, job, now_calendar_ms)
    }

    /// The deletion of a job: what is due and undecided as a range.
    pub fn delete(&mut self, job: &crate::Job, expect: Expect, now_calendar_ms: u64) -> Command {
        fires::delete(&mut self.schedules, job, expect, now_calendar_ms)
    }

    /// What a put says of the trigger it replaces.
    pub fn supersede(&mut self, job: &crate::Job, now_calendar_ms: u64) -> Superseded {
        fires::supersede(&mut self.schedules, job, now_calendar_ms)
    }

    /// The parsed schedules, for previews.
    pub fn schedules(&mut self) -> &mut Schedules {
        &mut self.schedules
    }
}

/// Jobs whose live runs a fire of this plan replaces: none of their waiting tasks is granted any more.
fn replaced(state: &State, commands: &[Command]) -> BTreeSet<Name> {
    commands
        .iter()
        .filter_map(|command| match command {
            Command::Fire { job, .. } => Some(job),
            _ => None,
        })
        .filter(|name| {
            state
                .job(name)
                .is_some_and(|job| job.spec.overlap == Overlap::Replace)
        })
        .cloned()
        .collect()
}
