//! What a shell task may run: the operator's word against the job's.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::params::{ShellCommand, ShellParams};
use crate::executor::fields::ParamError;
use crate::executor::pattern::Pattern;

/// What shell tasks may do on this executor. Part of its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShellRules {
    /// Whether there is the capability at all. Off unless switched on.
    pub enabled: bool,
    /// Programs that jobs may run, as absolute paths or patterns of them. Absent: any program.
    pub allow_commands: Option<Vec<Pattern>>,
    /// Whether jobs may bring scripts of their own.
    pub allow_scripts: bool,
    /// Names of variables that jobs may set. Absent: any when `allow_commands` is absent too, else
    /// none, because a variable such as `LD_PRELOAD` makes any program run anything.
    pub allow_env: Option<Vec<Pattern>>,
    /// Users that jobs may run as. Absent: any but root, and the executor's own while `run_as` is absent too.
    pub allow_users: Option<Vec<String>>,
    /// The user of tasks that name none. Absent: the executor's own user.
    pub run_as: Option<String>,
    /// Variables of the executor that tasks see besides the usual ones. Never its token.
    pub inherit_env: Vec<String>,
    /// Where tasks run that name no folder, and what a relative `cwd` starts from. Absent: a private
    /// folder of the task, and `cwd` must be absolute.
    pub working_dir: Option<PathBuf>,
}

impl ShellRules {
    /// Rules under which any command and script runs: for one's own machine.
    pub fn permissive() -> Self {
        Self {
            enabled: true,
            allow_scripts: true,
            ..Self::default()
        }
    }

    /// Whether the job's command and variables are allowed. The user is checked where it is looked
    /// up.
    ///
    /// # Errors
    /// They are not; the path says which.
    pub fn check(&self, params: &ShellParams) -> Result<(), ParamError> {
        match &params.command {
            ShellCommand::Argv { program, .. } => self.check_program("argv[0]", program)?,
            ShellCommand::Script { .. } if !self.allow_scripts => {
                return Err(ParamError::of(
                    "script",
                    "is not allowed on this executor: it runs programs only (shell.allow_scripts)",
                ));
            }
            ShellCommand::Script { interpreter, .. } => {
                if let Some(interpreter) = interpreter {
                    self.check_program("interpreter", interpreter)?;
                }
            }
        }
        if self.working_dir.is_none() && params.cwd.as_ref().is_some_and(|cwd| cwd.is_relative()) {
            return Err(ParamError::of(
                "cwd",
                "must be an absolute path on this executor (it has no shell.working_dir)",
            ));
        }
        for name in params.env.keys() {
            if !self.allows_variable(name) {
                return Err(ParamError::of(
                    format!("env.{name}"),
                    "may not be set on this executor (shell.allow_env)",
                ));
            }
        }
        Ok(())
    }

    /// Where a task runs; `private` is its own folder.
    pub fn folder(&self, params: &ShellParams, private: &Path) -> PathBuf {
        match (&self.working_dir, &params.cwd) {
            (Some(base), Some(cwd)) => base.join(cwd),
            (Some(base), None) => base.clone(),
            (None, Some(cwd)) => cwd.clone(),
            (None, None) => private.to_owned(),
        }
    }

    fn check_program(&self, path: &str, program: &str) -> Result<(), ParamError> {
        let Some(allowed) = &self.allow_commands else {
            return Ok(());
        };
        // A relative name could mean another program than the one that was matched.
        let plain = program.starts_with('/')
            && !program
                .split('/')
                .skip(1)
                .any(|part| matches!(part, "" | "." | ".."));
        if !plain {
            return Err(ParamError::of(
                path,
                "must be an absolute path without '.' and '..' on this executor, because it has a list of allowed commands",
            ));
        }
        if allowed.iter().any(|pattern| pattern.matches(program)) {
            return Ok(());
        }
        Err(ParamError::of(
            path,
            format!(
                "{program:?} is not among the commands allowed on this executor (shell.allow_commands)"
            ),
        ))
    }

