//! Where futures that block are polled.
//!
//! Files are read and written inside futures that finish on their first poll. They must not do so
//! on a thread of an async runtime, so they are handed to a task that the embedder started: a
//! thread of its own in production, a plain task in a simulation.
//!
//! Invariants: a runner works on one job at a time, in order, and holds a bounded number of them. A sync that
//! failed is reported, even if nobody waits for the job any more.

use std::future::Future;
use std::io;
use std::sync::Arc;

use tenure_storage::snapshot::SnapshotError;
use tenure_storage::wal::{Spawn, Task};
use tokio::sync::{mpsc, oneshot};

const WAITING_JOBS: usize = 64;

/// Told of a sync that failed: the node must end.
pub(crate) type OnFailedSync = Arc<dyn Fn(String) + Send + Sync>;

/// A handle of the task; it ends when the last handle is gone.
#[derive(Clone)]
pub(crate) struct Runner {
    jobs: mpsc::Sender<Task>,
    on_failed_sync: OnFailedSync,
}

impl Runner {
    /// Starts the task.
    pub(crate) fn start(
        name: &'static str,
        spawn: &Spawn,
        on_failed_sync: OnFailedSync,
    ) -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Task>(WAITING_JOBS);
        let work = async move {
            while let Some(job) = queue.recv().await {
                job.await;
            }
        };
        spawn(name, Box::pin(work))?;
        Ok(Self {
            jobs,
            on_failed_sync,
        })
    }

    /// Runs `job` there and waits for its result. Once queued it runs to its end, even if the
    /// caller stops waiting.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (done, result) = oneshot::channel();
        let on_failed_sync = self.on_failed_sync.clone();
        let task: Task = Box::pin(async move {
            let result = job.await;
            if let Err(error) = &result
                && is_failed_sync(error)
            {
                on_failed_sync(error.to_string());
            }
            // A caller that stopped waiting needs no result.
            let _ = done.send(result);
        });
        let gone = || io::Error::other("the task for file work has ended");
        self.jobs.send(task).await.map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }
}

fn is_failed_sync(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|e| e.downcast_ref());
    error.is_some_and(SnapshotError::is_failed_sync)
}
