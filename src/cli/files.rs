//! Job files: found, read and checked, all before anything is sent.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tenure_api::job::{MAX_BUNDLE_BYTES, parse_many};
use tenure_api::{JobName, JobSpec};

use super::failure::{Exit, Failure};

/// The most files that are read at once.
const MAX_FILES: usize = 10_000;

/// A job and where it was found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FoundJob {
    /// The file, or `-`.
    pub(super) file: String,
    /// The job.
    pub(super) spec: JobSpec,
}

/// Reads every job of the files and folders, in order. `-` is standard input.
///
/// # Errors
/// Every fault of every file; nothing is given back then.
pub(super) fn read_all(paths: &[PathBuf], stdin: &mut dyn Read) -> Result<Vec<FoundJob>, Failure> {
    let mut found = Vec::new();
    let mut faults = Vec::new();
    for path in expand(paths)? {
        match read_one(&path, stdin) {
            Ok(jobs) => found.extend(jobs),
            Err(fault) => faults.push(fault),
        }
    }
    faults.extend(named_twice(&found));
    match faults.len() {
        0 => Ok(found),
        1 => Err(faults.remove(0)),
        count => {
            let mut all = Failure::new(
                Exit::Refused,
                format!("{count} files are not valid; nothing was sent"),
            );
            for fault in faults {
                let place = fault.at.unwrap_or_default();
                let details = if fault.also.is_empty() {
                    vec![fault.what]
                } else {
                    fault.also
                };
                let lines = details.iter().map(|detail| format!("{place}: {detail}"));
                all.also.extend(lines);
            }
            Err(all)
        }
    }
}

/// Reads the jobs of one file, or of standard input.
///
/// # Errors
/// It cannot be read, or is not valid.
pub(super) fn read_one(path: &Path, stdin: &mut dyn Read) -> Result<Vec<FoundJob>, Failure> {
    let place = path.display().to_string();
    let bytes = if is_stdin(path) {
        bounded(stdin)
    } else {
        File::open(path).and_then(|mut file| bounded(&mut file))
    };
    let bytes = bytes.map_err(|fault| Failure::io(&place, &fault))?;
    let jobs = parse_many(&bytes).map_err(|errors| Failure::job(&place, &errors))?;
    let found = jobs.into_iter().map(|spec| FoundJob {
        file: place.clone(),
        spec,
    });
    Ok(found.collect())
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads one byte more than allowed, so that too much is told from just enough.
fn bounded(from: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_BUNDLE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The files themselves, and the job files of the folders by name.
fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if is_stdin(path) || !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let listed = fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(|fault: io::Error| Failure::io(path.display(), &fault))?;
        let mut listed: Vec<PathBuf> = listed;
        listed.retain(|file| is_job_file(file));
        listed.sort();
        if listed.is_empty() {
            return Err(Failure::new(
                Exit::NotFound,
                "the folder has no job file (*.yaml, *.yml, *.json)",
            )
            .at(path.display()));
        }
        files.extend(listed);
    }
    if files.len() > MAX_FILES {
        return Err(Failure::usage(format!(
            "more than {MAX_FILES} files at once"
        )));
    }
    if files.iter().filter(|file| is_stdin(file)).count() > 1 {
        return Err(Failure::usage("standard input can be read once").at("-"));
    }
    Ok(files)
}

fn is_job_file(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("yaml" | "yml" | "json")) && path.is_file()
}

/// A name in two files would make the order of files matter.
fn named_twice(found: &[FoundJob]) -> Vec<Failure> {
    let mut seen: BTreeMap<&JobName, &str> = BTreeMap::new();
    let mut faults = Vec::new();
    for job in found {
        if let Some(first) = seen.insert(&job.spec.name, &job.file) {
            let what = format!("the job {:?} is in {first} too", job.spec.name.as_str());
            faults.push(Failure::new(Exit::Refused, what).at(&job.file));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> String {
        format!("name: {name}\ntrigger: {{ manual: true }}\ntask: {{ capability: shell }}\n")
    }

    fn names(found: &[FoundJob]) -> Vec<&str> {
        found.iter().map(|job| job.spec.name.as_str()).collect()
    }

    #[test]
    fn folders_files_and_input_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("b.yaml", &format!("{}---\n{}", job("b1"), job("b2")));
        write(
            "a.json",
            &serde_json::json!({
                "name": "a", "trigger": {"manual": true}, "task": {"capability": "http"},
            })
            .to_string(),
        );
        write("README.md", "not a job");
        let paths = ["-".into(), folder.path().to_owned()];
        let found = read_all(&paths, &mut job("x").as_bytes()).unwrap();
        assert_eq!(names(&found), ["x", "a", "b1", "b2"]);
    }

    #[test]
    fn every_fault_of_every_file_is_told_and_nothing_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a.yaml"), job("a").replace("shell", "S H")).unwrap();
        fs::write(path("b.yaml"), job("b")).unwrap();
        fs::write(path("c.yaml"), "name: c\n").unwrap();
        let fault = read_all(&[folder.path().to_owned()], &mut io::empty()).unwrap_err();
        assert_eq!(fault.exit, Exit::Refused);
        let text = fault.to_string();
        for part in ["a.yaml: task.capability", "c.yaml: trigger", "c.yaml: task"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains("b.yaml"), "{text}");
    }

    #[test]
    fn a_name_in_two_files_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["1.yaml", "2.yaml"] {
            fs::write(folder.path().join(name), job("same")).unwrap();
        }
        let fault = read_all(&[folder.path().to_owned()], &mut io::empty()).unwrap_err();
        assert!(fault.what.contains("1.yaml"), "{fault}");
        assert!(fault.at.is_some_and(|at| at.ends_with("2.yaml")));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let fault = read_all(&["no/such.yaml".into()], &mut io::empty()).unwrap_err();
        assert_eq!(fault.at.as_deref(), Some("no/such.yaml"));
        let folder = tempfile::tempdir().unwrap();
        let fault = read_all(&[folder.path().to_owned()], &mut io::empty()).unwrap_err();
        assert_eq!(fault.exit, Exit::NotFound);
        let twice = ["-".into(), "-".into()];
        assert_eq!(
            read_all(&twice, &mut io::empty()).unwrap_err().exit,
            Exit::Usage
        );
    }
}
