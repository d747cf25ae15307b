//! The files of the project, by paths relative to its root.

use std::path::{Path, PathBuf};

/// Folders that hold nothing of the project's own.
const OUTSIDE: &[&str] = &["target", "var", ".git", ".tenure-dev", "node_modules"];

pub(crate) struct Tree {
    root: PathBuf,
    files: Vec<String>,
}

impl Tree {
    pub(crate) fn open() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the tests are one folder below the root")
            .to_owned();
        let mut tree = Self {
            root,
            files: Vec::new(),
        };
        tree.walk("");
        tree.files.sort();
        assert!(tree.files.iter().any(|file| file == "Cargo.lock"));
        tree
    }

    fn walk(&mut self, folder: &str) {
        let entries = std::fs::read_dir(self.root.join(folder)).expect("a folder can be read");
        for entry in entries {
            let entry = entry.expect("an entry can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = match folder {
                "" => name.clone(),
                _ => format!("{folder}/{name}"),
            };
            let kind = entry.file_type().expect("an entry has a type");
            if kind.is_dir() {
                if !OUTSIDE.contains(&name.as_str()) {
                    self.walk(&path);
                }
            } else if kind.is_file() {
                self.files.push(path);
            }
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    pub(crate) fn files(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        self.files
            .iter()
            .filter(|file| wanted(file))
            .cloned()
            .collect()
    }

    pub(crate) fn rust_files(&self) -> Vec<String> {
        self.files(|path| path.ends_with(".rs"))
    }

    pub(crate) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// `None` for a file that is not text.
    pub(crate) fn text_if_utf8(&self, path: &str) -> Option<String> {
        String::from_utf8(std::fs::read(self.root.join(path)).ok()?).ok()
    }
}
