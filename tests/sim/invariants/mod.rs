//! What must always hold, one file each.

mod acknowledged_survives;
mod archives_hold_what_is_over;
mod audit_has_every_mutation;
mod checkpoints_never_go_back;
mod clocks_never_go_back;
mod damage_is_never_served;
mod done_means_done;
mod early_elections_are_due;
mod epochs_grow;
mod failed_sync_ends_the_node;
mod indexes_are_exact;
mod leader_completeness;
mod leaderless_time_expires_nobody;
mod lease_clock_waits;
mod lease_outlasts_its_holder;
mod ledger_is_whole;
mod log_matching;
mod no_means_no;
mod one_decision_an_instant;
mod one_leader_a_term;
mod one_owner_a_scope;
mod one_run_a_key;
mod real_time_order;
mod repeats_are_one;
mod runs_are_found;
mod same_entry_everywhere;
mod same_state_everywhere;
mod sink_is_fenced;
mod stale_has_no_effect;
mod stored_stays;
mod votes_are_kept;

pub use same_state_everywhere::state_hash;

use crate::chance;
use crate::judge::{Findings, Seen};

/// Something that must always hold.
pub trait Invariant: Send {
    /// It, in a sentence.
    fn sentence(&self) -> &'static str;
    /// Why it must.
    fn reason(&self) -> &'static str;
    /// Looks at something that was seen.
    fn see(&mut self, seen: &Seen<'_>, findings: &mut Findings);
    /// How often what it is about has happened.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// All of them, at the start of a run.
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<one_leader_a_term::OneLeaderATerm>::default(),
        Box::<votes_are_kept::VotesAreKept>::default(),
        Box::<early_elections_are_due::EarlyElectionsAreDue>::default(),
        Box::<log_matching::LogMatching>::default(),
        Box::<leader_completeness::LeaderCompleteness>::default(),
        Box::<stored_stays::StoredStays>::default(),
        Box::<same_entry_everywhere::SameEntryEverywhere>::default(),
        Box::<same_state_everywhere::SameStateEverywhere>::default(),
        Box::<indexes_are_exact::IndexesAreExact>::default(),
        Box::<clocks_never_go_back::ClocksNeverGoBack>::default(),
        Box::<lease_clock_waits::LeaseClockWaits>::default(),
        Box::<acknowledged_survives::AcknowledgedSurvives>::default(),
        Box::<real_time_order::RealTimeOrder>::default(),
        Box::<runs_are_found::RunsAreFound>::default(),
        Box::<ledger_is_whole::LedgerIsWhole>::default(),
        Box::<leaderless_time_expires_nobody::LeaderlessTimeExpiresNobody>::default(),
        Box::<no_means_no::NoMeansNo>::default(),
        Box::<repeats_are_one::RepeatsAreOne>::default(),
        Box::<one_decision_an_instant::OneDecisionAnInstant>::default(),
        Box::<one_run_a_key::OneRunAKey>::default(),
        Box::<epochs_grow::EpochsGrow>::default(),
        Box::<one_owner_a_scope::OneOwnerAScope>::default(),
        Box::<stale_has_no_effect::StaleHasNoEffect>::default(),
        Box::<lease_outlasts_its_holder::LeaseOutlastsItsHolder>::default(),
        Box::<checkpoints_never_go_back::CheckpointsNeverGoBack>::default(),
        Box::<sink_is_fenced::SinkIsFenced>::default(),
        Box::<done_means_done::DoneMeansDone>::default(),
        Box::<audit_has_every_mutation::AuditHasEveryMutation>::default(),
        Box::<archives_hold_what_is_over::ArchivesHoldWhatIsOver>::default(),
        Box::<failed_sync_ends_the_node::FailedSyncEndsTheNode>::default(),
        Box::<damage_is_never_served::DamageIsNeverServed>::default(),
    ]
}

/// A number that differs where the bytes do.
fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        chance::mixed(hash ^ u64::from_le_bytes(word))
    })
}
