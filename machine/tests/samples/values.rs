//! The values.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_machine::codec::Kind;
use tenure_machine::*;

use super::{Golden, family};

fn name(text: &str) -> Name {
    Name::new(text)
}

fn spec() -> Arc<JobSpec> {
    Arc::new(JobSpec {
        description: "counts".into(),
        trigger: Trigger::Cron {
            expression: "0 2 * * *".into(),
            timezone: "Europe/Berlin".into(),
        },
        overlap: Overlap::Queue,
        queue_limit: 16,
        misfire: Misfire {
            policy: MisfirePolicy::CatchUp,
            grace_ms: 30_000,
            limit: 10,
        },
        retry: Retry {
            max_attempts: 3,
            initial_backoff_ms: 1000,
            max_backoff_ms: 300_000,
            multiplier_milli: 2000,
            jitter_permille: 200,
        },
        timeout_ms: Some(600_000),
        shards: 4,
        execution: Execution::AtLeastOnce,
        recovery: Recovery::AfterLease,
        checkpoints: CheckpointScope::CarryOver,
        task: TaskTemplate {
            capability: name("shell"),
            version: Some(">=2.1".into()),
            selector: [(name("gpu"), name("true"))].into(),
            params: "{}".into(),
        },
        history: History {
            keep: 100,
            max_age_ms: 604_800_000,
        },
    })
}

fn grant() -> TaskRef {
    TaskRef {
        run: 300,
        shard: 7,
        epoch: 18,
    }
}

fn checkpoint() -> Arc<Checkpoint> {
    Arc::new(Checkpoint {
        offset: 1000,
        state: Arc::from([1, 2, 3]),
        epoch: 18,
    })
}

fn run() -> Arc<Run> {
    Arc::new(Run {
        id: 300,
        key: RunKey::Scheduled(name("sync"), 1_767_225_610_000),
        revision: 5,
        spec: spec(),
        params: Some("{\"a\":1}".into()),
        created_at_ms: 1_767_225_610_001,
        activated_at_ms: Some(1_767_225_610_002),
        finished_at_ms: None,
        finished_lease_ms: None,
        finished_index: None,
        state: RunState::Active,
        cancelled: None,
        open_tasks: 4,
    })
}

fn task() -> Arc<Task> {
    Arc::new(Task {
        run: 300,
        shard: 7,
        state: TaskState::Running,
        epoch: 18,
        owner: Some(Owner {
            session: 12,
            granted_lease_ms: 100,
            deadline_lease_ms: 35_100,
            started_lease_ms: Some(101),
        }),
        attempt: 2,
        failures: 1,
        takeovers: 1,
        returns: 3,
        not_before_lease_ms: 50,
        checkpoint: Some(checkpoint()),
        progress: Some(1200),
        last_progress: Some(1100),
        previous_epoch: Some(17),
        replay: None,
        cancel_limit_lease_ms: None,
        resulted: Some((17, 11)),
        output_seq: 4,
        output_bytes: 900,
        output_truncated: false,
        message: Some("disk full".into()),
        last_instance: Some(name("node-a")),
        started_at_ms: Some(1_767_225_610_003),
        finished_at_ms: None,
    })
}

fn session() -> Arc<Session> {
    Arc::new(Session {
        id: 12,
        instance: name("node-a"),
        principal: Some(name("workers")),
        version: "2.4.0".into(),
        capabilities: vec![name("shell")],
        labels: [(name("gpu"), name("true"))].into(),
        capacity: 10,
        lease_ttl_ms: 35_000,
        deadline_lease_ms: 35_100,
        registered_at_ms: 1_767_225_600_000,
        registered_lease_ms: 100,
        conflicts: 1,
        heard_at_ms: 1_767_225_609_000,
        slots_taken: 2,
        healthy: true,
        drain_limit_lease_ms: Some(95_000),
    })
}

fn audit() -> AuditRecord {
    AuditRecord {
        seq: 4,
        index: 300,
        term: 2,
        at_ms: 1_767_225_610_000,
        actor: Actor::Principal {
            name: name("ann"),
            role: Role::Operator,
        },
        action: "put_job".into(),
        subject: "sync".into(),
        command_digest: [1; 32],
        previous: [2; 32],
        hash: [3; 32],
    }
}

