//! Walks a document and makes a [`JobSpec`] of it, collecting every fault on the way.
//!
//! serde's own derive stops at the first fault and cannot say what is allowed, so the schema is
//! written out here. Invariant: [`decode`] fails exactly when at least one fault was recorded.

use super::check;
use super::spec::*;
use crate::ids::{Capability, InvalidName, JobName};
use crate::time::{DURATION_FORM, Millis, Timestamp};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The document as a whole, where a fault has no field.
pub(crate) const ROOT: &str = "$";

const DAY_MS: u64 = 86_400_000;

/// Reads a document.
pub(crate) fn decode(document: &Value) -> Result<JobSpec, JobErrors> {
    let mut reader = Reader {
        errors: JobErrors::none(),
    };
    match reader.job(document) {
        Some(spec) if reader.errors.is_empty() => Ok(spec),
        _ if reader.errors.is_empty() => Err(JobErrors::one(ROOT, "cannot be read as a job")),
        _ => Err(reader.errors),
    }
}

struct Reader {
    errors: JobErrors,
}

/// An object of the document, with where it is.
struct Object<'a> {
    path: String,
    fields: &'a Map<String, Value>,
}

impl Object<'_> {
    fn path_of(&self, name: &str) -> String {
        if self.path == ROOT {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }
}

impl Reader {
    fn job(&mut self, document: &Value) -> Option<JobSpec> {
        const FIELDS: [&str; 15] = [
            "name",
            "description",
            "trigger",
            "overlap",
            "queue_limit",
            "misfire",
            "retry",
            "timeout",
            "shards",
            "execution",
            "recovery",
            "checkpoints",
            "task",
            "history",
            "paused",
        ];
        let job = self.object(ROOT.to_owned(), document, &FIELDS)?;
        let name = self.name::<JobName>(&job, "name");
        let description = self.description(&job);
        let trigger = self.trigger(&job);
        let overlap = self.choice(&job, "overlap", Overlap::ALL, Overlap::Forbid);
        let queue_limit = self.integer(
            &job,
            "queue_limit",
            1..=MAX_QUEUE_LIMIT,
            DEFAULT_QUEUE_LIMIT,
        );
        let misfire = self.misfire(&job);
        let retry = self.retry(&job);
        let timeout = self.optional_duration(&job, "timeout", 1..=30 * DAY_MS);
        let shards = self.integer(&job, "shards", 1..=MAX_SHARDS, 1);
        let execution = self.choice(&job, "execution", Execution::ALL, Execution::AtLeastOnce);
        let recovery = self.recovery(&job, execution);
        let checkpoints = self.choice(
            &job,
            "checkpoints",
            CheckpointPolicy::ALL,
            CheckpointPolicy::PerRun,
        );
        let task = self.task(&job);
        let history = self.history(&job);
        let paused = self.boolean(&job, "paused", false);

        if execution == Some(Execution::AtMostOnce) && retry.is_some_and(|r| r.max_attempts > 1) {
            self.fault(
                "retry.max_attempts",
                "must be 1 when execution is at_most_once",
                vec!["1".to_owned()],
            );
        }
        let carries = checkpoints == Some(CheckpointPolicy::CarryOver);
        if carries && overlap == Some(Overlap::Allow) {
            self.fault(
                "checkpoints",
                "cannot be carry_over when overlap is allow: concurrent runs have no common past",
                vec![CheckpointPolicy::PerRun.to_string()],
            );
        }
        Some(JobSpec {
            name: name?,
            description: description?,
            trigger: trigger?,
            overlap: overlap?,
            queue_limit: queue_limit?,
            misfire: misfire?,
            retry: retry?,
            timeout: timeout?,
            shards: shards?,
            execution: execution?,
            recovery: recovery?,
            checkpoints: checkpoints?,
            task: task?,
            history: history?,
            paused: paused?,
        })
    }

