//! Commands about executor processes: registration, heartbeats, expiry, drain, goodbye.

use std::sync::Arc;

use super::losses::Loss;
use super::{Applied, Entry};
use crate::state::{Counter, Session, SessionEnd, Task};
use crate::{
    Actor, Event, Heartbeat, INSTANCE_CONFLICT_WINDOW_MS, MAX_CAPABILITIES, MAX_CAPACITY,
    MAX_HEARTBEAT_TASKS, MAX_INSTANCE_CONFLICT_WAIT_MS, MAX_LABELS, MAX_LEASE_TTL_MS, MAX_SESSIONS,
    MIN_LEASE_TTL_MS, Name, Refusal, RefusalCode, Registration, Reply, State, Verdict,
};

impl State {
    pub(super) fn register(
        &mut self,
        entry: &mut Entry<'_>,
        registration: &Registration,
    ) -> Applied {
        check_registration(registration)?;
        let replaced = self.index.instances.get(&registration.instance).copied();
        if replaced.is_none() && self.sessions.len() >= MAX_SESSIONS {
            return Err(Refusal::new(
                RefusalCode::LimitExceeded,
                format!("the cluster holds {MAX_SESSIONS} executors already"),
            ));
        }
        let conflicts = self.check_conflict(replaced, &entry.proposal.actor)?;
        if let Some(old) = replaced {
            self.count(Counter::SessionsReplaced, 1);
            self.end_session(entry, old, SessionEnd::Replaced);
        }
        let clock = self.meta.clock;
        let mut capabilities = registration.capabilities.clone();
        capabilities.sort();
        capabilities.dedup();
        let session = Session {
            id: entry.at.index,
            instance: registration.instance.clone(),
            principal: entry.proposal.actor.principal().cloned(),
            version: registration.version.clone(),
            capabilities,
            labels: registration.labels.clone(),
            capacity: registration.capacity,
            lease_ttl_ms: registration.lease_ttl_ms,
            deadline_lease_ms: clock.lease_ms.saturating_add(registration.lease_ttl_ms),
            registered_at_ms: clock.calendar_ms,
            registered_lease_ms: clock.lease_ms,
            conflicts,
            heard_at_ms: clock.calendar_ms,
            slots_taken: 0,
            healthy: true,
            drain_limit_lease_ms: None,
        };
        entry
            .events
            .push(Event::SessionOpened(session.clone().into()));
        self.insert_session(session);
        Ok(Reply::Session {
            session: entry.at.index,
            replaced,
            lease_ttl_ms: registration.lease_ttl_ms,
            generation: self.meta.generation,
        })
    }

    /// Slows down processes that take one instance id from each other (seed scenario EX-5). One restart is
    /// never slowed. Each further one within the window after the last waits twice as long. Another principal
    /// waits until the session has ended: to replace it would be to act on it.
    ///
    /// Gives the number of such changes in a row, this one counted.
    fn check_conflict(&mut self, replaced: Option<u64>, actor: &Actor) -> Result<u32, Refusal> {
        let Some(old) = replaced.and_then(|id| self.sessions.get(&id)).cloned() else {
            return Ok(0);
        };
        if old.principal.as_ref() != actor.principal() {
            self.count(Counter::InstanceConflicts, 1);
            return Err(Refusal::new(
                RefusalCode::InstanceConflict,
                format!(
                    "instance {} is in use by another principal: register under another id, or when its \
                     session has ended",
                    old.instance
                ),
            ));
        }
        let age_ms = self
            .meta
            .clock
            .lease_ms
            .saturating_sub(old.registered_lease_ms);
        if age_ms >= INSTANCE_CONFLICT_WINDOW_MS {
            return Ok(0);
        }
        let wait_ms = match old.conflicts {
            0 => 0,
            n => (1000 << (n - 1).min(16)).min(MAX_INSTANCE_CONFLICT_WAIT_MS),
        };
        if age_ms >= wait_ms {
            return Ok(old.conflicts.saturating_add(1));
        }
        self.count(Counter::InstanceConflicts, 1);
        Err(Refusal::new(
            RefusalCode::InstanceConflict,
            format!(
                "instance {} changes hands too often ({} in a row): does another process use its id? \
                 Register again in {} ms",
                old.instance,
                old.conflicts,
                wait_ms - age_ms
            ),
        ))
    }

