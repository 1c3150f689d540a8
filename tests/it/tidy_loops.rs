//! No two files import each other in a loop, except a file and its own submodules.
//!
//! The imports are read from the text: `use` items, and full paths that begin with `crate`, `self` or `super`.
//! A name that a file only passes on counts as the file's that defines it. Unit tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use crate::tidy::files;

/// The loops that are meant: state and tasks that own each other. Remove one that no longer exists.
const KNOTS: &str = "
crates/locks/src: held/engine held/hold held/watchdog
";

/// The directory of a crate, and the names of a module or an item in it.
type Path = Vec<String>;

#[derive(Default)]
struct Source {
    /// What the imported names mean.
    imports: BTreeMap<String, Path>,
    used: BTreeSet<Path>,
}

/// The module of a file without `.rs`.
fn module(directory: &str, file: &str) -> Path {
    let names = file.split('/').filter(|it| !["lib", "main"].contains(it));
    let names = [directory].into_iter().chain(names);
    names.map(str::to_owned).collect()
}

/// What a path means in a module. Without a keyword it begins at a submodule, or in another crate.
fn absolute(from: &Path, path: &str) -> Path {
    let mut found = from.clone();
    for name in path.split("::") {
        match name {
            "crate" => found.truncate(1),
            "super" => drop(found.pop()),
            "self" => {}
            _ => found.push(name.to_owned()),
        }
    }
    found
}

/// The paths of a `use` item. A new name follows `@`.
fn expanded(item: &str) -> Vec<String> {
    let item = item.replace(" as ", "@") + ",";
    let (mut path, mut found) = (String::new(), Vec::new());
    let mut prefixes = vec![String::new()];
    for letter in item.chars().filter(|it| !it.is_whitespace()) {
        match letter {
            '{' => prefixes.push(path.clone()),
            ',' | '}' => {
                found.push(path);
                prefixes.truncate(prefixes.len() - usize::from(letter == '}'));
                path = prefixes.last().cloned().unwrap_or_default();
            }
            _ => path.push(letter),
        }
    }
    found.retain(|path| !path.is_empty() && !path.ends_with(':'));
    found
}

fn read() -> BTreeMap<Path, Source> {
    let item = Regex::new(r"(?m)^ *(?:pub(?:\([a-z]+\))? )?use ([^;]+);").expect("a pattern");
    let full = Regex::new(r"\b(?:crate|self|super)(?:::\w+)+").expect("a pattern");
    let mut found = BTreeMap::new();
    for file in files(&["src", "crates"], "rs") {
        let Some((parent, inside)) = file.path.split_once("src/") else {
            continue;
        };
        let module = module(&format!("{parent}src"), inside.trim_end_matches(".rs"));
        let code = file.code();
        let code = code.split("\n#[cfg(test)]\nmod tests").next();
        let code = code.unwrap_or_default();
        let mut source = Source::default();
        for path in item.captures_iter(code).flat_map(|item| expanded(&item[1])) {
            let (path, alias) = path.split_once('@').unwrap_or((&path, ""));
            let path = absolute(&module, path);
            let name = if alias.is_empty() {
                &path[path.len() - 1]
            } else {
                alias
            };
            source.imports.insert(name.to_owned(), path.clone());
            source.used.insert(path);
        }
        let rest = item.replace_all(code, "");
        let used = full
            .find_iter(&rest)
            .map(|it| absolute(&module, it.as_str()));
        source.used.extend(used);
        found.insert(module, source);
    }
    found
}

/// The module that defines what a path names.
fn definition(sources: &BTreeMap<Path, Source>, path: &Path, depth: usize) -> Option<Path> {
    let mut ends = (1..=path.len()).rev();
    let (module, rest) = path.split_at(ends.find(|end| sources.contains_key(&path[..*end]))?);
    let import = rest
        .first()
        .and_then(|name| sources[module].imports.get(name));
    match import.filter(|import| depth < 8 && *import != path) {
        Some(import) => definition(sources, &[import, &rest[1..]].concat(), depth + 1),
        None => Some(module.to_vec()),
    }
}

fn loops() -> BTreeSet<BTreeSet<Path>> {
    let sources = read();
    let edges = |(from, source): (&Path, &Source)| {
        let used = source.used.iter();
        let used = used.filter_map(|path| definition(&sources, path, 0));
        let is_other = |to: &Path| !to.starts_with(from) && !from.starts_with(to);
        (from.clone(), used.filter(is_other).collect::<BTreeSet<_>>())
    };
    let edges: BTreeMap<_, _> = sources.iter().map(edges).collect();
    let reached = |from: &Path| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            open.extend(edges[next].iter().filter(|to| seen.insert((*to).clone())));
        }
        (from.clone(), seen)
    };
    let reached: BTreeMap<_, _> = edges.keys().map(reached).collect();
    let group = |(from, to): (&Path, &BTreeSet<Path>)| -> BTreeSet<Path> {
        let is_back = |to: &&Path| reached[*to].contains(from);
        to.iter().filter(is_back).cloned().collect()
    };
    let groups = reached.iter().map(group);
    groups.filter(|group| !group.is_empty()).collect()
}

fn listed(text: &str) -> Vec<BTreeSet<Path>> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let group = |(directory, names): (&str, &str)| {
        let names = names.split(' ').map(|name| module(directory, name));
        names.collect()
    };
    lines.map(group).collect()
}

#[test]
fn files_import_each_other_in_no_loop() {
    let (knots, found) = (listed(KNOTS), loops());
    assert!(knots.len() <= 4 && knots.iter().all(|knot| knot.len() <= 4));
    for group in &knots {
        let exists = found.iter().any(|knot| !knot.is_disjoint(group));
        assert!(exists, "this loop exists no longer: {group:?}");
    }
    for knot in &found {
        let is_known = knots.iter().any(|group| knot.is_subset(group));
        assert!(
            is_known,
            "these files import each other in a loop: {knot:#?}"
        );
    }
}
