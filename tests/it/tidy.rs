//! The rules of the house, checked by reading its files: who may use what, how long a file may be,
//! how it begins, and what is in none.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the repository, and its lines without those that are comments.
struct File {
    path: String,
    text: String,
    code: String,
}

/// A word, and the only files and directories that may have it in their code.
const ONLY_IN: [(&str, &[&str]); 11] = [
    (
        "axum::",
        &[
            "src/http.rs",
            "src/http",
            "src/lab",
            "src/server.rs",
            "src/app.rs",
        ],
    ),
    (
        "sqlx::",
        &["src/store.rs", "src/store", "tests", "crates/testkit"],
    ),
    (
        " redis::",
        &[
            "src/store/redis.rs",
            "src/store/redis",
            "tests",
            "crates/locks",
            "crates/testkit",
        ],
    ),
    (
        "zookeeper_client::",
        &["tests", "crates/locks", "crates/testkit"],
    ),
    (
        "std::env::",
        &[
            "src/config.rs",
            "tests",
            "crates/locks/tests",
            "crates/locks/examples",
            "crates/testkit",
        ],
    ),
    ("dotenvy::", &["src/main.rs"]),
    // The locks have it among their dev-dependencies only.
    ("anyhow::", &["tests", "crates/locks", "crates/testkit"]),
    (
        "std::process::Command",
        &["tests", "crates/locks/tests", "crates/testkit"],
    ),
    ("#[ignore", &[]),
    ("mod utils", &[]),
    ("mod helpers", &[]),
];

/// What the parts of the crate may use of each other; those not named here may use all.
const MAY_USE: [(&str, &[&str]); 14] = [
    ("stock", &["stock"]),
    ("retry", &[]),
    ("metrics", &[]),
    ("store", &["stock", "store"]),
    ("settle", &["retry", "stock", "store"]),
    (
        "strategy",
        &[
            "metrics",
            "operations",
            "retry",
            "settle",
            "stock",
            "store",
            "strategy",
        ],
    ),
    (
        "change",
        &["operations", "retry", "settle", "stock", "store"],
    ),
    ("operations", &["stock"]),
    ("descriptors", &[]),
    (
        "http",
        &["change", "http", "metrics", "stock", "store", "strategy"],
    ),
    ("server", &["server"]),
    ("config", &["strategy"]),
    ("telemetry", &["config"]),
    ("lab", &["app", "config", "lab", "stock", "strategy"]),
];

/// Where a strategy's name may stand in code: nobody else may decide by it.
const MAY_NAME_A_STRATEGY: [&str; 4] = ["src/strategy.rs", "src/strategy", "src/lab", "tests"];

const MOST_LINES: usize = 400;

fn files() -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<PathBuf> = [
        "src",
        "tests",
        "crates/locks/src",
        "crates/locks/tests",
        "crates/locks/examples",
        "crates/testkit",
    ]
    .map(|directory| root.join(directory))
    .into();
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("the sources are there") {
            let path = entry.expect("a directory can be read").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(root).expect("it is below the root");
                let text = fs::read_to_string(&path).expect("a source is text");
                files.push(File {
                    path: relative.display().to_string(),
                    code: without_comments(&text),
                    text,
                });
            }
        }
    }
    assert!(files.len() > 50, "only {} sources were found", files.len());
    files
}

fn without_comments(text: &str) -> String {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

impl File {
    /// Whether it is one of `places`, or lies in one of them.
    fn is_in(&self, places: &[&str]) -> bool {
        let path = Path::new(&self.path);
        places.iter().any(|place| path.starts_with(place))
    }

    /// The part of the crate that it belongs to.
    fn part(&self) -> Option<&str> {
        let path = self.path.strip_prefix("src/")?;
        path.split(['/', '.']).next()
    }

    /// The parts of the crate that it uses.
    fn uses(&self) -> impl Iterator<Item = &str> {
        self.code.split("crate::").skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
    }

    fn names_a_strategy(&self) -> bool {
        self.code.split("Strategy::").skip(1).any(|rest| {
            let mut chars = rest.chars();
            chars.next().is_some_and(char::is_uppercase)
                && chars.next().is_some_and(char::is_lowercase)
        })
    }
}

#[test]
fn every_file_begins_with_what_it_is_for_and_is_short() {
    for File { path, text, .. } in files() {
        assert!(text.starts_with("//! "), "{path} does not begin with //!");
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{path} has {lines} lines");
    }
}

#[test]
fn what_belongs_to_one_place_is_used_there_only() {
    for file in files() {
        // This file has to name them all.
        if file.path == "tests/it/tidy.rs" {
            continue;
        }
        for (word, places) in ONLY_IN {
            let found = file.code.contains(word);
            assert!(!found || file.is_in(places), "{} has {word}", file.path);
        }
        let decides = file.names_a_strategy() && !file.is_in(&MAY_NAME_A_STRATEGY);
        assert!(!decides, "{} decides by strategy", file.path);
    }
}

#[test]
fn the_parts_use_each_other_in_one_direction_only() {
    for file in files() {
        let rule = MAY_USE.iter().find(|(part, _)| Some(*part) == file.part());
        let Some((part, allowed)) = rule else {
            continue;
        };
        for used in file.uses() {
            let path = &file.path;
            assert!(allowed.contains(&used), "{path}, of {part}, uses `{used}`");
        }
    }
}