fn job() -> Arc<Job> {
    Arc::new(Job {
        name: name("sync"),
        revision: 5,
        spec: spec(),
        created_index: 4,
        created_at_ms: 1_767_225_600_000,
        updated_at_ms: 1_767_225_601_000,
        trigger_since_ms: 1_767_225_600_500,
        paused_at_ms: None,
        last_fire_ms: Some(1_767_225_610_000),
        next_fire_ms: Some(1_767_225_620_000),
        active: vec![300],
        waiting: VecDeque::from([301, 302]),
    })
}

fn meta() -> Meta {
    Meta {
        cluster_id: Some(name("c1")),
        generation: 2,
        clock: Stamp {
            lease_ms: 900,
            calendar_ms: 1_767_225_610_000,
        },
        grace_until_lease_ms: 950,
        epoch_floor: 18,
        fire_floor_ms: 1_767_225_000_000,
        audit_seq: 4,
        audit_hash: [3; 32],
    }
}

/// All of them. New ones come behind.
pub(crate) fn families() -> Vec<Box<dyn Golden>> {
    let mut all: Vec<Box<dyn Golden>> = vec![commands(), outcomes(), expectations()];
    all.extend([replies(), refusals(), events(), records(), counters()]);
    all.extend(choices());
    all
}

fn expectations() -> Box<dyn Golden> {
    family!("expect", LogEntry, Expect, [
        "any": Expect::Any => Expect::Any,
        "absent": Expect::Absent => Expect::Absent,
        "revision": Expect::Revision(_) => Expect::Revision(5),
    ])
}

fn undecided() -> Undecided {
    Undecided {
        first_ms: 1_767_225_600_000,
        last_ms: 1_767_225_610_000,
        count: 11,
        next_at_ms: Some(1_767_225_611_000),
    }
}

fn commands() -> Box<dyn Golden> {
    use Command as C;
    family!("command", LogEntry, Command, [
        "bootstrap": C::Bootstrap { .. } => C::Bootstrap { cluster_id: name("c1"), generation: 1 },
        "term_started": C::TermStarted { .. } => C::TermStarted { grace_ms: 10_000 },
        "put_job": C::PutJob { .. } => C::PutJob {
            name: name("sync"),
            expect: Expect::Revision(5),
            spec: spec(),
            paused: Some(false),
            next_at_ms: Some(1_767_225_620_000),
            superseded: Some(Superseded {
                skipped: Some(undecided()),
                not_due_ms: Some(1_767_225_630_000),
            }),
        },
        "delete_job": C::DeleteJob { .. } => C::DeleteJob {
            name: name("sync"),
            expect: Expect::Any,
            undecided: Some(undecided()),
        },
        "pause_job": C::PauseJob { .. } => C::PauseJob { name: name("sync") },
        "resume_job": C::ResumeJob { .. } => C::ResumeJob {
            name: name("sync"),
            skipped: Some((1000, 3000, 3)),
            next_at_ms: Some(4000),
        },
        "trigger_job": C::TriggerJob { .. } => C::TriggerJob {
            name: name("sync"),
            key: Some(name("order-7")),
            params: Some("{}".into()),
        },
        "fire": C::Fire { .. } => C::Fire {
            job: name("sync"),
            revision: 5,
            scheduled_at_ms: 1000,
            next_at_ms: Some(2000),
        },
        "skip_fires": C::SkipFires { .. } => C::SkipFires {
            job: name("sync"),
            revision: 5,
            first_ms: 1000,
            last_ms: 3000,
            count: 3,
            next_at_ms: None,
            reason: SkipReason::Misfire,
        },
        "assign": C::Assign { .. } => C::Assign { task: grant(), session: 12 },
        "expire_session": C::ExpireSession { .. } => C::ExpireSession { session: 12, deadline_ms: 35_100 },
        "expire_task": C::ExpireTask { .. } => C::ExpireTask { task: grant(), deadline_ms: 35_100 },
        "end_overdue_task": C::EndOverdueTask { .. } => C::EndOverdueTask { task: grant(), limit_ms: 90_000 },
        "sweep": C::Sweep => C::Sweep,
        "register_session": C::RegisterSession(_) => C::RegisterSession(Registration {
            instance: name("node-a"),
            version: "2.4.0".into(),
            capabilities: vec![name("shell"), name("http")],
            labels: [(name("gpu"), name("true"))].into(),
            capacity: 10,
            lease_ttl_ms: 35_000,
        }),
        "heartbeat": C::Heartbeat(_) => C::Heartbeat(Heartbeat {
            session: 12,
            slots_used: 2,
            healthy: true,
            tasks: vec![HeldTask { task: grant(), progress: Some(1200) }],
        }),
        "start_task": C::StartTask { .. } => C::StartTask { session: 12, task: grant() },
        "checkpoint": C::Checkpoint { .. } => C::Checkpoint {
            session: 12,
            task: grant(),
            offset: 1000,
            state: Arc::from([1, 2, 3]),
        },
        "append_output": C::AppendOutput { .. } => C::AppendOutput {
            session: 12,
            task: grant(),
            seq: 3,
            text: "hello".into(),
        },
        "report_result": C::ReportResult { .. } => C::ReportResult {
            session: 12,
            task: grant(),
            outcome: TaskOutcome::Succeeded { value: Some("1".into()) },
            progress: Some(1200),
            output_tail: Some("bye".into()),
        },
        "release_task": C::ReleaseTask { .. } => C::ReleaseTask { session: 12, task: grant() },
        "drain_executor": C::DrainExecutor { .. } => C::DrainExecutor { instance: name("node-a"), within_ms: 60_000 },
        "close_session": C::CloseSession { .. } => C::CloseSession { session: 12 },
        "cancel_run": C::CancelRun { .. } => C::CancelRun { run: 300, reason: "wrong input".into() },
        "drain_session": C::DrainSession { .. } => C::DrainSession { session: 12, within_ms: 60_000 },
    ])
}

