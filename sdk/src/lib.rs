//! Tenure's executor SDK and client.
//!
//! - [`Executor`] runs handlers for a cluster's tasks. It finds the leader, keeps its lease, stops
//!   by its own deadline, and repeats results until the cluster has answered.
//! - [`Client`] is the administration interface: jobs, runs, executors, the cluster.
//!
//! ```no_run
//! use tenure_sdk::{Executor, TaskContext, TaskError};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let executor = Executor::builder()
//!     .node("http://127.0.0.1:7001")
//!     .node("http://127.0.0.1:7002")
//!     .node("http://127.0.0.1:7003")
//!     .token(std::env::var("TENURE_TOKEN")?)
//!     .version("1.4.0")
//!     .capacity(8)
//!     .handler("greet", |task: TaskContext| async move {
//!         let who: String = task.params_at("who")?;
//!         task.log(format!("hello {who}"));
//!         Ok::<(), TaskError>(())
//!     })
//!     .build()?;
//! executor.run_until_signal().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What the SDK promises
//!
//! - A handler runs only after the cluster has acknowledged its start.
//! - A handler does not run past the lease that allows it, by this process's monotonic clock. This
//!   holds for a process that was paused, too: the deadline is looked at before each poll of the
//!   handler and in each call of its [`TaskContext`].
//! - Answers that carry a lower term than one seen before are dropped and counted.
//! - A request whose outcome is unknown is repeated only when a repetition cannot do harm.
//!
//! # What it cannot promise
//!
//! A handler that blocks its thread cannot be stopped, and what a handler hands to threads or
//! spawned tasks is not stopped with it. Writes that must not happen twice need the fencing token
//! checked by the sink ([`FencingToken`]), or a sink that is idempotent.
//!
//! # Where time and chance come from
//!
//! Clocks, sleeps, random numbers, spawned tasks and the network all come through [`Environment`]
//! and [`Transport`], so that a simulation can supply its own. Nothing else in this crate reads a
//! clock or draws a number.

mod caller;
mod client;
mod environment;
mod error;
mod executor;
mod http;
mod metrics;
mod retry;
mod transport;
mod watched;

pub use client::{Client, ClientBuilder, JobBody, Pages, Precondition};
pub use environment::{Clock, Entropy, Environment, OsEntropy, Running, Spawn, SystemClock};
pub use environment::{TokioClock, TokioSpawn};
pub use error::{BuildError, Error};
pub use executor::{
    CancelReason, ContextError, Executor, ExecutorBuilder, ExecutorHandle, ReturnValue, Stopped,
    TaskContext, TaskError,
};
pub use http::HttpTransport;
pub use metrics::MetricsSnapshot;
pub use retry::RetryPolicy;
pub use transport::{BoxFuture, Lane, Method, Request, Response, Transport, TransportError};

pub use tenure_api as api;
pub use tenure_api::FencingToken;
