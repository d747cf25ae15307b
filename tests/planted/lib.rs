//! Mistakes that can be planted into Tenure, one at a time, to see that the simulation catches them.
//!
//! The parts ask [`is`] at the place of the mistake, and only when they are built with the feature
//! `planted-bugs`: without it nothing of this crate is in the product. Which bug is planted is said for each
//! thread, because a simulated run is one thread; so runs with different bugs go side by side.

use std::cell::Cell;
use std::fmt;

macro_rules! bugs {
    ($(#[doc = $mistake:literal] $variant:ident = $name:literal,)*) => {
        /// A mistake that someone would make.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug {
            $(#[doc = $mistake] $variant,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The mistake, in a sentence.
            #[must_use]
            pub fn mistake(self) -> &'static str {
                match self {
                    $(Self::$variant => $mistake,)*
                }
                .trim()
            }
        }
    };
}

bugs! {
    /// The log reports entries as stored before it has synced them.
    AckBeforeSync = "ack-before-sync",
    /// A vote is given before it is on disk.
    VoteNotSynced = "vote-not-synced",
    /// A node that has voted in a term votes for a second candidate of that term.
    TwoVotesATerm = "two-votes-a-term",
    /// A snapshot counts, and the log before it is purged, before the snapshot is on disk.
    PurgeBeforeSnapshot = "purge-before-snapshot",
    /// A start cuts the log at the first bad record, also where it was durable.
    TruncateAtFirstBadRecord = "truncate-at-first-bad-record",
    /// A snapshot leaves the shards out.
    MapLeftOutOfSnapshot = "map-left-out-of-snapshot",
    /// What happens in an entry depends on something that is not in the state.
    NondeterministicApply = "nondeterministic-apply",
    /// A linearizable read is answered from the node's own state.
    ReadWithoutQuorum = "read-without-quorum",
    /// Commands of a leader's loop are taken whatever term they were planned in.
    TermUnchecked = "term-unchecked",
    /// The lease clock also counts the time in which nobody leads, and a whole pause at once.
    ExpiryByLocalClock = "expiry-by-local-clock",
    /// A new leader sets the cursors by its clock, not by what was decided.
    NextFireFromNow = "next-fire-from-now",
    /// A decision is taken wherever the job's cursor stands.
    DuplicateFire = "duplicate-fire",
    /// A live session may speak for a task under any epoch.
    EpochUnchecked = "epoch-unchecked",
    /// A call of a session that was replaced is taken for one of its successor.
    SessionUnchecked = "session-unchecked",
    /// A checkpoint is taken under the present epoch, whoever sends it.
    CheckpointWithoutEpoch = "checkpoint-without-epoch",
    /// A task that is cancelled goes on taking a slot of its executor.
    SlotLeakedOnCancel = "slot-leaked-on-cancel",
    /// A request that is repeated under its key is carried out again.
    IdempotencyForgotten = "idempotency-forgotten",
    /// Pausing a job leaves no link in the audit chain.
    AuditMissing = "audit-missing",
    /// The client says that nothing happened when only the answer was lost.
    ReplyLostIsFailure = "reply-lost-is-failure",
    /// An executor counts its lease from the answer, not from the question.
    LeaseLongerAtTheExecutor = "lease-longer-at-the-executor",
    /// A takeover goes on under the epoch of the grant before it.
    EpochReused = "epoch-reused",
    /// A job that forbids overlap starts its next run all the same.
    OverlapUnchecked = "overlap-unchecked",
    /// Each task starts at the checkpoint of its run's first shard.
    CheckpointOfAnotherShard = "checkpoint-of-another-shard",
    /// The calendar clock of the state is set to the leader's, also backward.
    CalendarSetBack = "calendar-set-back",
    /// A follower stands for election as soon as a connection of its leader breaks.
    ElectionOnABrokenConnection = "election-on-a-broken-connection",
    /// The archive says that it holds what a snapshot covers before it does.
    ArchiveNotDurable = "archive-not-durable",
    /// The holder of a task stays with it when its lease has run out.
    OwnerKeptAtLoss = "owner-kept-at-loss",
    /// A sync that failed is reported as one that was made.
    FailedSyncReported = "failed-sync-reported",
    /// A run that carries a job's checkpoint on begins with that of another shard.
    AnotherShardCarriedOver = "another-shard-carried-over",
    /// A decision leaves the job without a next instant.
    CursorLost = "cursor-lost",
    /// A node answers from an archive that misses facts.
    PartOfTheArchive = "part-of-the-archive",
    /// What is read from a disk or from a peer is not compared with its checksum.
    ChecksumUnchecked = "checksum-unchecked",
    /// A leader answers reads by itself for as long as silence could not have deposed it.
    ReadUnderALease = "read-under-a-lease",
    /// Neither the key of a request nor the key of a run keeps a repeated trigger from making a second run.
    RunKeyUnchecked = "run-key-unchecked",
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Bug {
    /// The bug of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|bug| bug.name() == name)
    }
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    static ODD: Cell<bool> = const { Cell::new(false) };
}

/// Plants a bug on this thread in place of the one before.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
    ODD.set(false);
}

/// Whether this bug is planted on this thread.
#[must_use]
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Another answer each time: what does not follow from the state.
#[must_use]
pub fn odd() -> bool {
    ODD.replace(!ODD.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_stable_words_and_stand_for_one_bug_each() {
        let names: BTreeSet<&str> = Bug::ALL.iter().map(|bug| bug.name()).collect();
        assert_eq!(names.len(), Bug::ALL.len());
        for bug in Bug::ALL {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(bug.name().bytes().all(plain), "{bug}");
            assert_eq!(Bug::named(bug.name()), Some(*bug));
            assert!(bug.mistake().ends_with('.'), "{bug}");
        }
    }

    #[test]
    fn a_bug_is_planted_on_one_thread_until_another_is() {
        plant(Some(Bug::AckBeforeSync));
        assert!(is(Bug::AckBeforeSync) && !is(Bug::VoteNotSynced));
        let elsewhere = std::thread::spawn(|| Bug::ALL.iter().any(|bug| is(*bug)));
        assert!(!elsewhere.join().unwrap());
        plant(None);
        assert!(!is(Bug::AckBeforeSync));
    }
}