    fn allows_variable(&self, name: &str) -> bool {
        match &self.allow_env {
            Some(allowed) => allowed.iter().any(|pattern| pattern.matches(name)),
            None => self.allow_commands.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn patterns(texts: &[&str]) -> Option<Vec<Pattern>> {
        Some(
            texts
                .iter()
                .map(|text| Pattern::new(*text).unwrap())
                .collect(),
        )
    }

    fn refused_at(rules: &ShellRules, params: Value) -> Option<String> {
        let params = ShellParams::read(&params).unwrap();
        rules.check(&params).err().map(|fault| fault.path)
    }

    #[test]
    fn without_a_list_any_program_runs_but_scripts_need_leave() {
        let rules = ShellRules {
            enabled: true,
            ..ShellRules::default()
        };
        assert_eq!(refused_at(&rules, json!({"argv": ["ls"]})), None);
        let script = json!({"script": "ls"});
        assert_eq!(
            refused_at(&rules, script.clone()).as_deref(),
            Some("task.params.script")
        );
        assert_eq!(refused_at(&ShellRules::permissive(), script), None);
    }

    #[test]
    fn a_list_is_matched_against_plain_absolute_paths() {
        let rules = ShellRules {
            enabled: true,
            allow_commands: patterns(&["/usr/bin/rsync", "/opt/jobs/*"]),
            ..ShellRules::default()
        };
        for (program, allowed) in [
            ("/usr/bin/rsync", true),
            ("/opt/jobs/a", true),
            ("rsync", false),
            ("./rsync", false),
            ("/opt/jobs/../bin/sh", false),
            ("/opt/jobs/./a", false),
            ("//usr/bin/rsync", false),
            ("/bin/sh", false),
        ] {
            let refused = refused_at(&rules, json!({"argv": [program]}));
            let expected = (!allowed).then(|| "task.params.argv[0]".to_owned());
            assert_eq!(refused, expected, "{program}");
        }
    }

    #[test]
    fn a_list_of_commands_closes_the_environment_too() {
        let mut rules = ShellRules {
            enabled: true,
            allow_commands: patterns(&["/usr/bin/rsync"]),
            ..ShellRules::default()
        };
        let params = json!({"argv": ["/usr/bin/rsync"], "env": {"LD_PRELOAD": "/tmp/x.so"}});
        assert_eq!(
            refused_at(&rules, params.clone()).as_deref(),
            Some("task.params.env.LD_PRELOAD")
        );
        rules.allow_env = patterns(&["RSYNC_*"]);
        assert!(refused_at(&rules, params).is_some());
        let params = json!({"argv": ["/usr/bin/rsync"], "env": {"RSYNC_RSH": "ssh"}});
        assert_eq!(refused_at(&rules, params), None);
    }

    #[test]
    fn a_relative_folder_needs_one_to_start_from() {
        let mut rules = ShellRules::permissive();
        let params = json!({"script": "ls", "cwd": "docs"});
        assert_eq!(
            refused_at(&rules, params.clone()).as_deref(),
            Some("task.params.cwd")
        );
        rules.working_dir = Some("/srv".into());
        assert_eq!(refused_at(&rules, params.clone()), None);
        let folder = |params| rules.folder(&ShellParams::read(&params).unwrap(), Path::new("/p"));
        assert_eq!(folder(params), Path::new("/srv/docs"));
        assert_eq!(
            folder(json!({"script": "ls", "cwd": "/tmp"})),
            Path::new("/tmp")
        );
        assert_eq!(folder(json!({"script": "ls"})), Path::new("/srv"));
    }

    #[test]
    fn an_interpreter_is_a_command_too() {
        let rules = ShellRules {
            enabled: true,
            allow_commands: patterns(&["/usr/bin/python3"]),
            allow_scripts: true,
            ..ShellRules::default()
        };
        let perl = json!({"script": "1", "interpreter": "/usr/bin/perl"});
        assert_eq!(
            refused_at(&rules, perl).as_deref(),
            Some("task.params.interpreter")
        );
        let python = json!({"script": "1", "interpreter": "/usr/bin/python3"});
        assert_eq!(refused_at(&rules, python), None);
    }
}
