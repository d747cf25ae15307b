//! `tenure token …`

use serde::Serialize;
use tenure_api::cluster::Role;

use super::args::TokenCommand;
use super::failure::{Exit, Failure};
use super::out::{Out, Stop};
use super::table::Table;
use crate::security::{OsEntropy, Principal, issue_token};

/// A token and what the nodes keep of it.
#[derive(Debug, Serialize)]
struct Generated {
    name: String,
    role: Role,
    /// For its user. It is shown here and kept nowhere.
    token: String,
    /// For the nodes' file of tokens: name, role, SHA-256 in hex.
    line: String,
}

/// Runs the command.
///
/// # Errors
/// Why it ended early.
pub(super) fn run(command: TokenCommand, out: &mut Out<'_>) -> Result<(), Stop> {
    let TokenCommand::Generate { name, role } = command;
    let generated = generate(name, role)?;
    out.show(&generated, |generated| {
        let mut table = Table::of_fields();
        table.field("token", &generated.token);
        table.field("line", &generated.line);
        table
    })?;
    out.say("The token is shown once. Give it to its user; put the line into the file of tokens of each node.")
}

fn generate(name: String, role: Role) -> Result<Generated, Failure> {
    let principal = Principal {
        name: name
            .parse()
            .map_err(|fault: crate::security::InvalidPrincipal| {
                Failure::usage(fault.to_string()).at("--name")
            })?,
        role,
    };
    let (token, entry) = issue_token(&OsEntropy, principal)
        .map_err(|fault| Failure::new(Exit::Failure, fault.to_string()))?;
    Ok(Generated {
        name,
        role,
        token: token.expose().to_owned(),
        line: entry.line(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_knows_the_token_by_its_line() {
        let generated = generate("ops".into(), Role::Admin).unwrap();
        let tokens = crate::security::Tokens::parse(&generated.line).unwrap();
        let known = tokens.authenticate(&generated.token).unwrap();
        assert_eq!((known.name.as_str(), known.role), ("ops", Role::Admin));
        assert!(!generated.line.contains(&generated.token));
    }

    #[test]
    fn names_that_would_break_the_file_are_refused() {
        for bad in ["", "a b", "a\nb", "-a", "a:b", &"a".repeat(65)] {
            let fault = generate(bad.to_owned(), Role::Viewer).unwrap_err();
            assert_eq!(fault.exit, Exit::Usage, "{bad}");
        }
    }
}
