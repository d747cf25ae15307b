//! Checks of single values that need more than a range: cron, time zone, version, parameters.
//!
//! What a cron expression may hold is in `cron.rs`; whether it ever fires is asked of the crate
//! with which the scheduler reads it, under the same settings.
//!
//! Without the `job-files` feature nothing is asked of other crates. Such a build reads jobs that a cluster has
//! already checked.

use super::cron;
use super::spec::*;
use serde_json::{Map, Value};

/// Checks `task.params`, here and for the parameters of a trigger call.
pub fn params(value: &Value) -> Result<Map<String, Value>, String> {
    let Value::Object(fields) = value else {
        return Err("must be an object".to_owned());
    };
    let bytes = serde_json::to_vec(fields).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_PARAMS_BYTES {
        return Err(format!(
            "must have at most {MAX_PARAMS_BYTES} bytes of JSON, found {bytes}"
        ));
    }
    Ok(fields.clone())
}

/// Checks a cron expression. Gives it back with its fields one space apart, and `@daily` and its like written
/// out.
pub fn cron(text: &str) -> Result<String, String> {
    if text.len() > MAX_CRON_BYTES {
        return Err(format!(
            "must have at most {MAX_CRON_BYTES} bytes, found {}",
            text.len()
        ));
    }
    if !text
        .bytes()
        .all(|byte| byte.is_ascii_graphic() || byte == b' ' || byte == b'\t')
    {
        return Err("must be plain ASCII text on one line".to_owned());
    }
    let canonical = cron::canonical(text)?;
    deep::cron(&canonical)?;
    Ok(canonical)
}

/// Checks a time zone. Gives back its canonical spelling, or a message and zones that are near.
pub(crate) fn timezone(text: &str) -> Result<String, (String, Vec<String>)> {
    if text.is_empty() || text.len() > 64 || !text.is_ascii() {
        return Err((
            "must be a time zone's IANA name, such as Europe/Berlin".into(),
            Vec::new(),
        ));
    }
    deep::timezone(text)
}

/// Checks a semantic version requirement.
pub fn version_requirement(text: &str) -> Result<(), String> {
    if text.len() > MAX_VERSION_BYTES {
        return Err(format!(
            "must have at most {MAX_VERSION_BYTES} bytes, found {}",
            text.len()
        ));
    }
    deep::version_requirement(text)
}

#[cfg(feature = "job-files")]
mod deep {
    use croner::Cron;
    use croner::parser::{CronParser, Seconds, Year};
    use jiff::tz::TimeZone;

    pub(super) fn cron(text: &str) -> Result<(), String> {
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build();
        // What was let through can be read: a test holds that.
        let cron = parser
            .parse(text)
            .map_err(|fault| format!("cannot be read: {fault}"))?;
        if fires(&cron) {
            Ok(())
        } else {
            Err("never fires: no year has a day that it names".to_owned())
        }
    }

    /// Whether there is any instant that matches. The calendar repeats every 400 years, so a
    /// search from any instant decides; the cron crate's own search ends before year 5000.
    fn fires(cron: &Cron) -> bool {
        let start = jiff::Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        cron.find_next_occurrence(&start, false).is_ok()
    }

    pub(super) fn timezone(text: &str) -> Result<String, (String, Vec<String>)> {
        const MOST_SUGGESTIONS: usize = 8;
        if let Ok(zone) = TimeZone::get(text)
            && let Some(name) = zone.iana_name()
        {
            return Ok(name.to_owned());
        }
        let wanted = text.to_ascii_lowercase();
        let city = wanted.rsplit('/').next().unwrap_or_default().to_owned();
        let near = jiff::tz::db()
            .available()
            .map(|name| name.to_string())
            .filter(|name| !city.is_empty() && name.to_ascii_lowercase().contains(&city))
            .take(MOST_SUGGESTIONS)
            .collect();
        let shown = super::super::decode::shown(text);
        Err((
            format!("\"{shown}\" is not a time zone of the IANA database"),
            near,
        ))
    }

    pub(super) fn version_requirement(text: &str) -> Result<(), String> {
        semver::VersionReq::parse(text)
            .map(|_| ())
            .map_err(|fault| {
                format!("must be a version requirement such as \">=2.1, <3\": {fault}")
            })
    }
}

#[cfg(not(feature = "job-files"))]
mod deep {
    pub(super) fn cron(_text: &str) -> Result<(), String> {
        Ok(())
    }

    pub(super) fn timezone(text: &str) -> Result<String, (String, Vec<String>)> {
        Ok(text.to_owned())
    }

    pub(super) fn version_requirement(_text: &str) -> Result<(), String> {
        Ok(())
    }
}