    pub(super) fn heartbeat(&mut self, entry: &mut Entry<'_>, beat: &Heartbeat) -> Applied {
        let session = self.require_session(beat.session)?;
        if beat.tasks.len() > MAX_HEARTBEAT_TASKS {
            return Err(Refusal::new(
                RefusalCode::TooLarge,
                format!("a heartbeat lists at most {MAX_HEARTBEAT_TASKS} tasks"),
            ));
        }
        let clock = self.meta.clock;
        let deadline_ms = clock.lease_ms.saturating_add(session.lease_ttl_ms);
        let drain_in_ms = session
            .drain_limit_lease_ms
            .map(|limit| limit.saturating_sub(clock.lease_ms));
        let lease_ttl_ms = session.lease_ttl_ms;
        self.edit_session(beat.session, |session| {
            session.deadline_lease_ms = session.deadline_lease_ms.max(deadline_ms);
            session.heard_at_ms = clock.calendar_ms;
            session.healthy = beat.healthy;
        });
        let mut verdicts = Vec::with_capacity(beat.tasks.len());
        let mut stale = 0;
        for held in &beat.tasks {
            let key = (held.task.run, held.task.shard);
            let Some(task) = self.tasks.get(&key) else {
                verdicts.push(Verdict::Lost);
                stale += 1;
                continue;
            };
            let owns = task.epoch == held.task.epoch
                && task
                    .owner
                    .as_ref()
                    .is_some_and(|owner| owner.session == beat.session);
            if !owns {
                verdicts.push(Verdict::Lost);
                // A heartbeat that was under way when the task's result was taken is not a zombie's.
                let own_end = task.resulted == Some((held.task.epoch, beat.session));
                stale += u64::from(!own_end);
                continue;
            }
            let cancel = task.cancel_limit_lease_ms.is_some();
            verdicts.push(if cancel {
                Verdict::Cancel
            } else {
                Verdict::Keep
            });
            self.edit_task(key, |task| {
                if let Some(owner) = &mut task.owner {
                    owner.deadline_lease_ms = owner.deadline_lease_ms.max(deadline_ms);
                }
            });
            self.note_progress(entry, key, held.progress);
        }
        // What it was given and still holds is counted already. The rest is its own business, and takes room.
        let given = verdicts
            .iter()
            .filter(|verdict| **verdict != Verdict::Lost)
            .count();
        let given = u32::try_from(given)
            .unwrap_or(u32::MAX)
            .min(self.held_count(beat.session));
        self.edit_session(beat.session, |session| {
            session.slots_taken = beat.slots_used.saturating_sub(given);
        });
        self.count(Counter::StaleEpochRejections, stale);
        Ok(Reply::Renewed {
            lease_ttl_ms,
            verdicts,
            drain_in_ms,
        })
    }

    pub(super) fn expire_session(
        &mut self,
        entry: &mut Entry<'_>,
        id: u64,
        deadline_ms: u64,
    ) -> Applied {
        let session = self.require_session(id)?;
        if session.deadline_lease_ms != deadline_ms
            || self.effective_deadline(deadline_ms) > self.meta.clock.lease_ms
        {
            return Err(Refusal::new(
                RefusalCode::NotExpired,
                format!(
                    "session {id} holds its lease until {}",
                    session.deadline_lease_ms
                ),
            ));
        }
        self.count(Counter::SessionsExpired, 1);
        self.count(Counter::LeasesExpired, u64::from(self.held_count(id)));
        self.end_session(entry, id, SessionEnd::Expired);
        Ok(Reply::Done)
    }

