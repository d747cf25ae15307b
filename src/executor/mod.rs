//! The built-in executor: the capabilities `shell` and `http` on the SDK.
//!
//! - [`shell`] runs programs and scripts, [`http`] sends requests. Both know their task through
//!   [`port`] and nothing else.
//! - [`channel`] is the socket through which a shell task commits checkpoints.
//! - [`config`] and [`state`] are what an operator sets and what the process keeps.
//!
//! Invariants:
//! - Shell is off unless the operator switched it on.
//! - No task outlives its tenure on this machine, as far as that can be seen to (see
//!   [`shell::group`]).
//! - A task never gets the executor's token from it. A task that runs as the executor's own user can
//!   read what that user can, so give tasks a user of their own (`shell.run_as`) where that matters.
//!
//! Absent: sandboxing. Limits on memory and processors belong to the service that starts the
//! executor.

pub mod channel;
pub mod config;
pub mod fields;
pub mod http;
pub mod pattern;
pub mod port;
pub mod session;
pub mod shell;
pub mod state;

use std::fmt;

use tenure_sdk::{BuildError, Executor, ExecutorBuilder, ExecutorHandle, Stopped, TaskContext};

use self::config::{ConfigError, ExecutorConfig};
use self::http::Http;
use self::port::TaskPort;
use self::session::{SessionPort, handler_result};
use self::shell::Shell;
use self::state::ExecutorState;

/// Why an executor did not start, or gave up.
#[derive(Debug)]
pub enum ExecutorError {
    /// The configuration or the disk.
    Config(ConfigError),
    /// A setting that the SDK refused.
    Build(BuildError),
    /// The cluster refused it.
    Cluster(Box<tenure_sdk::Error>),
}

impl fmt::Display for ExecutorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(fault) => fault.fmt(f),
            Self::Build(fault) => fault.fmt(f),
            Self::Cluster(fault) => fault.fmt(f),
        }
    }
}

impl std::error::Error for ExecutorError {}

impl From<ConfigError> for ExecutorError {
    fn from(fault: ConfigError) -> Self {
        Self::Config(fault)
    }
}

impl From<BuildError> for ExecutorError {
    fn from(fault: BuildError) -> Self {
        Self::Build(fault)
    }
}

impl From<tenure_sdk::Error> for ExecutorError {
    fn from(fault: tenure_sdk::Error) -> Self {
        Self::Cluster(Box::new(fault))
    }
}

/// An executor that was set up and does not run yet.
#[derive(Debug)]
pub struct BuiltinExecutor {
    executor: Executor,
    // Held while tasks run; its end removes their folders.
    state: ExecutorState,
}

impl BuiltinExecutor {
    /// Checks the configuration, takes the state folder and makes the capabilities. Blocks for a
    /// moment. `adjust` may change the SDK's settings, for example the transport.
    ///
    /// # Errors
    /// The configuration cannot be used.
    pub fn new(
        config: ExecutorConfig,
        token: String,
        adjust: impl FnOnce(ExecutorBuilder) -> ExecutorBuilder,
    ) -> Result<Self, ExecutorError> {
        config.check()?;
        let state = ExecutorState::open(&config.state_dir, &config.work_dir)?;
        let mut builder = Executor::builder()
            .token(token)
            .version(config.version.clone())
            .capacity(config.capacity)
            .cancel_grace(config.cancel_grace())
            .drain_timeout(config.drain_timeout.to_duration())
            .nodes(config.nodes.clone());
        for (name, value) in &config.labels {
            builder = builder.label(name, value);
        }
        if let Some(ttl) = config.lease_ttl {
            builder = builder.lease_ttl(ttl.to_duration());
        }
        builder = match &config.instance_id {
            Some(id) => builder.instance_id(id.as_str()),
            None => builder.instance_id_file(state.instance_file()),
        };
        builder = capabilities(builder, config, &state);
        let executor = adjust(builder).build()?;
        Ok(Self { executor, state })
    }

    /// A handle to drain or stop it with.
    pub fn handle(&self) -> ExecutorHandle {
        self.executor.handle()
    }

    /// Runs until it is drained or stopped through its handle.
    ///
    /// # Errors
    /// The cluster refuses it.
    pub async fn run(self) -> Result<Stopped, ExecutorError> {
        let ended = self.executor.run().await;
        drop(self.state);
        Ok(ended?)
    }

    /// Runs until SIGTERM or SIGINT, then drains. A second signal stops at once.
    ///
    /// # Errors
    /// The cluster refuses it.
    pub async fn run_until_signal(self) -> Result<Stopped, ExecutorError> {
        let ended = self.executor.run_until_signal().await;
        drop(self.state);
        Ok(ended?)
    }
}

fn capabilities(
    mut builder: ExecutorBuilder,
    config: ExecutorConfig,
    state: &ExecutorState,
) -> ExecutorBuilder {
    if config.shell.enabled {
        let work = state.work_folder().to_owned();
        let shell = Shell::new(config.shell, work, config.stop_grace.to_duration());
        builder = builder.handler(shell::CAPABILITY, move |context: TaskContext| {
            let shell = shell.clone();
            let port: std::sync::Arc<dyn TaskPort> = SessionPort::new(context);
            async move { handler_result(shell.run(port).await) }
        });
    }
    if config.http.enabled {
        let http = Http::new(config.http);
        builder = builder.handler(http::CAPABILITY, move |context: TaskContext| {
            let http = http.clone();
            let port: std::sync::Arc<dyn TaskPort> = SessionPort::new(context);
            async move { handler_result(http.run(port).await) }
        });
    }
    builder
}

#[cfg(test)]
mod tests;
