//! A thousand invalid job files, made by breaking valid ones: each gives an error with a code and a
//! path, and none a panic. Valid ones come out as they went in.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use tenure_api::ErrorCode;
use tenure_api::job::{JobErrors, JobSpec, MAX_FILE_BYTES, MAX_REPORTED_ERRORS, parse_many};

/// Any JSON value of a few levels.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        select(vec![
            "yes", "null", "~", "1e5", "0x10", ".nan", "- a", "a: b", " x ", "#c", "1_0"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,12}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn trigger() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"manual": true})),
        (1u64..1_000_000).prop_map(|secs| json!({"every": format!("{secs}s")})),
        (2000u32..9000, 1u32..=12, 1u32..=28, 0u32..24).prop_map(|(year, month, day, hour)| {
            json!({"at": format!("{year:04}-{month:02}-{day:02}T{hour:02}:30:00+01:00")})
        }),
        (
            select(vec![
                "0 2 * * *",
                "*/5 * * * * *",
                "0 0 29 2 *",
                "0 9-17 * * MON-FRI"
            ]),
            prop::option::of(select(vec!["UTC", "Europe/Berlin", "America/New_York"])),
        )
            .prop_map(|(cron, zone)| match zone {
                Some(zone) => json!({"cron": cron, "timezone": zone}),
                None => json!({"cron": cron}),
            }),
    ]
}

/// A valid job file.
fn valid() -> impl Strategy<Value = Value> {
    let head = (
        "[a-z0-9][a-z0-9._-]{0,20}",
        trigger(),
        select(vec!["forbid", "replace", "queue"]),
        1u32..=1_000,
        select(vec!["fire_once", "skip", "catch_up"]),
        1u32..=1_000,
        prop::option::of(1u64..=2_000_000_000),
        1u32..=1_024,
    );
    let tail = (
        select(vec!["immediate", "after_lease", "never"]),
        select(vec!["per_run", "carry_over"]),
        prop::collection::btree_map("[ -~]{1,10}", any_json(), 0..4),
        prop::collection::btree_map("[a-z]{1,8}", "\\PC{0,20}", 0..4),
        1.0f64..=100.0,
        0.0f64..=1.0,
        "\\PC{0,100}",
        any::<bool>(),
    );
    (head, tail).prop_map(|(head, tail)| {
        let (name, trigger, overlap, limit, misfire, attempts, timeout_ms, shards) = head;
        let (recovery, checkpoints, params, selector, multiplier, jitter, text, paused) = tail;
        let mut job = json!({
            "name": name,
            "description": text,
            "trigger": trigger,
            "overlap": overlap,
            "queue_limit": limit,
            "misfire": {"policy": misfire, "grace": "1m5s"},
            "retry": {"max_attempts": attempts, "multiplier": multiplier, "jitter": jitter},
            "shards": shards,
            "recovery": recovery,
            "checkpoints": checkpoints,
            "task": {"capability": "shell", "params": params, "selector": selector},
            "paused": paused,
        });
        if let Some(ms) = timeout_ms {
            job["timeout"] = json!(format!("{ms}ms"));
        }
        job
    })
}

