//! What a seed stands for: the cluster, its timers, its jobs and its executors.

use tenure::leader::LeaderConfig;
use tenure_raft::config::RaftConfig;

use crate::chance;

/// The plan of one run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many nodes.
    pub nodes: usize,
    /// Timers and limits of consensus.
    pub raft: RaftConfig,
    /// How nodes lead.
    pub leader: LeaderConfig,
    /// How many executor processes.
    pub executors: usize,
    /// The lease they ask for, in milliseconds.
    pub lease_ttl_ms: u64,
    /// The jobs: name and file.
    pub jobs: Vec<(String, String)>,
    /// How fast clocks may run apart, in millionths of true time.
    pub drift_ppm: u64,
    /// How long the faults last, in milliseconds.
    pub storm_ms: u64,
    /// Longest pause between two faults, in milliseconds.
    pub calm_ms: u64,
}

impl Plan {
    /// Draws a plan.
    pub fn draw() -> Self {
        let raft = match chance::between(0, 4) {
            0 => RaftConfig {
                heartbeat_interval_ms: 100,
                election_timeout_min_ms: 400,
                election_timeout_max_ms: 800,
                quorum_loss_probe_interval_ms: 1_600,
                ..RaftConfig::default()
            },
            1 => RaftConfig::wan(),
            _ => RaftConfig::default(),
        };
        let raft = RaftConfig {
            fast_failover: chance::happens(800),
            max_command_bytes: 100 << 10,
            snapshot_floor_bytes: chance::one_of(&[16 << 10, 48 << 10, 256 << 10]),
            keep_log_entries: chance::one_of(&[0, 20, 300]),
            append_inflight: chance::one_of(&[1, 4, 16]),
            append_batch_entries: chance::one_of(&[8, 64, 1_024]),
            snapshot_chunk_bytes: 16 << 10,
            entry_cache_bytes: chance::one_of(&[64 << 10, 32 << 20]),
            ..raft
        };
        let lease_ttl_ms = chance::between(4_000, 20_000);
        let jobs = chance::between(3, 7);
        Self {
            nodes: if chance::happens(300) { 5 } else { 3 },
            raft,
            leader: LeaderConfig {
                grace_ms: lease_ttl_ms * 2 / 3,
                ..LeaderConfig::default()
            },
            executors: chance::between(2, 5) as usize,
            lease_ttl_ms,
            jobs: (0..jobs).map(job).collect(),
            drift_ppm: chance::one_of(&[0, 10_000, 50_000]),
            storm_ms: chance::between(40_000, 90_000),
            calm_ms: chance::one_of(&[1_000, 4_000, 8_000]),
        }
    }
}

/// Draws a job. Names say what it is for whoever reads a story.
fn job(number: u64) -> (String, String) {
    let trigger = match chance::between(0, 6) {
        0 => format!(
            "{{ cron: \"*/{} * * * * *\" }}",
            chance::one_of(&[2, 5, 10])
        ),
        1 | 2 => "{ manual: true }".to_owned(),
        _ => format!("{{ every: {}s }}", chance::between(1, 6)),
    };
    let overlap = chance::one_of(&["allow", "forbid", "replace", "queue"]);
    let misfire = match chance::between(0, 3) {
        0 => "{ policy: fire_once, grace: 2s }".to_owned(),
        1 => "{ policy: skip, grace: 3s }".to_owned(),
        _ => format!(
            "{{ policy: catch_up, grace: 1s, limit: {} }}",
            chance::between(1, 6)
        ),
    };
    let once = chance::happens(150);
    let carry = !once && overlap != "allow" && chance::happens(250);
    let recovery = if once {
        "never"
    } else {
        chance::one_of(&["immediate", "after_lease", "after_lease"])
    };
    let timeout = if chance::happens(200) {
        "timeout: 20s\n"
    } else {
        ""
    };
    let name = format!("job-{number}");
    // Short enough that a full queue of runs, with repeats, is worked off in the calm after the storm.
    let pace = chance::one_of(&[20, 100, 400]);
    let total = chance::between(1, if pace == 400 { 10 } else { 30 });
    let file = format!(
        "name: {name}\ntrigger: {trigger}\noverlap: {overlap}\nqueue_limit: {queue}\nmisfire: {misfire}\n\
         retry: {{ max_attempts: {attempts}, initial_backoff: 500ms, max_backoff: 4s }}\n{timeout}\
         shards: {shards}\nexecution: {execution}\nrecovery: {recovery}\ncheckpoints: {checkpoints}\n\
         task:\n  capability: count\n  params: {{ total: {total}, pace_ms: {pace}, every: {every}, fails_per_mille: {fails} }}\n",
        queue = chance::between(1, 6),
        attempts = if once { 1 } else { chance::between(1, 5) },
        shards = chance::one_of(&[1, 1, 2, 4]),
        execution = if once {
            "at_most_once"
        } else {
            "at_least_once"
        },
        checkpoints = if carry { "carry_over" } else { "per_run" },
        every = chance::between(1, 8),
        fails = chance::one_of(&[0, 0, 30]),
    );
    (name, file)
}
