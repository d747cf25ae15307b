//! Bearer tokens, of which only the SHA-256 is kept.
//!
//! The file has one token a line: the principal's name, its role and the digest in hex, between blanks.
//! `#` begins a comment. A principal may have several tokens, so that one can be replaced without a gap.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use tenure_api::cluster::Role;

use super::{Entropy, EntropyError, Principal, PrincipalName, SecretFileError, read_secret_file};

/// What every token begins with, so that a leaked one is recognised.
pub const TOKEN_PREFIX: &str = "tnr_";
/// The most tokens one node knows.
pub const MAX_TOKENS: usize = 1024;

const TOKEN_BYTES: usize = 32;
const MAX_PRESENTED_BYTES: usize = 256;
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// A token in the clear. It is shown to its user once and kept nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

impl TokenText {
    /// The text, for the one who asked for it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenText(…)")
    }
}

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// Whose it is.
    pub principal: Principal,
    digest: [u8; 32],
}

impl TokenEntry {
    /// The entry of a given token.
    pub fn of(principal: Principal, token: &TokenText) -> Self {
        Self {
            principal,
            digest: digest(token.expose()),
        }
    }

    /// Its line in the file, without the end of line.
    pub fn line(&self) -> String {
        let hex: String = self.digest.iter().map(|b| format!("{b:02x}")).collect();
        format!("{} {} {hex}", self.principal.name, self.principal.role)
    }
}

/// Draws a token for a principal: the text for its user, and what is kept.
///
/// # Errors
/// There are no random bytes.
pub fn issue_token(
    entropy: &dyn Entropy,
    principal: Principal,
) -> Result<(TokenText, TokenEntry), EntropyError> {
    let mut bytes = [0; TOKEN_BYTES];
    entropy.fill(&mut bytes)?;
    let text = TokenText(format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)));
    let entry = TokenEntry::of(principal, &text);
    Ok((text, entry))
}

/// Why a file of tokens was refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read, or is open to others.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// A line makes no sense. The line itself is not shown: it may hold a token by mistake.
    #[error("line {line}: {why}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// There is no token in it, so nobody could do anything.
    #[error("there is no token in it; `tenure token generate` makes a line for it")]
    Empty,
    /// The same, with the file's name.
    #[error("{path}: {fault}; correct the file and start the node again")]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: Box<TokenFileError>,
    },
}

/// All tokens of a node.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    entries: Vec<TokenEntry>,
}

impl Tokens {
    /// The given tokens.
    ///
    /// # Errors
    /// As for [`Self::parse`]; the line is the position in the list.
    pub fn new(entries: Vec<TokenEntry>) -> Result<Self, TokenFileError> {
        let mut roles: BTreeMap<&PrincipalName, Role> = BTreeMap::new();
        let mut digests = std::collections::BTreeSet::new();
        for (position, entry) in entries.iter().enumerate() {
            let fault = |why: &str| TokenFileError::Line {
                line: position + 1,
                why: why.to_owned(),
            };
            if position >= MAX_TOKENS {
                return Err(fault("a node knows at most 1024 tokens"));
            }
            let Principal { name, role } = &entry.principal;
            if *roles.entry(name).or_insert(*role) != *role {
                return Err(fault("the same principal has another role above"));
            }
            if !digests.insert(entry.digest) {
                return Err(fault("the same token is there twice"));
            }
        }
        if entries.is_empty() {
            return Err(TokenFileError::Empty);
        }
        Ok(Self { entries })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// A line makes no sense, a principal has two roles, a token is there twice, or there is none.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut entries = Vec::new();
        let mut lines = Vec::new();
        for (position, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let fault = |why: String| TokenFileError::Line {
                line: position + 1,
                why,
            };
            entries.push(parse_line(content).map_err(fault)?);
            lines.push(position + 1);
        }
        Self::new(entries).map_err(|error| match error {
            TokenFileError::Line { line, why } => TokenFileError::Line {
                line: lines.get(line - 1).copied().unwrap_or(line),
                why,
            },
            other => other,
        })
    }

    /// Reads a file. Others than its owner must not be able to read or write it.
    ///
    /// # Errors
    /// As for [`read_secret_file`] and [`Self::parse`].
    pub fn load(path: &Path) -> Result<Self, TokenFileError> {
        let bytes = read_secret_file(path, MAX_FILE_BYTES)?;
        let read = match std::str::from_utf8(&bytes) {
            Ok(text) => Self::parse(text),
            Err(_) => Err(TokenFileError::Line {
                line: 1,
                why: "the file is not UTF-8 text".into(),
            }),
        };
        read.map_err(|fault| TokenFileError::In {
            path: path.to_owned(),
            fault: Box::new(fault),
        })
    }

    /// The text of a file with these tokens.
    pub fn render(&self) -> String {
        let mut text = String::from(
            "# Tokens of this node, one a line: name, role, SHA-256 of the token in hex.\n",
        );
        for entry in &self.entries {
            text.push_str(&entry.line());
            text.push('\n');
        }
        text
    }

