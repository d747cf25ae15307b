//! Counters of one client or executor.

use std::sync::atomic::{AtomicU64, Ordering};

/// Makes the counters and the snapshot from one list.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters that only grow. Cheap to count, read through a snapshot.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// What the counters said at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct MetricsSnapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> MetricsSnapshot {
                MetricsSnapshot { $($name: self.$name.get(),)* }
            }
        }

        impl MetricsSnapshot {
            /// Every counter with its name, for exporters.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Requests that were sent.
    requests,
    /// Attempts after the first of a call.
    retries,
    /// Attempts that reached no node.
    unreachable,
    /// Attempts whose outcome is unknown.
    outcomes_unknown,
    /// Answers dropped because they carry a lower term than one seen before.
    stale_term_answers_dropped,
    /// Times the known leader changed.
    leader_changes,
    /// Sessions that were registered.
    sessions_registered,
    /// Sessions that the cluster had expired.
    sessions_expired,
    /// Sessions that another process took over.
    sessions_replaced,
    /// Leases that ran out by this process's own clock.
    leases_lost,
    /// Renewals that were granted.
    heartbeats_granted,
    /// Renewals that failed.
    heartbeats_failed,
    /// Assignments that arrived.
    assignments_received,
    /// Assignments that arrived again and were ignored.
    assignments_repeated,
    /// Starts that the cluster refused.
    starts_refused,
    /// Handlers that ran.
    tasks_started,
    /// Handlers that succeeded.
    tasks_succeeded,
    /// Handlers that failed.
    tasks_failed,
    /// Handlers that panicked. Counted as failed too.
    tasks_panicked,
    /// Handlers that took too long.
    tasks_timed_out,
    /// Handlers that were cancelled.
    tasks_cancelled,
    /// Handlers that were stopped because their lease or grant was lost.
    tasks_lost,
    /// Tasks given back in a drain.
    tasks_released,
    /// Results that the cluster acknowledged.
    results_acknowledged,
    /// Results that the cluster refused.
    results_refused,
    /// Checkpoints that were committed.
    checkpoints_committed,
    /// Checkpoints that the cluster refused.
    checkpoints_refused,
    /// Output lines that were dropped because they came too fast or too many.
    output_lines_dropped,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
