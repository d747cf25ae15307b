//! The leader's loop: plan, propose, wait.
//!
//! Invariants:
//! - Everything it proposes carries the term in which it took office. Once another term has begun, whatever
//!   is still on its way is refused by consensus or, at the latest, by `apply`.
//! - It takes office only when everything of earlier terms is applied, and begins with `TermStarted`, which
//!   gives each live lease time for a renewal.
//! - Without a majority it proposes nothing. When the majority is back it gives each live lease time for a
//!   renewal again, as a new leader does: nobody is judged for the time in which nobody could renew. That
//!   also holds where the majority was gone and came back while proposals were under way.
//! - It keeps nothing in memory that matters: the next leader finds all of it in the state.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_machine::plan::Planner;
use tenure_machine::{Command, Name, State};
use tenure_raft::state_machine::Replica;
use tokio::time::{sleep, timeout};

use crate::clock::Stamper;
use crate::consensus::{Committed, Consensus, ConsensusError, Standing};
use crate::wakeups::Wakeups;
use crate::watch;

/// Settings of the leader's loop. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaderConfig {
    /// The longest pause between two plans.
    pub tick_ms: u64,
    /// How long the majority may be silent before the leader stops proposing.
    pub quorum_loss_ms: u64,
    /// What a new leader gives each live lease. At least one heartbeat interval of the executors.
    pub grace_ms: u64,
}

impl Default for LeaderConfig {
    fn default() -> Self {
        Self {
            tick_ms: 50,
            quorum_loss_ms: 1_000,
            grace_ms: 10_000,
        }
    }
}

/// Leads whenever this node is elected, until the standing's sender is gone.
pub async fn lead(
    consensus: Arc<dyn Consensus>,
    stamper: Arc<Stamper>,
    wakeups: Arc<Wakeups>,
    cluster_id: Name,
    config: LeaderConfig,
) {
    let mut standing = consensus.standing();
    loop {
        let term = match standing.wait_for(|standing| standing.leads).await {
            Ok(standing) => standing.term,
            Err(_) => return,
        };
        tracing::info!(term, "elected");
        let office = Office {
            consensus: &*consensus,
            stamper: &stamper,
            wakeups: &wakeups,
            config: &config,
            cluster_id: &cluster_id,
            term,
        };
        match office.serve(&mut standing).await {
            Ended::Deposed => tracing::info!(term, "no longer leads"),
            Ended::Stopping => return,
        }
    }
}

enum Ended {
    Deposed,
    Stopping,
}

/// What came of proposals.
#[derive(Default)]
struct Proposed {
    /// How many were carried out.
    done: usize,
    /// Whether the majority was silent for too long meanwhile.
    lapsed: bool,
}

struct Office<'a> {
    consensus: &'a dyn Consensus,
    stamper: &'a Stamper,
    wakeups: &'a Wakeups,
    config: &'a LeaderConfig,
    cluster_id: &'a Name,
    term: u64,
}

