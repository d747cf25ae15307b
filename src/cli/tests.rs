//! The command line as a script sees it: arguments in; output, faults and exit code out.

use super::*;
use clap_complete::Shell;

const PROCESSES: Processes = Processes {
    server: |args| {
        Err(Failure::new(
            Exit::Failure,
            format!("server {}", args.config.display()),
        ))
    },
    node_init: |_, _| Ok(()),
    dev: |_| Ok(()),
    next_fires: |spec, now, count| {
        crate::http::next_of_file(spec, now, count)
            .map_err(|fault| Failure::new(Exit::Refused, fault.to_string()))
    },
};

struct Ended {
    exit: Exit,
    stdout: String,
    stderr: String,
}

fn tenure(line: &str) -> Ended {
    tenure_with(&line.split(' ').collect::<Vec<_>>())
}

fn tenure_with(arguments: &[&str]) -> Ended {
    let all = std::iter::once("tenure").chain(arguments.iter().copied());
    let mut stdout = Vec::new();
    let (exit, stderr) = run(all.map(OsString::from), PROCESSES, &mut stdout, false);
    Ended {
        exit,
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: stderr.unwrap_or_default(),
    }
}

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn help_and_version_go_to_standard_output() {
    let help = tenure("--help");
    assert_eq!(help.exit, Exit::Ok);
    for part in ["job", "executors", "Exit codes:", "--token-file"] {
        assert!(help.stdout.contains(part), "{part}");
    }
    assert!(!help.stdout.contains("--token <"), "{}", help.stdout);
    let version = tenure("--version");
    assert_eq!(
        version.stdout,
        concat!("tenure ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn a_wrong_command_line_is_a_fault_of_usage() {
    for line in [
        "jobs",
        "job get",
        "job get A/B",
        "job apply",
        "job next",
        "job next a -f b",
        "job list --limit 0",
        "job list --timeout 0s",
        "job fires",
        "job fires a --from yesterday",
        "run get x",
        "run list --state asleep",
        "token generate --name a --role root",
        "executor --label gpu",
        "executor --allow-network 10.0.0.0/99",
        "executor --enable-http --disable-http",
        "cluster initialize",
        "job apply -f x --prune=yes",
        "completions tcsh",
    ] {
        let ended = tenure(line);
        assert_eq!(ended.exit, Exit::Usage, "{line}");
        assert!(
            ended.stdout.is_empty() && !ended.stderr.is_empty(),
            "{line}"
        );
    }
}

#[test]
fn the_usage_is_that_of_the_command_that_was_meant() {
    for (line, usage) in [
        (
            "task progress --socket x",
            "Usage: tenure task progress [OPTIONS] <VALUE>",
        ),
        (
            "job get --nodes http://a:1",
            "Usage: tenure job get [OPTIONS] <NAME>",
        ),
        ("-o json job get", "Usage: tenure job get [OPTIONS] <NAME>"),
    ] {
        let ended = tenure(line);
        assert!(ended.stderr.contains(usage), "{line}: {}", ended.stderr);
    }
}

#[test]
fn a_token_on_the_command_line_is_refused_with_the_reason() {
    let ended = tenure("job list --token tnr_secret");
    assert_eq!(ended.exit, Exit::Usage);
    assert!(!ended.stderr.contains("tnr_secret"), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("every user of this machine"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("--token-file"), "{}", ended.stderr);
}

#[test]
fn completions_are_made_for_each_shell() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let ended = tenure(&format!("completions {shell}"));
        assert_eq!(ended.exit, Exit::Ok);
        for part in ["trigger", "executors", "token-file"] {
            assert!(ended.stdout.contains(part), "{shell}: {part}");
        }
    }
}

#[test]
fn a_token_comes_with_its_line() {
    let ended = tenure("token generate --name ops --role admin -o json");
    assert_eq!(ended.exit, Exit::Ok);
    let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(json["token"].as_str().unwrap().starts_with("tnr_"));
    assert!(json["line"].as_str().unwrap().starts_with("ops admin "));
}

#[test]
fn the_next_instants_of_a_file_need_no_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    let text = "name: a\ntrigger: { every: 30s }\ntask: { capability: shell }\n";
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let ended = tenure_with(&["job", "next", "-f", path, "--count", "3"]);
    assert_eq!(ended.exit, Exit::Ok, "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(
        lines[0].starts_with("UTC") && lines[0].ends_with("LOCAL (UTC)"),
        "{}",
        lines[0]
    );
    let ended = tenure_with(&["job", "next", "-f", path, "-o", "yaml"]);
    assert!(ended.stdout.contains("job: a"), "{}", ended.stdout);
}

#[test]
fn an_invalid_file_is_refused_with_every_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.yaml");
    std::fs::write(&path, "name: a\noverlap: maybe\ntrigger: { every: 1ms }\n").unwrap();
    let path = path.to_str().unwrap();
    for arguments in [["job", "next", "-f", path], ["job", "apply", "-f", path]] {
        let ended = tenure_with(&arguments);
        assert_eq!(ended.exit, Exit::Refused);
        for part in [path, "overlap", "trigger.every", "task"] {
            assert!(
                ended.stderr.contains(part),
                "{part} is not in {}",
                ended.stderr
            );
        }
    }
}

#[test]
fn a_task_command_without_its_executor_says_to_stop() {
    let ended = tenure("task progress 5 --socket /no/such/task.sock");
    assert_eq!(ended.exit, Exit::TenureOver);
    assert!(
        ended.stderr.contains("/no/such/task.sock"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_task_command_outside_a_task_says_what_it_is_for() {
    for line in [
        "task context",
        "task checkpoint --offset 1",
        "task progress 1",
    ] {
        let ended = tenure(line);
        assert_eq!(ended.exit, Exit::Usage, "{line}");
        for part in ["this is not a task", "TENURE_TASK_SOCKET", "do: "] {
            assert!(ended.stderr.contains(part), "{line}: {}", ended.stderr);
        }
    }
}

#[test]
fn without_a_cluster_the_exit_code_says_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "tnr_x\n").unwrap();
    // A port that was free a moment ago: nothing listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let token = token.to_str().unwrap();
    let global = ["--nodes", &url, "--token-file", token, "--timeout", "300ms"];
    for command in [
        vec!["job", "list"],
        vec!["job", "fires", "a"],
        vec!["cluster", "status"],
        vec!["run", "get", "7"],
    ] {
        let ended = tenure_with(&[&command[..], &global[..]].concat());
        assert_eq!(
            ended.exit,
            Exit::Unavailable,
            "{command:?}: {}",
            ended.stderr
        );
        assert!(ended.stderr.contains("--nodes"), "{}", ended.stderr);
    }
}

#[test]
fn processes_are_handed_what_they_need() {
    let ended = tenure("server --config x.toml");
    assert_eq!(
        (ended.exit, ended.stderr.as_str()),
        (Exit::Failure, "error: server x.toml")
    );
    assert_eq!(tenure("dev").exit, Exit::Ok);
    assert_eq!(
        tenure("node init --config x.toml").stdout,
        "the node's folder is ready\n"
    );
}