    fn description(&mut self, job: &Object<'_>) -> Option<String> {
        let Some(text) = self.optional_text(job, "description")? else {
            return Some(String::new());
        };
        self.bounded(job, "description", text, MAX_DESCRIPTION_BYTES)
            .map(str::to_owned)
    }

    fn trigger(&mut self, job: &Object<'_>) -> Option<Trigger> {
        const KINDS: [&str; 4] = ["cron", "every", "at", "manual"];
        let value = self.required(job, "trigger")?;
        let known = ["cron", "timezone", "every", "at", "manual"];
        let trigger = self.object(job.path_of("trigger"), value, &known)?;
        let given: Vec<&str> = KINDS.into_iter().filter(|kind| trigger.has(kind)).collect();
        let [kind] = given.as_slice() else {
            let message = if given.is_empty() {
                "must have exactly one of cron, every, at and manual".to_owned()
            } else {
                format!(
                    "must have exactly one of them, found {}",
                    given.join(" and ")
                )
            };
            self.fault(&trigger.path, message, KINDS.map(str::to_owned).to_vec());
            return None;
        };
        if *kind != "cron" && trigger.has("timezone") {
            self.fault(
                trigger.path_of("timezone"),
                format!("belongs to cron, not to {kind}"),
                Vec::new(),
            );
        }
        match *kind {
            "cron" => self.cron(&trigger),
            "every" => {
                let range = 1_000..=366 * DAY_MS;
                let every = self.optional_duration(&trigger, "every", range)??;
                Some(Trigger::Every { every })
            }
            "at" => {
                let text = self.optional_text(&trigger, "at")??;
                match text.parse::<Timestamp>() {
                    Ok(at) => Some(Trigger::At { at }),
                    Err(refused) => {
                        let message = format!("{refused}, found \"{}\"", shown(text));
                        self.fault(trigger.path_of("at"), message, Vec::new());
                        None
                    }
                }
            }
            _ => {
                if !self.boolean(&trigger, "manual", true)? {
                    self.fault(
                        trigger.path_of("manual"),
                        "must be true; a job without manual has cron, every or at",
                        vec!["true".to_owned()],
                    );
                    return None;
                }
                Some(Trigger::Manual)
            }
        }
    }

    fn cron(&mut self, trigger: &Object<'_>) -> Option<Trigger> {
        let cron = self.optional_text(trigger, "cron");
        let timezone = self.optional_text(trigger, "timezone");
        let cron = cron.flatten().and_then(|text| match check::cron(text) {
            Ok(canonical) => Some(canonical),
            Err(message) => {
                self.fault(trigger.path_of("cron"), message, Vec::new());
                None
            }
        });
        let timezone = match timezone? {
            None => "UTC".to_owned(),
            Some(text) => match check::timezone(text) {
                Ok(canonical) => canonical,
                Err((message, allowed)) => {
                    self.fault(trigger.path_of("timezone"), message, allowed);
                    return None;
                }
            },
        };
        Some(Trigger::Cron {
            cron: cron?,
            timezone,
        })
    }

    fn misfire(&mut self, job: &Object<'_>) -> Option<Misfire> {
        let Some(value) = job.fields.get("misfire") else {
            return Some(Misfire::default());
        };
        let known = ["policy", "grace", "limit"];
        let misfire = self.object(job.path_of("misfire"), value, &known)?;
        let policy = self.choice(
            &misfire,
            "policy",
            MisfirePolicy::ALL,
            MisfirePolicy::FireOnce,
        );
        let grace = self.optional_duration(&misfire, "grace", 1_000..=30 * DAY_MS);
        let limit = self.integer(&misfire, "limit", 1..=1_000, 10);
        let policy = policy?;
        let catches_up = policy == MisfirePolicy::CatchUp;
        if misfire.has("limit") && !catches_up {
            self.fault(
                misfire.path_of("limit"),
                format!("belongs to catch_up, not to {policy}"),
                Vec::new(),
            );
        }
        Some(Misfire {
            policy,
            grace: grace?.unwrap_or(Misfire::default().grace),
            limit: catches_up.then_some(limit?),
        })
    }

