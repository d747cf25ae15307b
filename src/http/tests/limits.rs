//! What the interface lets through, the machine takes: no limit is found out only when it is applied.

use tenure_api::{job, paths, protocol};
use tenure_machine as machine;

use crate::security::MAX_PRINCIPAL_BYTES;

#[test]
fn the_interface_is_nowhere_wider_than_the_machine() {
    let pairs = [
        (
            "capabilities",
            protocol::MAX_CAPABILITIES,
            machine::MAX_CAPABILITIES,
        ),
        ("labels", protocol::MAX_LABELS, machine::MAX_LABELS),
        ("label", protocol::MAX_LABEL_BYTES, machine::MAX_NAME_BYTES),
        ("selector", job::MAX_SELECTOR_ENTRIES, machine::MAX_LABELS),
        ("version", job::MAX_VERSION_BYTES, machine::MAX_NAME_BYTES),
        ("params", job::MAX_PARAMS_BYTES, machine::MAX_PARAMS_BYTES),
        (
            "capacity",
            protocol::MAX_CAPACITY as usize,
            machine::MAX_CAPACITY as usize,
        ),
        (
            "checkpoint",
            protocol::MAX_CHECKPOINT_BYTES,
            machine::MAX_CHECKPOINT_BYTES,
        ),
        (
            "output call",
            protocol::MAX_OUTPUT_CALL_BYTES,
            machine::MAX_OUTPUT_CHUNK_BYTES,
        ),
        (
            "output tail",
            protocol::MAX_OUTPUT_TAIL_BYTES,
            machine::MAX_OUTPUT_CHUNK_BYTES,
        ),
        (
            "result",
            protocol::MAX_RESULT_VALUE_BYTES,
            machine::MAX_RESULT_BYTES,
        ),
        (
            "message",
            protocol::MAX_MESSAGE_BYTES,
            machine::MAX_MESSAGE_BYTES,
        ),
        ("cron", job::MAX_CRON_BYTES, machine::MAX_EXPRESSION_BYTES),
        (
            "shards",
            job::MAX_SHARDS as usize,
            machine::MAX_SHARDS as usize,
        ),
        (
            "queue limit",
            job::MAX_QUEUE_LIMIT as usize,
            machine::MAX_QUEUE_LIMIT as usize,
        ),
        // An executor lists what it holds.
        (
            "tasks of a heartbeat",
            protocol::MAX_CAPACITY as usize,
            machine::MAX_HEARTBEAT_TASKS,
        ),
        (
            "key with its principal",
            MAX_PRINCIPAL_BYTES + 1 + paths::MAX_IDEMPOTENCY_KEY_BYTES,
            2 * machine::MAX_REQUEST_KEY_BYTES + 1,
        ),
        (
            "key",
            paths::MAX_IDEMPOTENCY_KEY_BYTES,
            machine::MAX_REQUEST_KEY_BYTES,
        ),
    ];
    for (what, outer, inner) in pairs {
        assert!(
            outer <= inner,
            "{what}: the interface allows {outer}, the machine {inner}"
        );
    }
}

/// What the interface promises of output and leases, the machine keeps.
#[test]
fn what_is_promised_is_what_is_kept() {
    assert_eq!(
        protocol::MAX_OUTPUT_TASK_BYTES as u64,
        machine::MAX_OUTPUT_BYTES
    );
    let leases = machine::MIN_LEASE_TTL_MS..=machine::MAX_LEASE_TTL_MS;
    assert!(leases.contains(&protocol::DEFAULT_LEASE_TTL_MS));
    assert_eq!(protocol::MAX_LABEL_BYTES, machine::MAX_NAME_BYTES);
}
