//! Golden scripts: one behaviour a file under `tests/golden`, readable as a trace.
//!
//! A line that begins with `> ` is something that happens; what came of it stands below. The language is
//! described in `script/mod.rs`. `UPDATE_GOLDEN=1 cargo test -p tenure-machine --test golden` writes the
//! outcomes anew; the test fails on any difference.

// A test stops where something is not as it must be.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
// The runner reads and writes the golden files; the machine itself does no I/O.
#![allow(
    clippy::disallowed_methods,
    reason = "a test reads and writes its files"
)]

mod script;

use std::path::PathBuf;

fn scripts() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of golden scripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    found.sort();
    found
}

#[test]
fn golden_scripts() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let scripts = scripts();
    assert!(!scripts.is_empty(), "no golden scripts found");
    let mut failures = Vec::new();
    for path in scripts {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let expected = std::fs::read_to_string(&path).unwrap();
        let found = script::run(&name, &expected);
        if update {
            std::fs::write(&path, &found).unwrap();
        } else if found != expected {
            failures.push(format!("{name}\n{}", first_difference(&expected, &found)));
        }
    }
    assert!(
        failures.is_empty(),
        "{} scripts differ:\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}

fn first_difference(expected: &str, found: &str) -> String {
    let mut expected_lines = expected.lines();
    let mut found_lines = found.lines();
    let mut number = 0;
    loop {
        number += 1;
        match (expected_lines.next(), found_lines.next()) {
            (None, None) => return "they differ in the ends of their lines".into(),
            (expected, found) if expected == found => {}
            (expected, found) => {
                return format!(
                    "line {number}\n  expected: {}\n  found:    {}",
                    expected.unwrap_or("(end)"),
                    found.unwrap_or("(end)")
                );
            }
        }
    }
}
