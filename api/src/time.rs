//! Durations and instants on the wire.
//!
//! A duration is text such as `500ms`, `30s`, `1m30s` or `7d`. An instant is RFC 3339 with
//! milliseconds, in UTC. Both are whole milliseconds inside. Nothing here reads a clock.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// What duration text must look like, for error messages.
pub const DURATION_FORM: &str = "a duration such as 500ms, 30s, 1m30s, 2h or 7d";

/// What instant text must look like, for error messages.
pub const INSTANT_FORM: &str = "an RFC 3339 instant such as 2026-12-01T02:00:00Z";

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// A length of time in whole milliseconds. Text form: units from large to small, each at most
/// once (`1d2h3m4s5ms`); zero is `0s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

text_schema!(Millis, None, "1m30s");

impl Millis {
    /// `count` whole seconds.
    pub const fn from_secs(count: u64) -> Self {
        Self(count.saturating_mul(1_000))
    }

    /// Milliseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// As the standard library's duration.
    pub const fn to_duration(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }
}

impl From<Millis> for std::time::Duration {
    fn from(millis: Millis) -> Self {
        millis.to_duration()
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, size) in UNITS {
            if rest >= size {
                write!(f, "{}{unit}", rest / size)?;
                rest %= size;
            }
        }
        Ok(())
    }
}

/// The text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidDuration;

impl fmt::Display for InvalidDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "must be {DURATION_FORM}")
    }
}

impl std::error::Error for InvalidDuration {}

impl FromStr for Millis {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Self, InvalidDuration> {
        let mut rest = text;
        let mut total: u64 = 0;
        let mut units = UNITS.iter();
        if rest.is_empty() {
            return Err(InvalidDuration);
        }
        while !rest.is_empty() {
            let (count, after) = split(rest, |byte| byte.is_ascii_digit());
            let (unit, after) = split(after, |byte| byte.is_ascii_lowercase());
            let count: u64 = count.parse().map_err(|_| InvalidDuration)?;
            // The iterator only moves on, so a unit that repeats or goes up is not found.
            let (_, size) = units
                .find(|(name, _)| *name == unit)
                .ok_or(InvalidDuration)?;
            total = count
                .checked_mul(*size)
                .and_then(|part| total.checked_add(part))
                .ok_or(InvalidDuration)?;
            rest = after;
        }
        Ok(Self(total))
    }
}

/// Splits off the longest prefix of bytes that are all `wanted` (ASCII only).
fn split(text: &str, wanted: impl Fn(&u8) -> bool) -> (&str, &str) {
    let count = text.bytes().take_while(|byte| wanted(byte)).count();
    text.split_at(count)
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An instant on the calendar clock: milliseconds since the Unix epoch. Text form: RFC 3339 in UTC
/// with milliseconds. An offset is accepted when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

text_schema!(
    Timestamp,
    Some(utoipa::openapi::schema::SchemaFormat::KnownFormat(
        utoipa::openapi::schema::KnownFormat::DateTime
    )),
    "2026-12-01T02:00:00.000Z"
);

impl Timestamp {
    /// The first instant with a text form: year 0001.
    pub const MIN: Self = Self(-62_135_596_800_000);

    /// The last instant: two days before the end of year 9999, so that it has a date in every
    /// zone.
    pub const MAX: Self = Self(253_402_128_000_000);

    /// The instant `ms` milliseconds after the Unix epoch, held between [`Self::MIN`] and
    /// [`Self::MAX`].
    pub fn from_ms(ms: i64) -> Self {
        Self(ms.clamp(Self::MIN.0, Self::MAX.0))
    }

    /// The same for the unsigned clock of the state machine.
    pub fn from_unsigned_ms(ms: u64) -> Self {
        Self::from_ms(i64::try_from(ms).unwrap_or(i64::MAX))
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_ms(self) -> i64 {
        self.0
    }

    /// Milliseconds since the Unix epoch; zero for instants before it.
    pub fn as_unsigned_ms(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instant = jiff::Timestamp::from_millisecond(self.0).unwrap_or_default();
        write!(f, "{instant:.3}")
    }
}

/// The text is not an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidInstant {
    /// It has another form.
    Form,
    /// The form is right, but the instant is too early or too late.
    Range,
}

impl fmt::Display for InvalidInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => write!(f, "must be {INSTANT_FORM}"),
            Self::Range => write!(f, "must be from {} to {}", Timestamp::MIN, Timestamp::MAX),
        }
    }
}

