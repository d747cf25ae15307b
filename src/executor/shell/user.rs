//! Which user a task runs as.

use std::fs::File;
use std::io;
use std::os::unix::fs::{fchown, lchown};
use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User, geteuid};

use super::rules::ShellRules;
use crate::executor::fields::ParamError;

/// A user to run as. Supplementary groups are dropped with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// The name, or the number where the system knows no name.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The user's own group.
    pub gid: u32,
    /// The home folder.
    pub home: PathBuf,
}

impl RunAs {
    /// Makes the user the owner of an open file.
    ///
    /// # Errors
    /// The system's.
    pub fn give(&self, file: &File) -> io::Result<()> {
        fchown(file, Some(self.uid), Some(self.gid))
    }

    /// Makes the user the owner of what stands at a path: of a link itself, never of what it leads to.
    ///
    /// # Errors
    /// The system's.
    pub fn give_path(&self, path: &Path) -> io::Result<()> {
        lchown(path, Some(self.uid), Some(self.gid))
    }
}

/// Looks up whom a task runs as. `None`: the executor's own user. May ask a directory service, so it
/// blocks.
///
/// # Errors
/// There is no such user, it is not allowed, or the executor is not root.
pub fn resolve(rules: &ShellRules, asked: Option<&str>) -> Result<Option<RunAs>, ParamError> {
    let Some(name) = asked.or(rules.run_as.as_deref()) else {
        return Ok(None);
    };
    let found = look_up(name)?;
    let own = geteuid();
    // What the operator set as default needs no second word from the operator. The executor's own user
    // needs leave like any other, unless it is the default.
    let allowed = match &rules.allow_users {
        _ if asked.is_none() => true,
        Some(users) => users.contains(&found.name),
        None if found.uid == own.as_raw() => rules.run_as.is_none(),
        None => found.uid != 0,
    };
    if !allowed {
        return Err(ParamError::of(
            "user",
            format!("{name:?} may not be used on this executor (shell.allow_users)"),
        ));
    }
    if found.uid == own.as_raw() {
        return Ok(None);
    }
    if !own.is_root() {
        return Err(ParamError::of(
            "user",
            format!(
                "is {name:?}, but the executor does not run as root, so it cannot change users"
            ),
        ));
    }
    Ok(Some(found))
}

fn look_up(name: &str) -> Result<RunAs, ParamError> {
    let asked = match name.parse::<u32>() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(name),
    };
    let user = asked
        .map_err(|fault| ParamError::of("user", format!("cannot look up {name:?}: {fault}")))?;
    // A number without an entry has no group that could be known, so it is refused too.
    let user =
        user.ok_or_else(|| ParamError::of("user", format!("{name:?} is no user of this machine")))?;
    Ok(RunAs {
        name: user.name,
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        home: user.dir,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_looked_up_when_nobody_is_named() {
        assert_eq!(resolve(&ShellRules::permissive(), None), Ok(None));
    }

    #[test]
    fn an_unknown_user_is_refused_with_its_path() {
        let fault = resolve(&ShellRules::permissive(), Some("no-such-user-here")).unwrap_err();
        assert_eq!(fault.path, "task.params.user");
        assert!(resolve(&ShellRules::permissive(), Some("3999999999")).is_err());
    }

    #[test]
    fn ones_own_user_needs_no_change() {
        let own = geteuid().to_string();
        assert_eq!(resolve(&ShellRules::permissive(), Some(&own)), Ok(None));
    }

    /// An executor that is root and runs its tasks as somebody else must not be asked back to root.
    #[test]
    fn ones_own_user_needs_leave_where_it_is_not_the_default() {
        let own = geteuid();
        let Ok(Some(own_user)) = User::from_uid(own) else {
            return;
        };
        let asked = own.to_string();
        let mut rules = ShellRules {
            run_as: Some("nobody".into()),
            ..ShellRules::permissive()
        };
        let fault = resolve(&rules, Some(&asked)).unwrap_err();
        assert_eq!(fault.path, "task.params.user");
        assert!(resolve(&rules, Some(&own_user.name)).is_err());
        rules.run_as = None;
        rules.allow_users = Some(vec!["backup".into()]);
        assert!(resolve(&rules, Some(&asked)).is_err());
        rules.allow_users = Some(vec![own_user.name]);
        assert_eq!(resolve(&rules, Some(&asked)), Ok(None));
    }

    #[test]
    fn another_user_needs_root_and_leave() {
        let Ok(Some(user)) = User::from_name("nobody") else {
            return;
        };
        let mut rules = ShellRules::permissive();
        let asked = resolve(&rules, Some("nobody"));
        if !geteuid().is_root() {
            assert!(asked.is_err());
            return;
        }
        assert_eq!(
            asked.unwrap().map(|found| found.uid),
            Some(user.uid.as_raw())
        );
        rules.allow_users = Some(vec!["backup".into()]);
        assert!(resolve(&rules, Some("nobody")).is_err());
        rules.run_as = Some("nobody".into());
        assert!(resolve(&rules, None).unwrap().is_some());
    }
}
