//! Names and numbers that identify things, each with its own type so that they cannot be mixed up.
//!
//! Numbers travel as JSON numbers. They are log indexes or small counters, far below 2^53, so a
//! JavaScript client reads them exactly.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::str::FromStr;

/// Defines a number that only grows, with its text form.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The plain number.
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<u64> for $name {
            fn from(number: u64) -> Self {
                Self(number)
            }
        }

        impl From<$name> for u64 {
            fn from(id: $name) -> u64 {
                id.0
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

number!(
    /// A run: the log index of the entry that created it.
    RunId
);
number!(
    /// An executor's session: the log index of its registration.
    SessionId
);
number!(
    /// A tenure of one shard of one job. Each grant adds one; it never goes back.
    Epoch
);
number!(
    /// A leader's tenure, made by the Raft election.
    Term
);
number!(
    /// A version of a job's specification. Each change adds one.
    Revision
);
number!(
    /// The cluster's generation. Each restore from a backup adds one.
    Generation
);
number!(
    /// A member of the cluster.
    NodeId
);

/// Why a name was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidName {
    /// What the name must look like.
    pub expected: &'static str,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must be {}", self.expected)
    }
}

impl std::error::Error for InvalidName {}

/// Defines a name that is checked when it is made and when it is read from the wire.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $max:literal, $expected:literal, $first:expr, $rest:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The most bytes a name may have.
            pub const MAX_BYTES: usize = $max;

            /// What a name must look like, for error messages.
            pub const EXPECTED: &'static str = $expected;

            /// Checks `text` and keeps it.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
                let text = text.into();
                let first: fn(u8) -> bool = $first;
                let rest: fn(u8) -> bool = $rest;
                let mut bytes = text.bytes();
                let well_formed = text.len() <= $max
                    && bytes.next().is_some_and(first)
                    && bytes.all(rest);
                if well_formed { Ok(Self(text)) } else { Err(InvalidName { expected: $expected }) }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The name as an owned string.
            pub fn into_string(self) -> String {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }
    };
}

fn lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn job_name_byte(byte: u8) -> bool {
    lower_or_digit(byte) || matches!(byte, b'.' | b'_' | b'-')
}

fn instance_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':')
}

name!(
    /// A job's name: `[a-z0-9][a-z0-9._-]{0,127}`. A `/` is kept for namespaces.
    JobName,
    128,
    "1 to 128 characters of a-z, 0-9, '.', '_' and '-', starting with a letter or digit",
    lower_or_digit,
    job_name_byte
);
name!(
    /// The lasting identity of an executor: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`.
    ///
    /// A process that restarts under the same id replaces its own earlier session, so two
    /// processes must never share one.
    InstanceId,
    128,
    "1 to 128 characters of letters, digits, '.', '_', '-' and ':', starting with a letter or digit",
    |byte| byte.is_ascii_alphanumeric(),
    instance_byte
);
name!(
    /// What an executor can do and a job asks for: `[a-z0-9][a-z0-9._-]{0,63}`.
    Capability,
    64,
    "1 to 64 characters of a-z, 0-9, '.', '_' and '-', starting with a letter or digit",
    lower_or_digit,
    job_name_byte
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_are_checked() {
        for good in ["a", "nightly-report", "0.x_y", &"a".repeat(128)] {
            assert!(JobName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a/b", "ä", "a b", &"a".repeat(129)] {
            assert!(JobName::new(bad).is_err(), "{bad}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<JobName>(&json).is_err(), "{bad}");
        }
    }

    #[test]
    fn instance_ids_may_hold_ports_but_no_slashes() {
        assert!(InstanceId::new("Worker-1.example.org:9000").is_ok());
        assert!(InstanceId::new("a/b").is_err());
        assert!(InstanceId::new(":a").is_err());
    }

    #[test]
    fn numbers_are_plain_json_numbers() {
        assert_eq!(serde_json::to_string(&RunId(7)).unwrap(), "7");
        assert_eq!(serde_json::from_str::<Epoch>("18").unwrap(), Epoch(18));
        assert_eq!("41".parse::<Term>().unwrap(), Term(41));
        assert!(serde_json::from_str::<Epoch>("-1").is_err());
    }
}
