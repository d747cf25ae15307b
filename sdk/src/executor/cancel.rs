//! Why and when a handler must stop.

use crate::environment::Environment;
use crate::watched::Watched;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Why a handler must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The run was cancelled, or replaced by a newer one.
    Requested(String),
    /// The attempt took longer than the job allows.
    TimedOut,
    /// The executor drains and its deadline has come: save a checkpoint and return.
    Draining,
    /// The lease ran out by this process's clock, or the cluster gave the shard to another owner.
    /// Nothing may be written any more.
    LeaseLost,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested(why) => write!(f, "cancelled: {why}"),
            Self::TimedOut => f.write_str("timed_out"),
            Self::Draining => f.write_str("draining"),
            Self::LeaseLost => f.write_str("lease_lost"),
        }
    }
}

/// The cancellation of one task. Invariants: a loss is final and goes over any other reason; of
/// the other reasons the first one stays.
#[derive(Debug)]
pub(crate) struct Cancellation {
    state: Watched<Option<CancelReason>>,
}

impl Cancellation {
    pub(crate) fn new() -> Self {
        Self {
            state: Watched::new(None),
        }
    }

    pub(crate) fn cancel(&self, reason: CancelReason) {
        self.state.update(|state| {
            let overrides = match (state.as_ref(), &reason) {
                (None, _) => true,
                (Some(CancelReason::LeaseLost), _) => false,
                (Some(_), CancelReason::LeaseLost) => true,
                (Some(_), _) => false,
            };
            if overrides {
                *state = Some(reason);
            }
            overrides
        });
    }

    pub(crate) fn reason(&self) -> Option<CancelReason> {
        self.state.get()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.reason() == Some(CancelReason::LeaseLost)
    }

    /// Waits for any reason.
    pub(crate) async fn cancelled(&self) -> CancelReason {
        self.state.wait_for(Clone::clone).await
    }

    /// Waits for the loss.
    pub(crate) async fn lost(&self) {
        self.state
            .wait_for(|state| (*state == Some(CancelReason::LeaseLost)).then_some(()))
            .await;
    }
}

/// The lease of a session, by this process's own clock.
///
/// Invariant: once it is over it stays over, even if a late renewal arrives. What was stopped is
/// not started again under the same session.
#[derive(Debug)]
pub(crate) struct Lease {
    deadline_ns: AtomicU64,
    over: AtomicBool,
}

impl Lease {
    /// A lease that was asked for at `sent_at` and granted for `ttl`.
    pub(crate) fn granted(sent_at: Duration, ttl: Duration) -> Self {
        let deadline_ns = AtomicU64::new(as_ns(own_deadline(sent_at, ttl)));
        Self {
            deadline_ns,
            over: AtomicBool::new(false),
        }
    }

    /// A renewal that was sent at `sent_at` was granted for `ttl`.
    pub(crate) fn renew(&self, sent_at: Duration, ttl: Duration) {
        // An answer that overtook a later one must not shorten the lease.
        self.deadline_ns
            .fetch_max(as_ns(own_deadline(sent_at, ttl)), Ordering::AcqRel);
    }

    /// Ends it now.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Whether it is over. Looks at the clock.
    pub(crate) fn is_over(&self, environment: &Environment) -> bool {
        if self.over.load(Ordering::Acquire) {
            return true;
        }
        let over = as_ns(environment.now()) >= self.deadline_ns.load(Ordering::Acquire);
        if over {
            self.end();
        }
        over
    }

    /// How long it still lasts.
    pub(crate) fn remaining(&self, environment: &Environment) -> Duration {
        if self.is_over(environment) {
            return Duration::ZERO;
        }
        let deadline = Duration::from_nanos(self.deadline_ns.load(Ordering::Acquire));
        deadline.saturating_sub(environment.now())
    }
}

/// When this process stops by itself: earlier than the cluster, by a margin for clocks that run
/// at different speeds, counted from when the renewal was sent.
fn own_deadline(sent_at: Duration, ttl: Duration) -> Duration {
    let per_mille = u32::try_from(tenure_api::protocol::LEASE_USE_PER_MILLE).unwrap_or(900);
    sent_at.saturating_add(ttl / 1_000 * per_mille)
}

fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_goes_over_other_reasons_and_stays() {
        let cancellation = Cancellation::new();
        cancellation.cancel(CancelReason::TimedOut);
        cancellation.cancel(CancelReason::Draining);
        assert_eq!(cancellation.reason(), Some(CancelReason::TimedOut));
        cancellation.cancel(CancelReason::LeaseLost);
        cancellation.cancel(CancelReason::Requested("late".into()));
        assert_eq!(cancellation.reason(), Some(CancelReason::LeaseLost));
        assert!(cancellation.is_lost());
    }

    #[test]
    fn the_own_deadline_keeps_a_tenth_as_margin() {
        let deadline = own_deadline(Duration::from_secs(100), Duration::from_secs(35));
        assert_eq!(deadline, Duration::from_millis(131_500));
    }
}
