//! Log lines of long-running processes, on standard error.
//!
//! Invariant: one event is one line, and no control character of a value gets into it raw. Values come from
//! outside: a reason that an executor gives must neither look like another line nor steer a terminal.

use std::fmt::{self, Write as _};
use std::io::IsTerminal as _;

use tracing::Subscriber;
use tracing::field::Field;
use tracing_subscriber::Layer;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::failure::Failure;

/// Which lines: a level, or `target=level` pairs separated by commas.
const VARIABLE: &str = "TENURE_LOG";

/// Without the variable: what an operator should see. The library of consensus warns of every failed call to a
/// peer, many times a second; what there is to know of peers is told once (`tenure_raft::contacts`).
const DEFAULT: &str = "info,openraft=error";

/// Starts logging. Later calls change nothing.
///
/// # Errors
/// `TENURE_LOG` cannot be read.
pub fn start() -> Result<(), Failure> {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| DEFAULT.to_owned());
    let targets = targets(&wanted)?;
    let lines = lines(std::io::stderr, std::io::stderr().is_terminal());
    // An error means that logging has been started before.
    let _ = tracing_subscriber::registry()
        .with(lines.with_filter(targets))
        .try_init();
    Ok(())
}

fn lines<S, W>(writer: W, ansi: bool) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .with_ansi(ansi)
        .with_writer(writer)
        .fmt_fields(debug_fn(field).delimited(" "))
}

/// One field of an event. The message stands without its name.
fn field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(writer, "{}=", field.name())?;
    }
    write!(Escaping(writer), "{value:?}")
}

/// Writes control characters as `\u{…}` or as their short forms.
struct Escaping<'a, 'w>(&'a mut Writer<'w>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive(char::is_control) {
            let mut all = piece.chars();
            match all.next_back() {
                Some(last) if last.is_control() => {
                    self.0.write_str(all.as_str())?;
                    write!(self.0, "{}", last.escape_default())?;
                }
                _ => self.0.write_str(piece)?,
            }
        }
        Ok(())
    }
}

fn targets(text: &str) -> Result<Targets, Failure> {
    text.parse().map_err(|fault| {
        Failure::usage(format!("{text:?}: {fault}"))
            .at(VARIABLE)
            .todo("give a level (error, warn, info, debug, trace) or target=level, separated by commas")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// What was written, for all clones.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_value_from_outside_writes_a_line_of_its_own() {
        let paper = Paper::default();
        let copy = paper.clone();
        let lines = lines(move || copy.clone(), false);
        let subscriber = tracing_subscriber::registry().with(lines);
        let outside = "a\n2026 ERROR tenure: forged\r\u{1b}[2J\u{9b}b";
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("asked", by = %outside);
            let _inside = span.enter();
            tracing::info!(reason = %outside, why = outside, ?outside, "{outside}");
            tracing::info!(count = 7, "plain");
        });
        let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text:?}");
        assert!(
            !lines.iter().any(|line| line.contains(char::is_control)),
            "{text:?}"
        );
        assert_eq!(lines[0].matches("forged").count(), 5, "{text:?}");
        assert!(lines[1].ends_with("plain count=7"), "{text:?}");
    }

    #[test]
    fn levels_are_read() {
        for good in [DEFAULT, "debug", "tenure=trace,warn"] {
            assert!(targets(good).is_ok(), "{good}");
        }
        let fault = targets("tenure=loud").unwrap_err();
        assert_eq!(fault.at.as_deref(), Some(VARIABLE));
    }
}
