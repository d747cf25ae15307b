//! Reading and writing the words of the language: durations, instants, definitions of jobs.

use std::collections::BTreeMap;

use tenure_machine::{
    CheckpointScope, Execution, History, JobSpec, Misfire, MisfirePolicy, Name, Overlap, Recovery,
    Retry, TaskTemplate, Trigger,
};

/// The words of a line: those in order, and those with a key. `"` keeps words together.
pub(crate) struct Words {
    pub(crate) plain: Vec<String>,
    pub(crate) keyed: BTreeMap<String, String>,
}

impl Words {
    pub(crate) fn new(line: &str) -> Self {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for character in line.chars() {
            match character {
                '"' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                other => words.last_mut().expect("one word at least").push(other),
            }
        }
        let (keyed, plain): (Vec<_>, Vec<_>) = words
            .into_iter()
            .filter(|word| !word.is_empty())
            .partition(|word| {
                word.split_once('=')
                    .is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            });
        let keyed = keyed
            .iter()
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Self { plain, keyed }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.keyed.get(key).map(String::as_str)
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.get(key).map(number)
    }

    pub(crate) fn word(&self, position: usize) -> &str {
        self.plain
            .get(position)
            .unwrap_or_else(|| panic!("word {position} is missing in {:?}", self.plain))
    }
}

pub(crate) fn number(text: &str) -> u64 {
    if text == "max" {
        return u64::MAX;
    }
    text.parse()
        .unwrap_or_else(|_| panic!("not a number: {text}"))
}

pub(crate) fn duration_ms(text: &str) -> u64 {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let value = number(digits);
    match &text[digits.len()..] {
        "ms" => value,
        "s" => value * 1000,
        "m" => value * 60_000,
        "h" => value * 3_600_000,
        "d" => value * 86_400_000,
        other => panic!("not a unit: {other:?}"),
    }
}

pub(crate) fn instant_ms(text: &str) -> u64 {
    let instant: jiff::Timestamp = text
        .parse()
        .unwrap_or_else(|error| panic!("not an instant: {text}: {error}"));
    u64::try_from(instant.as_millisecond()).expect("after 1970")
}

pub(crate) fn instant(at_ms: u64) -> String {
    i64::try_from(at_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| at_ms.to_string(), |instant| instant.to_string())
}

/// A definition: `cron="0 2 * * *" zone=`, `every=`, `at=` or `manual=`; `overlap= queue_limit= misfire= grace=
/// limit= attempts= backoff= backoff_cap= jitter= timeout= shards= execution= recovery= checkpoints= can=
/// version= label=k:v params=`. Without jitter unless it is asked for.
pub(crate) fn spec(words: &Words) -> JobSpec {
    let trigger = if let Some(expression) = words.get("cron") {
        Trigger::Cron {
            expression: expression.into(),
            timezone: words.get("zone").unwrap_or("UTC").into(),
        }
    } else if let Some(interval) = words.get("every") {
        Trigger::Every {
            interval_ms: duration_ms(interval),
        }
    } else if let Some(at) = words.get("at") {
        Trigger::At {
            instant_ms: instant_ms(at),
        }
    } else {
        Trigger::Manual
    };
    let execution = match words.get("execution") {
        None | Some("at_least_once") => Execution::AtLeastOnce,
        Some("at_most_once") => Execution::AtMostOnce,
        Some(other) => panic!("execution {other}"),
    };
    let recovery = match words.get("recovery") {
        None if execution == Execution::AtMostOnce => Recovery::Never,
        None | Some("after_lease") => Recovery::AfterLease,
        Some("immediate") => Recovery::Immediate,
        Some("never") => Recovery::Never,
        Some(other) => panic!("recovery {other}"),
    };
    let narrow = |key: &str, default: u64| {
        u32::try_from(words.number(key).unwrap_or(default)).unwrap_or(u32::MAX)
    };
    let span = |key: &str, default: u64| words.get(key).map_or(default, duration_ms);
    JobSpec {
        description: words.get("description").unwrap_or("").into(),
        trigger,
        overlap: match words.get("overlap") {
            None | Some("forbid") => Overlap::Forbid,
            Some("allow") => Overlap::Allow,
            Some("replace") => Overlap::Replace,
            Some("queue") => Overlap::Queue,
            Some(other) => panic!("overlap {other}"),
        },
        queue_limit: narrow("queue_limit", 16),
        misfire: Misfire {
            policy: match words.get("misfire") {
                None | Some("fire_once") => MisfirePolicy::FireOnce,
                Some("skip") => MisfirePolicy::Skip,
                Some("catch_up") => MisfirePolicy::CatchUp,
                Some(other) => panic!("misfire {other}"),
            },
            grace_ms: span("grace", 30_000),
            limit: narrow("limit", 10),
        },
        retry: Retry {
            max_attempts: narrow("attempts", 1),
            initial_backoff_ms: span("backoff", 1000),
            max_backoff_ms: span("backoff_cap", 300_000),
            multiplier_milli: 2000,
            jitter_permille: narrow("jitter", 0),
        },
        timeout_ms: words.get("timeout").map(duration_ms),
        shards: narrow("shards", 1),
        execution,
        recovery,
        checkpoints: match words.get("checkpoints") {
            None | Some("per_run") => CheckpointScope::PerRun,
            Some("carry_over") => CheckpointScope::CarryOver,
            Some(other) => panic!("checkpoints {other}"),
        },
        task: TaskTemplate {
            capability: Name::new(words.get("can").unwrap_or("shell")),
            version: words.get("version").map(str::to_owned),
            selector: labels(words.get("label")),
            params: words.get("params").unwrap_or("{}").into(),
        },
        history: History {
            keep: 100,
            max_age_ms: 7 * 86_400_000,
        },
    }
}

pub(crate) fn labels(text: Option<&str>) -> BTreeMap<Name, Name> {
    text.into_iter()
        .flat_map(|text| text.split(','))
        .filter_map(|pair| pair.split_once(':'))
        .map(|(key, value)| (Name::new(key), Name::new(value)))
        .collect()
}

/// `SessionExpired` as `session_expired`.
pub(crate) fn snake(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if character.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(character.to_lowercase());
    }
    out
}