    pub(super) fn close_session(&mut self, entry: &mut Entry<'_>, id: u64) -> Applied {
        self.require_session(id)?;
        self.end_session(entry, id, SessionEnd::Closed);
        Ok(Reply::Done)
    }

    pub(super) fn drain(&mut self, instance: &Name, within_ms: u64) -> Applied {
        let Some(id) = self.index.instances.get(instance).copied() else {
            return Err(Refusal::new(
                RefusalCode::UnknownExecutor,
                format!("no executor {instance} has a live session"),
            ));
        };
        self.drain_session(id, within_ms)
    }

    pub(super) fn drain_session(&mut self, id: u64, within_ms: u64) -> Applied {
        self.require_session(id)?;
        let limit_ms = self.meta.clock.lease_ms.saturating_add(within_ms);
        self.edit_session(id, |session| {
            let earlier = session.drain_limit_lease_ms.unwrap_or(u64::MAX);
            session.drain_limit_lease_ms = Some(limit_ms.min(earlier));
        });
        Ok(Reply::Done)
    }

    /// Ends a session and orphans what it holds, all in one entry.
    fn end_session(&mut self, entry: &mut Entry<'_>, id: u64, why: SessionEnd) {
        let held: Vec<(u64, u32)> = self
            .held_by(id)
            .map(|task| (task.run, task.shard))
            .collect();
        #[cfg(feature = "planted-bugs")]
        let held = match tenure_planted::is(tenure_planted::Bug::NondeterministicApply) {
            true if tenure_planted::odd() => held.into_iter().rev().collect(),
            _ => held,
        };
        for key in held {
            self.lose_owner(entry, key, Loss::SessionEnded);
        }
        if let Some(session) = self.remove_session(id, why, entry.at.index) {
            let instance = session.instance.clone();
            entry.events.push(Event::SessionEnded {
                session: id,
                instance,
                why,
            });
        }
    }

