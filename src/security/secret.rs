//! The secret that the nodes of a cluster share.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{Entropy, EntropyError, SecretFileError, read_secret_file};

/// How many random bytes a generated cluster secret has.
pub const CLUSTER_SECRET_BYTES: usize = 32;

/// The fewest bytes of text that are taken for a secret.
const MIN_SECRET_TEXT_BYTES: usize = 32;
/// The most.
const MAX_SECRET_TEXT_BYTES: u64 = 4096;

/// Secret bytes that show themselves to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// The bytes, for the one place that needs them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}

/// A fresh cluster secret as one line of text, to be given to [`super::write_secret_file`].
///
/// # Errors
/// There are no random bytes.
pub fn generate_cluster_secret(entropy: &dyn Entropy) -> Result<SecretBytes, EntropyError> {
    let mut bytes = [0; CLUSTER_SECRET_BYTES];
    entropy.fill(&mut bytes)?;
    let mut text = URL_SAFE_NO_PAD.encode(bytes);
    text.push('\n');
    Ok(SecretBytes(text.into_bytes()))
}

/// Reads the cluster secret: the text of the file without white space at its ends.
///
/// # Errors
/// The file is missing, open to others, or too short or too long to be a secret.
pub fn load_cluster_secret(path: &Path) -> Result<SecretBytes, SecretFileError> {
    let bytes = read_secret_file(path, MAX_SECRET_TEXT_BYTES)?;
    let secret = bytes.trim_ascii();
    if secret.len() < MIN_SECRET_TEXT_BYTES {
        return Err(SecretFileError::TooShort {
            path: path.to_owned(),
            min_bytes: MIN_SECRET_TEXT_BYTES,
        });
    }
    Ok(SecretBytes(secret.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{OsEntropy, write_secret_file};

    #[test]
    fn a_generated_secret_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.secret");
        let secret = generate_cluster_secret(&OsEntropy).unwrap();
        write_secret_file(&path, secret.expose()).unwrap();
        let loaded = load_cluster_secret(&path).unwrap();
        assert_eq!(loaded.expose(), secret.expose().trim_ascii());
        assert_ne!(
            generate_cluster_secret(&OsEntropy).unwrap(),
            secret,
            "each is drawn anew"
        );
        assert_eq!(format!("{loaded:?}"), "SecretBytes(…)");
    }

    #[test]
    fn a_short_secret_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.secret");
        write_secret_file(&path, b"  secret \n").unwrap();
        let text = load_cluster_secret(&path).unwrap_err().to_string();
        assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
        assert!(text.contains("copy the file of another node"), "{text}");
    }
}
