//! A client out of the flags and the environment.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use tenure_sdk::{Client, RetryPolicy};

use super::args::Global;
use super::failure::{Exit, Failure};

/// The variable that holds the token itself.
const TOKEN_VARIABLE: &str = "TENURE_TOKEN";

/// The most that is read of a file of a token, in bytes.
const MAX_TOKEN_FILE_BYTES: u64 = 4 * 1024;

/// A client of the cluster that the flags name.
///
/// # Errors
/// There are no nodes, or no token.
pub(super) fn client(global: &Global) -> Result<Client, Failure> {
    let own = std::env::var(TOKEN_VARIABLE).ok();
    let token = token(global.token_file.as_deref(), own)?;
    let overall = global.timeout.to_duration();
    let usual = RetryPolicy::default();
    let policy = RetryPolicy {
        overall_timeout: overall,
        attempt_timeout: usual.attempt_timeout.min(overall),
        ..usual
    };
    let client = Client::builder()
        .nodes(nodes(global)?)
        .token(token)
        .retry(policy)
        .build()?;
    Ok(client)
}

/// The nodes that the flags name.
///
/// # Errors
/// There are none.
pub(super) fn nodes(global: &Global) -> Result<Vec<String>, Failure> {
    if global.nodes.is_empty() {
        return Err(Failure::usage("no node of a cluster is named")
            .at("--nodes")
            .todo("give --nodes http://host:port,… or set TENURE_NODES"));
    }
    Ok(global.nodes.clone())
}

/// The token: of a file if there is one, else of the environment.
///
/// # Errors
/// There is neither, or the file cannot be read.
pub(super) fn token(file: Option<&Path>, own: Option<String>) -> Result<String, Failure> {
    let Some(path) = file else {
        return own.filter(|token| !token.trim().is_empty()).ok_or_else(|| {
            Failure::new(Exit::Forbidden, "there is no token")
                .todo("give --token-file FILE, or set TENURE_TOKEN_FILE or TENURE_TOKEN")
        });
    };
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(MAX_TOKEN_FILE_BYTES).read_to_string(&mut text))
        .map_err(|fault| {
            Failure::io(path.display(), &fault)
                .todo("name a file that is there and that this user may read")
        })?;
    let token = text.trim();
    // What is in the file is not shown: it may be another secret.
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::new(
            Exit::Forbidden,
            "the file does not hold one token and nothing else",
        )
        .at(path.display())
        .todo("write into it the token that `tenure token generate` has shown"));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_over_the_environment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "  tnr_a\n").unwrap();
        let own = || Some("tnr_b".to_owned());
        assert_eq!(token(Some(&path), own()).unwrap(), "tnr_a");
        assert_eq!(token(None, own()).unwrap(), "tnr_b");
    }

    #[test]
    fn without_a_token_the_error_says_where_to_put_one() {
        let fault = token(None, Some("  ".into())).unwrap_err();
        assert_eq!(fault.exit, Exit::Forbidden);
        assert!(fault.to_string().contains("--token-file"), "{fault}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let missing = token(Some(&path), None).unwrap_err();
        for text in ["\n", "tnr_a tnr_b", "tnr_\u{1b}[2J"] {
            fs::write(&path, text).unwrap();
            let fault = token(Some(&path), None).unwrap_err();
            assert_eq!(fault.exit, Exit::Forbidden, "{text:?}");
            assert_eq!(fault.at, missing.at);
            assert!(fault.to_string().contains("   do: "), "{fault}");
        }
        assert_eq!(missing.at, Some(path.display().to_string()));
        assert!(missing.to_string().contains("   do: "), "{missing}");
    }
}
