//! What must hold of the tree itself: licenses and bans of `deny.toml`, who may depend on whom (the
//! direction of `docs/ARCHITECTURE.md`), exact pins, where a name may appear, what a simulation can run,
//! sizes of files, links of the documentation.
//!
//! It reads files and `cargo metadata`, and writes nothing.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its own functions too"
)]

mod policy {
    pub(crate) mod graph;
    pub(crate) mod license;
    pub(crate) mod markdown;
    pub(crate) mod simulated;
    pub(crate) mod tree;
}

use policy::graph::Graph;
use policy::tree::Tree;
use policy::{license, markdown, simulated};

/// Lines a source file may have. Around 600 is the aim; beyond this it is cut.
const MAX_LINES: usize = 700;

/// What a crate of the workspace may not reach, through however many others, when it is built.
const UNREACHABLE: &[(&str, &[&str])] = &[
    (
        "tenure-machine",
        &[
            "axum",
            "getrandom",
            "hyper",
            "mio",
            "openraft",
            "openraft-rt",
            "openraft-rt-tokio",
            "rand",
            "reqwest",
            "rustls",
            "sled",
            "socket2",
            "tenure",
            "tenure-api",
            "tenure-raft",
            "tenure-sdk",
            "tenure-storage",
            "tokio",
            "tracing",
        ],
    ),
    (
        "tenure-storage",
        &[
            "axum",
            "hyper",
            "openraft",
            "openraft-rt",
            "openraft-rt-tokio",
            "reqwest",
            "tenure",
            "tenure-api",
            "tenure-machine",
            "tenure-raft",
            "tenure-sdk",
        ],
    ),
    (
        "tenure-raft",
        &[
            "axum",
            "hyper",
            "reqwest",
            "tenure",
            "tenure-api",
            "tenure-sdk",
        ],
    ),
    (
        "tenure-api",
        &[
            "axum",
            "openraft",
            "sled",
            "tenure",
            "tenure-machine",
            "tenure-raft",
            "tenure-sdk",
            "tenure-storage",
            "tokio",
        ],
    ),
    (
        "tenure-sdk",
        &[
            "openraft",
            "sled",
            "tenure",
            "tenure-machine",
            "tenure-raft",
            "tenure-storage",
        ],
    ),
];

/// A crate that one part of the workspace has for itself, with the part, and the exact version if it is
/// pinned.
const OWNED: &[(&str, &str, Option<&str>)] = &[
    ("openraft", "tenure-raft", Some("0.10.0-alpha.37")),
    ("sled", "tenure-storage", Some("0.34.7")),
    ("bincode", "tenure-machine", Some("2.0.1")),
];

/// A text that may stand in Rust sources below the given paths only.
const CONFINED: &[(&str, &[&str])] = &[
    ("bincode::", &["machine/src/codec.rs"]),
    ("openraft::", &["raft/"]),
    ("sled::", &["storage/"]),
];

/// A text that may not stand in Rust sources below the given path, with the reason.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    (
        "machine/src/",
        "HashMap",
        "its order differs between replicas",
    ),
    (
        "machine/src/",
        "HashSet",
        "its order differs between replicas",
    ),
    ("machine/src/", "SystemTime", "time is data"),
    ("machine/src/", "std::time::Instant", "time is data"),
    ("machine/src/", "async fn", "the machine is synchronous"),
    (
        "src/cli/",
        "tenure_machine",
        "the command line knows sdk and api only",
    ),
    (
        "src/cli/",
        "tenure_raft",
        "the command line knows sdk and api only",
    ),
    (
        "src/cli/",
        "tenure_storage",
        "the command line knows sdk and api only",
    ),
];

/// Scenarios that a golden script of the machine must bear, by how the script's name begins.
const GOLDEN: &[&str] = &[
    "ha-4-a-", "ha-4-b-", "ha-4-c-", "ha-4-d-", "ha-6-", "ex-1-", "ex-2-", "ex-3-", "sh-1-",
    "sh-3-", "sh-9-",
];