    fn retry(&mut self, job: &Object<'_>) -> Option<Retry> {
        let default = Retry::default();
        let Some(value) = job.fields.get("retry") else {
            return Some(default);
        };
        let known = [
            "max_attempts",
            "initial_backoff",
            "max_backoff",
            "multiplier",
            "jitter",
        ];
        let retry = self.object(job.path_of("retry"), value, &known)?;
        let max_attempts = self.integer(&retry, "max_attempts", 1..=1_000, default.max_attempts);
        let initial = self.optional_duration(&retry, "initial_backoff", 1..=DAY_MS);
        let max = self.optional_duration(&retry, "max_backoff", 1..=7 * DAY_MS);
        let multiplier = self.number(&retry, "multiplier", 1.0..=100.0, default.multiplier);
        let jitter = self.number(&retry, "jitter", 0.0..=1.0, default.jitter);
        let initial_backoff = initial?.unwrap_or(default.initial_backoff);
        // A file that only raises the first pause means the longest to be no shorter.
        let max_backoff = max?.unwrap_or(default.max_backoff.max(initial_backoff));
        if initial_backoff > max_backoff {
            self.fault(
                retry.path_of("initial_backoff"),
                format!("must not be longer than max_backoff, which is {max_backoff}"),
                Vec::new(),
            );
        }
        Some(Retry {
            max_attempts: max_attempts?,
            initial_backoff,
            max_backoff,
            multiplier: multiplier?,
            jitter: jitter?,
        })
    }

    fn recovery(&mut self, job: &Object<'_>, execution: Option<Execution>) -> Option<Recovery> {
        let once = execution == Some(Execution::AtMostOnce);
        let default = if once {
            Recovery::Never
        } else {
            Recovery::AfterLease
        };
        let recovery = self.choice(job, "recovery", Recovery::ALL, default)?;
        if once && recovery != Recovery::Never {
            self.fault(
                job.path_of("recovery"),
                "must be never when execution is at_most_once",
                vec![Recovery::Never.to_string()],
            );
        }
        Some(recovery)
    }

    fn task(&mut self, job: &Object<'_>) -> Option<TaskSpec> {
        let value = self.required(job, "task")?;
        let known = ["capability", "version", "selector", "params"];
        let task = self.object(job.path_of("task"), value, &known)?;
        let capability = self.name::<Capability>(&task, "capability");
        let version = self.version(&task);
        let selector = self.selector(&task);
        let params = self.params(&task);
        Some(TaskSpec {
            capability: capability?,
            version: version?,
            selector: selector?,
            params: params?,
        })
    }

    fn version(&mut self, task: &Object<'_>) -> Option<Option<String>> {
        let Some(text) = self.optional_text(task, "version")? else {
            return Some(None);
        };
        match check::version_requirement(text) {
            Ok(()) => Some(Some(text.to_owned())),
            Err(message) => {
                self.fault(task.path_of("version"), message, Vec::new());
                None
            }
        }
    }

    fn selector(&mut self, task: &Object<'_>) -> Option<BTreeMap<String, String>> {
        let Some(value) = task.fields.get("selector") else {
            return Some(BTreeMap::new());
        };
        let path = task.path_of("selector");
        let Value::Object(fields) = value else {
            self.wrong_type(&path, "an object of label names and values", value);
            return None;
        };
        if fields.len() > MAX_SELECTOR_ENTRIES {
            self.fault(
                &path,
                format!(
                    "must have at most {MAX_SELECTOR_ENTRIES} labels, found {}",
                    fields.len()
                ),
                Vec::new(),
            );
            return None;
        }
        let labels = Object { path, fields };
        let mut selector = BTreeMap::new();
        let mut whole = true;
        for (label, value) in fields {
            let at = labels.path_of(&shown(label));
            let limit = crate::protocol::MAX_LABEL_BYTES;
            match value {
                _ if label.is_empty() || label.len() > limit => {
                    let message = format!("a label name must have 1 to {limit} bytes");
                    self.fault(at, message, Vec::new());
                    whole = false;
                }
                Value::String(text) if text.len() <= limit => {
                    selector.insert(label.clone(), text.clone());
                }
                Value::String(_) => {
                    self.fault(at, format!("must have at most {limit} bytes"), Vec::new());
                    whole = false;
                }
                other => {
                    self.wrong_type(&at, "a string (put it in quotes)", other);
                    whole = false;
                }
            }
        }
        whole.then_some(selector)
    }

