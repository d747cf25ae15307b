//! Job files as bytes: YAML and JSON in, canonical YAML and JSON out.

use super::decode::{ROOT, decode};
use super::document::Document;
use super::spec::*;
use serde_json::Value;

/// The largest file of several documents, in bytes.
pub const MAX_BUNDLE_BYTES: usize = 4 * 1024 * 1024;

impl JobSpec {
    /// Reads one job from YAML.
    pub fn from_yaml(text: &str) -> Result<Self, JobErrors> {
        let mut documents = yaml_documents(text, MAX_FILE_BYTES, 1)?;
        match (documents.pop(), documents.is_empty()) {
            (Some(document), true) => decode(&document),
            (Some(_), false) => Err(JobErrors::one(ROOT, "must be a single document")),
            (None, _) => Err(JobErrors::one(ROOT, "is empty")),
        }
    }

    /// Reads one job from YAML bytes.
    pub fn from_yaml_bytes(bytes: &[u8]) -> Result<Self, JobErrors> {
        Self::from_yaml(utf8(bytes)?)
    }

    /// Reads one job from JSON.
    pub fn from_json(bytes: &[u8]) -> Result<Self, JobErrors> {
        decode(&json_document(bytes, MAX_FILE_BYTES)?)
    }

    /// The canonical YAML form. Reading it gives the same job.
    pub fn to_yaml(&self) -> String {
        // Only a key that is not a string could fail here, and there is none.
        serde_saphyr::to_string(self).unwrap_or_else(|_| self.to_json())
    }

    /// The canonical JSON form, on one line. Reading it gives the same job.
    pub fn to_json(&self) -> String {
        // As above.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Reads every job of a YAML file with one or more documents, or of a JSON file with one object or
/// a list of objects. Each fault's path starts with the number of its document (`[2].trigger`)
/// when there are several. A name that is there twice is a fault.
pub fn parse_many(bytes: &[u8]) -> Result<Vec<JobSpec>, JobErrors> {
    let documents = match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => match json_document(bytes, MAX_BUNDLE_BYTES) {
            Ok(Value::Array(items)) => items,
            Ok(document) => vec![document],
            // YAML may start with a brace too.
            Err(json) => match yaml_documents(utf8(bytes)?, MAX_BUNDLE_BYTES, MAX_FILE_DOCUMENTS) {
                Ok(documents) => documents,
                Err(_) => return Err(json),
            },
        },
        _ => yaml_documents(utf8(bytes)?, MAX_BUNDLE_BYTES, MAX_FILE_DOCUMENTS)?,
    };
    if documents.is_empty() {
        return Err(JobErrors::one(ROOT, "is empty"));
    }
    if documents.len() > MAX_FILE_DOCUMENTS {
        let message = format!("must hold at most {MAX_FILE_DOCUMENTS} jobs");
        return Err(JobErrors::one(ROOT, message));
    }
    let several = documents.len() > 1;
    let mut specs: Vec<JobSpec> = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    let mut errors = JobErrors::none();
    for (index, document) in documents.iter().enumerate() {
        let prefix = if several { Some(index) } else { None };
        match decode(document) {
            Ok(spec) if names.insert(spec.name.clone()) => specs.push(spec),
            Ok(spec) => errors.absorb(
                prefix,
                JobErrors::one("name", format!("\"{}\" is in this file twice", spec.name)),
            ),
            Err(faults) => errors.absorb(prefix, faults),
        }
    }
    if errors.is_empty() {
        Ok(specs)
    } else {
        Err(errors)
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, JobErrors> {
    std::str::from_utf8(bytes).map_err(|fault| {
        JobErrors::one(
            ROOT,
            format!("is not UTF-8 text after byte {}", fault.valid_up_to()),
        )
    })
}

fn within(length: usize, limit: usize) -> Result<(), JobErrors> {
    if length > limit {
        let message = format!("must have at most {limit} bytes, found {length}");
        return Err(JobErrors::one(ROOT, message));
    }
    Ok(())
}

fn json_document(bytes: &[u8], limit: usize) -> Result<Value, JobErrors> {
    within(bytes.len(), limit)?;
    let document: Document =
        serde_json::from_slice(bytes).map_err(|fault| unread("JSON", fault.is_data(), &fault))?;
    Ok(document.0)
}

fn yaml_documents(text: &str, limit: usize, most: usize) -> Result<Vec<Value>, JobErrors> {
    within(text.len(), limit)?;
    let fault = |fault: serde_saphyr::Error| {
        let fault = fault.without_snippet();
        let own = matches!(fault, serde_saphyr::Error::Message { .. });
        unread("YAML", own, fault)
    };
    let documents: Vec<Document> =
        serde_saphyr::from_multiple_with_options(text, yaml_options(limit, most)).map_err(fault)?;
    // An empty document between two markers is nothing, not a job.
    Ok(documents
        .into_iter()
        .map(|document| document.0)
        .filter(|value| !value.is_null())
        .collect())
}

/// Limits that a job file stays far below, and that keep a hostile one from growing.
fn yaml_options(limit_bytes: usize, most_documents: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(limit_bytes),
            // A marker at the end makes one more, empty document.
            max_documents: most_documents + 1,
            max_depth: MAX_DEPTH + 1,
            max_events: limit_bytes,
            max_nodes: limit_bytes,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_total_scalar_bytes: 2 * limit_bytes,
            max_merge_keys: 100,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 20_000,
            max_replay_stack_depth: 8,
            max_alias_expansions_per_anchor: 100,
        },
        // Handed on to the document, which refuses them in words of its own.
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// A document that cannot be read: by its syntax, or because the document's own rules refuse it.
fn unread(language: &str, own: bool, fault: &dyn std::fmt::Display) -> JobErrors {
    let line = one_line(fault);
    let message = if own {
        line
    } else {
        format!("is not {language}: {line}")
    };
    JobErrors::one(ROOT, message)
}

/// A parser's message on one short line, without control characters.
fn one_line(fault: &dyn std::fmt::Display) -> String {
    const MOST_CHARS: usize = 300;
    let text = fault.to_string();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let clean = line
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c });
    let mut short: String = clean.take(MOST_CHARS).collect();
    if line.chars().nth(MOST_CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests;