fn check(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn every_license_is_allowed() {
    let tree = Tree::open();
    let policy = license::Policy::read(&tree.text("deny.toml"));
    let mut faults = Vec::new();
    for package in Graph::load(&tree).external() {
        match &package.license {
            None => faults.push(format!("{package}: names no license")),
            Some(terms) if policy.allows(&package.name, terms) => {}
            Some(terms) => faults.push(format!("{package}: {terms} is not allowed by deny.toml")),
        }
    }
    check(faults);
}

#[test]
fn license_terms_are_read_as_spdx() {
    let policy = license::Policy::read(
        "[licenses]\nallow = ['MIT', 'Zlib']\n[[licenses.exceptions]]\ncrate = 'x'\nallow = ['MPL-2.0']",
    );
    for (name, terms, allowed) in [
        ("a", "MIT", true),
        ("a", "GPL-3.0-only OR MIT", true),
        ("a", "GPL-3.0-only/MIT", true),
        ("a", "GPL-3.0-only AND MIT", false),
        ("a", "(GPL-3.0-only OR MIT) AND Zlib", true),
        ("a", "GPL-3.0-only OR MIT AND Zlib", true),
        ("a", "(Zlib OR MIT) AND GPL-3.0-only", false),
        ("a", "Apache-2.0 WITH LLVM-exception OR MIT", true),
        ("a", "MIT WITH LLVM-exception", false),
        ("a", "MPL-2.0+", false),
        ("x", "MPL-2.0+", true),
        ("x", "", false),
        ("x", "(MIT", false),
    ] {
        assert_eq!(policy.allows(name, terms), allowed, "{name}: {terms}");
    }
}

#[test]
fn no_banned_crate_and_no_foreign_source() {
    let tree = Tree::open();
    let deny: toml::Table = tree.text("deny.toml").parse().expect("deny.toml is TOML");
    let bans = deny["bans"]["deny"]
        .as_array()
        .expect("bans.deny is a list");
    let mut faults = Vec::new();
    let graph = Graph::load(&tree);
    let mut registries: Vec<&str> = Vec::new();
    for package in graph.external() {
        let ban = bans
            .iter()
            .find(|ban| ban["crate"].as_str() == Some(&package.name));
        if let Some(ban) = ban {
            faults.push(format!("{package} is banned: {:?}", ban["reason"]));
        }
        match package.source.as_deref() {
            Some(source) if source.starts_with("registry+") => registries.push(source),
            other => faults.push(format!(
                "{package} comes from {other:?}, not from a registry"
            )),
        }
    }
    registries.sort_unstable();
    registries.dedup();
    if registries.len() > 1 {
        faults.push(format!(
            "packages come from several registries: {registries:?}"
        ));
    }
    check(faults);
}

#[test]
fn every_exception_has_its_reason() {
    let tree = Tree::open();
    let deny: toml::Table = tree.text("deny.toml").parse().expect("deny.toml is TOML");
    let mut faults = Vec::new();
    let lists = [
        ("bans.deny", &deny["bans"]["deny"]),
        ("advisories.ignore", &deny["advisories"]["ignore"]),
    ];
    for (list, entries) in lists {
        for entry in entries.as_array().expect("a list") {
            let reason = entry.get("reason").and_then(toml::Value::as_str);
            if reason.is_none_or(str::is_empty) {
                faults.push(format!("{list}: {entry:?} has no reason"));
            }
        }
    }
    check(faults);
}

#[test]
fn parts_know_each_other_in_one_direction() {
    let graph = Graph::load(&Tree::open());
    let mut faults = Vec::new();
    for (part, forbidden) in UNREACHABLE {
        for name in *forbidden {
            if let Some(path) = graph.path(part, name) {
                faults.push(format!(
                    "{part} must not reach {name}: {}",
                    path.join(" -> ")
                ));
            }
        }
    }
    check(faults);
}

/// They are for the simulation alone, and only when it is built with the feature.
#[test]
fn no_part_reaches_the_planted_bugs_by_default() {
    let graph = Graph::load(&Tree::open());
    let names: Vec<&str> = graph.members().map(|part| part.name.as_str()).collect();
    assert!(names.contains(&"tenure-planted"), "{names:?}");
    let reaches = |part: &&str| graph.path(part, "tenure-planted");
    let faults = names
        .iter()
        .filter_map(|part| Some(reaches(part)?.join(" -> ")));
    check(faults.collect());
}

#[test]
fn owned_crates_have_one_owner_and_pins_are_exact() {
    let graph = Graph::load(&Tree::open());
    let mut faults = Vec::new();
    for (name, owner, pin) in OWNED {
        for member in graph.members() {
            if let Some(dependency) = member.dependencies.iter().find(|d| d.name == *name) {
                if member.name != *owner {
                    faults.push(format!(
                        "{} depends on {name}; only {owner} may",
                        member.name
                    ));
                }
                if let Some(version) = pin
                    && dependency.requirement != format!("={version}")
                {
                    faults.push(format!(
                        "{} asks for {name} {}, must be ={version}",
                        member.name, dependency.requirement
                    ));
                }
            }
        }
        if graph
            .members()
            .all(|m| m.dependencies.iter().all(|d| d.name != *name))
        {
            faults.push(format!("nobody depends on {name}: take its rule out"));
        }
    }
    check(faults);
}

#[test]
fn every_part_takes_the_workspace_lints() {
    let tree = Tree::open();
    let root: toml::Table = tree.text("Cargo.toml").parse().expect("Cargo.toml is TOML");
    let lints = &root["workspace"]["lints"];
    assert_eq!(lints["rust"]["unsafe_code"].as_str(), Some("forbid"));
    for lint in [
        "unwrap_used",
        "expect_used",
        "panic",
        "todo",
        "unimplemented",
        "dbg_macro",
    ] {
        let level = lints["clippy"][lint].as_str();
        assert!(
            matches!(level, Some("warn" | "deny" | "forbid")),
            "clippy::{lint}: {level:?}"
        );
    }
    let mut faults = Vec::new();
    for manifest in tree.files(|path| path == "Cargo.toml" || path.ends_with("/Cargo.toml")) {
        let table: toml::Table = tree.text(&manifest).parse().expect("a manifest is TOML");
        let inherits = table.get("lints").and_then(|l| l.get("workspace"));
        if inherits.and_then(toml::Value::as_bool) != Some(true) {
            faults.push(format!("{manifest}: lacks `[lints] workspace = true`"));
        }
    }
    check(faults);
}

#[test]
fn names_stay_in_their_places() {
    let tree = Tree::open();
    let mut faults = Vec::new();
    for file in tree.rust_files() {
        let text = tree.text(&file);
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let at = format!("{file}:{}", number + 1);
            for (name, places) in CONFINED {
                if code.contains(name) && !places.iter().any(|place| file.starts_with(place)) {
                    // The rule itself names it.
                    if !file.starts_with("tests/policy") {
                        faults.push(format!("{at}: {name} belongs to {places:?}"));
                    }
                }
            }
            for (place, name, reason) in FORBIDDEN {
                if file.starts_with(place) && code.contains(name) {
                    faults.push(format!("{at}: {name} is forbidden: {reason}"));
                }
            }
        }
    }
    check(faults);
}

