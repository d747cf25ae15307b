//! Property tests of `apply` and `plan`: any sequence of commands, well-formed and not, with stale numbers,
//! wild clocks and huge values, keeps what the crate promises. The promises stand in `model/promises.rs`.

// A test stops where something is not as it must be.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod model;

use model::{Op, World};
use proptest::prelude::*;
use tenure_machine::RunState;

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<(u8, u8, u8, u8)>().prop_map(Op::from), 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Replicas agree, a snapshot at any cut plus the tail is the whole log, and every promise holds after
    /// every command.
    #[test]
    fn any_sequence_keeps_the_promises(ops in ops(250), cut in 0usize..250, wild in any::<bool>()) {
        let mut world = World::new(wild);
        for (position, op) in ops.iter().enumerate() {
            if position == cut {
                world.cut();
            }
            world.step(*op);
        }
        world.finish();
    }

    /// However things stand, once executors behave every run ends.
    #[test]
    fn every_run_ends_when_executors_behave(ops in ops(150)) {
        let mut world = World::new(false);
        for op in &ops {
            world.step(*op);
        }
        world.behave();
        let open: Vec<_> = world
            .state
            .runs_before(None)
            .filter(|run| !run.state.is_final())
            .map(|run| (run.id, run.state))
            .collect();
        prop_assert!(open.is_empty(), "not over: {open:?}");
        prop_assert!(world.state.runs_before(None).all(|run| run.state != RunState::Waiting));
        prop_assert_eq!(world.state.queued_count(), 0);
        world.finish();
    }
}
