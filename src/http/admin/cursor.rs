//! Pages: how long one is, how much work one costs, and where the next one starts.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tenure_api::paging::{DEFAULT_PAGE_ITEMS, MAX_CURSOR_BYTES, MAX_PAGE_ITEMS};

use crate::http::failure::Failure;

/// How many entries one page looks at. A filter that fits few of them makes a short page with a cursor, not
/// a long search.
pub(crate) const MAX_EXAMINED: usize = 10_000;

/// How many items the page has.
pub(crate) fn page_items(limit: Option<u32>) -> Result<usize, Failure> {
    let limit = limit.unwrap_or(DEFAULT_PAGE_ITEMS);
    if (1..=MAX_PAGE_ITEMS).contains(&limit) {
        return Ok(limit as usize);
    }
    Err(Failure::invalid(
        "limit",
        format!("limit is 1 to {MAX_PAGE_ITEMS}"),
    ))
}

/// Writes a cursor. `list` keeps the cursor of one list from being taken for another's.
pub(crate) fn write(list: &str, position: impl ToString) -> String {
    URL_SAFE_NO_PAD.encode(format!("{list}:{}", position.to_string()))
}

/// Reads a cursor of the same list.
pub(crate) fn read<T: FromStr>(list: &str, cursor: Option<&str>) -> Result<Option<T>, Failure> {
    let Some(cursor) = cursor else {
        return Ok(None);
    };
    let bytes = (cursor.len() <= MAX_CURSOR_BYTES)
        .then(|| URL_SAFE_NO_PAD.decode(cursor).ok())
        .flatten();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let position = text
        .as_deref()
        .and_then(|text| text.strip_prefix(list)?.strip_prefix(':'))
        .and_then(|position| position.parse().ok());
    match position {
        Some(position) => Ok(Some(position)),
        None => Err(Failure::invalid(
            "cursor",
            "the cursor is not one that this list gave out",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_belongs_to_its_list() {
        let cursor = write("runs", 42);
        assert_eq!(read("runs", Some(&cursor)), Ok(Some(42_u64)));
        assert_eq!(read::<u64>("runs", None), Ok(None));
        assert!(read::<u64>("jobs", Some(&cursor)).is_err());
        for bad in ["", "%%%", "cnVuczo", &"A".repeat(2000)] {
            assert!(read::<u64>("runs", Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_has_one_to_a_thousand_items() {
        assert_eq!(page_items(None), Ok(100));
        assert_eq!(page_items(Some(1000)), Ok(1000));
        assert!(page_items(Some(0)).is_err());
        assert!(page_items(Some(1001)).is_err());
    }
}
