//! Where each fact stands in the archive. Numbers are big endian, so that keys sort as they compare.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | runs | `r` run | the run and its tasks |
//! | runs | `j` job 0 run | nothing: the index by job |
//! | output | run shard position | a piece of output |
//! | ledger | job 0 first instant | a decision |
//! | audit | sequence number | a link of the chain |
//!
//! A job's name has no zero byte, so the keys of one job never lie among those of another.

use tenure_machine::Name;

pub(super) fn run(id: u64) -> Vec<u8> {
    tagged(b'r', &[], &id.to_be_bytes())
}

pub(super) fn run_of_job(job: &Name, id: u64) -> Vec<u8> {
    tagged(b'j', &prefix(job), &id.to_be_bytes())
}

/// The run in a key of [`run`] or [`run_of_job`].
pub(super) fn run_in(key: &[u8]) -> Option<u64> {
    let tail = key.len().checked_sub(8)?;
    Some(u64::from_be_bytes(key.get(tail..)?.try_into().ok()?))
}

pub(super) fn output(run: u64, shard: u32, position_bytes: u64) -> Vec<u8> {
    let mut key = run.to_be_bytes().to_vec();
    key.extend_from_slice(&shard.to_be_bytes());
    key.extend_from_slice(&position_bytes.to_be_bytes());
    key
}

pub(super) fn decision(job: &Name, first_ms: u64) -> Vec<u8> {
    let mut key = prefix(job);
    key.extend_from_slice(&first_ms.to_be_bytes());
    key
}

pub(super) fn audit(seq: u64) -> Vec<u8> {
    seq.to_be_bytes().to_vec()
}

fn prefix(job: &Name) -> Vec<u8> {
    let mut key = job.as_str().as_bytes().to_vec();
    key.push(0);
    key
}

fn tagged(tag: u8, prefix: &[u8], tail: &[u8]) -> Vec<u8> {
    let mut key = vec![tag];
    key.extend_from_slice(prefix);
    key.extend_from_slice(tail);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_they_compare_and_can_be_read_back() {
        let (a, ab) = (Name::new("a"), Name::new("a-b"));
        assert!(run_of_job(&a, u64::MAX) < run_of_job(&ab, 0));
        assert!(decision(&a, 1) < decision(&a, 256));
        assert_eq!(run_in(&run_of_job(&ab, 77)), Some(77));
        assert_eq!(run_in(&run(78)), Some(78));
        assert_eq!(run_in(b"short"), None);
    }
}
