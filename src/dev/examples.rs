//! The example jobs: where they come from, and which were applied.
//!
//! The program carries its own, with the script that one of them calls and the pages it counts the words of,
//! and writes them to the data folder: `examples` and `docs` stand beside each other there as they do in the
//! repository. A folder that the user names takes their place.
//!
//! Invariants:
//! - An example is made once. What the user does to the job afterwards (pause, change, delete) stays.
//! - A file that has changed since, with a newer program or another port, changes its job only if nobody else
//!   has changed that: the revision in the record says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tenure_api::{ErrorCode, JobSpec, Revision};
use tenure_sdk::{Client, JobBody, Precondition};

use super::DevError;

/// The files of the program's own examples: their folder and name in the repository, and what is in them.
macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../", $path)))),*]
    };
}

const FILES: &[(&str, &str)] = embedded![
    "docs/ARCHITECTURE.md",
    "docs/adr/0001-openraft-version.md",
    "docs/adr/0002-storage-split.md",
    "docs/adr/0003-codec.md",
    "docs/adr/0004-two-clocks.md",
    "docs/adr/0005-fencing-scope-and-numbers.md",
    "docs/adr/0006-archive-feed.md",
    "docs/adr/0007-fast-failover.md",
    "docs/errors.md",
    "docs/executors.md",
    "docs/jobs.md",
    "docs/operations.md",
    "docs/testing.md",
    "examples/cron-minute.yaml",
    "examples/every-second.yaml",
    "examples/http-ping.yaml",
    "examples/word-count.sh",
    "examples/word-count.yaml",
];

/// The first node, as the examples in the repository name it.
const USUAL_NODE: &str = "127.0.0.1:7401";

/// The jobs to apply.
#[derive(Clone, Debug)]
pub(super) struct Examples {
    /// Where their scripts are: a folder of the user's. `None`: the program's own.
    folder: Option<PathBuf>,
    files: Vec<(String, String)>,
    jobs: Vec<(String, JobSpec)>,
}

impl Examples {
    /// The program's own, for a cluster whose first node has this port. Writes nothing.
    pub(super) fn embedded(http_port: u16) -> Result<Self, DevError> {
        let node = format!("127.0.0.1:{http_port}");
        let files: Vec<(String, String)> = FILES
            .iter()
            .map(|(path, text)| {
                let is_job = path.ends_with(".yaml");
                let text = if is_job {
                    text.replace(USUAL_NODE, &node)
                } else {
                    (*text).to_owned()
                };
                ((*path).to_owned(), text)
            })
            .collect();
        let jobs = read(&files)?;
        Ok(Self {
            folder: None,
            files,
            jobs,
        })
    }

    /// The job files of a folder, as they are.
    pub(super) fn of_folder(folder: &Path) -> Result<Self, DevError> {
        let place = format!("--examples {}", folder.display());
        let folder = fs::canonicalize(folder).map_err(|error| DevError::new(&place, error))?;
        let entries = fs::read_dir(&folder).map_err(|error| DevError::new(&place, error))?;
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
            .collect();
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let name = path.display().to_string();
            let text = fs::read_to_string(&path).map_err(|error| DevError::new(&name, error))?;
            files.push((name, text));
        }
        let jobs = read(&files)?;
        Ok(Self {
            folder: Some(folder),
            files: Vec::new(),
            jobs,
        })
    }

    /// Writes what the program carries below the data folder. Gives the folder of the scripts.
    pub(super) fn unpack(&self, dir: &Path) -> Result<PathBuf, DevError> {
        for (path, text) in &self.files {
            let path = dir.join(path);
            let fail = |error| DevError::new(&path.display().to_string(), error);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(fail)?;
            }
            fs::write(&path, text).map_err(fail)?;
        }
        Ok(self.folder.clone().unwrap_or_else(|| dir.join("examples")))
    }

    /// Makes the jobs that were never made. `record` says which were.
    pub(super) async fn apply(&self, record: &Path, client: &Client) -> Result<(), DevError> {
        let mut applied = Record::read(record);
        for (place, job) in &self.jobs {
            let fresh = hash(job);
            let Some(precondition) = applied.precondition(job.name.as_str(), &fresh) else {
                continue;
            };
            let body = JobBody::Spec(Box::new(job.clone()));
            match client.put_job(&job.name, &body, precondition).await {
                Ok(answer) => applied.note(job.name.as_str(), fresh, answer.job.revision.get()),
                // The job is the user's by now: it was made, changed or deleted by somebody else.
                Err(error) if is_taken(error.code()) => {
                    applied.note(job.name.as_str(), fresh, TAKEN);
                }
                // For example a single instant that is over by now.
                Err(error) if error.code() == Some(ErrorCode::InvalidJob) => {
                    let _ = writeln!(std::io::stdout(), "{place} is not applied: {error}");
                    continue;
                }
                Err(error) => return Err(DevError::new(place, error)),
            }
            applied.write(record)?;
        }
        Ok(())
    }
}