/// What makes a valid file invalid, and where the fault must be found.
#[derive(Clone, Debug)]
enum Breakage {
    /// A field gets a value that it cannot have.
    Set(&'static str, Value),
    /// A field that must be there is gone.
    Remove(&'static str),
    /// A field appears that no job has.
    Unknown(&'static str, String),
    /// The document is cut, so that it ends in the middle.
    Cut(usize),
    /// Something is put around the document.
    Wrap(usize),
    /// The description is longer than a file may be.
    Huge,
}

fn breakage() -> impl Strategy<Value = Breakage> {
    let wrong_type = prop_oneof![
        Just(json!(null)),
        Just(json!([])),
        Just(json!([{"a": 1}])),
        Just(json!(-1)),
        Just(json!(1.5e300)),
        Just(json!({"deep": {"er": 1}})),
    ];
    // Each of these fields refuses each of the values above.
    let typed = select(vec![
        "name",
        "description",
        "trigger",
        "overlap",
        "queue_limit",
        "misfire",
        "misfire.policy",
        "misfire.grace",
        "retry",
        "retry.max_attempts",
        "retry.initial_backoff",
        "retry.multiplier",
        "retry.jitter",
        "timeout",
        "shards",
        "execution",
        "recovery",
        "checkpoints",
        "task",
        "task.capability",
        "task.version",
        "history",
        "history.keep",
        "history.max_age",
        "paused",
    ]);
    let out_of_range = select(vec![
        ("queue_limit", json!(0)),
        ("queue_limit", json!(1_001)),
        ("shards", json!(0)),
        ("shards", json!(1_025)),
        ("shards", json!(u64::MAX)),
        ("retry.max_attempts", json!(0)),
        ("retry.multiplier", json!(0.99)),
        ("retry.jitter", json!(1.01)),
        ("timeout", json!("0s")),
        ("timeout", json!("31d")),
        ("timeout", json!("99999999999999999999s")),
        ("misfire.grace", json!("1ms")),
        ("history.keep", json!(100_001)),
        ("name", json!("UPPER")),
        ("name", json!("a/b")),
        ("name", json!("a".repeat(129))),
        ("overlap", json!("sometimes")),
        ("task.version", json!(">=x")),
        ("task.capability", json!("no spaces")),
    ]);
    let bad_trigger = prop_oneof![
        "\\PC{0,30}"
            .prop_filter("not an expression", |text| {
                !(5..=6).contains(&text.split_whitespace().count())
            })
            .prop_map(|cron| json!({ "cron": cron })),
        select(vec![
            "0 0 30 2 *",
            "60 * * * *",
            "* * 0 * *",
            "* * * 13 *",
            "*/0 * * * *"
        ])
        .prop_map(|cron| json!({ "cron": cron })),
        "[a-z]{1,9}/[0-9]{1,9}".prop_map(|zone| json!({"cron": "* * * * *", "timezone": zone})),
        Just(json!({"every": "1s", "at": "2026-12-01T02:00:00Z"})),
        Just(json!({"every": "10ms"})),
        Just(json!({"at": "2026-13-01T02:00:00Z"})),
        Just(json!({"manual": "true"})),
    ];
    prop_oneof![
        4 => (typed, wrong_type).prop_map(|(path, value)| Breakage::Set(path, value)),
        3 => out_of_range.prop_map(|(path, value)| Breakage::Set(path, value)),
        3 => bad_trigger.prop_map(|trigger| Breakage::Set("trigger", trigger)),
        1 => select(vec!["name", "trigger", "task", "task.capability"]).prop_map(Breakage::Remove),
        2 => (select(vec!["", "trigger", "misfire", "retry", "task", "history"]), "[A-Z\\PC]{1,40}")
            .prop_map(|(path, name)| Breakage::Unknown(path, format!("X{name}"))),
        2 => any::<usize>().prop_map(Breakage::Cut),
        1 => (1usize..5_000).prop_map(Breakage::Wrap),
        1 => Just(Breakage::Huge),
    ]
}

/// The object at a path, made if it is not there.
fn object_at<'a>(job: &'a mut Value, path: &str) -> &'a mut Map<String, Value> {
    let mut here = job;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        here = &mut here[part];
        if !here.is_object() {
            *here = json!({});
        }
    }
    here.as_object_mut().unwrap()
}

/// Breaks a file. Gives its JSON text and the path that a fault must have.
fn broken(mut job: Value, breakage: &Breakage) -> (String, String) {
    fn split(path: &str) -> (&str, &str) {
        path.rsplit_once('.').unwrap_or(("", path))
    }
    match breakage {
        Breakage::Set(path, value) => {
            let (parent, field) = split(path);
            object_at(&mut job, parent).insert(field.to_owned(), value.clone());
            (job.to_string(), (*path).to_owned())
        }
        Breakage::Remove(path) => {
            let (parent, field) = split(path);
            object_at(&mut job, parent).remove(field);
            (job.to_string(), (*path).to_owned())
        }
        Breakage::Unknown(path, name) => {
            object_at(&mut job, path).insert(name.clone(), json!(1));
            (job.to_string(), (*path).to_owned())
        }
        Breakage::Cut(at) => {
            let text = job.to_string();
            let end = text.floor_char_boundary(1 + at % (text.len() - 1));
            (text[..end].to_owned(), "$".to_owned())
        }
        Breakage::Wrap(times) => {
            let text = format!("{}{job}{}", "[".repeat(*times), "]".repeat(*times));
            (text, "$".to_owned())
        }
        Breakage::Huge => {
            job["description"] = json!("x".repeat(MAX_FILE_BYTES));
            (job.to_string(), "$".to_owned())
        }
    }
}

