//! Files that hold secrets: nobody but their owner may read or write them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The mode of a file that holds secrets.
const SECRET_MODE: u32 = 0o600;

/// Why a file of secrets was refused.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// It cannot be opened or read.
    #[error("{path}: cannot be read: {error}; name a file that is there and belongs to this user")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It cannot be written.
    #[error(
        "{path}: cannot be written: {error}; name a new file in a folder that this user may write to"
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Others than its owner may read or write it.
    #[error("{path}: mode {mode:04o} lets others in; run `chmod 600 {path}`")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is not a plain file.
    #[error("{path}: is not a plain file; name the file itself")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// It has more bytes than such a file can need.
    #[error("{path}: is longer than {limit_bytes} bytes; is it the right file?")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The most it may have.
        limit_bytes: u64,
    },
    /// What is in it is too short to be a secret.
    #[error(
        "{path}: a cluster secret has at least {min_bytes} bytes; copy the file of another node, or make \
         one for a new cluster with scripts/bootstrap.sh"
    )]
    TooShort {
        /// The file.
        path: PathBuf,
        /// The fewest it must have.
        min_bytes: usize,
    },
}

/// Reads a file of secrets.
///
/// # Errors
/// It is missing, is not a plain file, has more than `limit_bytes`, or is open to others than its owner.
pub fn read_secret_file(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, SecretFileError> {
    let fail = |error| SecretFileError::Read {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(fail)?;
    // What was opened is looked at, not what the path names by now.
    let metadata = file.metadata().map_err(fail)?;
    if !metadata.is_file() {
        return Err(SecretFileError::NotAFile {
            path: path.to_owned(),
        });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(SecretFileError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let mut bytes = Vec::new();
    file.take(limit_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    if bytes.len() as u64 > limit_bytes {
        return Err(SecretFileError::TooLong {
            path: path.to_owned(),
            limit_bytes,
        });
    }
    Ok(bytes)
}

/// Writes a new file of secrets with mode 0600, durably. A file that is there already is left alone.
///
/// # Errors
/// There is such a file, or it cannot be written.
pub fn write_secret_file(path: &Path, bytes: &[u8]) -> Result<(), SecretFileError> {
    let fail = |error| SecretFileError::Write {
        path: path.to_owned(),
        error,
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(SECRET_MODE)
        .open(path)
        .map_err(fail)?;
    file.write_all(bytes).map_err(fail)?;
    file.sync_all().map_err(fail)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_file_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        write_secret_file(&path, b"hidden").unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(read_secret_file(&path, 6).unwrap(), b"hidden");
        assert!(matches!(
            read_secret_file(&path, 5),
            Err(SecretFileError::TooLong { limit_bytes: 5, .. })
        ));
        assert!(
            write_secret_file(&path, b"other").is_err(),
            "an old secret is never overwritten"
        );
        for mode in [0o640, 0o604, 0o620, 0o666] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert!(
                matches!(read_secret_file(&path, 6), Err(SecretFileError::Exposed { mode: found, .. }) if found == mode),
                "{mode:o}"
            );
        }
        assert!(read_secret_file(folder.path(), 6).is_err());
        assert!(read_secret_file(&folder.path().join("missing"), 6).is_err());
    }

    #[test]
    fn each_fault_names_the_file_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let missing = read_secret_file(&path, 5).unwrap_err();
        write_secret_file(&path, b"hidden").unwrap();
        let there = write_secret_file(&path, b"hidden").unwrap_err();
        let long = read_secret_file(&path, 5).unwrap_err();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let open = read_secret_file(&path, 6).unwrap_err();
        for (fault, todo) in [
            (missing, "name a file that is there"),
            (there, "name a new file"),
            (long, "is it the right file?"),
            (open, "chmod 600"),
        ] {
            let text = fault.to_string();
            assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
            assert!(text.contains(todo), "{text}");
        }
        let text = read_secret_file(folder.path(), 6).unwrap_err().to_string();
        assert!(text.contains("name the file itself"), "{text}");
    }
}
