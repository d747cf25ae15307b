//! What the archive needs from whatever stores its bytes.

use super::ArchiveError;

/// Looks at one pair, key and raw value; false ends the walk.
pub(super) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, ArchiveError> + 'a;

/// Writes of one batch: value to set, or `None` to remove.
pub(super) type Batch = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// An ordered map of bytes.
pub trait Engine: Send + Sync + 'static {
    /// The value of a key.
    #[doc(hidden)]
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError>;

    /// Pairs with `from <= key < until`, in order or backward. The caller stops when it has
    /// enough.
    #[doc(hidden)]
    fn range(
        &self,
        from: &[u8],
        until: &[u8],
        backward: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), ArchiveError>;

    /// Writes all or nothing, after a crash too.
    #[doc(hidden)]
    fn write(&self, batch: Vec<(Vec<u8>, Option<Vec<u8>>)>) -> Result<(), ArchiveError>;

    /// Removes everything but one key.
    #[doc(hidden)]
    fn clear_but(&self, keep: &[u8]) -> Result<(), ArchiveError>;

    /// Makes all writes durable, and notes durably that `index` was reached.
    #[doc(hidden)]
    fn barrier(&self, index: Option<u64>) -> Result<(), ArchiveError>;
}
