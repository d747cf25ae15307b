//! The fencing token: the number a resource checks to refuse an owner from the past.
//!
//! Each grant of a shard raises its epoch, and each restore from a backup raises the cluster's
//! generation. The pair (generation, epoch) therefore only grows within one *fencing scope*
//! (`job/shard`, or `job/shard@run` for jobs whose runs may overlap). A resource that remembers
//! the highest pair it has seen for a scope, and refuses a lower one, cannot be changed by an
//! owner that has lost its lease, however late its writes arrive.
//!
//! # In SQL
//!
//! Keep the pair in the row, and let the write itself compare. One statement, so there is no gap
//! between check and write:
//!
//! ```sql
//! CREATE TABLE report (
//!     scope      text PRIMARY KEY,
//!     generation bigint NOT NULL,
//!     epoch      bigint NOT NULL,
//!     body       text NOT NULL
//! );
//!
//! INSERT INTO report (scope, generation, epoch, body) VALUES ($1, $2, $3, $4)
//! ON CONFLICT (scope) DO UPDATE
//!    SET generation = excluded.generation, epoch = excluded.epoch, body = excluded.body
//!  WHERE (report.generation, report.epoch) <= (excluded.generation, excluded.epoch);
//! -- No row changed: a newer owner has been here. Stop.
//! ```
//!
//! Where only one column is to hand, the text form sorts the same way as the pair, byte by byte:
//! compare it in the `C` collation (`token <= $1 COLLATE "C"`).

use crate::ids::{Epoch, Generation};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

const GENERATION_DIGITS: usize = 10;
const EPOCH_DIGITS: usize = 20;

/// The largest generation that the text form can hold.
pub const MAX_GENERATION: u64 = 9_999_999_999;

/// Generation and epoch, ordered as a pair. Text form: `{generation:010}.{epoch:020}`, which sorts
/// as text exactly as the pair sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    generation: u64,
    epoch: u64,
}

text_schema!(FencingToken, None, "0000000001.00000000000000000019");

impl FencingToken {
    /// Makes a token. A generation above [`MAX_GENERATION`] is held at it; no cluster is restored
    /// ten thousand million times.
    pub fn new(generation: Generation, epoch: Epoch) -> Self {
        Self {
            generation: generation.0.min(MAX_GENERATION),
            epoch: epoch.0,
        }
    }

    /// The cluster generation, the more significant half.
    pub fn generation(self) -> Generation {
        Generation(self.generation)
    }

    /// The shard's epoch, the less significant half.
    pub fn epoch(self) -> Epoch {
        Epoch(self.epoch)
    }

    /// Both numbers, for two integer columns: (generation, epoch).
    pub fn pair(self) -> (u64, u64) {
        (self.generation, self.epoch)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:0GENERATION_DIGITS$}.{:0EPOCH_DIGITS$}",
            self.generation, self.epoch
        )
    }
}

/// The text is not a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidToken;

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fencing token is 10 digits, a dot and 20 digits")
    }
}

impl std::error::Error for InvalidToken {}

impl FromStr for FencingToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let (generation, epoch) = text.split_once('.').ok_or(InvalidToken)?;
        let digits = |part: &str, count: usize| {
            part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(generation, GENERATION_DIGITS) || !digits(epoch, EPOCH_DIGITS) {
            return Err(InvalidToken);
        }
        Ok(Self {
            generation: generation.parse().map_err(|_| InvalidToken)?,
            epoch: epoch.parse().map_err(|_| InvalidToken)?,
        })
    }
}

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sorts_like_the_pair() {
        let numbers = [0, 1, 9, 10, 99, 1 << 20, u64::MAX - 1, u64::MAX];
        let mut tokens = Vec::new();
        for generation in [0, 1, 9, 10, MAX_GENERATION] {
            for epoch in numbers {
                tokens.push(FencingToken::new(Generation(generation), Epoch(epoch)));
            }
        }
        for left in &tokens {
            for right in &tokens {
                assert_eq!(left.cmp(right), left.to_string().cmp(&right.to_string()));
                assert_eq!(left.cmp(right), left.pair().cmp(&right.pair()));
            }
        }
    }

    #[test]
    fn text_round_trips_and_rejects_other_forms() {
        let token = FencingToken::new(Generation(1), Epoch(19));
        assert_eq!(token.to_string(), "0000000001.00000000000000000019");
        assert_eq!(token.to_string().parse(), Ok(token));
        for bad in [
            "",
            "1.19",
            "0000000001.0000000000000000001x",
            "0000000001-00000000000000000019",
            "0000000001.99999999999999999999",
            "+000000001.00000000000000000019",
        ] {
            assert_eq!(bad.parse::<FencingToken>(), Err(InvalidToken), "{bad}");
        }
    }
}