    /// Whose token this is. Takes the same time for every text that is presented: the digest is compared
    /// with all of them, and none of the comparisons ends early.
    pub fn authenticate(&self, presented: &str) -> Option<Principal> {
        if presented.len() > MAX_PRESENTED_BYTES {
            return None;
        }
        let digest = digest(presented);
        let mut found = Choice::from(0);
        let mut which = 0_u64;
        for (position, entry) in self.entries.iter().enumerate() {
            let same = entry.digest.ct_eq(&digest);
            which.conditional_assign(&(position as u64), same);
            found |= same;
        }
        if !bool::from(found) {
            return None;
        }
        let entry = self.entries.get(usize::try_from(which).ok()?)?;
        Some(entry.principal.clone())
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn parse_line(line: &str) -> Result<TokenEntry, String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [name, role, hex] = fields.as_slice() else {
        return Err("a line is a name, a role and a digest".into());
    };
    let name = name
        .parse::<PrincipalName>()
        .map_err(|error| error.to_string())?;
    let role = role
        .parse::<Role>()
        .map_err(|_| "a role is admin, operator, viewer or executor".to_owned())?;
    let digest = parse_digest(hex)
        .ok_or("the digest is the SHA-256 of the token as 64 hex digits, not the token itself")?;
    Ok(TokenEntry {
        principal: Principal { name, role },
        digest,
    })
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{OsEntropy, write_secret_file};

    fn principal(name: &str, role: Role) -> Principal {
        Principal {
            name: name.parse().unwrap(),
            role,
        }
    }

    #[test]
    fn a_token_is_known_by_its_digest_alone() {
        let (ops, ops_entry) = issue_token(&OsEntropy, principal("ops", Role::Admin)).unwrap();
        let (eyes, eyes_entry) = issue_token(&OsEntropy, principal("eyes", Role::Viewer)).unwrap();
        assert!(ops.expose().starts_with(TOKEN_PREFIX));
        assert_eq!(ops.expose().len(), TOKEN_PREFIX.len() + 43);
        assert_ne!(ops, eyes);
        let written = Tokens::new(vec![ops_entry, eyes_entry]).unwrap().render();
        assert!(!written.contains(ops.expose()));
        let tokens = Tokens::parse(&written).unwrap();
        assert_eq!(
            tokens.authenticate(ops.expose()),
            Some(principal("ops", Role::Admin))
        );
        assert_eq!(
            tokens.authenticate(eyes.expose()),
            Some(principal("eyes", Role::Viewer))
        );
        for wrong in ["", "tnr_", &ops.expose()[1..], &"x".repeat(1000)] {
            assert_eq!(tokens.authenticate(wrong), None);
        }
        assert_eq!(format!("{ops:?}"), "TokenText(…)");
    }

    #[test]
    fn a_bad_line_is_named_and_not_shown() {
        let digest = "ab".repeat(32);
        let other = "cd".repeat(32);
        let cases = [
            (format!("ops root {digest}"), 1, "role"),
            (format!("o:ps admin {digest}"), 1, "name"),
            (
                format!("# x\n\nops admin {}", "tnr_secret"),
                3,
                "not the token itself",
            ),
            ("ops admin".to_owned(), 1, "a name, a role and a digest"),
            (
                format!("ops admin {digest}\nops viewer {other}"),
                2,
                "another role",
            ),
            (format!("a admin {digest}\n#\nb admin {digest}"), 3, "twice"),
        ];
        for (text, number, what) in cases {
            let error = Tokens::parse(&text).unwrap_err();
            let shown = error.to_string();
            assert!(
                matches!(error, TokenFileError::Line { line, .. } if line == number),
                "{shown}"
            );
            assert!(shown.contains(what), "{shown}");
            assert!(!shown.contains("tnr_secret"), "{shown}");
        }
        assert!(matches!(
            Tokens::parse("# none\n"),
            Err(TokenFileError::Empty)
        ));
    }

    #[test]
    fn a_fault_of_a_file_names_it_and_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes, what) in [
            ("none", b"# nobody\n".as_slice(), "`tenure token generate`"),
            ("line", b"ops admin\n", "line 1: a line is a name"),
            ("text", b"\xff\n", "line 1: the file is not UTF-8"),
        ] {
            let path = folder.path().join(name);
            write_secret_file(&path, bytes).unwrap();
            let text = Tokens::load(&path).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
            assert!(text.contains(what), "{text}");
            assert!(text.contains("correct the file"), "{text}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let line = format!("ops admin {}\n", "ab".repeat(32));
        write_secret_file(&path, line.as_bytes()).unwrap();
        assert!(Tokens::load(&path).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            Tokens::load(&path),
            Err(TokenFileError::File(SecretFileError::Exposed { .. }))
        ));
    }
}