fn outcomes() -> Box<dyn Golden> {
    family!("outcome", LogEntry, TaskOutcome, [
        "succeeded": TaskOutcome::Succeeded { .. } => TaskOutcome::Succeeded { value: None },
        "failed": TaskOutcome::Failed { .. } => TaskOutcome::Failed { message: "no".into(), retryable: true },
        "cancelled": TaskOutcome::Cancelled => TaskOutcome::Cancelled,
        "timed_out": TaskOutcome::TimedOut => TaskOutcome::TimedOut,
    ])
}

fn replies() -> Box<dyn Golden> {
    use Reply as R;
    family!("reply", PeerMessage, Reply, [
        "done": R::Done => R::Done,
        "job": R::Job { .. } => R::Job { revision: 5, created: true, changed: true },
        "run": R::Run { .. } => R::Run { run: 300, created: true },
        "fired": R::Fired { .. } => R::Fired { run: Some(300) },
        "granted": R::Granted { .. } => R::Granted { epoch: 18 },
        "session": R::Session { .. } => R::Session {
            session: 12,
            replaced: Some(11),
            lease_ttl_ms: 35_000,
            generation: 2,
        },
        "renewed": R::Renewed { .. } => R::Renewed {
            lease_ttl_ms: 35_000,
            verdicts: vec![Verdict::Keep, Verdict::Cancel, Verdict::Lost],
            drain_in_ms: Some(5000),
        },
        "started": R::Started { .. } => R::Started {
            attempt: 2,
            checkpoint: Some(checkpoint()),
            last_progress: Some(1200),
            previous_epoch: Some(17),
        },
        "checkpointed": R::Checkpointed { .. } => R::Checkpointed { offset: 1000 },
        "output_taken": R::OutputTaken { .. } => R::OutputTaken { accepted_bytes: 5, truncated: false },
        "result_taken": R::ResultTaken { .. } => R::ResultTaken { repeated: false, retrying: true },
        "cancelling": R::Cancelling { .. } => R::Cancelling { pending: 2 },
        "swept": R::Swept { .. } => R::Swept { removed: 7 },
    ])
}

