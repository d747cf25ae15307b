//! The two clocks of a leader (design §4), and the machine's clock they are made from.
//!
//! - The **lease clock** measures how long leases have been running. It advances with the monotonic clock,
//!   but by at most [`MAX_STEP_MS`] between two readings: a process that was stopped for a minute and goes
//!   on has not seen the renewals that may have come in between, so it must not count that minute. It is
//!   read by the leader's loop many times a second, so in a process that runs it loses nothing. A step is
//!   short against the shortest lease: whoever renews in time outlives one, and has time for another renewal
//!   before the lease ends. It also stands unless somebody has seen a majority within [`RUN_MS`].
//! - The **calendar clock** is wall time. A wall clock that jumps against the monotonic clock is reported;
//!   the state itself never goes back.
//!
//! A follower's lease clock stands at what was applied. A new leader goes on from there: time without a
//! leader does not flow.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_api::protocol::{DEFAULT_HEARTBEAT_INTERVAL_MS, DEFAULT_LEASE_TTL_MS};
use tenure_machine::{MIN_LEASE_TTL_MS, Stamp};

/// The longest step of the lease clock between two readings, in milliseconds.
pub const MAX_STEP_MS: u64 = 250;

/// How long the lease clock runs on after it was last told to, in milliseconds. Who tells it looks at the majority
/// several times in that time; one that is held up must not let time flow that nobody has looked at.
pub const RUN_MS: u64 = 500;

// A lease that is renewed every `interval` has at least its length less one interval left when a step comes,
// and must have one interval left after it.
const _: () = {
    let interval_ms = MIN_LEASE_TTL_MS * DEFAULT_HEARTBEAT_INTERVAL_MS / DEFAULT_LEASE_TTL_MS;
    assert!(MIN_LEASE_TTL_MS >= 2 * interval_ms + MAX_STEP_MS);
};

/// By how much the wall clock may run apart from the monotonic clock between two readings before that
/// counts as a jump, in milliseconds.
pub const JUMP_MS: u64 = 1_000;

/// The machine's clocks, so that a simulation can put its own in their place.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since some fixed point. Never goes back.
    fn monotonic_ms(&self) -> u64;
    /// Milliseconds since the Unix epoch. May jump.
    fn wall_ms(&self) -> u64;
}

/// The clocks of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl SystemClock {
    /// Starts the monotonic count.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is where real time comes in"
    )]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            start: std::time::Instant::now(),
        })
    }
}

impl Clock for SystemClock {
    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is where real time comes in"
    )]
    fn wall_ms(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| {
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            })
    }
}

impl Inner {
    fn advance(&mut self, monotonic_ms: u64) {
        let step_ms = monotonic_ms
            .min(self.run_until_ms)
            .saturating_sub(self.read_at_ms)
            .min(MAX_STEP_MS);
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::ExpiryByLocalClock) {
            let passed_ms = monotonic_ms.saturating_sub(self.read_at_ms);
            self.lease_ms = self.lease_ms.saturating_add(passed_ms);
            self.read_at_ms = monotonic_ms;
            return;
        }
        if self.running {
            self.lease_ms = self.lease_ms.saturating_add(step_ms);
        }
        self.read_at_ms = monotonic_ms;
    }
}

/// A jump of the wall clock that was noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jumps {
    /// How many were noticed since the process began.
    pub count: u64,
    /// The last one: how far, in milliseconds; negative for backwards.
    pub last_ms: i64,
}

/// Makes the stamps of proposals.
pub struct Stamper {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

struct Inner {
    lease_ms: u64,
    running: bool,
    run_until_ms: u64,
    read_at_ms: u64,
    /// Wall minus monotonic clock at the last reading.
    offset_ms: i128,
    jumps: Jumps,
}

impl Stamper {
    /// A stamper whose lease clock stands at 0, and runs until it is told not to.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let read_at_ms = clock.monotonic_ms();
        let offset_ms = i128::from(clock.wall_ms()) - i128::from(read_at_ms);
        let inner = Inner {
            lease_ms: 0,
            running: true,
            run_until_ms: u64::MAX,
            read_at_ms,
            offset_ms,
            jumps: Jumps::default(),
        };
        Arc::new(Self {
            clock,
            inner: Mutex::new(inner),
        })
    }

