//! Bounds of the replicated state. Every collection that grows by a request has one.

/// What the graces of new terms add to a lease together, at most, in milliseconds of the lease clock.
pub const MAX_GRACE_MS: u64 = 60_000;

/// Longest checkpoint state that one commit may carry, in bytes.
pub const MAX_CHECKPOINT_BYTES: usize = 64 * 1024;
/// Longest parameters object of a job or a trigger, in bytes of JSON text.
pub const MAX_PARAMS_BYTES: usize = 64 * 1024;
/// Longest result value a task may report, in bytes of JSON text.
pub const MAX_RESULT_BYTES: usize = 64 * 1024;
/// Longest failure message that is kept, in bytes; a longer one is cut.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// Longest piece of output that one entry may carry, in bytes.
pub const MAX_OUTPUT_CHUNK_BYTES: usize = 16 * 1024;
/// Output that is kept for one task over all its attempts, in bytes.
pub const MAX_OUTPUT_BYTES: u64 = 256 * 1024;
/// Longest name (job, instance, capability, label key or value), in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest idempotency key, in bytes.
pub const MAX_REQUEST_KEY_BYTES: usize = 128;
/// Most shards of one job.
pub const MAX_SHARDS: u32 = 1024;
/// Most waiting or concurrently live runs of one job.
pub const MAX_QUEUE_LIMIT: u32 = 1000;
/// Most capabilities one executor may register.
pub const MAX_CAPABILITIES: usize = 64;
/// Most labels one executor may register, and most entries of a selector.
pub const MAX_LABELS: usize = 64;
/// Most slots one executor may offer.
pub const MAX_CAPACITY: u32 = 10_000;
/// Most tasks that one heartbeat may list.
pub const MAX_HEARTBEAT_TASKS: usize = 10_000;
/// Most jobs of a cluster.
pub const MAX_JOBS: usize = 2_000_000;
/// Most live sessions of a cluster.
pub const MAX_SESSIONS: usize = 20_000;
/// Most runs (waiting, active and lately finished) that are kept live.
pub const MAX_LIVE_RUNS: usize = 2_000_000;
/// Most idempotency results that are kept; the oldest goes first.
pub const MAX_REQUESTS: usize = 100_000;
/// How long an idempotency result is kept, in milliseconds of the lease clock.
pub const REQUEST_RETENTION_MS: u64 = 24 * 3600 * 1000;
/// Most finished runs that stay in the live state so that a repeated result is still recognised.
pub const MAX_FINISHED_RUNS: usize = 20_000;
/// How long a finished run stays in the live state, in milliseconds of the lease clock.
pub const FINISHED_LINGER_MS: u64 = 10 * 60 * 1000;
/// Most ended sessions that are remembered, so that a late caller learns why it was ended.
pub const MAX_ENDED_SESSIONS: usize = 10_000;
/// How many of the latest terms are remembered.
pub const MAX_TERM_HISTORY: usize = 64;
/// How long a cancelled task may go on before it is ended by force, in milliseconds of the lease clock.
pub const CANCEL_GRACE_MS: u64 = 30_000;
/// How much longer than its time-out an attempt may run before the cluster ends it, in milliseconds of
/// the lease clock. The executor enforces the time-out itself; this catches one that does not.
pub const TIMEOUT_GRACE_MS: u64 = 30_000;
/// Shortest lease an executor may ask for, in milliseconds. Several steps of a leader's lease clock, so that
/// one late reading of it ends no lease.
pub const MIN_LEASE_TTL_MS: u64 = 1_000;
/// Longest lease an executor may ask for, in milliseconds.
pub const MAX_LEASE_TTL_MS: u64 = 3_600_000;
/// A registration that replaces a session younger than this may be a second process with the same instance
/// id, in milliseconds of the lease clock.
pub const INSTANCE_CONFLICT_WINDOW_MS: u64 = 60_000;
/// Longest wait between two such registrations, in milliseconds of the lease clock.
pub const MAX_INSTANCE_CONFLICT_WAIT_MS: u64 = 32_000;
/// Longest cron expression and time-zone name, in bytes.
pub const MAX_EXPRESSION_BYTES: usize = 256;
/// How often in a row a task may lose its owner before it ends as `failed`.
pub const MAX_TAKEOVERS: u32 = 16;
/// Most items one sweep removes.
pub const SWEEP_BATCH: usize = 1_000;