fn is_taken(code: Option<ErrorCode>) -> bool {
    matches!(
        code,
        Some(ErrorCode::PreconditionFailed | ErrorCode::NotFound)
    )
}

fn read(files: &[(String, String)]) -> Result<Vec<(String, JobSpec)>, DevError> {
    files
        .iter()
        .filter(|(place, _)| place.ends_with(".yaml"))
        .map(|(place, text)| {
            let job = JobSpec::from_yaml(text).map_err(|errors| DevError::new(place, errors))?;
            Ok((place.clone(), job))
        })
        .collect()
}

fn hash(job: &JobSpec) -> String {
    let digest = Sha256::digest(job.to_json());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The revision of a job that is not ours: no job has it.
const TAKEN: u64 = 0;

/// Which examples were applied: a line each, with name, hash of the job and the revision it got.
#[derive(Debug, Default, PartialEq, Eq)]
struct Record(BTreeMap<String, (String, u64)>);

impl Record {
    /// What cannot be read says nothing. A job that is there then stays as it is.
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let entry = |line: &str| {
            let mut words = line.split_whitespace();
            let (name, hash) = (words.next()?, words.next()?);
            let revision = words.next()?.parse().ok()?;
            Some((name.to_owned(), (hash.to_owned(), revision)))
        };
        Self(text.lines().filter_map(entry).collect())
    }

    /// What a put must require, if one is needed at all.
    fn precondition(&self, name: &str, hash: &str) -> Option<Precondition> {
        match self.0.get(name) {
            None => Some(Precondition::Absent),
            Some((known, revision)) if known == hash || *revision == TAKEN => None,
            Some((_, revision)) => Some(Precondition::Revision(Revision(*revision))),
        }
    }

    fn note(&mut self, name: &str, hash: String, revision: u64) {
        self.0.insert(name.to_owned(), (hash, revision));
    }

    fn write(&self, path: &Path) -> Result<(), DevError> {
        let lines: String = self
            .0
            .iter()
            .map(|(name, (hash, revision))| format!("{name} {hash} {revision}\n"))
            .collect();
        let fresh = path.with_extension("new");
        fs::write(&fresh, lines)
            .and_then(|()| fs::rename(&fresh, path))
            .map_err(|error| DevError::new(&path.display().to_string(), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_below(folder: &str, ends: &str, found: &mut Vec<String>) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = format!("{folder}/{name}");
            if root.join(&path).is_dir() {
                files_below(&path, ends, found);
            } else if path.ends_with(ends) {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_program_carries_every_example_and_every_page() {
        let mut expected = Vec::new();
        files_below("docs", ".md", &mut expected);
        files_below("examples", "", &mut expected);
        expected.sort();
        let carried: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
        assert_eq!(carried, expected);
    }

    #[test]
    fn the_ping_goes_to_the_port_that_the_first_node_has() {
        let folder = tempfile::tempdir().unwrap();
        let examples = Examples::embedded(9_101).unwrap();
        let ping = |(_, job): &&(String, JobSpec)| job.name.as_str() == "http-ping";
        let (_, job) = examples.jobs.iter().find(ping).unwrap();
        let url = &job.task.params["url"];
        assert_eq!(url, "http://127.0.0.1:9101/healthz");
        let scripts = examples.unpack(folder.path()).unwrap();
        let text = fs::read_to_string(scripts.join("http-ping.yaml")).unwrap();
        assert_eq!(JobSpec::from_yaml(&text).as_ref(), Ok(job));
        assert!(folder.path().join("docs/jobs.md").exists());
    }

    #[test]
    fn a_folder_of_the_users_is_read_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        fs::create_dir(&own).unwrap();
        let text = "name: mine\ntrigger: { manual: true }\ntask: { capability: shell }\n";
        fs::write(own.join("mine.yaml"), text).unwrap();
        let examples = Examples::of_folder(&own).unwrap();
        assert_eq!(examples.jobs.len(), 1);
        let dir = folder.path().join("dev");
        assert_eq!(examples.unpack(&dir).unwrap(), own.canonicalize().unwrap());
        assert!(!dir.exists());
        fs::write(own.join("bad.yaml"), "name: x").unwrap();
        let fault = Examples::of_folder(&own).unwrap_err().to_string();
        assert!(fault.contains("bad.yaml"), "{fault}");
    }

    #[test]
    fn an_example_is_made_once_and_changed_only_where_nobody_else_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("examples.applied");
        let mut record = Record::read(&path);
        assert_eq!(record.precondition("a", "x"), Some(Precondition::Absent));
        record.note("a", "x".into(), 7);
        record.note("b", "x".into(), TAKEN);
        record.write(&path).unwrap();
        let record = Record::read(&path);
        assert_eq!(record.precondition("a", "x"), None);
        let same = Precondition::Revision(Revision(7));
        assert_eq!(record.precondition("a", "y"), Some(same));
        assert_eq!(record.precondition("b", "y"), None);
        fs::write(&path, "a\nb x\nc x y\nd x 8").unwrap();
        assert_eq!(Record::read(&path).0.len(), 1);
    }
}
