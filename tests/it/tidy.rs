//! Rules for the sources that the compiler and Cargo cannot check: length, heads, words, names.
//!
//! Cargo enforces which crate may use which. These rules hold for all files under `src`, `tests`
//! and `crates`; the rule about plain prose also holds for the documents.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The maximum length of a source file.
const MAX_LINES: usize = 400;

/// The maximum length of a test's name in characters.
const MAX_TEST_NAME: usize = 60;

/// A word, and the only files and directories whose code may contain it.
const ONLY_IN: [(&str, &[&str]); 7] = [
    (
        "std::env::",
        &[
            "src/config.rs",
            "src/config",
            "tests",
            "crates/core/tests",
            "crates/lab",
            "crates/locks-bench",
            "crates/locks/examples",
            "crates/locks/tests",
            "crates/servers",
            "crates/testkit",
        ],
    ),
    ("dotenvy::", &["src/main.rs"]),
    ("#[ignore", &[]),
    ("todo!(", &[]),
    ("mod utils", &[]),
    ("mod helpers", &[]),
    ("#[path", &[]),
];

/// Archaic or vague words; write a plain word instead: an engineer, is logged, if.
const AVOID: &str = r"(?i)\b(nobody|somebody|anybody|whoever|whomever|is told|are told|was told|were told|tells? of|is said|lest|amid|thereby|whereby|for ever|anew|once more|of ours|of theirs|all the same|at that|begun|nor is|nor does|nor are|to be had|by themselves alone|the likes)\b";

/// "where" that means "if".
const WHERE_IF: &str =
    r"(?:^|[,;:] |\. )where (?:it|there|that|this|they|he|one|a|an|the|no|none|nothing|some) ";

/// How many lines with such a word there may be for 1,000 words of prose.
const AVOIDED_PER_THOUSAND: f64 = 0.25;

pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// The lines that are not comments.
    pub(crate) fn code(&self) -> String {
        let lines = self.text.lines();
        let code = lines.filter(|line| !line.trim_start().starts_with("//"));
        code.collect::<Vec<_>>().join("\n")
    }

    /// The comments of a source, or all lines of a document.
    fn prose(&self) -> impl Iterator<Item = &str> {
        let is_source = has_extension(Path::new(&self.path), "rs");
        self.text.lines().filter_map(move |line| {
            if is_source {
                let comment = line.trim_start().strip_prefix("//")?;
                Some(comment.trim_start_matches(['/', '!', ' ']))
            } else {
                Some(line)
            }
        })
    }

    fn is_in(&self, places: &[&str]) -> bool {
        let path = Path::new(&self.path);
        places.iter().any(|place| path.starts_with(place))
    }
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension()
        .is_some_and(|extension| extension == wanted)
}

/// All files below these directories with this extension.
pub(crate) fn files(directories: &[&str], extension: &str) -> Vec<File> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<PathBuf> = directories.iter().map(|it| root.join(it)).collect();
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("the directory exists") {
            let path = entry.expect("a directory can be read").path();
            if path.is_dir() {
                directories.push(path);
            } else if has_extension(&path, extension) {
                let relative = path.strip_prefix(root).expect("it is below the root");
                files.push(File {
                    path: relative.display().to_string(),
                    text: fs::read_to_string(&path).expect("the file is text"),
                });
            }
        }
    }
    files
}

fn sources() -> Vec<File> {
    let files = files(&["src", "tests", "crates"], "rs");
    assert!(files.len() > 100, "only {} sources were found", files.len());
    files
}

#[test]
fn every_source_is_short_and_has_a_head() {
    for File { path, text } in sources() {
        assert!(text.starts_with("//! "), "{path} does not start with //!");
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{path} has {lines} lines");
    }
}

#[test]
fn restricted_words_are_only_in_the_listed_files() {
    for file in sources() {
        // This file names them all.
        if file.path == "tests/it/tidy.rs" {
            continue;
        }
        let code = file.code();
        for (word, places) in ONLY_IN {
            let found = code.contains(word);
            assert!(
                !found || file.is_in(places),
                "{} contains {word}",
                file.path
            );
        }
    }
}

/// `make mutations` applies each of these changes, and runs the test that must notice it. A mutation
/// whose test runs only in `make verify` has `"verify": true`.
#[test]
fn each_mutation_applies_and_names_an_existing_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect(path);
    let list: Vec<serde_json::Value> =
        serde_json::from_str(&read("tests/mutations.json")).expect("a list");
    let full = Regex::new(r"(?ms)^mod full \{.*?^\}").expect("a valid pattern");
    // A test function has an attribute, or is a case of the lock contract.
    let test = Regex::new(r"(?:\]\n *|pub\(super\) )(?:async )?fn (\w+)").expect("a valid pattern");
    let (mut all, mut in_make_test) = (String::new(), BTreeSet::new());
    for File { path, text } in sources() {
        all.push_str(&text);
        if !path.contains("/full") {
            let outside = full.replace_all(&text, "");
            in_make_test.extend(
                test.captures_iter(&outside)
                    .map(|found| found[1].to_owned()),
            );
        }
    }
    for mutation in list {
        let field = |name: &str| mutation[name].as_str().expect("a text");
        let found = read(field("file")).matches(field("find")).count();
        assert_eq!(found, 1, "{mutation:#}");
        let test = format!("fn {}(", field("test"));
        assert!(all.contains(&test), "{mutation:#}");
        let is_in_verify = !in_make_test.contains(field("test"));
        assert_eq!(mutation["verify"] == true, is_in_verify, "{mutation:#}");
    }
}

#[test]
fn test_names_are_short() {
    let test = Regex::new(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
        .expect("a valid pattern");
    let mut count = 0;
    for file in sources() {
        for found in test.captures_iter(&file.text) {
            let name = &found[1];
            count += 1;
            assert!(
                name.len() <= MAX_TEST_NAME,
                "{}: {name} is too long",
                file.path
            );
        }
    }
    assert!(count > 300, "only {count} tests were found");
}

#[test]
fn prose_is_plain() {
    let patterns = [AVOID, WHERE_IF].map(|it| Regex::new(it).expect("a valid pattern"));
    let mut documents = files(&["docs", "loadtest", "crates"], "md");
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let text = fs::read_to_string(path).expect("the document exists");
        documents.push(File {
            path: name.to_owned(),
            text,
        });
    }
    let (mut words, mut found) = (0_usize, Vec::new());
    for file in sources().into_iter().chain(documents) {
        for line in file.prose() {
            words += line.split_whitespace().count();
            if patterns.iter().any(|pattern| pattern.is_match(line)) {
                found.push(format!("{}: {line}", file.path));
            }
        }
    }
    assert!(words > 10_000, "only {words} words were found");
    let rate = 1_000.0 * found.len() as f64 / words as f64;
    assert!(
        rate <= AVOIDED_PER_THOUSAND,
        "{rate:.2} avoided words per 1,000; write these lines in plain words:\n{}",
        found.join("\n")
    );
}
