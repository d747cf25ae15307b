//! What went wrong, where, what to do about it, and the exit code that says it to a script.

use std::fmt::{self, Write as _};

use tenure_api::{ErrorCode, JobErrors, Problem};
use tenure_sdk::{BuildError, Error};

/// Exit codes. They are part of the interface: scripts read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// It failed in a way that has no code of its own.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// There is no such thing.
    NotFound = 3,
    /// The request was refused: not valid, or in conflict with the state.
    Refused = 4,
    /// No node answers, or there is no leader. Nothing was changed.
    Unavailable = 5,
    /// No token, a wrong one, or one whose role does not allow it.
    Forbidden = 6,
    /// `tenure task` only: this tenure is over, the script must stop at once.
    TenureOver = 7,
    /// It may have been done or not. Read the state before it is done again.
    OutcomeUnknown = 8,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// The table of exit codes, for the help.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed in a way that has no code of its own
  2  the command line is wrong
  3  there is no such thing
  4  refused: not valid, or in conflict with the state
  5  no node answers, or there is no leader; nothing was changed
  6  no token, a wrong one, or one whose role does not allow it
  7  (tenure task) this tenure is over: the script must stop at once
  8  it may have been done or not: read the state before doing it again";

/// Why a command did not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What went wrong.
    pub what: String,
    /// Where: a field, a file, a node.
    pub at: Option<String>,
    /// What to do.
    pub action: Option<String>,
    /// More faults of the same document.
    pub also: Vec<String>,
}

impl Failure {
    /// A failure with its exit code.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            at: None,
            action: None,
            also: Vec::new(),
        }
    }

    /// The command line is wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// Names the place.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.at = Some(place.to_string());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn todo(mut self, action: impl Into<String>) -> Self {
        self.action = Some(action.into());
        self
    }

    /// The failure of reading or writing something that has a name.
    pub fn io(place: impl fmt::Display, fault: &std::io::Error) -> Self {
        Self::new(Exit::Failure, fault.to_string()).at(place)
    }

    /// The faults of a job file.
    pub fn job(place: impl fmt::Display, errors: &JobErrors) -> Self {
        let listed: Vec<String> = errors.errors().iter().map(ToString::to_string).collect();
        let mut failure = Self::new(Exit::Refused, "the job file is not valid").at(place);
        failure.also = listed;
        if errors.unlisted() > 0 {
            failure.also.push(format!("and {} more", errors.unlisted()));
        }
        failure
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("error: {}\n", one_paragraph(&self.what));
        if let Some(at) = &self.at {
            let _ = writeln!(text, "   at: {}", one_paragraph(at));
        }
        for fault in &self.also {
            let _ = writeln!(text, "    - {}", one_paragraph(fault));
        }
        if let Some(action) = &self.action {
            let _ = writeln!(text, "   do: {}", one_paragraph(action));
        }
        f.write_str(text.trim_end())
    }
}

/// Text from outside without control characters: it must not steer a terminal.
fn one_paragraph(text: &str) -> String {
    let clean = |c: char| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    };
    text.trim_end().chars().map(clean).collect()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(problem) => Self::from(*problem),
            Error::Unavailable { last } => Self::new(Exit::Unavailable, "no node answered in time")
                .at(last)
                .todo("check --nodes (TENURE_NODES) and that the nodes run, or give a longer --timeout"),
            Error::OutcomeUnknown { last } => {
                Self::new(Exit::OutcomeUnknown, "the outcome is not known: it may have been done")
                    .at(last)
                    .todo("read the state first, then decide whether to do it again")
            }
            Error::Protocol(what) => Self::new(Exit::Failure, format!("unexpected answer: {what}"))
                .todo("check that --nodes names nodes of Tenure, of a version that fits this program"),
            other => Self::new(Exit::Failure, other.to_string()),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let mut failure = Self::new(exit_of(problem.code), problem.detail).todo(problem.action);
        failure.at = problem.path;
        if !problem.allowed.is_empty() {
            failure.what = format!("{} (allowed: {})", failure.what, problem.allowed.join(", "));
        }
        if problem.errors.len() > 1 {
            failure.also = problem.errors.iter().map(ToString::to_string).collect();
        }
        failure.what = format!("{} [{}]", failure.what, problem.code);
        failure
    }
}

