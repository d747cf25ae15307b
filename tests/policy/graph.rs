//! The dependency graph, as `cargo metadata` tells it for this machine's platform.

use super::tree::Tree;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::process::Command;

pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    /// Absent for a package of the workspace.
    pub(crate) source: Option<String>,
    /// As its manifest declares them, of every kind.
    pub(crate) dependencies: Vec<Dependency>,
}

pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) requirement: String,
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

pub(crate) struct Graph {
    packages: BTreeMap<String, Package>,
    /// What each package is built with: its normal and build dependencies, not those of its tests.
    edges: BTreeMap<String, Vec<String>>,
}

fn text(value: &Value) -> String {
    value.as_str().expect("cargo gives a text").to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("cargo gives a list")
}

fn metadata(tree: &Tree, offline: bool) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
    ]);
    command.arg(host());
    if offline {
        command.arg("--offline");
    }
    let output = command
        .current_dir(tree.root())
        .output()
        .expect("cargo starts");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&output.stdout).expect("cargo gives JSON"))
}

fn host() -> String {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .expect("rustc starts");
    let facts = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = facts.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc names its host").to_owned()
}

impl Graph {
    pub(crate) fn load(tree: &Tree) -> Self {
        // What was built is here already; the network is only asked where something is missing.
        let metadata = metadata(tree, true)
            .or_else(|_| metadata(tree, false))
            .unwrap_or_else(|error| panic!("cargo metadata: {error}"));
        let packages = list(&metadata["packages"]).iter().map(|package| {
            let dependencies = list(&package["dependencies"])
                .iter()
                .map(|dependency| Dependency {
                    name: text(&dependency["name"]),
                    requirement: text(&dependency["req"]),
                });
            let read = Package {
                name: text(&package["name"]),
                version: text(&package["version"]),
                license: package["license"].as_str().map(str::to_owned),
                source: package["source"].as_str().map(str::to_owned),
                dependencies: dependencies.collect(),
            };
            (text(&package["id"]), read)
        });
        let edges = list(&metadata["resolve"]["nodes"]).iter().map(|node| {
            let built_with = list(&node["deps"]).iter().filter(|dependency| {
                let kinds = list(&dependency["dep_kinds"]);
                kinds
                    .iter()
                    .any(|kind| kind["kind"].as_str() != Some("dev"))
            });
            let ids = built_with.map(|dependency| text(&dependency["pkg"]));
            (text(&node["id"]), ids.collect())
        });
        let graph = Self {
            packages: packages.collect(),
            edges: edges.collect(),
        };
        assert!(graph.members().count() >= 7, "the workspace has its parts");
        graph
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .values()
            .filter(|package| package.source.is_none())
    }

    pub(crate) fn external(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .values()
            .filter(|package| package.source.is_some())
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.packages.get(id).map_or(id, |package| &package.name)
    }

    /// The shortest way from one package to another, by names.
    pub(crate) fn path(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let (start, _) = self
            .packages
            .iter()
            .find(|(_, package)| package.name == from)?;
        let mut seen: BTreeSet<&str> = BTreeSet::from([start.as_str()]);
        let mut ways: VecDeque<Vec<&str>> = VecDeque::from([vec![start.as_str()]]);
        while let Some(way) = ways.pop_front() {
            let last = way.last()?;
            if way.len() > 1 && self.name(last) == to {
                return Some(way.iter().map(|id| self.name(id).to_owned()).collect());
            }
            for next in self.edges.get(*last).into_iter().flatten() {
                if seen.insert(next) {
                    let mut longer = way.clone();
                    longer.push(next);
                    ways.push_back(longer);
                }
            }
        }
        None
    }
}