impl std::error::Error for InvalidInstant {}

impl FromStr for Timestamp {
    type Err = InvalidInstant;

    fn from_str(text: &str) -> Result<Self, InvalidInstant> {
        // The longest form is 2026-12-01T02:00:00.000000000+00:00 or a little more.
        if text.len() > 64 {
            return Err(InvalidInstant::Form);
        }
        let instant: jiff::Timestamp = text.parse().map_err(|_| refusal(text))?;
        let ms = instant.as_millisecond();
        if !(Self::MIN.0..=Self::MAX.0).contains(&ms) {
            return Err(InvalidInstant::Range);
        }
        Ok(Self(ms))
    }
}

/// The library has no instants in the last days of year 9999. The year before has the same days.
fn refusal(text: &str) -> InvalidInstant {
    let year_before = text.strip_prefix("9999").map(|rest| format!("9998{rest}"));
    match year_before {
        Some(text) if text.parse::<jiff::Timestamp>().is_ok() => InvalidInstant::Range,
        _ => InvalidInstant::Form,
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_read_and_write() {
        for (text, ms, canonical) in [
            ("500ms", 500, "500ms"),
            ("90s", 90_000, "1m30s"),
            ("1m30s", 90_000, "1m30s"),
            ("24h", 86_400_000, "1d"),
            ("7d", 604_800_000, "7d"),
            ("0s", 0, "0s"),
            ("1d2h3m4s5ms", 93_784_005, "1d2h3m4s5ms"),
        ] {
            let millis: Millis = text.parse().unwrap();
            assert_eq!(
                (millis.0, millis.to_string().as_str()),
                (ms, canonical),
                "{text}"
            );
        }
        for bad in [
            "",
            "5",
            "s",
            "-5s",
            "5 s",
            "1s1m",
            "1s1s",
            "1.5s",
            "5S",
            "1w",
            "99999999999999999999d",
            "18446744073709551615d",
            "é",
            "1é",
        ] {
            assert!(bad.parse::<Millis>().is_err(), "{bad}");
        }
    }

    #[test]
    fn instants_read_and_write() {
        for (text, canonical) in [
            ("2026-12-01T02:00:00Z", "2026-12-01T02:00:00.000Z"),
            ("2026-12-01T02:00:00.5+01:00", "2026-12-01T01:00:00.500Z"),
            ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
        ] {
            let instant: Timestamp = text.parse().unwrap();
            assert_eq!(instant.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(instant));
        }
        for bad in [
            "",
            "2026-12-01",
            "2026-12-01T02:00:00",
            "tomorrow",
            "2026-02-30T00:00:00Z",
        ] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
        }
        assert_eq!(Timestamp::MIN.to_string(), "0001-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::MAX.to_string().parse(), Ok(Timestamp::MAX));
    }

    proptest! {
        #[test]
        fn every_duration_round_trips(ms in any::<u64>()) {
            prop_assert_eq!(Millis(ms).to_string().parse(), Ok(Millis(ms)));
        }

        #[test]
        fn every_instant_round_trips(ms in Timestamp::MIN.0..=Timestamp::MAX.0) {
            let instant = Timestamp::from_ms(ms);
            prop_assert_eq!(instant.to_string().parse(), Ok(instant));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = text.parse::<Millis>();
            let _ = text.parse::<Timestamp>();
        }
    }
}
