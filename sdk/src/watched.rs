//! A value that others can wait on.
//!
//! tokio's own watch wakes its waiters in an order drawn from a generator that no test can seed, so
//! a simulation over it would not repeat. This one wakes them in the order they began to wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A value with waiters.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    value: T,
    /// By the order in which they began to wait.
    waiters: BTreeMap<u64, Waker>,
    next_waiter: u64,
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            inner: Mutex::new(Inner {
                value,
                waiters: BTreeMap::new(),
                next_waiter: 0,
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value now.
    pub(crate) fn get(&self) -> T
    where
        T: Clone,
    {
        self.inner().value.clone()
    }

    /// Changes the value, and wakes everyone if `change` says that it did.
    pub(crate) fn update(&self, change: impl FnOnce(&mut T) -> bool) {
        let waiters = {
            let mut inner = self.inner();
            if !change(&mut inner.value) {
                return;
            }
            std::mem::take(&mut inner.waiters)
        };
        // Outside of the lock: a waker may run what it wakes.
        for waiter in waiters.into_values() {
            waiter.wake();
        }
    }

    /// Waits until `wanted` finds something in the value.
    pub(crate) fn wait_for<R, F>(&self, wanted: F) -> Waiting<'_, T, F>
    where
        F: FnMut(&T) -> Option<R> + Unpin,
    {
        Waiting {
            watched: self,
            wanted,
            waiter: None,
        }
    }
}

/// The future of [`Watched::wait_for`].
pub(crate) struct Waiting<'a, T, F> {
    watched: &'a Watched<T>,
    wanted: F,
    waiter: Option<u64>,
}

impl<T, R, F> Future for Waiting<'_, T, F>
where
    F: FnMut(&T) -> Option<R> + Unpin,
{
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<R> {
        let this = &mut *self;
        let mut inner = this.watched.inner();
        if let Some(found) = (this.wanted)(&inner.value) {
            return Poll::Ready(found);
        }
        let waiter = *this.waiter.get_or_insert_with(|| {
            let number = inner.next_waiter;
            inner.next_waiter += 1;
            number
        });
        inner.waiters.insert(waiter, task.waker().clone());
        Poll::Pending
    }
}

impl<T, F> Drop for Waiting<'_, T, F> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.watched.inner().waiters.remove(&waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::Wake;

    struct Order {
        name: u32,
        woken: Arc<Mutex<Vec<u32>>>,
    }

    impl Wake for Order {
        fn wake(self: Arc<Self>) {
            self.woken.lock().unwrap().push(self.name);
        }
    }

    #[test]
    fn waiters_are_woken_in_the_order_they_came_and_forgotten_when_dropped() {
        let watched = Watched::new(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut waits = Vec::new();
        for name in 0..20 {
            let mut waiting = watched.wait_for(|value| (*value == 2).then_some(*value));
            let waker = Waker::from(Arc::new(Order {
                name,
                woken: Arc::clone(&woken),
            }));
            let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            waits.push(waiting);
        }
        drop(waits.remove(3));
        watched.update(|_| false);
        assert!(woken.lock().unwrap().is_empty());
        watched.update(|value| {
            *value = 2;
            true
        });
        let expected: Vec<u32> = (0..20).filter(|name| *name != 3).collect();
        assert_eq!(*woken.lock().unwrap(), expected);
        let waker = Waker::noop();
        let polled = Pin::new(&mut waits[0]).poll(&mut Context::from_waker(waker));
        assert_eq!(polled, Poll::Ready(2));
    }
}
