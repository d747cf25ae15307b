//! Any sequence of operations and restarts gives what a plain map gives.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test or bench may end this way"
)]

mod support;

use proptest::prelude::*;
use support::model::{Dice, Model, drive, next_op};
use support::*;
use tenure_storage::disk::SimDisk;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_log_is_a_map(seeds in prop::collection::vec((any::<u64>(), 1_usize..80, 0_u8..3), 1..6)) {
        on_runtime(async {
            let mut disk = SimDisk::new(1);
            let mut model = Model::default();
            for (seed, count, end) in &seeds {
                let life = Life::start(&disk, small()).await.unwrap();
                assert_eq!(model, Model::of(&life.wal).await.unwrap());
                let outcome = drive(&life, model, *seed, *count).await;
                assert!(!outcome.failed);
                model = outcome.states.last().unwrap().clone();
                assert_eq!(model, Model::of(&life.wal).await.unwrap());
                read_pieces(&life, &model, *seed).await;
                if *end == 0 {
                    // Only the committed position may lag without a clean end.
                    life.wal.save_vote(vec![1; 9].into()).await.unwrap();
                    model.vote = Some(vec![1; 9].into());
                    life.abort();
                    disk = disk.crash(*seed);
                } else {
                    life.wal.close().await.unwrap();
                    disk = if *end == 1 { disk.kill(*seed) } else { disk.crash(*seed) };
                }
            }
        });
    }
}

async fn read_pieces(life: &Life, model: &Model, seed: u64) {
    let mut dice = Dice(seed);
    for _ in 0..5 {
        let from = dice.roll(model.next_index() + 3);
        let to = from + dice.roll(20);
        let got = life.wal.read(from..to, u64::MAX).await.unwrap();
        let expected: Vec<_> = model
            .entries
            .range(from..to)
            .map(|(_, e)| e.clone())
            .collect();
        assert_eq!(expected, got);
        let _ = next_op(&mut dice, model, &mut 1);
    }
}
