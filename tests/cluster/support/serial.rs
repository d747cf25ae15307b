//! Who may run beside whom. Timers of consensus are real, so clusters that are being killed must not starve
//! each other: a test has the machine to itself unless it says that it is light.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// A part of the machine, or all of it.
pub(crate) enum Share {
    Whole(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
    Light(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
}

impl Share {
    pub(crate) fn whole() -> Self {
        Self::Whole(MACHINE.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn light() -> Self {
        Self::Light(MACHINE.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// The long forms of the tests are wanted.
pub(crate) fn full() -> bool {
    is_set("TENURE_FULL")
}

/// The slow tests are to be left out.
pub(crate) fn quick() -> bool {
    is_set("TENURE_QUICK")
}
