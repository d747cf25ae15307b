//! Patterns of allow-lists: `*` stands for any run of characters but `/`, `?` for one of them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest pattern, in bytes. Matching takes pattern × text steps.
const MAX_BYTES: usize = 1_024;

/// One entry of an allow-list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Checks and keeps a pattern.
    ///
    /// # Errors
    /// It is empty or too long.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidPattern> {
        let text = text.into();
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(InvalidPattern);
        }
        Ok(Self(text))
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut at, mut in_text) = (0, 0);
        // Where to go on after the last star, one more character given to it.
        let mut star: Option<(usize, usize)> = None;
        while in_text < text.len() {
            let found = text.get(in_text).copied().unwrap_or_default();
            match pattern.get(at).copied() {
                Some(b'*') => {
                    star = Some((at, in_text));
                    at += 1;
                    continue;
                }
                Some(b'?') if found != b'/' => {}
                Some(wanted) if wanted == found => {}
                _ => match star {
                    Some((back_to, taken)) if text.get(taken) != Some(&b'/') => {
                        star = Some((back_to, taken + 1));
                        at = back_to + 1;
                        in_text = taken + 1;
                        continue;
                    }
                    _ => return false,
                },
            }
            at += 1;
            in_text += 1;
        }
        pattern.iter().skip(at).all(|rest| *rest == b'*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pattern has 1 to {MAX_BYTES} bytes")]
pub struct InvalidPattern;

impl std::str::FromStr for Pattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stop_at_slashes() {
        for (pattern, text, expected) in [
            ("/usr/bin/rsync", "/usr/bin/rsync", true),
            ("/usr/bin/rsync", "/usr/bin/rsync2", false),
            ("/opt/jobs/*", "/opt/jobs/nightly", true),
            ("/opt/jobs/*", "/opt/jobs/a/b", false),
            ("/opt/jobs/*", "/opt/jobs/", true),
            ("/opt/*/run-*.sh", "/opt/a/run-b.sh", true),
            ("/opt/*/run-*.sh", "/opt/a/b/run-b.sh", false),
            ("/opt/v?/x", "/opt/v1/x", true),
            ("/opt/v?/x", "/opt/v//x", false),
            ("*", "rm", true),
            ("*", "/bin/rm", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbX", false),
            ("**", "", true),
        ] {
            let matched = Pattern::new(pattern).unwrap().matches(text);
            assert_eq!(matched, expected, "{pattern} {text}");
        }
        assert_eq!(Pattern::new(""), Err(InvalidPattern));
    }
}
