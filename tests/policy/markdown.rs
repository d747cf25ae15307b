//! Links of the documentation.

use super::tree::Tree;
use std::path::{Component, Path};

/// The targets of all links and images of a page, those in code left out.
pub(crate) fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(page) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, behind)) = after.split_once(')') else {
                break;
            };
            found.push(
                target
                    .split_whitespace()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            );
            rest = behind;
        }
    }
    found
}

/// The lines that are not in a block of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// Whether a link leads to a file, and to a heading in it.
pub(crate) fn follow(tree: &Tree, page: &str, link: &str) -> Result<(), String> {
    if link.starts_with("https://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let (path, heading) = match link.split_once('#') {
        Some((path, heading)) => (path, Some(heading)),
        None => (link, None),
    };
    let target = match path {
        "" => page.to_owned(),
        _ => resolve(page, path).ok_or("leads out of the project")?,
    };
    if !tree.exists(&target) {
        return Err(format!("there is no {target}"));
    }
    let Some(heading) = heading else {
        return Ok(());
    };
    let text = tree.text(&target);
    let found = prose(&text)
        .filter(|line| line.starts_with('#'))
        .any(|line| anchor(line.trim_start_matches('#').trim()) == heading);
    if found {
        return Ok(());
    }
    Err(format!("{target} has no such heading"))
}

fn resolve(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    for part in folder.join(path).components() {
        match part {
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

/// How a heading is named in a link.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[test]
fn links_in_code_are_none() {
    let page = "a [b](c.md) [d](e.md#f \"g\")\n```\n[no](no.md)\n```\n";
    assert_eq!(links(page), ["c.md", "e.md#f"]);
    assert_eq!(anchor("What `it` is, in short"), "what-it-is-in-short");
    assert_eq!(resolve("docs/a.md", "../b/c.md").as_deref(), Some("b/c.md"));
    assert_eq!(resolve("docs/a.md", "../../c.md"), None);
}
