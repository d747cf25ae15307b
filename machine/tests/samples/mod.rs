//! One value of every variant that is kept or sent, under a name, in the order of the ordinals.

mod values;

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_machine::codec::{ENVELOPE_BYTES, Kind, decode, encode};

/// The values of one enum.
pub(crate) struct Family<T> {
    name: &'static str,
    kind: Kind,
    values: Vec<(&'static str, T)>,
}

/// What the tests do with the values of any enum.
pub(crate) trait Golden {
    /// The name and the bytes of each value.
    fn lines(&self) -> Vec<(String, Vec<u8>)>;
    /// Reads each value from its golden line and compares. Gives the number of lines.
    fn read(&self, golden: &BTreeMap<&str, Vec<u8>>) -> usize;
    /// Compares the ordinal of each variant with its place.
    fn check_ordinals(&self);
}

impl<T: Serialize + DeserializeOwned + PartialEq + Debug> Golden for Family<T> {
    fn lines(&self) -> Vec<(String, Vec<u8>)> {
        self.values
            .iter()
            .map(|(name, value)| {
                let bytes = encode(self.kind, value).expect("it can be written");
                (format!("{}.{name}", self.name), bytes)
            })
            .collect()
    }

    fn read(&self, golden: &BTreeMap<&str, Vec<u8>>) -> usize {
        for (name, value) in &self.values {
            let line = format!("{}.{name}", self.name);
            let bytes = golden
                .get(line.as_str())
                .unwrap_or_else(|| panic!("no golden line {line}"));
            let read: T = decode(self.kind, bytes).expect("golden bytes can be read");
            assert_eq!(read, *value, "{line}");
        }
        self.values.len()
    }

    fn check_ordinals(&self) {
        for (ordinal, (name, value)) in self.values.iter().enumerate() {
            let bytes = encode(self.kind, value).expect("it can be written");
            let found = usize::from(bytes[ENVELOPE_BYTES]);
            assert_eq!(found, ordinal, "{}.{name} has moved", self.name);
        }
    }
}

/// Each variant once, in the order of its ordinal. The compiler refuses a list that lacks a variant.
macro_rules! family {
    ($name:literal, $kind:ident, $type:ty, [$($label:literal: $pattern:pat => $value:expr),* $(,)?]) => {{
        fn complete(value: &$type) {
            match value { $($pattern => {})* }
        }
        let values: Vec<(&'static str, $type)> = vec![$(($label, $value)),*];
        values.iter().for_each(|(_, value)| complete(value));
        Box::new($crate::samples::Family { name: $name, kind: Kind::$kind, values })
    }};
}
pub(crate) use family;

pub(crate) fn lines() -> Vec<(String, Vec<u8>)> {
    let families = values::families();
    families.iter().flat_map(|family| family.lines()).collect()
}

pub(crate) fn read_all(golden: &BTreeMap<&str, Vec<u8>>) {
    let families = values::families();
    let read: usize = families.iter().map(|family| family.read(golden)).sum();
    assert_eq!(read, golden.len(), "a golden line has no value");
}

pub(crate) fn check_ordinals() {
    for family in values::families() {
        family.check_ordinals();
    }
}
