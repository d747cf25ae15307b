//! Metrics in the Prometheus text form.
//!
//! Most of them are counters of the replicated state, which every node has and no restart resets. The rest is
//! measured on this node. They are written by hand: a registry would keep a second copy of numbers that the
//! state has already.
//!
//! Invariant: labels are bounded. They name routes of the table, classes of status, states, reasons and
//! members, never a job, a run, a task, a principal or an executor.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_api::paths;
use tenure_machine::{Counter, Event, State};
use tokio::time::Instant;

use super::gateway::Shared;
use super::routes::{ROUTE_COUNT, ROUTES, Route};
use crate::consensus::Standing;

/// The media type of the text form.
pub(crate) const TEXT_MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the buckets, in milliseconds.
const BUCKETS_MS: [u64; 14] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 15_000, 60_000,
];

/// The most takeovers that are timed at once; more are counted by the state but not timed.
const MAX_TIMED: usize = 10_000;

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is measured on this node.
#[derive(Debug, Default)]
pub struct Meters {
    /// By route, with one place more for requests that fit none; and by class of status.
    requests: Requests,
    forwarded: AtomicU64,
    heartbeat: Histogram,
    fire_lateness: Histogram,
    takeover: Histogram,
    orphans: Mutex<BTreeMap<(u64, u32), Instant>>,
}

#[derive(Debug)]
struct Requests([[AtomicU64; CLASSES.len()]; ROUTE_COUNT + 1]);

impl Default for Requests {
    fn default() -> Self {
        Self(std::array::from_fn(|_| {
            std::array::from_fn(|_| AtomicU64::new(0))
        }))
    }
}

impl Meters {
    /// Nothing was measured yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Takes note of what happened. To be told by whoever applies entries, once each and as they are
    /// committed: entries that are applied again after a restart would be measured again.
    pub fn tell(&self, events: &[Event]) {
        for event in events {
            match event {
                Event::Decided(decision) if decision.run.is_some() => {
                    let late_ms = decision.decided_at_ms.saturating_sub(decision.first_ms);
                    self.fire_lateness.observe(Duration::from_millis(late_ms));
                }
                Event::Orphaned { run, shard, .. } => self.orphaned((*run, *shard)),
                Event::Assigned { run, shard, .. } => self.granted((*run, *shard)),
                Event::RunFinished { run, .. } => self.forget(run.id),
                _ => {}
            }
        }
    }

    fn orphaned(&self, task: (u64, u32)) {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        if orphans.len() < MAX_TIMED {
            orphans.entry(task).or_insert_with(Instant::now);
        }
    }

    fn granted(&self, task: (u64, u32)) {
        let since = {
            let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
            orphans.remove(&task)
        };
        if let Some(since) = since {
            self.takeover.observe(since.elapsed());
        }
    }

    fn forget(&self, run: u64) {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((task, _)) = orphans.range((run, 0)..=(run, u32::MAX)).next() {
            let task = *task;
            orphans.remove(&task);
        }
    }

    /// A request was answered.
    pub(crate) fn answered(&self, route: Option<&'static Route>, status: u16, took: Duration) {
        let position = route.map_or(ROUTE_COUNT, |route| {
            let found = ROUTES.iter().position(|known| std::ptr::eq(known, route));
            found.unwrap_or(ROUTE_COUNT)
        });
        let class = usize::from(status / 100).saturating_sub(1);
        let counter = self.requests.0.get(position).and_then(|row| row.get(class));
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if route.is_some_and(|route| route.path == paths::SESSION_HEARTBEAT) {
            self.heartbeat.observe(took);
        }
    }

