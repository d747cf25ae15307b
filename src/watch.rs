//! A value that others can wait on.
//!
//! tokio's own watch wakes its waiters in an order drawn from a generator that nobody can seed, so a
//! simulation over it does not repeat. This one wakes them in the order in which they began to wait.
//!
//! Absent: a queue. Who waits sees the latest value, and may miss those in between.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};

/// The present value. Not to be held over an await: whoever changes the value waits for it.
pub struct Ref<'a, T>(RwLockReadGuard<'a, T>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The last sender is gone: the value will not change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value will not change any more")]
pub struct Closed;

struct Shared<T> {
    value: RwLock<T>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    senders: usize,
    receivers: usize,
    /// By the order in which they began to wait.
    waiters: BTreeMap<u64, Waker>,
    next_waiter: u64,
}

impl<T> Shared<T> {
    fn read(&self) -> Ref<'_, T> {
        Ref(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_inner<R>(&self, look: impl FnOnce(&mut Inner) -> R) -> R {
        look(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wake(&self, change: impl FnOnce(&mut Inner)) {
        let waiters = self.with_inner(|inner| {
            change(inner);
            std::mem::take(&mut inner.waiters)
        });
        // Outside of the lock: a waker may run what it wakes.
        for waiter in waiters.into_values() {
            waiter.wake();
        }
    }
}

/// Changes the value. Clones change the same one.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Sees the value, and waits for another. Clones wait by themselves.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// A value, with its first sender and receiver.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        value: RwLock::new(value),
        inner: Mutex::new(Inner {
            senders: 1,
            receivers: 1,
            ..Inner::default()
        }),
    });
    let sender = Sender {
        shared: shared.clone(),
    };
    (sender, Receiver { shared, seen: 0 })
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.with_inner(|inner| inner.senders += 1);
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let last = self.shared.with_inner(|inner| {
            inner.senders -= 1;
            inner.senders == 0
        });
        if last {
            self.shared.wake(|_| {});
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.with_inner(|inner| inner.receivers += 1);
        Self {
            shared: self.shared.clone(),
            seen: self.seen,
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.with_inner(|inner| inner.receivers -= 1);
    }
}

impl<T> Sender<T> {
    /// The value now.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.read()
    }

    /// A receiver that has seen the present value.
    pub fn subscribe(&self) -> Receiver<T> {
        let seen = self.shared.with_inner(|inner| {
            inner.receivers += 1;
            inner.version
        });
        Receiver {
            shared: self.shared.clone(),
            seen,
        }
    }

    /// Whether nobody can see the value any more.
    pub fn is_closed(&self) -> bool {
        self.shared.with_inner(|inner| inner.receivers == 0)
    }

    /// Changes the value and wakes all who wait.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the value, and wakes all who wait if `change` says that it did. Gives that back.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let changed = {
            let value = self.shared.value.write();
            change(&mut value.unwrap_or_else(PoisonError::into_inner))
        };
        if changed {
            self.shared.wake(|inner| inner.version += 1);
        }
        changed
    }

    /// Puts another value in its place, wakes all who wait, and gives the old one back.
    pub fn send_replace(&self, value: T) -> T {
        let mut value = value;
        self.send_modify(|present| std::mem::swap(present, &mut value));
        value
    }
}

impl<T> Receiver<T> {
    /// The value now.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.read()
    }

    /// The value now, which thereby counts as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.shared.with_inner(|inner| inner.version);
        self.shared.read()
    }

    /// Waits for a value that was not seen yet, which thereby counts as seen.
    ///
    /// # Errors
    /// The last sender is gone.
    pub fn changed(&mut self) -> Changed<'_, T> {
        Changed {
            receiver: self,
            waiter: None,
        }
    }

    /// Waits until `condition` holds of the value.
    ///
    /// # Errors
    /// The last sender is gone.
    pub async fn wait_for(
        &mut self,
        mut condition: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, Closed> {
        while !condition(&self.borrow_and_update()) {
            self.changed().await?;
        }
        Ok(self.shared.read())
    }
}

/// The future of [`Receiver::changed`].
pub struct Changed<'a, T> {
    receiver: &'a mut Receiver<T>,
    waiter: Option<u64>,
}

impl<T> Future for Changed<'_, T> {
    type Output = Result<(), Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (seen, waiter) = (this.receiver.seen, this.waiter);
        this.receiver
            .shared
            .with_inner(|inner| {
                if inner.version != seen {
                    return Poll::Ready(Ok(inner.version));
                }
                if inner.senders == 0 {
                    return Poll::Ready(Err(Closed));
                }
                let number = waiter.unwrap_or_else(|| {
                    inner.next_waiter += 1;
                    inner.next_waiter
                });
                inner.waiters.insert(number, cx.waker().clone());
                this.waiter = Some(number);
                Poll::Pending
            })
            .map_ok(|version| this.receiver.seen = version)
    }
}

impl<T> Drop for Changed<'_, T> {
    fn drop(&mut self) {
        if let Some(number) = self.waiter {
            let shared = &self.receiver.shared;
            shared.with_inner(|inner| inner.waiters.remove(&number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[tokio::test]
    async fn waiters_wake_in_the_order_in_which_they_began_to_wait() {
        let (sender, receiver) = channel(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        for name in 0..20 {
            let (mut receiver, order) = (receiver.clone(), order.clone());
            tokio::spawn(async move {
                receiver.changed().await.unwrap();
                order.lock().unwrap().push(name);
            });
        }
        tokio::task::yield_now().await;
        sender.send_modify(|value| *value += 1);
        tokio::task::yield_now().await;
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_change_is_seen_once_and_the_end_is_told() {
        let (sender, mut receiver) = channel("a");
        assert!(receiver.changed().now_or_never().is_none());
        sender.send_replace("b");
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!(*receiver.borrow(), "b");
        assert!(receiver.changed().now_or_never().is_none());
        assert!(!sender.send_if_modified(|_| false));
        assert!(receiver.changed().now_or_never().is_none());
        drop(sender);
        assert_eq!(receiver.changed().await, Err(Closed));
        assert_eq!(
            receiver.wait_for(|value| *value == "b").await.as_deref(),
            Ok(&"b")
        );
        assert!(receiver.wait_for(|value| *value == "c").await.is_err());
    }
}
