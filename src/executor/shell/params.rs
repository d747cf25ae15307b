//! The parameters of a shell task.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::executor::fields::{Fields, ParamError};

/// The most arguments, the program included.
const MAX_ARGUMENTS: usize = 1_024;
/// The longest text: an argument, a script, standard input, a value of the environment.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// The longest path or user name.
const MAX_PATH_BYTES: usize = 4_096;
/// The most variables.
const MAX_VARIABLES: usize = 256;
/// The most exit codes in a list.
const MAX_EXIT_CODES: usize = 256;
/// The end of the output that is kept with the result, when the job does not say.
const DEFAULT_TAIL_BYTES: usize = 4 * 1024;
/// The most of it that may be kept, in bytes.
pub const MAX_TAIL_BYTES: usize = 16 * 1024;

/// What a shell task runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShellCommand {
    /// A program with its arguments. No shell reads them.
    Argv {
        /// The program: a path, or a name to be found on `PATH`.
        program: String,
        /// Its arguments.
        arguments: Vec<String>,
    },
    /// A script.
    Script {
        /// The program that reads it; `/bin/sh` when absent.
        interpreter: Option<String>,
        /// The script.
        text: String,
    },
}

/// The parameters of a shell task, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellParams {
    /// What to run.
    pub command: ShellCommand,
    /// Variables on top of those that every task has.
    pub env: BTreeMap<String, String>,
    /// Where to run it. The executor's working folder, or else a private one, when absent.
    pub cwd: Option<PathBuf>,
    /// The user to run it as: a name or a number. Needs an executor that runs as root.
    pub user: Option<String>,
    /// Standard input; nothing when absent.
    pub stdin: Option<String>,
    /// Exit codes that mean success.
    pub success_exit_codes: Vec<i32>,
    /// Exit codes after which another attempt may help; all that are no success when absent.
    pub retryable_exit_codes: Option<Vec<i32>>,
    /// How much of the output's end goes into the result, in bytes.
    pub output_tail_bytes: usize,
}

impl ShellParams {
    /// Reads `task.params` of a shell job.
    ///
    /// # Errors
    /// The first fault, with its path.
    pub fn read(params: &Value) -> Result<Self, ParamError> {
        let mut fields = Fields::of(params)?;
        let command = command(&mut fields)?;
        let env = fields.text_map("env", MAX_VARIABLES, MAX_TEXT_BYTES)?;
        for name in env.keys() {
            check_variable(name)?;
        }
        let cwd = fields.text("cwd", MAX_PATH_BYTES)?.map(PathBuf::from);
        let user = fields.text("user", MAX_PATH_BYTES)?.map(str::to_owned);
        if user.as_deref().is_some_and(str::is_empty) {
            return Err(ParamError::of("user", "must be a user's name or number"));
        }
        let stdin = fields.text("stdin", MAX_TEXT_BYTES)?.map(str::to_owned);
        let success = exit_codes(&mut fields, "success_exit_codes")?.unwrap_or_else(|| vec![0]);
        let retryable = exit_codes(&mut fields, "retryable_exit_codes")?;
        let both = retryable
            .iter()
            .flatten()
            .find(|code| success.contains(code));
        if let Some(code) = both {
            return Err(ParamError::of(
                "retryable_exit_codes",
                format!("has {code}, which is a success"),
            ));
        }
        let tail = fields.integer("output_tail_bytes", 0..=MAX_TAIL_BYTES as i64)?;
        let tail = tail.and_then(|bytes| usize::try_from(bytes).ok());
        fields.finish()?;
        Ok(Self {
            command,
            env,
            cwd,
            user,
            stdin,
            success_exit_codes: success,
            retryable_exit_codes: retryable,
            output_tail_bytes: tail.unwrap_or(DEFAULT_TAIL_BYTES),
        })
    }
}

fn command(fields: &mut Fields<'_>) -> Result<ShellCommand, ParamError> {
    let argv = fields.texts("argv", 1..=MAX_ARGUMENTS, MAX_TEXT_BYTES)?;
    let script = fields.text("script", MAX_TEXT_BYTES)?;
    let interpreter = fields.text("interpreter", MAX_PATH_BYTES)?;
    match (argv, script) {
        (Some(argv), None) => {
            if interpreter.is_some() {
                return Err(ParamError::of(
                    "interpreter",
                    "goes with script, not with argv",
                ));
            }
            let mut arguments = argv.into_iter();
            let program = arguments.next().unwrap_or_default();
            if program.is_empty() {
                return Err(ParamError::of("argv[0]", "must name a program"));
            }
            Ok(ShellCommand::Argv {
                program,
                arguments: arguments.collect(),
            })
        }
        (None, Some(text)) => {
            if interpreter.is_some_and(|path| !path.starts_with('/')) {
                return Err(ParamError::of("interpreter", "must be an absolute path"));
            }
            Ok(ShellCommand::Script {
                interpreter: interpreter.map(str::to_owned),
                text: text.to_owned(),
            })
        }
        (Some(_), Some(_)) => Err(ParamError::of("script", "excludes argv: give one of them")),
        (None, None) => Err(ParamError::of("argv", "is missing: give argv or script")),
    }
}