fn refusals() -> Box<dyn Golden> {
    use RefusalCode as C;
    family!("refusal", PeerMessage, RefusalCode, [
        "bootstrap": C::Bootstrap => C::Bootstrap,
        "stale_term": C::StaleTerm => C::StaleTerm,
        "stale_session": C::StaleSession => C::StaleSession,
        "session_replaced": C::SessionReplaced => C::SessionReplaced,
        "session_expired": C::SessionExpired => C::SessionExpired,
        "session_closed": C::SessionClosed => C::SessionClosed,
        "stale_epoch": C::StaleEpoch => C::StaleEpoch,
        "future_epoch": C::FutureEpoch => C::FutureEpoch,
        "unknown_job": C::UnknownJob => C::UnknownJob,
        "unknown_run": C::UnknownRun => C::UnknownRun,
        "unknown_task": C::UnknownTask => C::UnknownTask,
        "unknown_executor": C::UnknownExecutor => C::UnknownExecutor,
        "revision_mismatch": C::RevisionMismatch => C::RevisionMismatch,
        "stale_revision": C::StaleRevision => C::StaleRevision,
        "duplicate_fire": C::DuplicateFire => C::DuplicateFire,
        "not_due": C::NotDue => C::NotDue,
        "paused": C::Paused => C::Paused,
        "not_paused": C::NotPaused => C::NotPaused,
        "backlog_full": C::BacklogFull => C::BacklogFull,
        "checkpoint_regressed": C::CheckpointRegressed => C::CheckpointRegressed,
        "checkpoint_too_large": C::CheckpointTooLarge => C::CheckpointTooLarge,
        "too_large": C::TooLarge => C::TooLarge,
        "invalid": C::Invalid => C::Invalid,
        "limit_exceeded": C::LimitExceeded => C::LimitExceeded,
        "idempotency_conflict": C::IdempotencyConflict => C::IdempotencyConflict,
        "not_grantable": C::NotGrantable => C::NotGrantable,
        "not_eligible": C::NotEligible => C::NotEligible,
        "not_expired": C::NotExpired => C::NotExpired,
        "already_final": C::AlreadyFinal => C::AlreadyFinal,
        "not_started": C::NotStarted => C::NotStarted,
        "cursor_mismatch": C::CursorMismatch => C::CursorMismatch,
        "overlap": C::Overlap => C::Overlap,
        "instance_conflict": C::InstanceConflict => C::InstanceConflict,
        "not_owner": C::NotOwner => C::NotOwner,
    ])
}

fn events() -> Box<dyn Golden> {
    use Event as E;
    family!("event", ArchiveRecord, Event, [
        "decided": E::Decided(_) => E::Decided(FireDecision {
            job: name("sync"),
            revision: 5,
            first_ms: 1000,
            last_ms: 3000,
            count: 3,
            run: None,
            skipped: Some(SkipReason::Paused),
            decided_at_ms: 4000,
            index: 300,
            term: 2,
        }),
        "run_created": E::RunCreated(_) => E::RunCreated(run()),
        "run_finished": E::RunFinished { .. } => E::RunFinished { run: run(), tasks: vec![task()] },
        "tasks_queued": E::TasksQueued { .. } => E::TasksQueued { run: 300 },
        "assigned": E::Assigned { .. } => E::Assigned { session: 12, run: 300, shard: 7 },
        "cancel_requested": E::CancelRequested { .. } => E::CancelRequested { session: 12, run: 300, shard: 7 },
        "orphaned": E::Orphaned { .. } => E::Orphaned { run: 300, shard: 7, epoch: 18 },
        "replayed": E::Replayed { .. } => E::Replayed { records: 200 },
        "output": E::Output { .. } => E::Output {
            run: 300,
            shard: 7,
            epoch: 18,
            position_bytes: 100,
            text: "hello".into(),
        },
        "session_opened": E::SessionOpened(_) => E::SessionOpened(session()),
        "session_ended": E::SessionEnded { .. } => E::SessionEnded {
            session: 12,
            instance: name("node-a"),
            why: SessionEnd::Expired,
        },
        "job_changed": E::JobChanged { .. } => E::JobChanged { job: name("sync") },
        "audited": E::Audited(_) => E::Audited(audit()),
        "refused": E::Refused { .. } => E::Refused { code: RefusalCode::StaleEpoch },
    ])
}

