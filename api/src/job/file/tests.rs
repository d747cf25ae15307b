use super::*;
use crate::time::Millis;

const WHOLE: &str = r#"
name: nightly-report
description: sums the day
trigger:
  cron: "0 2 * * *"
  timezone: Europe/Berlin
overlap: queue
queue_limit: 4
misfire: { policy: catch_up, grace: 30s, limit: 10 }
retry: { max_attempts: 3, initial_backoff: 1s, max_backoff: 5m, multiplier: 2.0, jitter: 0.2 }
timeout: 10m
shards: 4
execution: at_least_once
recovery: immediate
checkpoints: carry_over
task:
  capability: shell
  version: ">=2.1, <3"
  selector: { gpu: "true" }
  params: { argv: [make, report], level: 3, nested: { deep: [1, 2.5, null, false] } }
history: { keep: 20, max_age: 2d }
paused: true
"#;

const SHORT: &str = "name: a\ntrigger: { manual: true }\ntask: { capability: c }\n";

/// The faults of a file as `path: message`, one a line.
fn faults(text: &str) -> String {
    JobSpec::from_yaml(text).unwrap_err().to_string()
}

/// The short file with other lines at its end.
fn with(lines: &str) -> String {
    format!("{SHORT}{lines}\n")
}

/// The short file with another trigger.
fn triggered(trigger: &str) -> String {
    format!("name: a\ntrigger: {trigger}\ntask: {{ capability: c }}\n")
}

#[test]
fn a_whole_file_is_read() {
    let spec = JobSpec::from_yaml(WHOLE).unwrap();
    assert_eq!(
        spec.trigger,
        Trigger::Cron {
            cron: "0 2 * * *".into(),
            timezone: "Europe/Berlin".into()
        }
    );
    assert_eq!(spec.overlap, Overlap::Queue);
    assert_eq!(spec.misfire.limit, Some(10));
    assert_eq!(spec.timeout, Some(Millis(600_000)));
    assert_eq!(spec.task.params["nested"]["deep"][2], Value::Null);
    assert_eq!(spec.history.max_age, Millis(172_800_000));
    assert_eq!(JobSpec::from_yaml(&spec.to_yaml()).unwrap(), spec);
    assert_eq!(JobSpec::from_json(spec.to_json().as_bytes()).unwrap(), spec);
}

#[test]
fn defaults_are_filled_in() {
    let spec = JobSpec::from_yaml(SHORT).unwrap();
    assert_eq!(
        spec.to_json(),
        r#"{"name":"a","trigger":{"manual":true},"overlap":"forbid","queue_limit":16,"misfire":{"policy":"fire_once","grace":"30s"},"retry":{"max_attempts":1,"initial_backoff":"1s","max_backoff":"5m","multiplier":2.0,"jitter":0.2},"shards":1,"execution":"at_least_once","recovery":"after_lease","checkpoints":"per_run","task":{"capability":"c"},"history":{"keep":100,"max_age":"7d"},"paused":false}"#
    );
    let once = JobSpec::from_yaml(&with("execution: at_most_once")).unwrap();
    assert_eq!(once.recovery, Recovery::Never);
    let caught = JobSpec::from_yaml(&with("misfire: { policy: catch_up }")).unwrap();
    assert_eq!(caught.misfire.limit, Some(10));
    let cron = JobSpec::from_yaml(&triggered("{ cron: '*/5  * * * *' }")).unwrap();
    assert_eq!(
        cron.trigger,
        Trigger::Cron {
            cron: "*/5 * * * *".into(),
            timezone: "UTC".into()
        }
    );
}

#[test]
fn a_long_first_pause_raises_the_longest() {
    let spec = JobSpec::from_yaml(&with("retry: { initial_backoff: 10m }")).unwrap();
    assert_eq!(spec.retry.max_backoff, Millis(600_000));
}