/// What holds for every error.
fn well_formed(errors: &JobErrors) -> Result<(), TestCaseError> {
    prop_assert!(!errors.errors().is_empty());
    prop_assert!(errors.errors().len() <= MAX_REPORTED_ERRORS);
    for fault in errors.errors() {
        prop_assert_eq!(fault.code, ErrorCode::InvalidJob);
        prop_assert!(!fault.path.is_empty());
        prop_assert!(!fault.message.is_empty());
        prop_assert!(fault.message.len() < 2_000, "{}", fault.message);
        prop_assert!(
            !fault.message.chars().any(char::is_control),
            "{:?}",
            fault.message
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn broken_files_are_refused_with_code_and_path(
        (job, breakage) in (valid(), breakage())
    ) {
        let (text, path) = broken(job, &breakage);
        let json = JobSpec::from_json(text.as_bytes());
        prop_assert!(json.is_err(), "{} was taken", text);
        let errors = json.unwrap_err();
        well_formed(&errors)?;
        let named = errors.errors().iter().any(|fault| {
            fault.path == path || fault.path.starts_with(&format!("{path}."))
                || (path.is_empty() && fault.path.starts_with('X'))
        });
        prop_assert!(named, "no fault at {}: {}", path, errors);

        // The same text is YAML, except where it is not even JSON.
        let yaml = JobSpec::from_yaml(&text);
        prop_assert!(yaml.is_err(), "{} was taken as YAML", text);
        well_formed(&yaml.unwrap_err())?;
        let many = parse_many(text.as_bytes());
        if !matches!(breakage, Breakage::Wrap(1)) && !matches!(breakage, Breakage::Huge) {
            prop_assert!(many.is_err(), "{} was taken as several", text);
        }
        if let Err(errors) = many {
            well_formed(&errors)?;
        }
    }

    #[test]
    fn valid_files_come_out_as_they_went_in(job in valid()) {
        let text = job.to_string();
        let spec = JobSpec::from_json(text.as_bytes());
        prop_assert!(spec.is_ok(), "{}: {:?}", text, spec);
        let spec = spec.unwrap();
        let json = spec.to_json();
        prop_assert_eq!(&JobSpec::from_json(json.as_bytes()).unwrap(), &spec);
        prop_assert_eq!(JobSpec::from_json(json.as_bytes()).unwrap().to_json(), json);
        let yaml = spec.to_yaml();
        let again = JobSpec::from_yaml(&yaml);
        prop_assert!(again.is_ok(), "{}: {:?}", yaml, again);
        prop_assert_eq!(again.unwrap(), spec);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for result in [JobSpec::from_json(&bytes), JobSpec::from_yaml_bytes(&bytes)] {
            if let Err(errors) = result {
                well_formed(&errors)?;
            }
        }
        if let Err(errors) = parse_many(&bytes) {
            well_formed(&errors)?;
        }
    }

    #[test]
    fn any_text_is_read_or_refused(
        text in "(name: |trigger: |cron: |\"|'|\\{|\\[|\\]|\\}|&a |\\*a|<<: |- |\n|  |: |\\||>|!!|%|---|\\PC){0,60}"
    ) {
        if let Err(errors) = JobSpec::from_yaml(&text) {
            well_formed(&errors)?;
        }
    }

    #[test]
    fn any_cron_expression_is_taken_or_refused(
        fields in prop::collection::vec("[*0-9,/L#W?A-Za-z-]{1,6}", 5..=6)
    ) {
        let job = json!({
            "name": "a",
            "trigger": {"cron": fields.join(" ")},
            "task": {"capability": "c"},
        });
        if let Err(errors) = JobSpec::from_json(job.to_string().as_bytes()) {
            well_formed(&errors)?;
            prop_assert_eq!(errors.errors()[0].path.as_str(), "trigger.cron");
        }
    }
}