fn records() -> Box<dyn Golden> {
    use Record as R;
    family!("record", SnapshotRecord, Record, [
        "meta": R::Meta(_) => R::Meta(meta()),
        "counter": R::Counter(..) => R::Counter(Counter::Takeovers, 7),
        "term": R::Term(_) => R::Term(TermRecord { term: 2, index: 40, at_ms: 1_767_225_600_000 }),
        "job": R::Job(_) => R::Job(job()),
        "shard": R::Shard(_) => R::Shard(Arc::new(Shard {
            job: name("sync"),
            index: 7,
            epoch: 18,
            checkpoint: Some(checkpoint()),
            checkpoint_shards: 8,
        })),
        "run": R::Run(_) => R::Run(run()),
        "task": R::Task(_) => R::Task(task()),
        "session": R::Session(_) => R::Session(session()),
        "ended_session": R::EndedSession(_) => R::EndedSession(Arc::new(EndedSession {
            id: 11,
            instance: name("node-a"),
            why: SessionEnd::Replaced,
            ended_index: 200,
        })),
        "request": R::Request(_) => R::Request(Arc::new(RequestRecord {
            key: name("ann/order-7"),
            fingerprint: [9; 16],
            reply: Err(Refusal::new(RefusalCode::BacklogFull, "full")),
            index: 300,
            at_lease_ms: 900,
        })),
    ])
}

fn counters() -> Box<dyn Golden> {
    use Counter as C;
    family!("counter", SnapshotRecord, Counter, [
        "elections": C::Elections => C::Elections,
        "fires": C::Fires => C::Fires,
        "fires_skipped": C::FiresSkipped => C::FiresSkipped,
        "duplicate_fires_refused": C::DuplicateFiresRefused => C::DuplicateFiresRefused,
        "stale_term_rejections": C::StaleTermRejections => C::StaleTermRejections,
        "stale_session_rejections": C::StaleSessionRejections => C::StaleSessionRejections,
        "stale_epoch_rejections": C::StaleEpochRejections => C::StaleEpochRejections,
        "sessions_expired": C::SessionsExpired => C::SessionsExpired,
        "sessions_replaced": C::SessionsReplaced => C::SessionsReplaced,
        "leases_expired": C::LeasesExpired => C::LeasesExpired,
        "takeovers": C::Takeovers => C::Takeovers,
        "replayed_records": C::ReplayedRecords => C::ReplayedRecords,
        "runs_succeeded": C::RunsSucceeded => C::RunsSucceeded,
        "runs_not_succeeded": C::RunsNotSucceeded => C::RunsNotSucceeded,
        "retries": C::Retries => C::Retries,
        "dispatch_session_lost": C::DispatchSessionLost => C::DispatchSessionLost,
        "dispatch_expired": C::DispatchExpired => C::DispatchExpired,
        "dispatch_refused": C::DispatchRefused => C::DispatchRefused,
        "instance_conflicts": C::InstanceConflicts => C::InstanceConflicts,
    ])
}

