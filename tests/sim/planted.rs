//! Runs with planted bugs: how many seeds it takes until something is found, and what finds it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_planted::Bug;

use crate::judge::Violation;
use crate::run::run_to_first;

/// In so many seeds each bug must be found.
pub const SEEDS: u64 = 200;

/// What came of one bug.
#[derive(Debug, Clone)]
pub struct Hunt {
    /// The bug.
    pub bug: Bug,
    /// How many seeds it took, and what was found in the last of them.
    pub caught: Option<(u64, Violation)>,
    next: u64,
    running: u64,
}

impl Hunt {
    /// The next seed to run, if another one can matter.
    fn take(&mut self, until: u64) -> Option<u64> {
        let limit = self.caught.as_ref().map_or(until, |(seed, _)| seed - 1);
        (self.next <= limit).then(|| {
            self.next += 1;
            self.running += 1;
            self.next - 1
        })
    }

    fn note(&mut self, seed: u64, found: Option<Violation>) {
        self.running -= 1;
        let earlier = self.caught.as_ref().is_none_or(|(known, _)| seed < *known);
        if let Some(violation) = found.filter(|_| earlier) {
            self.caught = Some((seed, violation));
        }
    }
}

/// Runs the seeds from 1 on with each bug until it is caught, on all cores. Tells of each bug as it is decided.
pub fn hunt(bugs: &[Bug], until: u64, tell: impl Fn(&Hunt) + Sync) -> Vec<Hunt> {
    let hunts = bugs.iter().map(|bug| Hunt {
        bug: *bug,
        caught: None,
        next: 1,
        running: 0,
    });
    let hunts = Mutex::new(hunts.collect::<Vec<_>>());
    let lock =
        || -> MutexGuard<'_, Vec<Hunt>> { hunts.lock().unwrap_or_else(PoisonError::into_inner) };
    let take = || {
        let mut hunts = lock();
        let mut order: Vec<usize> = (0..hunts.len()).collect();
        // All side by side, so that what is caught soon is told soon.
        order.sort_by_key(|at| hunts[*at].next);
        let mut open = order.into_iter();
        open.find_map(|at| Some((at, hunts[at].bug, hunts[at].take(until)?)))
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((at, bug, seed)) = take() {
                    let found = run_planted(bug, seed);
                    let mut hunts = lock();
                    hunts[at].note(seed, found);
                    if hunts[at].running == 0 && hunts[at].clone().take(until).is_none() {
                        tell(&hunts[at]);
                    }
                }
            });
        }
    });
    hunts.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a seed with a bug, up to the first thing that is found.
pub fn run_planted(bug: Bug, seed: u64) -> Option<Violation> {
    tenure_planted::plant(Some(bug));
    let report = run_to_first(seed);
    tenure_planted::plant(None);
    report.violations.into_iter().next()
}

/// What was caught, as the table of `docs/testing.md`.
pub fn table(hunts: &[Hunt]) -> String {
    let mut text =
        "| bug | the mistake | what did not hold | seeds |\n| --- | --- | --- | --- |\n".to_owned();
    for hunt in hunts {
        let (sentence, seeds) = match &hunt.caught {
            Some((seed, violation)) => (violation.sentence.as_str(), seed.to_string()),
            None => ("nothing was found", format!("over {}", hunt.next - 1)),
        };
        let (name, mistake) = (hunt.bug.name(), hunt.bug.mistake());
        text += &format!("| `{name}` | {mistake} | {sentence} | {seeds} |\n");
    }
    text
}
