//! Where random bytes come from.

/// Random bytes for secrets, tokens and identities. A trait, so that a simulation can repeat itself.
pub trait Entropy: Send + Sync + 'static {
    /// Fills the whole buffer, or fails and leaves it unusable.
    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError>;
}

/// There are no random bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no random bytes: {0}")]
pub struct EntropyError(pub String);

/// The operating system's own source.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), EntropyError> {
        getrandom::fill(buffer).map_err(|error| EntropyError(error.to_string()))
    }
}
