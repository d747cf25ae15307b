//! What runs in a simulation takes time, chance, threads and files from its surroundings only, and iterates
//! over nothing whose order differs between processes.
//!
//! The simulation holds its own sources to this with clippy, too. The product's sources are held to it here
//! only, because most of the product runs in a simulation and a part of it is what a simulation replaces.

use crate::policy::tree::Tree;

/// Where the sources of the product and of the simulation are.
const SOURCES: &[&str] = &[
    "api/src/",
    "machine/src/",
    "raft/src/",
    "sdk/src/",
    "src/",
    "storage/src/",
    "tests/sim/",
];

/// What never runs in a simulation, and what it is.
const OUTSIDE: &[(&str, &str)] = &[
    ("raft/src/sparing.rs", "the pace of the sockets' acceptor"),
    ("raft/src/tcp_node.rs", "sockets around a node"),
    ("raft/src/transport/auth.rs", "sockets"),
    ("raft/src/transport/frame.rs", "sockets"),
    ("raft/src/transport/link.rs", "sockets"),
    ("raft/src/transport/listener.rs", "sockets"),
    ("raft/src/transport/tcp.rs", "sockets"),
    ("sdk/src/http.rs", "sockets"),
    ("src/cli/", "the command line"),
    ("src/config.rs", "the file of a node's settings"),
    ("src/dev/", "processes of one machine"),
    ("src/executor/", "the built-in executor: processes"),
    ("src/listener.rs", "sockets"),
    ("src/main.rs", "the program"),
    ("src/node.rs", "the process around a node"),
    ("src/security/files.rs", "files of secrets"),
    ("src/signals.rs", "signals of a process"),
    (
        "storage/src/archive/sled_engine.rs",
        "sled: files and threads",
    ),
    ("storage/src/disk/real.rs", "real files"),
    ("tests/sim/main.rs", "runs seeds on all cores"),
    ("tests/sim/planted.rs", "runs seeds on all cores"),
    ("tests/sim/seeds.rs", "runs seeds on all cores"),
];

/// What may not be named, with the reason.
const WALL: &[(&str, &str)] = &[
    ("HashMap", "its order differs between processes"),
    ("HashSet", "its order differs between processes"),
    ("RandomState", "its seed differs between processes"),
    ("SystemTime", "real time"),
    ("std::time::Instant", "real time: tokio's is virtual"),
    ("getrandom", "randomness of the system"),
    ("std::env::", "a process's own surroundings"),
    ("std::fs", "real files"),
    ("tokio::fs", "real files"),
    ("std::net::Tcp", "sockets"),
    ("tokio::net", "sockets"),
    ("std::thread", "a thread"),
    ("spawn_blocking", "a thread"),
    ("tokio::spawn", "a task without a process"),
    (
        "tokio::sync::watch",
        "it wakes in an order that no seed decides",
    ),
];

/// Where something of the wall may stand all the same, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "sdk/src/environment.rs",
        "RandomState",
        "the real surroundings",
    ),
    (
        "sdk/src/environment.rs",
        "getrandom",
        "the real surroundings",
    ),
    (
        "sdk/src/environment.rs",
        "tokio::spawn",
        "the real surroundings",
    ),
    (
        "sdk/src/executor/builder.rs",
        "std::env::",
        "an id where none is given",
    ),
    (
        "sdk/src/executor/builder.rs",
        "std::fs",
        "an id where none is given",
    ),
    (
        "src/blocking.rs",
        "spawn_blocking",
        "in a simulation it is done in place",
    ),
    ("src/clock.rs", "SystemTime", "the real clock"),
    ("src/clock.rs", "std::time::Instant", "the real clock"),
    ("src/security/entropy.rs", "getrandom", "the real entropy"),
    (
        "storage/src/identity.rs",
        "std::fs",
        "the lock of a real folder",
    ),
    (
        "storage/src/wal/writer.rs",
        "std::thread",
        "whether a panic is under way",
    ),
    (
        "storage/src/wal/mod.rs",
        "std::thread",
        "tasks on real files",
    ),
    (
        "tests/sim/run.rs",
        "std::thread",
        "whether a panic is under way",
    ),
    (
        "tests/sim/runtime.rs",
        "spawn_blocking",
        "the name of a method, which does it in place",
    ),
    (
        "tests/sim/scope.rs",
        "tokio::spawn",
        "the one place where tasks get their process",
    ),
];

pub(crate) fn faults(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let mut used = vec![false; EXCEPTIONS.len()];
    let outside = |file: &str| OUTSIDE.iter().any(|(place, _)| file.starts_with(place));
    let simulated = |file: &str| {
        let product = SOURCES.iter().any(|place| file.starts_with(place));
        let test = file.contains("/tests/") || file.ends_with("/tests.rs");
        product && !test && !outside(file)
    };
    for file in tree.rust_files().into_iter().filter(|file| simulated(file)) {
        let text = tree.text(&file);
        // Tests stand at the end of a file.
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            let code = spelled_out(line.split("//").next().unwrap_or_default());
            for (name, reason) in WALL.iter().filter(|(name, _)| code.contains(name)) {
                let exception = EXCEPTIONS
                    .iter()
                    .position(|(place, what, _)| *place == file && what == name);
                match exception.and_then(|at| used.get_mut(at)) {
                    Some(used) => *used = true,
                    None => faults.push(format!("{file}:{}: {name}: {reason}", number + 1)),
                }
            }
        }
        for (at, _) in text.match_indices("select! {") {
            let rest = text.get(at..).unwrap_or_default();
            let first = rest.lines().nth(1).unwrap_or_default();
            if first.trim() != "biased;" {
                let line = text.get(..at).unwrap_or_default().lines().count();
                faults.push(format!(
                    "{file}:{line}: select! is not biased: a coin decides"
                ));
            }
        }
    }
    for (place, _) in OUTSIDE {
        if tree.files(|file| file.starts_with(place)).is_empty() {
            faults.push(format!("{place} is gone: take its rule out"));
        }
    }
    for ((place, name, _), used) in EXCEPTIONS.iter().zip(used) {
        if !used {
            faults.push(format!(
                "{place} does not name {name}: take its exception out"
            ));
        }
    }
    faults
}

/// A line with the names of a grouped import as they are spelled one by one.
fn spelled_out(line: &str) -> String {
    let group = line.trim().strip_prefix("use ").and_then(|rest| {
        let (path, names) = rest.split_once("::{")?;
        let names = names.trim_end_matches("};");
        let spelled = names.split(", ").map(|name| format!("{path}::{name}"));
        Some(spelled.collect::<Vec<_>>().join(" "))
    });
    group.unwrap_or_else(|| line.to_owned())
}
