//! Whether the terms of a crate are allowed by `deny.toml`.

use std::collections::BTreeSet;

pub(crate) struct Policy {
    allowed: BTreeSet<String>,
    /// (crate, license)
    exceptions: BTreeSet<(String, String)>,
}

fn texts(value: &toml::Value) -> Vec<String> {
    let list = value.as_array().expect("a list");
    list.iter()
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

impl Policy {
    pub(crate) fn read(deny: &str) -> Self {
        let deny: toml::Table = deny.parse().expect("deny.toml is TOML");
        let licenses = &deny["licenses"];
        let mut exceptions = BTreeSet::new();
        for exception in licenses["exceptions"].as_array().expect("a list") {
            let name = exception["crate"].as_str().expect("a name");
            for license in texts(&exception["allow"]) {
                exceptions.insert((name.to_owned(), license));
            }
        }
        Self {
            allowed: texts(&licenses["allow"]).into_iter().collect(),
            exceptions,
        }
    }

    /// Terms that cannot be read are not allowed.
    pub(crate) fn allows(&self, name: &str, terms: &str) -> bool {
        let spaced = terms
            .replace('/', " OR ")
            .replace('(', " ( ")
            .replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut reader = Reader {
            words: &words,
            at: 0,
            allowed: &|license| {
                // `MPL-2.0+` is the old form of "2.0 or later".
                let license = license.trim_end_matches('+');
                self.allowed.contains(license)
                    || self
                        .exceptions
                        .contains(&(name.to_owned(), license.to_owned()))
            },
        };
        reader.any() == Some(true) && reader.at == words.len()
    }
}

struct Reader<'a> {
    words: &'a [&'a str],
    at: usize,
    allowed: &'a dyn Fn(&str) -> bool,
}

impl Reader<'_> {
    fn take(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at) == Some(&word);
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> Option<bool> {
        let mut result = self.all()?;
        while self.take("OR") {
            result |= self.all()?;
        }
        Some(result)
    }

    fn all(&mut self) -> Option<bool> {
        let mut result = self.one()?;
        while self.take("AND") {
            result &= self.one()?;
        }
        Some(result)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let inner = self.any()?;
            return self.take(")").then_some(inner);
        }
        let license = self.words.get(self.at)?;
        self.at += 1;
        if self.take("WITH") {
            let exception = self.words.get(self.at)?;
            self.at += 1;
            return Some((self.allowed)(&format!("{license} WITH {exception}")));
        }
        Some((self.allowed)(license))
    }
}