    /// Refuses whoever speaks for a live session that another principal registered, whatever its role. Only
    /// here is it certain: a session may be registered while the request of a stranger that guessed its
    /// number is on its way. One that is over belongs to nobody, so everybody is told why it ended.
    pub(super) fn check_principal(&self, id: u64, actor: &Actor) -> Result<(), Refusal> {
        match self.sessions.get(&id) {
            Some(session) if session.principal.as_ref() != actor.principal() => Err(Refusal::new(
                RefusalCode::NotOwner,
                format!("session {id} was registered by another principal"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The session, or a refusal that says why it is over.
    pub(super) fn require_session(&self, id: u64) -> Result<Arc<Session>, Refusal> {
        if let Some(session) = self.sessions.get(&id) {
            return Ok(session.clone());
        }
        let Some(ended) = self.ended.get(&id) else {
            return Err(Refusal::new(
                RefusalCode::StaleSession,
                format!("session {id} is not known"),
            ));
        };
        #[cfg(feature = "planted-bugs")]
        if tenure_planted::is(tenure_planted::Bug::SessionUnchecked)
            && let Some(successor) = self.index.instances.get(&ended.instance)
        {
            return self.require_session(*successor);
        }
        let (code, how) = match ended.why {
            SessionEnd::Replaced => (RefusalCode::SessionReplaced, "was replaced"),
            SessionEnd::Expired => (RefusalCode::SessionExpired, "expired"),
            SessionEnd::Closed => (RefusalCode::SessionClosed, "was closed"),
        };
        Err(Refusal::new(
            code,
            format!(
                "session {id} of {} {how} at log index {}",
                ended.instance, ended.ended_index
            ),
        ))
    }

    /// Whether a session may be given this task now. The words are for `explain`.
    pub fn fits(&self, session: &Session, run: &crate::state::Run) -> Result<(), &'static str> {
        let wanted = &run.spec.task;
        if session
            .capabilities
            .binary_search(&wanted.capability)
            .is_err()
        {
            return Err("it lacks the capability");
        }
        if let Some(requirement) = &wanted.version {
            let fits = semver::VersionReq::parse(requirement)
                .ok()
                .zip(semver::Version::parse(&session.version).ok())
                .is_some_and(|(requirement, version)| requirement.matches(&version));
            if !fits {
                return Err("its version does not satisfy the requirement");
            }
        }
        if wanted
            .selector
            .iter()
            .any(|(key, value)| session.labels.get(key) != Some(value))
        {
            return Err("its labels do not match the selector");
        }
        if session.drain_limit_lease_ms.is_some() {
            return Err("it is draining");
        }
        if !session.healthy {
            return Err("its own probe says it is not healthy");
        }
        if self.effective_deadline(session.deadline_lease_ms) <= self.meta.clock.lease_ms {
            return Err("its lease has run out");
        }
        if self.free_slots(session) == 0 {
            return Err("it has no free slot");
        }
        Ok(())
    }

    /// How many more tasks a session may be given, by what it was given and by what it says is taken.
    pub fn free_slots(&self, session: &Session) -> u32 {
        session.capacity.saturating_sub(
            self.held_count(session.id)
                .saturating_add(session.slots_taken),
        )
    }
}

fn check_registration(registration: &Registration) -> Result<(), Refusal> {
    let invalid = |detail: String| Err(Refusal::new(RefusalCode::Invalid, detail));
    let Registration {
        instance,
        version,
        capabilities,
        labels,
        capacity,
        lease_ttl_ms,
    } = registration;
    if !instance.is_label() {
        return invalid("instance_id is 1 to 128 printable characters".into());
    }
    if semver::Version::parse(version).is_err() || version.len() > crate::MAX_NAME_BYTES {
        return invalid("version is not a semantic version".into());
    }
    if capabilities.is_empty() || capabilities.len() > MAX_CAPABILITIES {
        return invalid(format!(
            "an executor has 1 to {MAX_CAPABILITIES} capabilities"
        ));
    }
    if !capabilities.iter().all(Name::is_label) {
        return invalid("a capability is 1 to 128 printable characters".into());
    }
    if labels.len() > MAX_LABELS {
        return invalid(format!("an executor has at most {MAX_LABELS} labels"));
    }
    if !labels
        .iter()
        .all(|(key, value)| key.is_label() && value.is_label())
    {
        return invalid("label keys and values are 1 to 128 printable characters".into());
    }
    if *capacity == 0 || *capacity > MAX_CAPACITY {
        return invalid(format!("capacity is 1 to {MAX_CAPACITY}"));
    }
    if !(MIN_LEASE_TTL_MS..=MAX_LEASE_TTL_MS).contains(lease_ttl_ms) {
        return invalid(format!(
            "lease_ttl_ms is {MIN_LEASE_TTL_MS} to {MAX_LEASE_TTL_MS}"
        ));
    }
    Ok(())
}

impl State {
    /// Takes note of how far a holder says it has come, and counts what it worked through again.
    pub(super) fn note_progress(
        &mut self,
        entry: &mut Entry<'_>,
        key: (u64, u32),
        progress: Option<u64>,
    ) {
        let Some(reached) = progress else { return };
        let replayed = self.edit_task(key, |task: &mut Task| {
            task.progress = Some(task.progress.unwrap_or(0).max(reached));
            let replay = task.replay.as_mut()?;
            let upto = reached.min(replay.until);
            let again = upto.saturating_sub(replay.counted);
            replay.counted = replay.counted.max(upto);
            if replay.counted >= replay.until {
                task.replay = None;
            }
            (again > 0).then_some(again)
        });
        if let Some(records) = replayed.flatten() {
            self.count(Counter::ReplayedRecords, records);
            entry.events.push(Event::Replayed { records });
        }
    }
}
