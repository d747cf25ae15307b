//! Connections that have not shown yet whose they are.
//!
//! Whoever reaches a port can open as many connections as it likes and say nothing. So strangers have a small
//! pool of their own, apart from the places of those who have proved themselves, and a newcomer always gets
//! in: where the pool is full, an older stranger has to go. It is the oldest one of the origin that has most
//! of them, so that a crowd from one host turns out its own.
//!
//! Absent: help against a crowd from very many hosts that connects faster than a peer can prove itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The pool.
pub struct Strangers {
    limit: usize,
    turned_out: AtomicU64,
    inner: Mutex<Inner>,
}

/// A crowd must not make it slow, so nothing here looks at all of them.
#[derive(Default)]
struct Inner {
    next_number: u64,
    inside: usize,
    /// Of each origin those who are inside, by the order in which they came.
    origins: BTreeMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
    /// Each origin by how many it has and by its oldest. The last one's oldest goes next.
    ranking: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
}

impl Strangers {
    /// A pool with `limit` places; at least one.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(1),
            turned_out: AtomicU64::new(0),
            inner: Mutex::default(),
        })
    }

    /// Takes a place for a connection from `address`. Whoever has to go for it is told.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Stranger {
        let origin = origin(address);
        let must_go = Arc::new(Notify::new());
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let number = inner.next_number;
        inner.next_number += 1;
        inner.change(origin, |own| {
            own.insert(number, must_go.clone());
        });
        if inner.inside > self.limit
            && let Some((_, Reverse(oldest), crowd)) = inner.ranking.last().copied()
            && let Some(goes) = inner.change(crowd, |own| own.remove(&oldest))
        {
            self.turned_out.fetch_add(1, Ordering::Relaxed);
            goes.notify_one();
        }
        Stranger {
            pool: self.clone(),
            origin,
            number,
            must_go,
        }
    }

    /// How many had to go so far.
    pub fn turned_out(&self) -> u64 {
        self.turned_out.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Changes who is inside of one origin, and keeps the rest in step.
    fn change<T>(
        &mut self,
        origin: IpAddr,
        change: impl FnOnce(&mut BTreeMap<u64, Arc<Notify>>) -> T,
    ) -> T {
        let mut own = self.origins.remove(&origin).unwrap_or_default();
        if let Some(oldest) = own.keys().next() {
            self.ranking.remove(&(own.len(), Reverse(*oldest), origin));
        }
        self.inside -= own.len();
        let result = change(&mut own);
        self.inside += own.len();
        if let Some(oldest) = own.keys().next() {
            self.ranking.insert((own.len(), Reverse(*oldest), origin));
            self.origins.insert(origin, own);
        }
        result
    }
}

/// Whom an address belongs to: one host has a whole /64 of IPv6.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & (u128::MAX << 64)).into()),
    }
}

/// A place in the pool. It comes free when this is dropped, or earlier by [`leave`](Self::leave).
pub struct Stranger {
    pool: Arc<Strangers>,
    origin: IpAddr,
    number: u64,
    must_go: Arc<Notify>,
}

impl Stranger {
    /// Waits until the place is needed for another. For ever, once it was left.
    pub async fn turned_out(&self) {
        self.must_go.notified().await;
    }

    /// It is a stranger no more.
    pub fn leave(&self) {
        let mut inner = self
            .pool
            .inner
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        inner.change(self.origin, |own| own.remove(&self.number));
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn from(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn gone(stranger: &Stranger) -> bool {
        let gone = stranger.turned_out().now_or_never().is_some();
        if gone {
            // Whoever is told twice was told once: keep it so for the next look.
            stranger.must_go.notify_one();
        }
        gone
    }

    #[test]
    fn a_newcomer_always_gets_in_and_the_oldest_goes() {
        let pool = Strangers::new(2);
        let all: Vec<_> = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
            .iter()
            .map(|text| pool.enter(from(text)))
            .collect();
        let gone: Vec<bool> = all.iter().map(gone).collect();
        assert_eq!(gone, [true, true, false, false]);
        assert_eq!(pool.turned_out(), 2);
    }

    #[test]
    fn a_crowd_from_one_host_turns_out_its_own() {
        let pool = Strangers::new(3);
        let peer = pool.enter(from("10.0.0.1"));
        let crowd: Vec<_> = (0..100).map(|_| pool.enter(from("10.0.0.9"))).collect();
        assert!(!gone(&peer), "the peer came first and stays");
        let left = crowd.iter().filter(|one| !gone(one)).count();
        assert_eq!(left, 2);
        let late = pool.enter(from("10.0.0.2"));
        assert!(!gone(&late) && !gone(&peer));
    }

    #[test]
    fn one_host_has_many_addresses() {
        let pool = Strangers::new(3);
        let peer = pool.enter(from("2001:db8:1::1"));
        for last in 1..100_u16 {
            pool.enter(IpAddr::from([0x2001, 0xdb8, 2, 0, 0, 0, 0, last]));
        }
        let crowd: Vec<_> = (1..100_u16)
            .map(|last| pool.enter(IpAddr::from([0x2001, 0xdb8, 2, 0, last, 0, 0, last])))
            .collect();
        assert!(!gone(&peer));
        assert_eq!(crowd.iter().filter(|one| !gone(one)).count(), 2);
        assert_eq!(origin(from("::ffff:10.0.0.1")), from("10.0.0.1"));
    }

    #[test]
    fn who_has_left_needs_no_place_and_is_never_turned_out() {
        let pool = Strangers::new(1);
        let known = pool.enter(from("10.0.0.1"));
        known.leave();
        let next = pool.enter(from("10.0.0.1"));
        assert!(!gone(&known) && !gone(&next));
        drop(next);
        let last = pool.enter(from("10.0.0.1"));
        drop(known);
        assert!(!gone(&last));
        assert_eq!(pool.turned_out(), 0);
        drop(last);
        let inner = pool.inner.lock().expect("nobody panicked");
        let kept = (inner.inside, inner.origins.len(), inner.ranking.len());
        assert_eq!(kept, (0, 0, 0), "nothing is kept of those who left");
    }
}