    /// Goes on from what was applied. A leader calls this when it takes office.
    pub fn take_office(&self, applied: Stamp) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.lease_ms = inner.lease_ms.max(applied.lease_ms);
        inner.read_at_ms = self.clock.monotonic_ms();
    }

    /// Lets the lease clock run for [`RUN_MS`], or stand. It stands while this node does not lead or no majority
    /// answers: then nobody can renew.
    pub fn run(&self, running: bool) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (monotonic_ms, _) = self.read(&mut inner);
        inner.run_until_ms = monotonic_ms.saturating_add(RUN_MS);
        if inner.running != running {
            inner.running = running;
            // What was counted and never got into the log was time without a majority. From here on readings
            // are what is applied, and whatever term comes next goes on from there.
            if !running {
                inner.lease_ms = 0;
            }
        }
    }

    /// The two clocks now, never behind `applied`.
    pub fn now(&self, applied: Stamp) -> Stamp {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, wall_ms) = self.read(&mut inner);
        inner.lease_ms = inner.lease_ms.max(applied.lease_ms);
        Stamp {
            lease_ms: inner.lease_ms,
            calendar_ms: wall_ms.max(applied.calendar_ms),
        }
    }

    /// Reads both clocks of the machine: lets the lease clock go on, and sees whether the wall clock jumped.
    fn read(&self, inner: &mut Inner) -> (u64, u64) {
        let monotonic_ms = self.clock.monotonic_ms();
        let wall_ms = self.clock.wall_ms();
        inner.advance(monotonic_ms);
        let offset_ms = i128::from(wall_ms) - i128::from(monotonic_ms);
        let apart_ms = offset_ms - inner.offset_ms;
        if apart_ms.unsigned_abs() > u128::from(JUMP_MS) {
            inner.jumps.count += 1;
            inner.jumps.last_ms = i64::try_from(apart_ms).unwrap_or(i64::MAX);
            tracing::warn!(jump_ms = inner.jumps.last_ms, "the wall clock jumped");
        }
        inner.offset_ms = offset_ms;
        (monotonic_ms, wall_ms)
    }

    /// The jumps of the wall clock that were noticed.
    pub fn jumps(&self) -> Jumps {
        self.inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .jumps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tenure_machine::plan::Planner;
    use tenure_machine::{
        Actor, Command, Heartbeat, LogPosition, Proposal, Registration, Reply, State,
    };

    #[derive(Default)]
    struct Hand {
        monotonic: AtomicU64,
        wall: AtomicU64,
    }

    impl Hand {
        fn pass(&self, ms: u64) {
            self.monotonic.fetch_add(ms, Ordering::SeqCst);
            self.wall.fetch_add(ms, Ordering::SeqCst);
        }
    }

    impl Clock for Hand {
        fn monotonic_ms(&self) -> u64 {
            self.monotonic.load(Ordering::SeqCst)
        }
        fn wall_ms(&self) -> u64 {
            self.wall.load(Ordering::SeqCst)
        }
    }

    fn at(lease_ms: u64, calendar_ms: u64) -> Stamp {
        Stamp {
            lease_ms,
            calendar_ms,
        }
    }

    #[test]
    fn a_paused_process_does_not_count_its_pause() {
        let hand = Arc::new(Hand::default());
        let stamper = Stamper::new(hand.clone());
        hand.pass(200);
        assert_eq!(stamper.now(at(0, 0)).lease_ms, 200);
        hand.pass(60_000);
        assert_eq!(stamper.now(at(0, 0)).lease_ms, 200 + MAX_STEP_MS);
    }

    /// The shortest lease, renewed as late as a renewal may come, does not end by one late reading.
    #[test]
    fn a_late_reading_ends_no_lease_that_is_renewed_in_time() {
        let hand = Arc::new(Hand::default());
        let stamper = Stamper::new(hand.clone());
        let mut state = State::new();
        let mut index = 0;
        let mut apply = |state: &mut State, command: Command, stamp| {
            index += 1;
            let proposal = Proposal {
                stamp,
                term: Some(1),
                actor: Actor::Scheduler,
                request: None,
                command,
            };
            let at = LogPosition { term: 1, index };
            state.apply(at, &proposal).reply.unwrap()
        };
        let bootstrap = Command::Bootstrap {
            cluster_id: "clock".into(),
            generation: 1,
        };
        apply(&mut state, bootstrap, stamper.now(at(0, 0)));
        let register = Command::RegisterSession(Registration {
            instance: "a".into(),
            version: "1.0.0".into(),
            capabilities: vec!["work".into()],
            labels: std::collections::BTreeMap::new(),
            capacity: 1,
            lease_ttl_ms: MIN_LEASE_TTL_MS,
        });
        let Reply::Session { session, .. } = apply(&mut state, register, stamper.now(at(0, 0)))
        else {
            panic!("not registered");
        };
        let interval_ms = MIN_LEASE_TTL_MS * DEFAULT_HEARTBEAT_INTERVAL_MS / DEFAULT_LEASE_TTL_MS;
        for _ in 0..3 {
            hand.pass(interval_ms);
            hand.pass(60_000);
            let now = stamper.now(state.clock());
            let planned = Planner::default().plan(&state, now);
            assert_eq!(planned, vec![], "at {} ms", now.lease_ms);
            // The renewals that waited meanwhile.
            let beat = Command::Heartbeat(Heartbeat {
                session,
                slots_used: 0,
                healthy: true,
                tasks: vec![],
            });
            apply(&mut state, beat, now);
        }
        for _ in 0..MIN_LEASE_TTL_MS / MAX_STEP_MS {
            hand.pass(MAX_STEP_MS);
            stamper.now(state.clock());
        }
        let planned = Planner::default().plan(&state, stamper.now(state.clock()));
        assert_eq!(planned.len(), 1, "without a renewal it ends: {planned:?}");
    }

    #[test]
    fn a_new_leader_goes_on_from_what_was_applied() {
        let hand = Arc::new(Hand::default());
        let stamper = Stamper::new(hand.clone());
        hand.pass(30_000);
        stamper.take_office(at(5_000, 7_000));
        hand.pass(100);
        assert_eq!(stamper.now(at(5_000, 7_000)), at(5_100, 30_100));
    }

    #[test]
    fn time_without_a_majority_does_not_flow() {
        let hand = Arc::new(Hand::default());
        let stamper = Stamper::new(hand.clone());
        hand.pass(100);
        stamper.run(false);
        for _ in 0..100 {
            hand.pass(500);
            // The 100 ms never got into the log: it stands where what is applied does.
            assert_eq!(stamper.now(at(70, 0)).lease_ms, 70);
        }
        stamper.run(true);
        assert_eq!(stamper.now(at(70, 0)).lease_ms, 70);
        hand.pass(50);
        assert_eq!(stamper.now(at(70, 0)).lease_ms, 120);
    }

    /// Whoever looks at the majority may be held up while others go on reading the clock.
    #[test]
    fn time_in_which_nobody_looks_at_the_majority_does_not_flow() {
        let hand = Arc::new(Hand::default());
        let stamper = Stamper::new(hand.clone());
        stamper.run(true);
        let mut last = 0;
        for _ in 0..100 {
            hand.pass(60);
            last = stamper.now(at(0, 0)).lease_ms;
        }
        assert_eq!(last, RUN_MS);
        stamper.run(true);
        hand.pass(50);
        assert_eq!(stamper.now(at(0, 0)).lease_ms, RUN_MS + 50);
        // Told often enough it loses nothing.
        for _ in 0..10 {
            stamper.run(true);
            hand.pass(100);
        }
        assert_eq!(stamper.now(at(0, 0)).lease_ms, RUN_MS + 1_050);
    }

    #[test]
    fn the_calendar_never_goes_back_and_a_jump_is_noticed() {
        let hand = Arc::new(Hand::default());
        let stamper = Stamper::new(hand.clone());
        hand.pass(10_000);
        stamper.now(at(0, 0));
        hand.wall.fetch_add(3_600_000, Ordering::SeqCst);
        let ahead = stamper.now(at(0, 0));
        assert_eq!(ahead.calendar_ms, 3_610_000);
        assert_eq!(
            stamper.jumps(),
            Jumps {
                count: 1,
                last_ms: 3_600_000
            }
        );
        hand.wall.fetch_sub(3_600_000, Ordering::SeqCst);
        assert_eq!(stamper.now(ahead).calendar_ms, ahead.calendar_ms);
        assert_eq!(
            stamper.jumps(),
            Jumps {
                count: 2,
                last_ms: -3_600_000
            }
        );
    }
}