fn exit_codes(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Vec<i32>>, ParamError> {
    let codes = fields.integers(name, 0..=MAX_EXIT_CODES, 0..=255)?;
    Ok(codes.map(|codes| {
        let narrow = codes
            .into_iter()
            .filter_map(|code| i32::try_from(code).ok());
        narrow.collect()
    }))
}

fn check_variable(name: &str) -> Result<(), ParamError> {
    let well_formed = name.bytes().enumerate().all(|(index, byte)| {
        byte == b'_' || byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit())
    });
    let path = format!("env.{name}");
    if name.is_empty() || !well_formed {
        return Err(ParamError::of(
            path,
            "must be a name of letters, digits and '_', not starting with a digit",
        ));
    }
    if name.starts_with("TENURE_") {
        return Err(ParamError::of(
            path,
            "is kept for the executor: names in TENURE_ are",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_whole_set_of_parameters_is_read() {
        let params = ShellParams::read(&json!({
            "argv": ["rsync", "-a", "/a", "/b"],
            "env": {"LEVEL": 3},
            "cwd": "/tmp",
            "user": "backup",
            "stdin": "x",
            "success_exit_codes": [0, 24],
            "retryable_exit_codes": [30],
            "output_tail_bytes": 100,
        }))
        .unwrap();
        assert_eq!(
            params.command,
            ShellCommand::Argv {
                program: "rsync".into(),
                arguments: vec!["-a".into(), "/a".into(), "/b".into()],
            }
        );
        assert_eq!(params.env.get("LEVEL").map(String::as_str), Some("3"));
        assert_eq!(params.success_exit_codes, [0, 24]);
        assert_eq!(params.retryable_exit_codes, Some(vec![30]));
        assert_eq!(params.output_tail_bytes, 100);
    }

    #[test]
    fn defaults_are_the_plain_ones() {
        let params = ShellParams::read(&json!({"script": "true"})).unwrap();
        assert_eq!(params.success_exit_codes, [0]);
        assert_eq!(params.retryable_exit_codes, None);
        assert_eq!(params.output_tail_bytes, DEFAULT_TAIL_BYTES);
        assert_eq!((params.cwd, params.user, params.stdin), (None, None, None));
    }

    #[test]
    fn each_fault_names_its_path() {
        for (params, path) in [
            (json!({}), "argv"),
            (json!({"argv": []}), "argv"),
            (json!({"argv": [""]}), "argv[0]"),
            (json!({"argv": ["a", 1]}), "argv[1]"),
            (json!({"argv": ["a"], "script": "b"}), "script"),
            (
                json!({"argv": ["a"], "interpreter": "/bin/sh"}),
                "interpreter",
            ),
            (json!({"script": "a", "interpreter": "sh"}), "interpreter"),
            (json!({"argv": ["a"], "cwd": 1}), "cwd"),
            (json!({"argv": ["a"], "user": ""}), "user"),
            (json!({"argv": ["a"], "env": {"A B": "x"}}), "env.A B"),
            (json!({"argv": ["a"], "env": {"1A": "x"}}), "env.1A"),
            (
                json!({"argv": ["a"], "env": {"TENURE_TOKEN": "x"}}),
                "env.TENURE_TOKEN",
            ),
            (json!({"argv": ["a"], "env": {"A": "x\u{0}y"}}), "env.A"),
            (
                json!({"argv": ["a"], "success_exit_codes": [256]}),
                "success_exit_codes[0]",
            ),
            (
                json!({"argv": ["a"], "retryable_exit_codes": [0]}),
                "retryable_exit_codes",
            ),
            (
                json!({"argv": ["a"], "output_tail_bytes": 1_000_000}),
                "output_tail_bytes",
            ),
            (json!({"argv": ["a"], "shell": true}), "shell"),
        ] {
            let fault = ShellParams::read(&params).unwrap_err();
            assert_eq!(fault.path, format!("task.params.{path}"), "{params}");
        }
    }
}