    fn params(&mut self, task: &Object<'_>) -> Option<Map<String, Value>> {
        let Some(value) = task.fields.get("params") else {
            return Some(Map::new());
        };
        let path = task.path_of("params");
        match check::params(value) {
            Ok(params) => Some(params),
            Err(message) => {
                self.fault(path, message, Vec::new());
                None
            }
        }
    }

    fn history(&mut self, job: &Object<'_>) -> Option<History> {
        let default = History::default();
        let Some(value) = job.fields.get("history") else {
            return Some(default);
        };
        let history = self.object(job.path_of("history"), value, &["keep", "max_age"])?;
        let keep = self.integer(&history, "keep", 0..=100_000, default.keep);
        let max_age = self.optional_duration(&history, "max_age", 0..=3_650 * DAY_MS);
        Some(History {
            keep: keep?,
            max_age: max_age?.unwrap_or(default.max_age),
        })
    }

    // What the fields are made of.

    fn fault(&mut self, path: impl Into<String>, message: impl Into<String>, allowed: Vec<String>) {
        self.errors.push(path.into(), message.into(), allowed);
    }

    fn wrong_type(&mut self, path: &str, expected: &str, found: &Value) {
        let found = match found {
            Value::Null => "nothing (leave the field out for its default)",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        self.fault(
            path,
            format!("must be {expected}, found {found}"),
            Vec::new(),
        );
    }

    fn object<'a>(&mut self, path: String, value: &'a Value, known: &[&str]) -> Option<Object<'a>> {
        let Value::Object(fields) = value else {
            self.wrong_type(&path, "an object", value);
            return None;
        };
        let object = Object { path, fields };
        for name in fields.keys() {
            if !known.contains(&name.as_str()) {
                self.fault(
                    object.path_of(&shown(name)),
                    "is not a field of a job file",
                    known.iter().map(|&field| field.to_owned()).collect(),
                );
            }
        }
        Some(object)
    }

    fn required<'a>(&mut self, object: &Object<'a>, name: &str) -> Option<&'a Value> {
        let found = object.fields.get(name);
        if found.is_none() {
            self.fault(object.path_of(name), "is required", Vec::new());
        }
        found
    }

    /// `None`: a fault. `Some(None)`: the field is absent.
    fn optional_text<'a>(&mut self, object: &Object<'a>, name: &str) -> Option<Option<&'a str>> {
        match object.fields.get(name) {
            None => Some(None),
            Some(Value::String(text)) => Some(Some(text)),
            Some(other) => {
                self.wrong_type(&object.path_of(name), "a string", other);
                None
            }
        }
    }

    fn bounded<'a>(
        &mut self,
        object: &Object<'_>,
        name: &str,
        text: &'a str,
        limit: usize,
    ) -> Option<&'a str> {
        if text.len() > limit {
            let message = format!("must have at most {limit} bytes, found {}", text.len());
            self.fault(object.path_of(name), message, Vec::new());
            return None;
        }
        Some(text)
    }

    fn name<N: FromStr<Err = InvalidName>>(
        &mut self,
        object: &Object<'_>,
        name: &str,
    ) -> Option<N> {
        self.required(object, name)?;
        let text = self.optional_text(object, name)??;
        match text.parse() {
            Ok(parsed) => Some(parsed),
            Err(refused) => {
                self.fault(object.path_of(name), refused.to_string(), Vec::new());
                None
            }
        }
    }

    fn parsed<T: FromStr>(
        &mut self,
        object: &Object<'_>,
        name: &str,
        text: &str,
        form: &str,
    ) -> Option<T> {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            let message = format!("must be {form}, found \"{}\"", shown(text));
            self.fault(object.path_of(name), message, Vec::new());
        }
        parsed
    }

    /// `None`: a fault. `Some(None)`: the field is absent. The range is in milliseconds.
    fn optional_duration(
        &mut self,
        object: &Object<'_>,
        name: &str,
        range_ms: RangeInclusive<u64>,
    ) -> Option<Option<Millis>> {
        let text = match object.fields.get(name) {
            None => return Some(None),
            Some(Value::String(text)) => text,
            Some(other) => {
                self.wrong_type(&object.path_of(name), DURATION_FORM, other);
                return None;
            }
        };
        let duration: Millis = self.parsed(object, name, text, DURATION_FORM)?;
        let (low, high) = (Millis(*range_ms.start()), Millis(*range_ms.end()));
        self.in_range(object, name, duration, low..=high).map(Some)
    }

    fn in_range<T: PartialOrd + Display>(
        &mut self,
        object: &Object<'_>,
        name: &str,
        value: T,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        if range.contains(&value) {
            return Some(value);
        }
        self.fault(
            object.path_of(name),
            format!(
                "must be from {} to {}, found {value}",
                range.start(),
                range.end()
            ),
            vec![format!("{}..={}", range.start(), range.end())],
        );
        None
    }

    fn integer(
        &mut self,
        object: &Object<'_>,
        name: &str,
        range: RangeInclusive<u32>,
        default: u32,
    ) -> Option<u32> {
        let value = match object.fields.get(name) {
            None => return Some(default),
            Some(value) => value,
        };
        let Value::Number(number) = value else {
            self.wrong_type(&object.path_of(name), "a whole number", value);
            return None;
        };
        let found = number.as_u64().and_then(|found| u32::try_from(found).ok());
        match found {
            Some(found) => self.in_range(object, name, found, range),
            None => {
                self.fault(
                    object.path_of(name),
                    format!(
                        "must be a whole number from {} to {}, found {number}",
                        range.start(),
                        range.end()
                    ),
                    vec![format!("{}..={}", range.start(), range.end())],
                );
                None
            }
        }
    }

    fn number(
        &mut self,
        object: &Object<'_>,
        name: &str,
        range: RangeInclusive<f64>,
        default: f64,
    ) -> Option<f64> {
        match object.fields.get(name) {
            None => Some(default),
            Some(Value::Number(number)) => {
                let found = number.as_f64().unwrap_or(f64::NAN);
                self.in_range(object, name, found, range)
            }
            Some(other) => {
                self.wrong_type(&object.path_of(name), "a number", other);
                None
            }
        }
    }

    fn boolean(&mut self, object: &Object<'_>, name: &str, default: bool) -> Option<bool> {
        match object.fields.get(name) {
            None => Some(default),
            Some(Value::Bool(flag)) => Some(*flag),
            Some(other) => {
                self.wrong_type(&object.path_of(name), "true or false", other);
                None
            }
        }
    }

    fn choice<T: Copy + Display>(
        &mut self,
        object: &Object<'_>,
        name: &str,
        all: &[T],
        default: T,
    ) -> Option<T> {
        let names = || all.iter().map(T::to_string).collect::<Vec<_>>();
        match object.fields.get(name) {
            None => Some(default),
            Some(Value::String(text)) => {
                let found = all.iter().copied().find(|value| value.to_string() == *text);
                if found.is_none() {
                    let message = format!("must be one of the listed, found \"{}\"", shown(text));
                    self.fault(object.path_of(name), message, names());
                }
                found
            }
            Some(other) => {
                self.wrong_type(&object.path_of(name), "a string", other);
                None
            }
        }
    }
}

/// Text of the document as it is shown in a message: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut short: String = text
        .chars()
        .take(MOST)
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}
