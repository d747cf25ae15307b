//! The HTTP interface: administration, the executor protocol, health, metrics and the OpenAPI document.
//!
//! Wire types become the machine's here and nowhere else (`convert`, `view`). A handler reads the state or
//! proposes a command; it decides nothing that `apply` could decide.
//!
//! - `routes`: the one table. What is not in it does not exist, and what is in it needs a role.
//! - `serve`: the one way in, from the bytes of a request to the bytes of its answer.
//! - `forward`: a request that reaches a node which does not lead goes to the one that does, once.
//! - `admin`, `executor`, `poll`: the handlers.
//! - `history`: what is asked of the archive.
//!
//! Absent: TLS, sockets and connection limits (whoever listens has them), pages for people, and any memory
//! between requests but for counters.

mod admin;
mod answer;
mod call;
mod convert;
mod executor;
mod failure;
mod forward;
mod gateway;
pub mod history;
mod metrics;
mod next;
mod openapi;
mod poll;
mod routes;
mod serve;
mod view;

pub use forward::serve_forwarded;
pub(crate) use gateway::WeakGateway;
pub use gateway::{Gateway, Limits, Parts};
pub use metrics::Meters;
pub use next::of_file as next_of_file;
pub use serve::{APPLIED_HEADER, REQUEST_ID_HEADER, STATE_AGE_HEADER, router};
pub use view::TaskTally;

#[cfg(test)]
mod tests;
