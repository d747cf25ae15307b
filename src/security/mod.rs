//! Who may talk to this node: bearer tokens and their roles, and the secret that nodes share.
//!
//! - A token is 32 random bytes as text. Only its SHA-256 is kept, in a file that nobody but the node's user
//!   can read. A token that is strong enough not to be guessed needs no slow hash.
//! - Every comparison looks at every token in the same time, whatever is presented.
//! - There is no default token and no default secret anywhere. What is missing is an error.
//!
//! Absent: users, passwords, sessions of people, expiry of tokens. A token ends when its line is taken out
//! of the file and the node is restarted.

mod entropy;
mod files;
mod secret;
mod tokens;

pub use entropy::{Entropy, EntropyError, OsEntropy};
pub use files::{SecretFileError, read_secret_file, write_secret_file};
pub use secret::{CLUSTER_SECRET_BYTES, SecretBytes, generate_cluster_secret, load_cluster_secret};
pub use tokens::{
    MAX_TOKENS, TOKEN_PREFIX, TokenEntry, TokenFileError, TokenText, Tokens, issue_token,
};

use std::fmt;
use std::str::FromStr;

use tenure_api::cluster::Role;

/// The longest name of a principal, in bytes.
pub const MAX_PRINCIPAL_BYTES: usize = 64;

/// The name of a principal: `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`. No colon: it ends the name in front of an
/// idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrincipalName(String);

/// The text is not a principal's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a principal's name is 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', starting with a letter or digit"
)]
pub struct InvalidPrincipal;

impl PrincipalName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PrincipalName {
    type Err = InvalidPrincipal;

    fn from_str(text: &str) -> Result<Self, InvalidPrincipal> {
        let mut bytes = text.bytes();
        let first = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric());
        let rest = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if first && rest && text.len() <= MAX_PRINCIPAL_BYTES {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidPrincipal)
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whoever was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Its name, never its token.
    pub name: PrincipalName,
    /// What it may do.
    pub role: Role,
}
