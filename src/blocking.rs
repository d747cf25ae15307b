//! Where work that blocks is done: files of the archive, long computations.

/// The place for work that must not hold up the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocking {
    /// On threads of the runtime that may block.
    #[default]
    Threads,
    /// Where it is asked for. For simulations: nothing blocks in them, and threads would make their order
    /// depend on the machine.
    InPlace,
}

/// The work ended without a result: it panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WorkFailed(String);

impl Blocking {
    /// Does `work` and waits for it.
    ///
    /// # Errors
    /// It panicked.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkFailed> {
        match self {
            Self::InPlace => Ok(work()),
            Self::Threads => tokio::task::spawn_blocking(work)
                .await
                .map_err(|error| WorkFailed(error.to_string())),
        }
    }
}
