//! Opaque bytes on the wire: standard base64 with padding.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bytes that Tenure stores and returns without looking into them. JSON form: base64 (standard
/// alphabet, padded).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

text_schema!(
    Bytes,
    Some(utoipa::openapi::schema::SchemaFormat::KnownFormat(
        utoipa::openapi::schema::KnownFormat::Byte
    )),
    "AP8Q"
);

impl Bytes {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The base64 text.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(&self.0)
    }

    /// Reads base64 text. `None` when it is not standard, padded base64.
    pub fn from_base64(text: &str) -> Option<Self> {
        STANDARD.decode(text).ok().map(Self)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.0.len())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.to_base64())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::from_base64(&text)
            .ok_or_else(|| serde::de::Error::custom("must be standard base64 with padding"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_travel_as_base64() {
        let bytes = Bytes(vec![0, 255, 16]);
        assert_eq!(serde_json::to_string(&bytes).unwrap(), "\"AP8Q\"");
        assert_eq!(serde_json::from_str::<Bytes>("\"AP8Q\"").unwrap(), bytes);
        assert!(serde_json::from_str::<Bytes>("\"AP8\"").is_err());
        assert!(serde_json::from_str::<Bytes>("\"A P8Q\"").is_err());
    }
}
