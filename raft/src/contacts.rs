//! What this node knows of how its peers are reached, and the lines of the log about it.
//!
//! A dead peer is called many times a second. The log has one line when it has not been reached for a while,
//! one a minute as long as that stays so, and one when it answers again.
//!
//! Absent: calls. A peer that this node has no reason to call is not looked at, so a follower may learn late
//! that another one is back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft_rt::Instant as _;

use crate::transport::CallError;
use crate::types::{AsyncRuntime, NodeId};

/// For how long no call may get through before that is news. A restart of a connection is shorter.
const PATIENCE: Duration = Duration::from_secs(1);
/// At most one reminder in this time.
const REMINDER: Duration = Duration::from_secs(60);

/// How the last call to a peer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contact {
    /// It answered.
    Answered,
    /// Its port is closed: no process of it runs.
    Refused,
    /// It, or the network, gave no answer in time.
    Silent,
    /// The call failed for another reason.
    Failed(String),
}

impl fmt::Display for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "it answers",
            Self::Refused => "its port is closed",
            Self::Silent => "no answer in time",
            Self::Failed(why) => why,
        })
    }
}

/// The last contact with each peer, shared by all that call them.
pub struct PeerContacts<R: AsyncRuntime>(Arc<Inner<R>>);

struct Inner<R: AsyncRuntime> {
    began: R::Instant,
    peers: Mutex<BTreeMap<NodeId, Known>>,
}

impl<R: AsyncRuntime> Clone for PeerContacts<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: AsyncRuntime> Default for PeerContacts<R> {
    fn default() -> Self {
        Self(Arc::new(Inner {
            began: R::Instant::now(),
            peers: Mutex::default(),
        }))
    }
}

impl<R: AsyncRuntime> PeerContacts<R> {
    /// Every peer that was called so far.
    pub fn all(&self) -> BTreeMap<NodeId, Contact> {
        let peers = self.0.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let all = peers.iter();
        all.map(|(id, known)| (*id, known.contact.clone()))
            .collect()
    }

    /// Keeps how a call ended.
    pub(crate) fn note<T>(&self, peer: NodeId, result: &Result<T, CallError>) {
        let contact = match result {
            Ok(_) => Contact::Answered,
            Err(CallError::Refused) => Contact::Refused,
            Err(CallError::Silent { .. }) => Contact::Silent,
            // These say nothing about the peer.
            Err(CallError::Overloaded | CallError::TooLarge { .. } | CallError::Closed) => return,
            Err(other) => Contact::Failed(other.to_string()),
        };
        let now = self.0.began.elapsed();
        let news = {
            let mut peers = self.0.peers.lock().unwrap_or_else(PoisonError::into_inner);
            let known = peers.entry(peer).or_default();
            known.note(contact.clone(), now)
        };
        match news {
            None => {}
            Some(News::Unreachable) => {
                tracing::warn!(peer, why = ?contact.to_string(), "a peer is not reachable");
            }
            Some(News::StillUnreachable(away)) => {
                let (away_ms, attempts) = (millis(away.lasted), away.attempts);
                tracing::warn!(peer, away_ms, attempts, why = ?contact.to_string(), "a peer is still not reachable");
            }
            Some(News::Back(away)) => {
                let (away_ms, attempts) = (millis(away.lasted), away.attempts);
                tracing::info!(peer, away_ms, attempts, "a peer is reachable again");
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is known of one peer.
struct Known {
    contact: Contact,
    failing: Option<Failing>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            contact: Contact::Answered,
            failing: None,
        }
    }
}

/// Calls that failed, without one in between that did not.
struct Failing {
    since: Duration,
    attempts: u64,
    /// When the log last had a line about it.
    told: Option<Duration>,
}

/// How long a peer was not reached, and how often that was tried.
#[derive(Debug, PartialEq, Eq)]
struct Away {
    lasted: Duration,
    attempts: u64,
}

/// What is worth a line.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Unreachable,
    StillUnreachable(Away),
    Back(Away),
}

impl Known {
    fn note(&mut self, contact: Contact, now: Duration) -> Option<News> {
        self.contact = contact;
        if self.contact == Contact::Answered {
            let over = self.failing.take()?;
            over.told?;
            return Some(News::Back(over.away(now)));
        }
        let failing = self.failing.get_or_insert(Failing {
            since: now,
            attempts: 0,
            told: None,
        });
        failing.attempts += 1;
        match failing.told {
            None if now.saturating_sub(failing.since) >= PATIENCE => {
                failing.told = Some(now);
                Some(News::Unreachable)
            }
            Some(told) if now.saturating_sub(told) >= REMINDER => {
                failing.told = Some(now);
                Some(News::StillUnreachable(failing.away(now)))
            }
            None | Some(_) => None,
        }
    }
}

impl Failing {
    fn away(&self, now: Duration) -> Away {
        Away {
            lasted: now.saturating_sub(self.since),
            attempts: self.attempts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 calls a second from `from_ms` on, all with this end; what they gave, with its time.
    fn calls(known: &mut Known, contact: &Contact, from_ms: u64, to_ms: u64) -> Vec<(u64, News)> {
        (from_ms..to_ms)
            .step_by(50)
            .filter_map(|ms| {
                let news = known.note(contact.clone(), Duration::from_millis(ms));
                news.map(|news| (ms, news))
            })
            .collect()
    }

    fn away(lasted_ms: u64, attempts: u64) -> Away {
        Away {
            lasted: Duration::from_millis(lasted_ms),
            attempts,
        }
    }

    #[test]
    fn a_dead_peer_is_told_once_then_once_a_minute_then_when_it_is_back() {
        let mut known = Known::default();
        assert_eq!(calls(&mut known, &Contact::Answered, 0, 10_000), []);
        let told = calls(&mut known, &Contact::Refused, 10_000, 150_000);
        assert_eq!(
            told,
            [
                (11_000, News::Unreachable),
                (71_000, News::StillUnreachable(away(61_000, 1_221))),
                (131_000, News::StillUnreachable(away(121_000, 2_421))),
            ]
        );
        let told = calls(&mut known, &Contact::Answered, 150_000, 160_000);
        assert_eq!(told, [(150_000, News::Back(away(140_000, 2_800)))]);
        assert_eq!(known.contact, Contact::Answered);
    }

    #[test]
    fn a_short_silence_is_no_news() {
        let mut known = Known::default();
        for start in (0..60_000).step_by(1_000) {
            let told = calls(&mut known, &Contact::Silent, start, start + 900);
            assert_eq!(told, []);
            assert_eq!(known.contact, Contact::Silent);
            let told = calls(&mut known, &Contact::Answered, start + 900, start + 1_000);
            assert_eq!(told, []);
        }
    }
}