    /// A request was sent on to the leader.
    pub(crate) fn forwarded(&self) {
        self.forwarded.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Histogram {
    /// Not cumulative; the last one is for what is over all bounds.
    buckets: [AtomicU64; BUCKETS_MS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let over = |bound_ms: &&u64| took > Duration::from_millis(**bound_ms);
        let position = BUCKETS_MS.iter().take_while(over).count();
        if let Some(bucket) = self.buckets.get(position) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }
}

/// Every metric of this node.
pub(crate) fn render(shared: &Shared) -> String {
    let standing = shared.consensus.standing().borrow().clone();
    let state = shared.consensus.stale().state;
    let mut page = Page::default();
    render_standing(&mut page, &standing);
    page.single(
        "counter",
        "stale_term_rejections_total",
        "Commands refused because their term was over: by this node before the log, and by the state.",
        standing.stale_term_rejections + state.counter(Counter::StaleTermRejections),
    );
    page.single(
        "gauge",
        "archive_incomplete",
        "1 while this node's archive misses facts and is being filled from another node's.",
        u8::from(!shared.history.complete()),
    );
    render_counters(&mut page, &state);
    render_gauges(&mut page, &state);
    render_meters(&mut page, &shared.meters);
    page.text
}

fn render_standing(page: &mut Page, standing: &Standing) {
    let flag = u8::from;
    let rows: [(&str, &str, u64); 8] = [
        (
            "leader",
            "1 if this node leads.",
            flag(standing.leads).into(),
        ),
        (
            "no_leader",
            "1 if this node knows no leader that a majority follows.",
            flag(!standing.has_leader()).into(),
        ),
        (
            "term",
            "The highest term this node has seen.",
            standing.term,
        ),
        (
            "last_log_index",
            "Last log index on this node.",
            standing.last_log,
        ),
        (
            "committed_index",
            "Last index known to be committed.",
            standing.committed,
        ),
        (
            "applied_index",
            "Last index applied on this node.",
            standing.applied,
        ),
        (
            "snapshot_index",
            "Index of the newest snapshot on this node.",
            standing.snapshot,
        ),
        (
            "purged_index",
            "Up to where the log was purged on this node.",
            standing.purged,
        ),
    ];
    for (name, help, value) in rows {
        page.single("gauge", name, help, value);
    }
    if let Some(age_ms) = standing.quorum_age_ms {
        page.single(
            "gauge",
            "quorum_age_seconds",
            "Time since a majority last answered this leader.",
            seconds(age_ms),
        );
    }
    let lags = standing.members.iter().filter_map(|member| {
        let lag = standing.last_log.saturating_sub(member.matched?);
        Some((format!("member=\"{}\"", member.id), lag))
    });
    page.single(
        "counter",
        "leaderless_seconds_total",
        "For how long this node has known no leader that can decide since its start.",
        seconds(standing.leaderless_ms),
    );
    page.single(
        "counter",
        "wall_clock_jumps_total",
        "How often this machine's wall clock has jumped by more than a second since the process began.",
        standing.wall_clock_jumps,
    );
    page.single(
        "counter",
        "fast_failovers_total",
        "Elections this node has started since its start because the leader's process was gone.",
        standing.fast_failovers,
    );
    page.family(
        "gauge",
        "replication_lag_entries",
        "How many entries a member is behind this leader.",
        lags,
    );
}

fn render_counters(page: &mut Page, state: &State) {
    let rows: [(&str, &str, Counter); 14] = [
        ("elections_total", "Terms that began.", Counter::Elections),
        (
            "duplicate_fires_refused_total",
            "Decisions refused because the instant was decided already.",
            Counter::DuplicateFiresRefused,
        ),
        (
            "stale_session_rejections_total",
            "Calls of ended sessions refused.",
            Counter::StaleSessionRejections,
        ),
        (
            "stale_epoch_rejections_total",
            "Calls under old epochs refused.",
            Counter::StaleEpochRejections,
        ),
        (
            "sessions_expired_total",
            "Sessions ended by their deadline.",
            Counter::SessionsExpired,
        ),
        (
            "sessions_replaced_total",
            "Sessions ended by another process of the same instance.",
            Counter::SessionsReplaced,
        ),
        (
            "instance_conflicts_total",
            "Registrations refused because processes fight for one instance id.",
            Counter::InstanceConflicts,
        ),
        (
            "leases_expired_total",
            "Grants ended by a deadline.",
            Counter::LeasesExpired,
        ),
        (
            "takeovers_total",
            "Grants after the loss of an owner.",
            Counter::Takeovers,
        ),
        (
            "replayed_records_total",
            "Records worked through again after takeovers.",
            Counter::ReplayedRecords,
        ),
        (
            "retries_total",
            "Attempts that failed and are repeated.",
            Counter::Retries,
        ),
        ("fires_total", "Instants decided as a run.", Counter::Fires),
        (
            "fires_skipped_total",
            "Instants decided as not run.",
            Counter::FiresSkipped,
        ),
        (
            "runs_succeeded_total",
            "Runs that succeeded.",
            Counter::RunsSucceeded,
        ),
    ];
    for (name, help, counter) in rows {
        page.single("counter", name, help, state.counter(counter));
    }
    page.single(
        "counter",
        "runs_not_succeeded_total",
        "Runs that ended in another way.",
        state.counter(Counter::RunsNotSucceeded),
    );
    page.family(
        "counter",
        "dispatch_failures_total",
        "Grants that did not come to a start.",
        [
            ("session_lost", Counter::DispatchSessionLost),
            ("expired", Counter::DispatchExpired),
            ("refused", Counter::DispatchRefused),
        ]
        .map(|(reason, counter)| (format!("reason=\"{reason}\""), state.counter(counter))),
    );
}

fn render_gauges(page: &mut Page, state: &State) {
    let index = state.index();
    let (mut capacity, mut used) = (0_u64, 0_u64);
    for session in state.sessions_after(None) {
        capacity += u64::from(session.capacity);
        used += u64::from(session.capacity - state.free_slots(session).min(session.capacity));
    }
    page.single("gauge", "jobs", "Jobs.", state.job_count());
    page.single(
        "gauge",
        "jobs_paused",
        "Jobs that are paused.",
        index.paused,
    );
    page.single(
        "gauge",
        "runs_live",
        "Runs that have not ended.",
        state.run_count().saturating_sub(index.finished.len()),
    );
    let tasks = [
        ("queued", index.queued.saturating_sub(index.orphaned)),
        ("orphaned", index.orphaned),
        ("held", index.held.len()),
    ];
    page.family(
        "gauge",
        "tasks",
        "Tasks by whether they wait, lost their owner, or are held.",
        tasks.map(|(name, count)| (format!("state=\"{name}\""), count)),
    );
    page.single(
        "gauge",
        "executors_online",
        "Live executor sessions.",
        state.session_count(),
    );
    page.single(
        "gauge",
        "capacity_slots",
        "Slots of all executors.",
        capacity,
    );
    page.single(
        "gauge",
        "capacity_used_ratio",
        "Part of all slots that is taken.",
        ratio(used, capacity),
    );
}

fn render_meters(page: &mut Page, meters: &Meters) {
    let labels = ROUTES
        .iter()
        .map(|route| (route.method.as_str(), route.path))
        .chain([("", "none")]);
    let mut rows = Vec::new();
    for ((method, path), row) in labels.zip(&meters.requests.0) {
        for (class, counter) in CLASSES.iter().zip(row) {
            let count = counter.load(Ordering::Relaxed);
            if count > 0 {
                let label = format!("method=\"{method}\",route=\"{path}\",status=\"{class}\"");
                rows.push((label, count));
            }
        }
    }
    page.family(
        "counter",
        "http_requests_total",
        "Requests answered by this node.",
        rows,
    );
    page.single(
        "counter",
        "http_forwarded_total",
        "Requests this node sent on to the leader.",
        meters.forwarded.load(Ordering::Relaxed),
    );
    page.histogram(
        "heartbeat_latency_seconds",
        "How long this node took to answer a heartbeat.",
        &meters.heartbeat,
    );
    page.histogram(
        "fire_lateness_seconds",
        "How long after its instant a run was decided.",
        &meters.fire_lateness,
    );
    page.histogram(
        "takeover_seconds",
        "How long a task was without an owner.",
        &meters.takeover,
    );
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, kind: &str, name: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP tenure_{name} {help}");
        let _ = writeln!(self.text, "# TYPE tenure_{name} {kind}");
    }

    fn single(&mut self, kind: &str, name: &str, help: &str, value: impl Display) {
        self.head(kind, name, help);
        let _ = writeln!(self.text, "tenure_{name} {value}");
    }

    fn family(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (String, impl Display)>,
    ) {
        self.head(kind, name, help);
        for (labels, value) in rows {
            let _ = writeln!(self.text, "tenure_{name}{{{labels}}} {value}");
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head("histogram", name, help);
        let mut count = 0;
        let bounds = BUCKETS_MS
            .iter()
            .map(|bound_ms| seconds(*bound_ms))
            .chain(["+Inf".to_owned()]);
        for (bound, bucket) in bounds.zip(&histogram.buckets) {
            count += bucket.load(Ordering::Relaxed);
            let _ = writeln!(self.text, "tenure_{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let us = histogram.sum_us.load(Ordering::Relaxed);
        let sum = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        let _ = writeln!(self.text, "tenure_{name}_sum {sum}");
        let _ = writeln!(self.text, "tenure_{name}_count {count}");
    }
}

/// Milliseconds as seconds, in decimal.
fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// A part of a whole in thousandths, in decimal.
fn ratio(part: u64, whole: u64) -> String {
    seconds((part * 1000).checked_div(whole).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let histogram = Histogram::default();
        for ms in [0, 1, 2, 30, 70_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let mut page = Page::default();
        page.histogram("x_seconds", "X.", &histogram);
        for line in [
            "tenure_x_seconds_bucket{le=\"0.001\"} 2",
            "tenure_x_seconds_bucket{le=\"0.002\"} 3",
            "tenure_x_seconds_bucket{le=\"0.025\"} 3",
            "tenure_x_seconds_bucket{le=\"0.050\"} 4",
            "tenure_x_seconds_bucket{le=\"60.000\"} 4",
            "tenure_x_seconds_bucket{le=\"+Inf\"} 5",
            "tenure_x_seconds_sum 70.033000",
            "tenure_x_seconds_count 5",
        ] {
            assert!(page.text.lines().any(|found| found == line), "{line}");
        }
    }

    #[test]
    fn a_ratio_of_nothing_is_zero() {
        assert_eq!(ratio(0, 0), "0.000");
        assert_eq!(ratio(3, 4), "0.750");
    }
}