#[test]
fn what_runs_in_a_simulation_takes_nothing_from_the_machine() {
    check(simulated::faults(&Tree::open()));
}

#[test]
fn nothing_is_left_for_later() {
    let tree = Tree::open();
    let marks = ["TODO", "FIXME", "XXX"];
    let mut faults = Vec::new();
    for file in tree.files(|path| !path.starts_with("tests/policy")) {
        let Some(text) = tree.text_if_utf8(&file) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            let words = || line.split(|c: char| !c.is_ascii_alphanumeric());
            if words().any(|word| marks.contains(&word)) {
                faults.push(format!("{file}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    check(faults);
}

#[test]
fn allowances_of_lints_say_why() {
    let tree = Tree::open();
    let mut faults = Vec::new();
    for file in tree.rust_files() {
        let text = tree.text(&file);
        for (start, _) in text
            .match_indices("[allow(")
            .chain(text.match_indices("[expect("))
        {
            let rest = text.get(start..).unwrap_or_default();
            let attribute = rest.split(")]").next().unwrap_or_default();
            if !attribute.contains("reason") && !file.starts_with("tests/policy") {
                let line = text[..start].lines().count();
                faults.push(format!("{file}:{line}: {attribute})] has no reason"));
            }
        }
    }
    check(faults);
}

#[test]
fn files_can_be_held_in_the_head() {
    let tree = Tree::open();
    let is_source = |path: &str| {
        path.ends_with(".rs")
            || path.ends_with(".sh")
            || path.ends_with(".js")
            || path.ends_with(".css")
    };
    let faults = tree.files(is_source).into_iter().filter_map(|file| {
        let lines = tree.text(&file).lines().count();
        (lines > MAX_LINES).then(|| format!("{file}: {lines} lines, at most {MAX_LINES}"))
    });
    check(faults.collect());
}

#[test]
fn every_scenario_has_its_script() {
    let scripts = Tree::open().files(|path| path.starts_with("machine/tests/golden/"));
    let missing = GOLDEN.iter().filter(|scenario| {
        let prefix = format!("machine/tests/golden/{scenario}");
        !scripts.iter().any(|script| script.starts_with(&prefix))
    });
    check(
        missing
            .map(|scenario| format!("no golden script begins with {scenario}"))
            .collect(),
    );
}

#[test]
fn every_link_of_the_documentation_leads_somewhere() {
    let tree = Tree::open();
    let pages = tree.files(|path| path.ends_with(".md"));
    assert!(pages.iter().any(|page| page == "README.md"), "{pages:?}");
    let mut faults = Vec::new();
    for page in &pages {
        for link in markdown::links(&tree.text(page)) {
            if let Err(why) = markdown::follow(&tree, page, &link) {
                faults.push(format!("{page}: ({link}) {why}"));
            }
        }
    }
    check(faults);
}

/// The page is made by `scripts/fix`, from the one table that the server and the SDK read.
#[test]
fn the_page_of_errors_is_the_table() {
    const PAGE: &str = "docs/errors.md";
    let tree = Tree::open();
    let table = tenure_api::ErrorCode::table_markdown();
    let page = format!("{ERRORS_HEAD}\n{table}");
    if std::env::var_os("TENURE_WRITE_DOCS").is_some() {
        std::fs::write(tree.root().join(PAGE), &page).expect("the page can be written");
    }
    assert!(
        tree.text(PAGE) == page,
        "{PAGE} is not what the table says: run scripts/fix"
    );
}

const ERRORS_HEAD: &str = "\
# Errors

Every error is `application/problem+json` (RFC 9457) with `type`, `title`, `status`, `code`, `detail`, `action` and
`retryable`, and where it helps with `path`, `allowed` and `errors`. Decide by `code`: it is stable, the texts are not.

*Retried*: the same request may succeed later without any change to it, so the SDK repeats it by itself.
*Changed nothing*: it is certain that the request had no effect, so it may be repeated without an idempotency key.

This page is made from the table in `api/src/error.rs`; a test compares them.
";