#[test]
fn json_and_yaml_have_one_schema() {
    let spec = JobSpec::from_yaml(WHOLE).unwrap();
    let json = spec.to_json();
    assert_eq!(
        JobSpec::from_yaml(&json).unwrap(),
        spec,
        "JSON is YAML, too"
    );
    let error = JobSpec::from_json(br#"{"name":"a","trigger":{},"task":{}}"#).unwrap_err();
    let paths: Vec<_> = error
        .errors()
        .iter()
        .map(|fault| fault.path.as_str())
        .collect();
    assert_eq!(paths, ["trigger", "task.capability"]);
}

#[test]
fn every_fault_is_reported_with_its_path_and_what_is_allowed() {
    let text = r#"
name: Nightly
trigger: { cron: "61 * * * *", timezone: Mars/Olympus, every: 5s }
overlap: maybe
retry: { max_attempts: 0, jitter: 2, backoff: 1s }
timeout: 31d
shards: 2000
task: { capability: "", version: "x.y", selector: { gpu: true }, params: [] }
colour: red
"#;
    let error = JobSpec::from_yaml(text).unwrap_err();
    let paths: Vec<_> = error
        .errors()
        .iter()
        .map(|fault| fault.path.as_str())
        .collect();
    assert_eq!(
        paths,
        [
            "colour",
            "name",
            "trigger",
            "overlap",
            "retry.backoff",
            "retry.max_attempts",
            "retry.jitter",
            "timeout",
            "shards",
            "task.capability",
            "task.version",
            "task.selector.gpu",
            "task.params",
        ]
    );
    let overlap = &error.errors()[3];
    assert_eq!(overlap.allowed, ["allow", "forbid", "replace", "queue"]);
    assert!(error.errors()[0].allowed.contains(&"trigger".to_owned()));
    let problem = error.into_problem();
    assert_eq!(
        (problem.status, problem.path.as_deref()),
        (422, Some("colour"))
    );
    assert_eq!(problem.errors.len(), 13);
}

#[test]
fn triggers_are_exclusive() {
    assert!(faults(&triggered("{}")).starts_with("trigger: must have exactly one"));
    assert!(faults(&triggered("{ every: 5s, manual: true }")).contains("every and manual"));
    assert!(faults(&triggered("{ every: 5s, timezone: UTC }")).starts_with("trigger.timezone"));
    assert!(faults(&triggered("{ manual: false }")).starts_with("trigger.manual"));
    assert!(faults(&triggered("{ every: 999ms }")).starts_with("trigger.every: must be from 1s"));
    assert!(faults(&triggered("{ every: 30 }")).starts_with("trigger.every: must be a duration"));
    assert!(faults(&triggered("{ at: tomorrow }")).starts_with("trigger.at: must be an RFC 3339"));
    for far in [
        "9999-12-31T23:59:59Z",
        "9999-12-30T12:00:00+01:00",
        "0000-12-31T00:00:00Z",
    ] {
        let found = faults(&triggered(&format!("{{ at: {far} }}")));
        assert!(
            found.contains("to 9999-12-30T00:00:00.000Z, found"),
            "{found}"
        );
    }
    assert!(faults(&triggered("{ at: 9999-13-31T23:59:59Z }")).contains("an RFC 3339 instant"));
    let at = JobSpec::from_yaml(&triggered("{ at: 2026-12-01T02:00:00Z }")).unwrap();
    assert!(
        at.to_json()
            .contains(r#""trigger":{"at":"2026-12-01T02:00:00.000Z"}"#)
    );
}

/// What the check lets through, the scheduler's crate can read.
#[test]
fn what_the_check_lets_through_can_be_read() {
    const ITEMS: [&str; 36] = [
        "*",
        "?",
        "0",
        "1",
        "7",
        "8",
        "12",
        "23",
        "24",
        "31",
        "59",
        "60",
        "1-5",
        "5-7",
        "0-7",
        "20-30/5",
        "30-20",
        "*/2",
        "*/6",
        "*/7",
        "*/31",
        "1-7/6",
        "5/2",
        "L",
        "LW",
        "15W",
        "5L",
        "5#2",
        "5#6",
        "JAN",
        "jan-MAR/2",
        "MON",
        "fri-sun",
        "SUNL",
        "1,,2",
        "1,L",
    ];
    let mut taken = 0;
    for (place, item) in (0..6).flat_map(|place| ITEMS.map(|item| (place, item))) {
        let mut fields = ["0", "0", "0", "*", "*", "*"];
        fields[place] = item;
        let text = fields.join(" ");
        match super::super::check::cron(&text) {
            Ok(_) => taken += 1,
            Err(said) => assert!(said.contains("field cannot hold"), "{text}: {said}"),
        }
    }
    assert!(taken > 60, "{taken}");
}

#[test]
fn cron_expressions_are_checked() {
    for good in [
        "0 2 * * *",
        "*/10 * * * * *",
        "0 0 29 2 *",
        "0 9 * * MON-FRI",
        "0 0 L * *",
    ] {
        assert!(
            JobSpec::from_yaml(&triggered(&format!("{{ cron: \"{good}\" }}"))).is_ok(),
            "{good}"
        );
    }
    for (bad, why) in [
        ("", "found 0"),
        ("* * * *", "found 4"),
        ("0 0 0 1 1 * 2030", "found 7"),
        ("@reboot", "@daily"),
        ("*/100 * * * *", "minute"),
        ("61 * * * *", "trigger.cron"),
        ("* * * * 9", "trigger.cron"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("a b c d e", "trigger.cron"),
        ("* * * * ü", "ASCII"),
    ] {
        let found = faults(&triggered(&format!("{{ cron: \"{bad}\" }}")));
        assert!(
            found.starts_with("trigger.cron: ") && found.contains(why),
            "{bad}: {found}"
        );
    }
}

#[test]
fn time_zones_are_checked_and_spelled_one_way() {
    let spec = JobSpec::from_yaml(&triggered("{ cron: '0 2 * * *', timezone: europe/berlin }"));
    assert!(spec.unwrap().to_json().contains("\"Europe/Berlin\""));
    let error = JobSpec::from_yaml(&triggered("{ cron: '0 2 * * *', timezone: Berlin }"));
    let error = error.unwrap_err();
    assert_eq!(error.errors()[0].path, "trigger.timezone");
    assert_eq!(error.errors()[0].allowed, ["Europe/Berlin"]);
}

#[test]
fn fields_that_contradict_each_other_are_refused() {
    for (lines, path) in [
        (
            "execution: at_most_once\nretry: { max_attempts: 2 }",
            "retry.max_attempts",
        ),
        ("execution: at_most_once\nrecovery: immediate", "recovery"),
        ("overlap: allow\ncheckpoints: carry_over", "checkpoints"),
        ("misfire: { policy: skip, limit: 3 }", "misfire.limit"),
        (
            "retry: { initial_backoff: 2m, max_backoff: 1m }",
            "retry.initial_backoff",
        ),
    ] {
        let found = faults(&with(lines));
        assert!(found.starts_with(&format!("{path}: ")), "{lines}: {found}");
    }
}

#[test]
fn broken_documents_are_refused_as_a_whole() {
    for (text, why) in [
        ("", "is empty"),
        ("- a\n- b", "must be an object"),
        ("just text", "must be an object"),
        (
            "name: a\nname: b",
            "$: the field \"name\" is there twice; keep one",
        ),
        (
            "a: &x {b: 1}\nc: {<<: *x, d: 1, d: 2}",
            "the field \"d\" is there twice",
        ),
        ("name: [", "is not YAML"),
        ("name: a\n---\nname: b", "single document"),
        ("a: !!binary x", "is not"),
        ("name: \u{0}", "is not YAML"),
    ] {
        let found = faults(text);
        assert!(found.contains(why), "{text:?}: {found}");
    }
    for (json, why) in [
        (&b"{\"name\":\"a\",\"name\":\"b\"}"[..], "there twice"),
        (b"{\"name\":\"a\",\"name\":\"b\"}", "$: the field \"name\""),
        (b"{\"name\":1e999}", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"{} {}", "is not JSON"),
    ] {
        let found = JobSpec::from_json(json).unwrap_err().to_string();
        assert!(found.starts_with("$: ") && found.contains(why), "{found}");
    }
    assert!(
        JobSpec::from_yaml_bytes(b"name: \xff")
            .unwrap_err()
            .to_string()
            .contains("UTF-8")
    );
}

#[test]
fn hostile_documents_stay_small() {
    let deep_json = "[".repeat(100_000);
    assert!(JobSpec::from_json(deep_json.as_bytes()).is_err());
    assert!(JobSpec::from_yaml(&deep_json).is_err());
    let deep_params = format!("{SHORT}  params: {}{}", "{ a: ".repeat(40), "}".repeat(40));
    assert!(JobSpec::from_yaml(&deep_params).is_err());
    let huge = with(&format!("description: {}", "x".repeat(MAX_FILE_BYTES)));
    assert!(faults(&huge).contains("at most 262144 bytes"));
    let long = with(&format!("description: {}", "x".repeat(1_025)));
    assert!(faults(&long).starts_with("description: must have at most 1024 bytes"));
    let params = "x".repeat(MAX_PARAMS_BYTES);
    let large = format!(
        "name: a\ntrigger: {{manual: true}}\ntask: {{capability: c, params: {{p: {params}}}}}"
    );
    assert!(faults(&large).starts_with("task.params: must have at most 65536 bytes"));
    // Nine levels of nine aliases each would be a thousand million strings.
    let mut bomb = String::from("a0: &a0 lol\n");
    for level in 1..10 {
        let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    assert!(faults(&bomb).starts_with("$: is not YAML"));
    let many_unknown: String = (0..500).map(|n| format!("x{n}: 1\n")).collect();
    let error = JobSpec::from_yaml(&with(&many_unknown)).unwrap_err();
    assert_eq!(
        (error.errors().len(), error.unlisted()),
        (MAX_REPORTED_ERRORS, 436)
    );
}

#[test]
fn aliases_and_merge_keys_work_within_the_limits() {
    let text = "
name: a
trigger: { manual: true }
retry: &r { max_attempts: 2 }
task:
  capability: c
  params: { again: *r, merged: { <<: *r, more: 1 } }
";
    let spec = JobSpec::from_yaml(text).unwrap();
    assert_eq!(spec.task.params["merged"]["max_attempts"], 2);
}

#[test]
fn yaml_words_stay_what_they_are() {
    let spec = JobSpec::from_yaml(
        "name: a\ntrigger: {manual: true}\ntask: {capability: c, params: {a: yes, b: no, c: 010, d: 1_000}}",
    )
    .unwrap();
    assert_eq!(spec.task.params["a"], "yes");
    assert_eq!(spec.task.params["b"], "no");
    assert_eq!(JobSpec::from_yaml(&spec.to_yaml()).unwrap(), spec);
}

#[test]
fn numbers_keep_every_bit() {
    let text = SHORT.replace("c }", "c, params: { a: 3.1867459584817125e+97, b: 0.1 } }");
    let spec = JobSpec::from_yaml(&text).unwrap();
    assert_eq!(JobSpec::from_json(spec.to_json().as_bytes()).unwrap(), spec);
    assert_eq!(JobSpec::from_yaml(&spec.to_yaml()).unwrap(), spec);
}

#[test]
fn files_of_several_jobs_are_read_and_faults_name_the_document() {
    let one = |name: &str| SHORT.replace("name: a", &format!("name: {name}"));
    let text = format!("---\n{}---\n{}---\n", one("a"), one("b"));
    let names: Vec<_> = parse_many(text.as_bytes())
        .unwrap()
        .into_iter()
        .map(|spec| spec.name)
        .collect();
    assert_eq!(
        names.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );

    let faulty = format!(
        "{}---\n{}shards: 0\n---\n- x\n---\n{}",
        one("a"),
        one("b"),
        one("a")
    );
    let error = parse_many(faulty.as_bytes()).unwrap_err();
    let paths: Vec<_> = error
        .errors()
        .iter()
        .map(|fault| fault.path.as_str())
        .collect();
    assert_eq!(paths, ["[1].shards", "[2]", "[3].name"]);

    let spec = JobSpec::from_yaml(SHORT).unwrap();
    let list = format!("[{}]", spec.to_json());
    let flow = "{name: a, trigger: {manual: true}, task: {capability: c}}";
    for text in [list.as_str(), spec.to_json().as_str(), flow] {
        assert_eq!(
            parse_many(text.as_bytes()).unwrap(),
            std::slice::from_ref(&spec),
            "{text}"
        );
    }
    assert!(
        parse_many(b"")
            .unwrap_err()
            .to_string()
            .contains("is empty")
    );
    assert!(parse_many(&vec![b' '; MAX_BUNDLE_BYTES + 1]).is_err());
}

#[test]
fn a_job_inside_an_answer_is_read_as_strictly() {
    let spec = JobSpec::from_yaml(WHOLE).unwrap();
    assert_eq!(
        serde_json::from_str::<JobSpec>(&spec.to_json()).unwrap(),
        spec
    );
    let unknown = spec.to_json().replacen('{', "{\"colour\":1,", 1);
    let error = serde_json::from_str::<JobSpec>(&unknown)
        .unwrap_err()
        .to_string();
    assert!(error.contains("colour: is not a field"), "{error}");
}