impl From<BuildError> for Failure {
    fn from(fault: BuildError) -> Self {
        let flag = match fault.setting {
            "node" => "--nodes (TENURE_NODES)",
            "token" => "--token-file (TENURE_TOKEN_FILE, TENURE_TOKEN)",
            setting => setting,
        };
        Self::usage(fault.message).at(flag)
    }
}

/// The exit code of an error code.
pub fn exit_of(code: ErrorCode) -> Exit {
    match code {
        ErrorCode::NotFound | ErrorCode::UnknownTask => Exit::NotFound,
        ErrorCode::Unauthenticated | ErrorCode::Forbidden => Exit::Forbidden,
        ErrorCode::NoLeader
        | ErrorCode::NotLeader
        | ErrorCode::Overloaded
        | ErrorCode::ArchiveIncomplete
        | ErrorCode::RateLimited
        | ErrorCode::RequestTimeout
        | ErrorCode::NotInitialized => Exit::Unavailable,
        ErrorCode::OutcomeUnknown => Exit::OutcomeUnknown,
        ErrorCode::Internal | ErrorCode::Unknown => Exit::Failure,
        // Every other code says that this request cannot be done as it is.
        _ => Exit::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_exit_code_that_fits_its_status() {
        for code in ErrorCode::ALL {
            let expected: &[Exit] = match code.status() {
                404 => &[Exit::NotFound],
                401 | 403 => &[Exit::Forbidden],
                408 | 421 | 429 | 503 => &[Exit::Unavailable],
                504 => &[Exit::OutcomeUnknown],
                500 => &[Exit::Failure],
                _ => &[Exit::Refused],
            };
            assert!(expected.contains(&exit_of(*code)), "{code}");
        }
        assert_eq!(exit_of(ErrorCode::Unknown), Exit::Failure);
    }

    #[test]
    fn a_problem_says_what_where_and_what_to_do() {
        let problem = Problem::new(ErrorCode::InvalidJob, "must be one of the listed")
            .at("overlap")
            .allowing(["allow", "forbid"]);
        let failure = Failure::from(problem);
        assert_eq!(failure.exit, Exit::Refused);
        assert_eq!(
            failure.to_string(),
            "error: must be one of the listed (allowed: allow, forbid) [invalid_job]\n   \
             at: overlap\n   do: Correct the field at `path`; `allowed` says what it may hold."
        );
    }

    #[test]
    fn what_was_not_sent_and_what_may_have_been_done_differ() {
        let last = || "http://a:1: not reachable".to_owned();
        let unavailable = Failure::from(Error::Unavailable { last: last() });
        let unknown = Failure::from(Error::OutcomeUnknown { last: last() });
        assert_eq!(unavailable.exit, Exit::Unavailable);
        assert_eq!(unknown.exit, Exit::OutcomeUnknown);
    }

    #[test]
    fn text_from_outside_does_not_steer_the_terminal() {
        let failure = Failure::new(Exit::Failure, "a\u{1b}[2Jb")
            .at("c\u{1b}d")
            .todo("e\u{7}f");
        assert_eq!(
            failure.to_string(),
            "error: a\u{fffd}[2Jb\n   at: c\u{fffd}d\n   do: e\u{fffd}f"
        );
    }

    #[test]
    fn the_help_lists_every_exit_code() {
        for exit in [
            Exit::Ok,
            Exit::Failure,
            Exit::Usage,
            Exit::NotFound,
            Exit::Refused,
            Exit::Unavailable,
            Exit::Forbidden,
            Exit::TenureOver,
            Exit::OutcomeUnknown,
        ] {
            let line = format!("\n  {}  ", exit.code());
            assert!(EXIT_CODES.contains(&line), "{exit:?}");
        }
    }
}