impl Office<'_> {
    async fn serve(&self, standing: &mut watch::Receiver<Standing>) -> Ended {
        if let Err(ended) = self.take_office(standing).await {
            return ended;
        }
        let mut planner = Planner::default();
        let mut lapsed = false;
        loop {
            if !self.holds(standing) {
                return Ended::Deposed;
            }
            if lapsed || self.cut_off(standing) {
                tracing::warn!(
                    term = self.term,
                    "the majority is silent: no new decisions until it answers"
                );
                if let Err(ended) = self.wait_for_majority(standing).await {
                    return ended;
                }
            }
            let state = self.consensus.stale().state;
            let commands = planner.plan(&state, self.consensus.now());
            let planned = commands.len();
            let done = match self.propose(commands, standing).await {
                Ok(proposed) => {
                    lapsed = proposed.lapsed;
                    proposed.done
                }
                Err(ended) => return ended,
            };
            if lapsed {
                continue;
            }
            // A plan of which something was done is followed by the next at once: a grant may follow a fire.
            if planned > 0 && done > 0 {
                continue;
            }
            if let Err(ended) = self.pause(&state, standing).await {
                return ended;
            }
        }
    }

    /// Waits until everything of earlier terms is applied, then begins the term.
    async fn take_office(&self, standing: &mut watch::Receiver<Standing>) -> Result<(), Ended> {
        loop {
            match self.consensus.read().await {
                Ok(Replica { state, .. }) => {
                    self.stamper.take_office(state.clock());
                    let mut commands = Vec::new();
                    if state.meta().cluster_id.is_none() {
                        commands.push(Command::Bootstrap {
                            cluster_id: self.cluster_id.clone(),
                            generation: 1,
                        });
                    }
                    commands.push(Command::TermStarted {
                        grace_ms: self.config.grace_ms,
                    });
                    let planned = commands.len();
                    // Lost and back meanwhile: the grace was given from before that, so it is given again.
                    let proposed = self.propose(commands, standing).await?;
                    if proposed.done == planned && !proposed.lapsed {
                        return Ok(());
                    }
                }
                Err(ConsensusError::Stopping) => return Err(Ended::Stopping),
                Err(error) => tracing::debug!(%error, "cannot take office yet"),
            }
            if !self.holds(standing) {
                return Err(Ended::Deposed);
            }
            sleep(Duration::from_millis(self.config.tick_ms)).await;
        }
    }

    fn holds(&self, standing: &watch::Receiver<Standing>) -> bool {
        let standing = standing.borrow();
        standing.leads && standing.term == self.term
    }

    /// Whether the majority has been silent for too long.
    fn cut_off(&self, standing: &watch::Receiver<Standing>) -> bool {
        standing
            .borrow()
            .quorum_age_ms
            .is_some_and(|age| age > self.config.quorum_loss_ms)
    }

    /// Waits for the majority, then begins the term anew.
    async fn wait_for_majority(
        &self,
        standing: &mut watch::Receiver<Standing>,
    ) -> Result<(), Ended> {
        while self.cut_off(standing) {
            if !self.holds(standing) {
                return Err(Ended::Deposed);
            }
            standing.changed().await.map_err(|_| Ended::Stopping)?;
        }
        self.take_office(standing).await
    }

    /// Proposes in order, and watches the majority until all is answered.
    async fn propose(
        &self,
        commands: Vec<Command>,
        standing: &mut watch::Receiver<Standing>,
    ) -> Result<Proposed, Ended> {
        let mut proposed = Proposed::default();
        if commands.is_empty() {
            return Ok(proposed);
        }
        let mut answers = self.consensus.propose_all(self.term, commands);
        let results = loop {
            tokio::select! {
                biased;
                changed = standing.changed() => {
                    changed.map_err(|_| Ended::Stopping)?;
                    proposed.lapsed |= self.cut_off(standing);
                }
                results = &mut answers => break results,
            }
        };
        for result in results {
            match result {
                Ok(Committed { reply: Ok(_), .. }) => proposed.done += 1,
                Ok(Committed {
                    reply: Err(refusal),
                    at,
                }) => {
                    tracing::debug!(%refusal, index = at.index, "a planned command was refused");
                }
                Err(ConsensusError::NotLeader { .. }) => return Err(Ended::Deposed),
                Err(ConsensusError::Stopping) => return Err(Ended::Stopping),
                // Whether it happened shows in the state that the next plan starts from.
                Err(
                    error @ (ConsensusError::Overloaded
                    | ConsensusError::OutcomeUnknown(_)
                    | ConsensusError::Rejected(_)),
                ) => {
                    tracing::debug!(%error, "a planned command has no answer");
                }
            }
        }
        Ok(proposed)
    }

    /// Waits for the next thing that is due, for news, or for the end of the term.
    async fn pause(
        &self,
        state: &State,
        standing: &mut watch::Receiver<Standing>,
    ) -> Result<(), Ended> {
        let now_ms = self.consensus.now().calendar_ms;
        let due_ms = state
            .index()
            .due
            .get_min()
            .map_or(u64::MAX, |(due, _)| *due);
        let wait_ms = due_ms.saturating_sub(now_ms).clamp(1, self.config.tick_ms);
        let news = async {
            tokio::select! {
                biased;
                () = self.wakeups.planner().notified() => Ok(()),
                changed = standing.changed() => changed.map_err(|_| Ended::Stopping),
            }
        };
        timeout(Duration::from_millis(wait_ms), news)
            .await
            .unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::consensus::{Draft, NewMember, Solo};
    use futures::future::BoxFuture;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use tenure_machine::{Actor, Registration, Reply, Stamp};
    use tokio::sync::Notify;

    /// A cluster of one whose answers to a leader can be held back.
    struct Slow {
        solo: Arc<Solo>,
        hold: AtomicBool,
        held: AtomicUsize,
        released: Notify,
    }

    impl Consensus for Slow {
        fn propose(&self, draft: Draft) -> BoxFuture<'_, Result<Committed, ConsensusError>> {
            self.solo.propose(draft)
        }

        fn propose_all(
            &self,
            term: u64,
            commands: Vec<Command>,
        ) -> BoxFuture<'_, Vec<Result<Committed, ConsensusError>>> {
            Box::pin(async move {
                if self.hold.swap(false, Ordering::SeqCst) {
                    self.held.fetch_add(1, Ordering::SeqCst);
                    self.released.notified().await;
                }
                self.solo.propose_all(term, commands).await
            })
        }

        fn read(&self) -> BoxFuture<'_, Result<Replica, ConsensusError>> {
            self.solo.read()
        }

        fn stale(&self) -> Replica {
            self.solo.stale()
        }

        fn standing(&self) -> watch::Receiver<Standing> {
            self.solo.standing()
        }

        fn now(&self) -> Stamp {
            self.solo.now()
        }

        fn forward(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
            self.solo.forward(request)
        }

        fn ask_archive(
            &self,
            member: u64,
            question: Vec<u8>,
        ) -> BoxFuture<'_, Result<Vec<u8>, ConsensusError>> {
            self.solo.ask_archive(member, question)
        }

        fn initialize(&self, members: Vec<NewMember>) -> BoxFuture<'_, Result<(), ConsensusError>> {
            self.solo.initialize(members)
        }
    }

    /// Time is virtual here: a pause costs nothing.
    async fn eventually(what: &str, condition: impl Fn() -> bool) {
        for _ in 0..10_000 {
            if condition() {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("never: {what}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_majority_that_was_gone_during_a_proposal_gives_grace_again() {
        let solo = Solo::new(Stamp::default(), |_, _| {});
        let slow = Arc::new(Slow {
            solo: solo.clone(),
            hold: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            released: Notify::new(),
        });
        let config = LeaderConfig::default();
        let grace_ms = config.grace_ms;
        let leading = tokio::spawn(lead(
            slow.clone(),
            Stamper::new(SystemClock::new()),
            Wakeups::new(),
            "solo".into(),
            config,
        ));
        let grace_until = || solo.stale().state.meta().grace_until_lease_ms;
        eventually("a term", || grace_until() == grace_ms).await;

        // Something to propose, whose answer takes its time.
        let registered = solo.propose(Draft {
            term: None,
            actor: Actor::Scheduler,
            request: None,
            command: Command::RegisterSession(Registration {
                instance: "a".into(),
                version: "1.0.0".into(),
                capabilities: vec!["work".into()],
                labels: std::collections::BTreeMap::new(),
                capacity: 1,
                lease_ttl_ms: 35_000,
            }),
        });
        let reply = registered.await.unwrap().reply;
        assert!(matches!(reply, Ok(Reply::Session { .. })), "{reply:?}");
        slow.hold.store(true, Ordering::SeqCst);
        solo.advance(100_000);
        eventually("an expiry under way", || {
            slow.held.load(Ordering::SeqCst) == 1
        })
        .await;

        solo.set_quorum_age_ms(5_000);
        sleep(Duration::from_millis(5)).await;
        solo.set_quorum_age_ms(0);
        slow.released.notify_one();
        eventually("grace again", || grace_until() == 100_000 + grace_ms).await;

        // A majority that was there all the time gives none.
        solo.advance(1_000);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(grace_until(), 100_000 + grace_ms);
        leading.abort();
    }
}