/// The small enums inside the others.
fn choices() -> Vec<Box<dyn Golden>> {
    vec![
        family!("trigger", LogEntry, Trigger, [
            "cron": Trigger::Cron { .. } => Trigger::Cron { expression: "* * * * *".into(), timezone: "UTC".into() },
            "every": Trigger::Every { .. } => Trigger::Every { interval_ms: 1000 },
            "at": Trigger::At { .. } => Trigger::At { instant_ms: 1_767_225_600_000 },
            "manual": Trigger::Manual => Trigger::Manual,
        ]),
        family!("overlap", LogEntry, Overlap, [
            "allow": Overlap::Allow => Overlap::Allow,
            "forbid": Overlap::Forbid => Overlap::Forbid,
            "replace": Overlap::Replace => Overlap::Replace,
            "queue": Overlap::Queue => Overlap::Queue,
        ]),
        family!("misfire", LogEntry, MisfirePolicy, [
            "fire_once": MisfirePolicy::FireOnce => MisfirePolicy::FireOnce,
            "skip": MisfirePolicy::Skip => MisfirePolicy::Skip,
            "catch_up": MisfirePolicy::CatchUp => MisfirePolicy::CatchUp,
        ]),
        family!("execution", LogEntry, Execution, [
            "at_least_once": Execution::AtLeastOnce => Execution::AtLeastOnce,
            "at_most_once": Execution::AtMostOnce => Execution::AtMostOnce,
        ]),
        family!("recovery", LogEntry, Recovery, [
            "immediate": Recovery::Immediate => Recovery::Immediate,
            "after_lease": Recovery::AfterLease => Recovery::AfterLease,
            "never": Recovery::Never => Recovery::Never,
        ]),
        family!("checkpoints", LogEntry, CheckpointScope, [
            "per_run": CheckpointScope::PerRun => CheckpointScope::PerRun,
            "carry_over": CheckpointScope::CarryOver => CheckpointScope::CarryOver,
        ]),
        family!("skip", LogEntry, SkipReason, [
            "misfire": SkipReason::Misfire => SkipReason::Misfire,
            "paused": SkipReason::Paused => SkipReason::Paused,
            "overlap": SkipReason::Overlap => SkipReason::Overlap,
            "backlog_full": SkipReason::BacklogFull => SkipReason::BacklogFull,
            "changed": SkipReason::Changed => SkipReason::Changed,
            "deleted": SkipReason::Deleted => SkipReason::Deleted,
        ]),
        family!("actor", LogEntry, Actor, [
            "scheduler": Actor::Scheduler => Actor::Scheduler,
            "principal": Actor::Principal { .. } => Actor::Principal { name: name("ann"), role: Role::Admin },
        ]),
        family!("role", LogEntry, Role, [
            "viewer": Role::Viewer => Role::Viewer,
            "executor": Role::Executor => Role::Executor,
            "operator": Role::Operator => Role::Operator,
            "admin": Role::Admin => Role::Admin,
        ]),
        family!("run_key", SnapshotRecord, RunKey, [
            "scheduled": RunKey::Scheduled(..) => RunKey::Scheduled(name("sync"), 1000),
            "keyed": RunKey::Keyed(..) => RunKey::Keyed(name("sync"), name("order-7")),
        ]),
        family!("run_state", SnapshotRecord, RunState, [
            "waiting": RunState::Waiting => RunState::Waiting,
            "active": RunState::Active => RunState::Active,
            "succeeded": RunState::Succeeded => RunState::Succeeded,
            "failed": RunState::Failed => RunState::Failed,
            "cancelled": RunState::Cancelled => RunState::Cancelled,
            "timed_out": RunState::TimedOut => RunState::TimedOut,
            "unknown": RunState::Unknown => RunState::Unknown,
        ]),
        family!("task_state", SnapshotRecord, TaskState, [
            "queued": TaskState::Queued => TaskState::Queued,
            "assigned": TaskState::Assigned => TaskState::Assigned,
            "running": TaskState::Running => TaskState::Running,
            "orphaned": TaskState::Orphaned => TaskState::Orphaned,
            "succeeded": TaskState::Succeeded => TaskState::Succeeded,
            "failed": TaskState::Failed => TaskState::Failed,
            "cancelled": TaskState::Cancelled => TaskState::Cancelled,
            "timed_out": TaskState::TimedOut => TaskState::TimedOut,
            "unknown": TaskState::Unknown => TaskState::Unknown,
        ]),
        family!("session_end", SnapshotRecord, SessionEnd, [
            "replaced": SessionEnd::Replaced => SessionEnd::Replaced,
            "expired": SessionEnd::Expired => SessionEnd::Expired,
            "closed": SessionEnd::Closed => SessionEnd::Closed,
        ]),
        family!("verdict", PeerMessage, Verdict, [
            "keep": Verdict::Keep => Verdict::Keep,
            "cancel": Verdict::Cancel => Verdict::Cancel,
            "lost": Verdict::Lost => Verdict::Lost,
        ]),
    ]
}
