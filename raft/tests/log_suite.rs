//! openraft's own suite for storages, on a real and on a simulated disk.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use tempfile::TempDir;
use tenure_machine::{LogPosition, State};
use tenure_raft::log_store::LogStore;
use tenure_raft::snapshots::Snapshots;
use tenure_raft::state_machine::{Applied, ApplyObserver, PurgeBarrier, StateMachine};
use tenure_raft::types::{TokioRuntime, Types};
use tenure_storage::disk::{Disk, RealDisk, SimDisk};
use tenure_storage::wal::{Spawn, Wal, WalHooks, WalOptions, spawn_threads};

type Config = Types<TokioRuntime>;

struct Silent;

impl ApplyObserver for Silent {
    fn applied(&self, _run: Vec<Applied>) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    fn replaced(&self, _at: LogPosition, _state: State) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

impl PurgeBarrier for Silent {
    fn make_durable(&self, _upto: LogPosition) -> BoxFuture<'_, std::io::Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

fn options() -> WalOptions {
    WalOptions {
        segment_bytes: 1 << 20,
        batch_target_bytes: 64 << 10,
        max_record_bytes: 256 << 10,
        ..WalOptions::default()
    }
}

async fn open<D: Disk>(
    disk: D,
    dir: PathBuf,
    spawn: Spawn,
) -> (LogStore<TokioRuntime>, StateMachine<TokioRuntime>) {
    let hooks = WalHooks {
        spawn: spawn.clone(),
        on_fatal: Box::new(|error| panic!("the log failed: {error}")),
    };
    let (wal, _) = Wal::open(disk.clone(), &dir.join("log"), options(), hooks)
        .await
        .expect("log");
    let snapshots = Snapshots::open(disk, dir.join("snapshots"), &spawn, Arc::new(drop))
        .await
        .expect("snapshots");
    let machine = StateMachine::open(snapshots, Arc::new(Silent), Arc::new(Silent), 1 << 20)
        .await
        .expect("state");
    (LogStore::new(wal, 64 << 10, 1 << 20), machine)
}

struct Real;

impl StoreBuilder<Config, LogStore<TokioRuntime>, StateMachine<TokioRuntime>, TempDir> for Real {
    async fn build(
        &self,
    ) -> Result<(TempDir, LogStore<TokioRuntime>, StateMachine<TokioRuntime>), StorageError<Config>>
    {
        let dir = TempDir::new().expect("a folder");
        let (log, machine) = open(RealDisk, dir.path().to_owned(), spawn_threads()).await;
        Ok((dir, log, machine))
    }
}

struct Simulated;

impl StoreBuilder<Config, LogStore<TokioRuntime>, StateMachine<TokioRuntime>> for Simulated {
    async fn build(
        &self,
    ) -> Result<((), LogStore<TokioRuntime>, StateMachine<TokioRuntime>), StorageError<Config>>
    {
        let spawn: Spawn = Arc::new(|_, task| {
            tokio::spawn(task);
            Ok(())
        });
        let (log, machine) = open(SimDisk::new(1), PathBuf::from("/node"), spawn).await;
        Ok(((), log, machine))
    }
}

#[tokio::test]
async fn the_storage_keeps_openrafts_contract_on_a_real_disk() {
    Suite::test_all(Real).await.expect("every case");
}

#[tokio::test]
async fn the_storage_keeps_openrafts_contract_on_a_simulated_disk() {
    Suite::test_all(Simulated).await.expect("every case");
}
