//! Who gets which waiting task: the executor that is least full among those that fit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::state::{Requirement, Run, Session};
use crate::{Command, Name, State, TaskRef};

/// One executor with room, ordered by how full it is, in thousandths, and then by its session.
type Candidate = Reverse<(u64, u64)>;

pub(super) fn plan(
    state: &State,
    now_ms: u64,
    budget: usize,
    replaced: &BTreeSet<Name>,
    commands: &mut Vec<Command>,
) {
    if state.queued_count() == 0 {
        return;
    }
    let mut left = budget;
    let mut free: BTreeMap<u64, u32> = BTreeMap::new();
    let mut epochs: BTreeMap<(Name, u32), u64> = BTreeMap::new();
    for (requirement, queue) in state.index().queues.iter() {
        let due = queue
            .iter()
            .take_while(|(not_before_ms, ..)| *not_before_ms <= now_ms);
        let mut due = due.peekable();
        if due.peek().is_none() {
            continue;
        }
        let mut candidates = candidates(state, requirement, now_ms, &mut free);
        for (_, run_id, shard) in due {
            if left == 0 {
                return;
            }
            let (Some(run), Some(task)) = (state.run(*run_id), state.task(*run_id, *shard)) else {
                continue;
            };
            if replaced.contains(run.key.job()) {
                continue;
            }
            let Some(session) = take(state, &mut candidates, &mut free) else {
                break;
            };
            // Runs that are concurrent by wish share the shard's count of epochs.
            let key = (run.key.job().clone(), *shard);
            let epoch = epochs
                .get(&key)
                .copied()
                .unwrap_or(0)
                .max(state.next_epoch(run, task) - 1)
                + 1;
            epochs.insert(key, epoch);
            left -= 1;
            commands.push(Command::Assign {
                task: TaskRef {
                    run: *run_id,
                    shard: *shard,
                    epoch,
                },
                session,
            });
        }
    }
}

/// The executors that fit a requirement and have a free slot.
fn candidates(
    state: &State,
    requirement: &Requirement,
    now_ms: u64,
    free: &mut BTreeMap<u64, u32>,
) -> BinaryHeap<Candidate> {
    let Some(sample) = sample_run(state, requirement) else {
        return BinaryHeap::new();
    };
    let capability = &requirement.capability;
    state
        .index()
        .capable
        .range((capability.clone(), 0)..=(capability.clone(), u64::MAX))
        .filter_map(|(_, id)| state.session(*id))
        .filter(|session| {
            state.effective_deadline(session.deadline_lease_ms) > now_ms
                && state.fits(session, &sample).is_ok()
        })
        .filter_map(|session| {
            let room = *free
                .entry(session.id)
                .or_insert_with(|| state.free_slots(session));
            (room > 0).then(|| Reverse((fullness(session, room), session.id)))
        })
        .collect()
}

/// Any run with this requirement: what it asks of an executor is the same for all of them.
fn sample_run(state: &State, requirement: &Requirement) -> Option<std::sync::Arc<Run>> {
    let (_, run, _) = state.index().queues.get(requirement)?.get_min()?;
    state.run(*run).cloned()
}

fn take(
    state: &State,
    candidates: &mut BinaryHeap<Candidate>,
    free: &mut BTreeMap<u64, u32>,
) -> Option<u64> {
    let Reverse((_, id)) = candidates.pop()?;
    let session = state.session(id)?;
    let room = free.get_mut(&id)?;
    *room = room.saturating_sub(1);
    if *room > 0 {
        candidates.push(Reverse((fullness(session, *room), id)));
    }
    Some(id)
}

fn fullness(session: &Session, room: u32) -> u64 {
    let capacity = u64::from(session.capacity.max(1));
    capacity.saturating_sub(u64::from(room)) * 1000 / capacity
}
