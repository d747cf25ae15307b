//! Reads a task's parameters strictly: unknown names, wrong types and values out of range are
//! refused, each with the path of the field.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};
use tenure_api::Millis;

/// Where the parameters stand in a job file. Paths in errors start here.
pub const ROOT: &str = "task.params";

/// A fault in the parameters of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParamError {
    /// The field, such as `task.params.argv[0]`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
    /// What it may be, where that can be listed.
    pub allowed: Vec<String>,
}

impl ParamError {
    /// A fault of one field below [`ROOT`].
    pub fn of(name: impl fmt::Display, message: impl Into<String>) -> Self {
        Self {
            path: format!("{ROOT}.{name}"),
            message: message.into(),
            allowed: Vec::new(),
        }
    }

    /// Lists what the field may be.
    #[must_use]
    pub fn allowing<T: Into<String>>(mut self, allowed: impl IntoIterator<Item = T>) -> Self {
        self.allowed = allowed.into_iter().map(Into::into).collect();
        self
    }
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)?;
        if !self.allowed.is_empty() {
            write!(f, " (allowed: {})", self.allowed.join(", "))?;
        }
        Ok(())
    }
}

/// The fields of a parameter object. Each is asked for by name; [`Fields::finish`] refuses what was
/// not asked for.
#[derive(Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The fields of `params`, which must be an object.
    ///
    /// # Errors
    /// It is something else.
    pub fn of(params: &'a Value) -> Result<Self, ParamError> {
        let Value::Object(map) = params else {
            return Err(ParamError {
                path: ROOT.to_owned(),
                message: format!("must be an object, found {}", kind(params)),
                allowed: Vec::new(),
            });
        };
        Ok(Self {
            map,
            known: Vec::new(),
        })
    }

    fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name)
    }

    /// Any value.
    pub fn any(&mut self, name: &'static str) -> Option<&'a Value> {
        self.get(name)
    }

    /// A text without NUL bytes, of at most `most_bytes`.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn text(
        &mut self,
        name: &'static str,
        most_bytes: usize,
    ) -> Result<Option<&'a str>, ParamError> {
        self.get(name)
            .map(|value| text(name, value, most_bytes))
            .transpose()
    }

    /// True or false.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ParamError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(expected(name, "true or false", other)),
        }
    }

    /// A whole number within a range.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ParamError> {
        self.get(name)
            .map(|value| integer(name, value, &range))
            .transpose()
    }

    /// A duration within a range, such as `30s`.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn duration(
        &mut self,
        name: &'static str,
        range: RangeInclusive<Millis>,
    ) -> Result<Option<Millis>, ParamError> {
        let Some(value) = self.text(name, 64)? else {
            return Ok(None);
        };
        let parsed: Millis = value
            .parse()
            .map_err(|fault| ParamError::of(name, format!("{fault}, found {value:?}")))?;
        if !range.contains(&parsed) {
            let (from, to) = (range.start(), range.end());
            return Err(ParamError::of(
                name,
                format!("must be from {from} to {to}, found {parsed}"),
            ));
        }
        Ok(Some(parsed))
    }

    /// A list, whose length is checked. Its items are read with `text` and `integer`.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn list(
        &mut self,
        name: &'static str,
        length: RangeInclusive<usize>,
    ) -> Result<Option<&'a [Value]>, ParamError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(items)) if length.contains(&items.len()) => Ok(Some(items)),
            Some(Value::Array(items)) => {
                let (from, to) = (length.start(), length.end());
                Err(ParamError::of(
                    name,
                    format!("must have {from} to {to} items, found {}", items.len()),
                ))
            }
            Some(other) => Err(expected(name, "a list", other)),
        }
    }

    /// A list of texts.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn texts(
        &mut self,
        name: &'static str,
        length: RangeInclusive<usize>,
        most_bytes: usize,
    ) -> Result<Option<Vec<String>>, ParamError> {
        let Some(items) = self.list(name, length)? else {
            return Ok(None);
        };
        let texts = items.iter().enumerate().map(|(index, item)| {
            text(format_args!("{name}[{index}]"), item, most_bytes).map(str::to_owned)
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn integers(
        &mut self,
        name: &'static str,
        length: RangeInclusive<usize>,
        range: RangeInclusive<i64>,
    ) -> Result<Option<Vec<i64>>, ParamError> {
        let Some(items) = self.list(name, length)? else {
            return Ok(None);
        };
        let numbers = items
            .iter()
            .enumerate()
            .map(|(index, item)| integer(format_args!("{name}[{index}]"), item, &range));
        numbers.collect::<Result<_, _>>().map(Some)
    }

    /// Texts by name. Numbers and booleans are taken as their text, because YAML makes them out of
    /// what people mean as text (`RETRIES: 3`).
    ///
    /// # Errors
    /// The field is there and is something else.
    pub fn text_map(
        &mut self,
        name: &'static str,
        most_entries: usize,
        most_bytes: usize,
    ) -> Result<BTreeMap<String, String>, ParamError> {
        let map = match self.get(name) {
            None => return Ok(BTreeMap::new()),
            Some(Value::Object(map)) => map,
            Some(other) => return Err(expected(name, "an object", other)),
        };
        if map.len() > most_entries {
            return Err(ParamError::of(
                name,
                format!(
                    "must have at most {most_entries} entries, found {}",
                    map.len()
                ),
            ));
        }
        let mut texts = BTreeMap::new();
        for (key, value) in map {
            let path = format!("{name}.{key}");
            let entry = match value {
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                other => text(path, other, most_bytes)?.to_owned(),
            };
            texts.insert(key.clone(), entry);
        }
        Ok(texts)
    }

    /// Refuses fields that nobody asked for.
    ///
    /// # Errors
    /// There is one.
    pub fn finish(self) -> Result<(), ParamError> {
        match self
            .map
            .keys()
            .find(|name| !self.known.contains(&name.as_str()))
        {
            None => Ok(()),
            Some(unknown) => {
                Err(ParamError::of(unknown, "is not a field of this capability")
                    .allowing(self.known))
            }
        }
    }
}

/// Reads a text without NUL bytes.
///
/// # Errors
/// The value is something else, or too long.
pub fn text(name: impl fmt::Display, value: &Value, most_bytes: usize) -> Result<&str, ParamError> {
    let Value::String(text) = value else {
        return Err(expected(name, "text", value));
    };
    if text.len() > most_bytes {
        return Err(ParamError::of(
            name,
            format!("must have at most {most_bytes} bytes, found {}", text.len()),
        ));
    }
    if text.contains('\0') {
        return Err(ParamError::of(name, "must not contain a NUL character"));
    }
    Ok(text)
}

fn integer(
    name: impl fmt::Display,
    value: &Value,
    range: &RangeInclusive<i64>,
) -> Result<i64, ParamError> {
    match value.as_i64() {
        Some(number) if range.contains(&number) => Ok(number),
        Some(number) => Err(ParamError::of(
            name,
            format!(
                "must be from {} to {}, found {number}",
                range.start(),
                range.end()
            ),
        )),
        None => Err(expected(name, "a whole number", value)),
    }
}

fn expected(name: impl fmt::Display, what: &str, found: &Value) -> ParamError {
    ParamError::of(name, format!("must be {what}, found {}", kind(found)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_refused_with_what_is_allowed() {
        let params = json!({"url": "http://example.org/", "urll": 1});
        let mut fields = Fields::of(&params).unwrap();
        assert_eq!(fields.text("url", 100), Ok(Some("http://example.org/")));
        assert_eq!(fields.flag("follow"), Ok(None));
        let fault = fields.finish().unwrap_err();
        assert_eq!(fault.path, "task.params.urll");
        assert_eq!(fault.allowed, ["url", "follow"]);
    }

    #[test]
    fn faults_inside_lists_and_maps_name_their_place() {
        let params = json!({"argv": ["a", 2], "env": {"A": [1]}, "codes": [0, 300], "t": "1x"});
        let mut fields = Fields::of(&params).unwrap();
        let path = |fault: ParamError| fault.path;
        assert_eq!(
            fields.texts("argv", 1..=9, 9).map_err(path),
            Err("task.params.argv[1]".to_owned())
        );
        assert_eq!(
            fields.text_map("env", 9, 9).map_err(path),
            Err("task.params.env.A".to_owned())
        );
        assert_eq!(
            fields.integers("codes", 0..=9, 0..=255).map_err(path),
            Err("task.params.codes[1]".to_owned())
        );
        let all = Millis(0)..=Millis(1_000);
        assert_eq!(
            fields.duration("t", all).map_err(path),
            Err("task.params.t".to_owned())
        );
    }

    #[test]
    fn yaml_scalars_count_as_text_in_maps() {
        let params = json!({"env": {"RETRIES": 3, "FAST": true, "NAME": "x"}});
        let mut fields = Fields::of(&params).unwrap();
        let env = fields.text_map("env", 9, 9).unwrap();
        let pairs: Vec<String> = env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(pairs, ["FAST=true", "NAME=x", "RETRIES=3"]);
    }

    #[test]
    fn only_an_object_holds_parameters() {
        let fault = Fields::of(&json!([1])).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "task.params: must be an object, found a list"
        );
        let nul = json!({"cwd": "a\u{0}b"});
        assert!(Fields::of(&nul).unwrap().text("cwd", 9).is_err());
    }
}
