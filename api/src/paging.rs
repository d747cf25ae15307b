//! Lists come in pages. A cursor is opaque: a client sends back what it got and reads nothing
//! into it.

use serde::{Deserialize, Serialize};

/// How many items a page has when the client does not say.
pub const DEFAULT_PAGE_ITEMS: u32 = 100;

/// The most items of one page.
pub const MAX_PAGE_ITEMS: u32 = 1_000;

/// The longest cursor a server makes or accepts, in bytes.
pub const MAX_CURSOR_BYTES: usize = 1_024;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items, in the list's own order.
    pub items: Vec<T>,
    /// Where the next page starts. Absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A list that fits in one page.
    pub fn last(items: Vec<T>) -> Self {
        Self {
            items,
            next_cursor: None,
        }
    }
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            next_cursor: None,
        }
    }
}
