//! The one place that writes to standard output.
//!
//! A reader that goes away (`tenure run list | head`) ends the command quietly, with success: it got
//! what it wanted.

use std::io::{self, Write};

use serde::Serialize;

use super::failure::{Exit, Failure};
use super::table::Table;

/// How results are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for people. Times are UTC unless another zone is named.
    #[default]
    Table,
    /// JSON, exactly as the interface gives it.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Why a command ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It failed.
    Failed(Box<Failure>),
    /// Nobody reads the output any more.
    Unread,
    /// It is done, and says so with this exit code.
    With(Exit),
}

impl<T: Into<Failure>> From<T> for Stop {
    fn from(failure: T) -> Self {
        Self::Failed(Box::new(failure.into()))
    }
}

/// Standard output, or what stands for it in a test.
pub(super) struct Out<'a> {
    to: &'a mut dyn Write,
    format: Format,
    terminal: bool,
}

impl std::fmt::Debug for Out<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Out({:?})", self.format)
    }
}

impl<'a> Out<'a> {
    /// Writes to `to`. On a terminal, text from outside loses its control characters.
    pub(super) fn new(to: &'a mut dyn Write, format: Format, terminal: bool) -> Self {
        Self {
            to,
            format,
            terminal,
        }
    }

    /// How results are written.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Writes a result: as it is for programs, as a table for people.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn show<T: Serialize>(
        &mut self,
        value: &T,
        table: impl FnOnce(&T) -> Table,
    ) -> Result<(), Stop> {
        match self.format {
            Format::Table => {
                let text = table(value).render();
                self.text(&text)
            }
            Format::Json => {
                let mut text = serde_json::to_string_pretty(value)
                    .map_err(|fault| Failure::new(Exit::Failure, fault.to_string()))?;
                text.push('\n');
                self.text(&text)
            }
            Format::Yaml => {
                // Through JSON, so that both forms have the same fields in the same order.
                let json = serde_json::to_value(value)
                    .map_err(|fault| Failure::new(Exit::Failure, fault.to_string()))?;
                let mut text = serde_saphyr::to_string(&json)
                    .map_err(|fault| Failure::new(Exit::Failure, fault.to_string()))?;
                if !text.ends_with('\n') {
                    text.push('\n');
                }
                self.text(&text)
            }
        }
    }

    /// Writes a line for people. Programs that asked for JSON or YAML do not get it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn say(&mut self, line: &str) -> Result<(), Stop> {
        match self.format {
            Format::Table => self.text(&format!("{line}\n")),
            Format::Json | Format::Yaml => Ok(()),
        }
    }

    /// Writes text that a task has written.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn foreign(&mut self, text: &str) -> Result<(), Stop> {
        if !self.terminal {
            return self.text(text);
        }
        let shown = |c: char| match c {
            '\n' | '\t' => c,
            c if c.is_control() => '\u{fffd}',
            c => c,
        };
        let clean: String = text.chars().map(shown).collect();
        self.text(&clean)
    }

    /// Writes text as it is.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn text(&mut self, text: &str) -> Result<(), Stop> {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        let written = self.to.write_all(bytes).and_then(|()| self.to.flush());
        written.map_err(|fault| match fault.kind() {
            io::ErrorKind::BrokenPipe => Stop::Unread,
            _ => Failure::io("standard output", &fault).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Gone(io::ErrorKind);

    impl Write for Gone {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(format: Format) -> String {
        let mut bytes = Vec::new();
        let mut out = Out::new(&mut bytes, format, false);
        let value = json!({"b": 1, "a": ["x"]});
        let table = |_: &serde_json::Value| {
            let mut table = Table::new(["A"]);
            table.row(["x".to_owned()]);
            table
        };
        out.show(&value, table).unwrap();
        out.say("done").unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn people_get_tables_and_programs_get_data_alone() {
        assert_eq!(shown(Format::Table), "A\nx\ndone\n");
        let json: serde_json::Value = serde_json::from_str(&shown(Format::Json)).unwrap();
        assert_eq!(json, json!({"b": 1, "a": ["x"]}));
        let yaml = shown(Format::Yaml);
        assert!(yaml.contains("b: 1") && yaml.contains("- x"), "{yaml}");
    }

    #[test]
    fn a_reader_that_goes_away_is_no_failure() {
        let mut gone = Gone(io::ErrorKind::BrokenPipe);
        let mut out = Out::new(&mut gone, Format::Table, false);
        assert_eq!(out.text("x"), Err(Stop::Unread));
        let mut full = Gone(io::ErrorKind::StorageFull);
        let mut out = Out::new(&mut full, Format::Table, false);
        assert!(matches!(out.text("x"), Err(Stop::Failed(_))));
    }

    #[test]
    fn output_of_tasks_does_not_steer_the_terminal() {
        for (terminal, expected) in [(true, "a\u{fffd}[2J\tb\n"), (false, "a\u{1b}[2J\tb\n")] {
            let mut bytes = Vec::new();
            let mut out = Out::new(&mut bytes, Format::Table, terminal);
            out.foreign("a\u{1b}[2J\tb\n").unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
    }
}
