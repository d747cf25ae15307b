//! Wakes whoever waits on the state: long polls of executors and the leader's own loop.
//!
//! A wake-up carries nothing. Whoever is woken looks at the state, so a lost one costs time, never work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tenure_machine::Event;
use tokio::sync::Notify;

/// Who waits for what.
#[derive(Debug, Default)]
pub struct Wakeups {
    planner: Notify,
    sessions: Mutex<BTreeMap<u64, Weak<Notify>>>,
}

impl Wakeups {
    /// Nobody waits.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// What a long poll of this session waits on. Take it before looking at the state: then nothing that
    /// comes between the look and the wait is missed.
    pub fn session(&self, session: u64) -> Arc<Notify> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(present) = sessions.get(&session).and_then(Weak::upgrade) {
            return present;
        }
        sessions.retain(|_, waiting| waiting.strong_count() > 0);
        let fresh = Arc::new(Notify::new());
        sessions.insert(session, Arc::downgrade(&fresh));
        fresh
    }

    /// What the leader's loop waits on.
    pub fn planner(&self) -> &Notify {
        &self.planner
    }

    /// Wakes whom these events concern.
    pub fn tell(&self, events: &[Event]) {
        for event in events {
            match event {
                Event::Assigned { session, .. }
                | Event::CancelRequested { session, .. }
                | Event::SessionEnded { session, .. } => self.wake_session(*session),
                _ => {}
            }
            if concerns_planner(event) {
                self.planner.notify_one();
            }
        }
    }

    fn wake_session(&self, session: u64) {
        let waiting = {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.get(&session).and_then(Weak::upgrade)
        };
        if let Some(waiting) = waiting {
            waiting.notify_waiters();
            waiting.notify_one();
        }
    }
}

/// Whether there may be something to propose that was not there before.
fn concerns_planner(event: &Event) -> bool {
    matches!(
        event,
        Event::TasksQueued { .. }
            | Event::SessionOpened(_)
            | Event::SessionEnded { .. }
            | Event::RunFinished { .. }
            | Event::JobChanged { .. }
    )
}
