//! Aligned text for people.

use unicode_width::UnicodeWidthStr as _;

/// What stands for a value that is not there.
pub(super) const NOTHING: &str = "-";

/// Rows under a heading. The columns are as wide as their widest cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table under these headings.
    pub(super) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self {
            heading: heading.map(str::to_owned).to_vec(),
            rows: Vec::new(),
        }
    }

    /// A table of names and values, without a heading.
    pub(super) fn of_fields() -> Self {
        Self::default()
    }

    /// Adds a row.
    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Adds a name and its value.
    pub(super) fn field(&mut self, name: &str, value: impl ToString) {
        self.rows.push(vec![format!("{name}:"), value.to_string()]);
    }

    /// Adds a name and its value, if there is one.
    pub(super) fn optional(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.field(name, value);
        }
    }

    /// The text, with an end of line after each row.
    pub(super) fn render(&self) -> String {
        let lines: Vec<Vec<String>> = std::iter::once(&self.heading)
            .filter(|heading| !heading.is_empty())
            .chain(&self.rows)
            .map(|cells| cells.iter().map(|cell| printable(cell)).collect())
            .collect();
        let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|cells| cells.get(column));
            cells.map(|cell| cell.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for cells in &lines {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                line.push_str(cell);
                let padding = width.saturating_sub(cell.width()) + 2;
                line.extend(std::iter::repeat_n(' ', padding));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// One line without control characters: what comes from outside must not steer a terminal.
fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' | '\r' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.trim().chars().map(shown).collect()
}

/// The text of a value that may not be there.
pub(super) fn or_nothing(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

/// An instant in UTC, to the second unless it has more.
pub(super) fn instant(at: tenure_api::Timestamp) -> String {
    let text = at.to_string();
    match text.strip_suffix(".000Z") {
        Some(whole) => format!("{whole}Z"),
        None => text,
    }
}

/// An instant that may not be there.
pub(super) fn maybe_instant(at: Option<tenure_api::Timestamp>) -> String {
    or_nothing(at.map(instant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_is_seen() {
        let mut table = Table::new(["NAME", "STATE", "NOTE"]);
        table.row(["a".into(), "running".into(), String::new()]);
        table.row(["\u{65e5}\u{672c}".into(), "ok".into(), "x".into()]);
        assert_eq!(
            table.render(),
            "NAME  STATE    NOTE\na     running\n\u{65e5}\u{672c}  ok       x\n"
        );
    }

    #[test]
    fn fields_have_no_heading() {
        let mut table = Table::of_fields();
        table.field("name", "a");
        table.field("revision", 3);
        table.optional("paused", None::<bool>);
        assert_eq!(table.render(), "name:      a\nrevision:  3\n");
    }

    #[test]
    fn cells_do_not_steer_the_terminal_or_break_the_line() {
        let mut table = Table::new(["X"]);
        table.row(["a\u{1b}[31m\nb".into()]);
        assert_eq!(table.render(), "X\na\u{fffd}[31m b\n");
    }

    #[test]
    fn instants_say_that_they_are_utc() {
        let at = |text: &str| instant(text.parse().unwrap());
        assert_eq!(at("2026-12-01T03:00:00+01:00"), "2026-12-01T02:00:00Z");
        assert_eq!(at("2026-12-01T02:00:00.5Z"), "2026-12-01T02:00:00.500Z");
    }
}
