//! What Tenure speaks: wire types, error codes, paths and the job file.
//!
//! The server, the command line and the SDK share this crate, so there is one definition of every
//! field and one table of errors. It is a leaf: nothing here knows the state machine, the log or
//! a socket, nothing does I/O, and nothing reads a clock.
//!
//! - [`job`]: the job file, one schema for YAML and JSON.
//! - [`protocol`]: what an executor and the leader say to each other.
//! - [`jobs`], [`runs`], [`executors`], [`cluster`], [`ledger`]: the administration interface.
//! - [`error`]: the error table and `application/problem+json`.
//! - [`paths`]: every path and header, written once.
//! - [`token`]: the fencing token that downstream systems check.
//!
//! Absent on purpose: conversion to and from the state machine's types (the server does that at
//! its edge), and authentication.

/// Gives a type that is text on the wire its OpenAPI schema.
macro_rules! text_schema {
    ($name:ident, $format:expr, $example:literal) => {
        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .format($format)
                    .examples([$example])
                    .into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {}
    };
}

pub mod bytes;
pub mod cluster;
pub mod error;
pub mod executors;
pub mod ids;
pub mod job;
pub mod jobs;
pub mod ledger;
pub mod paging;
pub mod paths;
pub mod protocol;
pub mod runs;
pub mod time;
pub mod token;

pub use bytes::Bytes;
pub use error::{ErrorCode, Problem};
pub use ids::{Epoch, Generation, InstanceId, JobName, NodeId, Revision, RunId, SessionId, Term};
pub use job::{JobErrors, JobSpec};
pub use paging::Page;
pub use time::{Millis, Timestamp};
pub use token::FencingToken;
