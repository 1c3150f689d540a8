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

/// The loops that are still to be cut: names may be removed from a line, and lines that have no loop must be.
const STILL: &str = "
crates/core/src: deduct/counters deduct/deduction_lock deduct/deductor deduct/run ports/lock strategy strategy/local_mutex strategy/locked strategy/no_lock strategy/read_check
crates/core/src: plan ports/batch
crates/core/src: stock/change stock/deduction stock/idempotency stock/movement stock/operation
crates/failures/src: story telling
crates/failures/src: teller variant
crates/lab/src: race/buyers race/counts race/event race/evidence race/lineup race/live race/order race/replica_client race/row race/tally race/verdict race/words
crates/locks-bench/src: run servers
crates/store/src: sql/conditional_write sql/dialect sql/ledger_row sql/pool/connection sql/pool/row sql/pool/server sql/statements sql/write
crates/store/src: sql/mysql/connect sql/mysql/requirements
crates/store/src: sql/postgres/connect sql/postgres/requirements
crates/testkit/src: servers/private_server servers/program servers/redis servers/sql servers/supervisor servers/zookeeper
src: cli http race races
src: http/deduct http/deduct_batch http/fields http/openapi
";

/// A path: the sources of a crate, and names there.
type Path = Vec<String>;

#[derive(Default)]
struct Source {
    /// What the imported names mean.
    imports: BTreeMap<String, Path>,
    used: BTreeSet<Path>,
}

/// The path of a file without `.rs`.
fn module(directory: &str, file: &str) -> Path {
    let names = file.split('/').filter(|it| !["lib", "main"].contains(it));
    [directory]
        .into_iter()
        .chain(names)
        .map(str::to_owned)
        .collect()
}

/// What a path means in a module. `None` if it has no keyword: it begins at a submodule, or in another crate.
fn absolute(from: &Path, path: &str) -> Option<Path> {
    let mut names = path.split("::").map(str::trim).peekable();
    let mut found = match names.next()? {
        "crate" => from[..1].to_vec(),
        "self" => from.clone(),
        "super" => from[..from.len() - 1].to_vec(),
        _ => return None,
    };
    while names.next_if_eq(&"super").is_some() {
        found.pop();
    }
    found.extend(names.filter(|name| *name != "self").map(str::to_owned));
    Some(found)
}

/// The paths of a `use` item.
fn expanded(item: &str) -> Vec<String> {
    let Some((start, group)) = item.split_once('{') else {
        return vec![item.trim().to_owned()];
    };
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in group.trim_end().trim_end_matches([',', ' ']).chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        match (letter, depth) {
            (',', 0) => parts.push(String::new()),
            (_, 0..) => parts.last_mut().expect("one").push(letter),
            _ => break,
        }
    }
    let parts = parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty());
    parts
        .flat_map(|part| expanded(&format!("{}{part}", start.trim())))
        .collect()
}

fn read() -> BTreeMap<Path, Source> {
    let item = Regex::new(r"(?m)^ *(?:pub(?:\([a-z]+\))? )?use ([^;]+);").expect("a pattern");
    let full = Regex::new(r"\b(?:crate|self|super)(?:::\w+)+").expect("a pattern");
    let mut found = BTreeMap::new();
    for file in files(&["src", "crates"], "rs") {
        let Some((parent, inside)) = file
            .path
            .strip_suffix(".rs")
            .and_then(|it| it.split_once("src/"))
        else {
            continue;
        };
        let (module, code) = (module(&format!("{parent}src"), inside), file.code());
        let code = code
            .split("\n#[cfg(test)]\nmod tests")
            .next()
            .unwrap_or_default();
        let mut source = Source::default();
        for path in item.captures_iter(code).flat_map(|item| expanded(&item[1])) {
            let (path, alias) = path.split_once(" as ").unwrap_or((&path, ""));
            let path =
                absolute(&module, path).or_else(|| absolute(&module, &format!("self::{path}")));
            let path = path.expect("a path");
            let last = path.last().map_or("", String::as_str);
            let name = if alias.is_empty() { last } else { alias };
            source.imports.insert(name.to_owned(), path.clone());
            source.used.insert(path);
        }
        let rest = item.replace_all(code, "");
        source.used.extend(
            full.find_iter(&rest)
                .filter_map(|it| absolute(&module, it.as_str())),
        );
        found.insert(module, source);
    }
    found
}

/// The module that defines what a path names.
fn definition(sources: &BTreeMap<Path, Source>, path: &Path, depth: usize) -> Option<Path> {
    let end = (1..=path.len())
        .rev()
        .find(|end| sources.contains_key(&path[..*end]))?;
    let (module, rest) = path.split_at(end);
    let import = rest
        .first()
        .and_then(|name| sources[module].imports.get(name));
    match import.filter(|import| depth < 8 && *import != path) {
        Some(import) => definition(sources, &[import, &rest[1..]].concat(), depth + 1),
        None => Some(module.to_vec()),
    }
}

/// The files of each loop.
fn loops() -> BTreeSet<BTreeSet<Path>> {
    let sources = read();
    let edges = sources.iter().map(|(from, source)| {
        let used = source
            .used
            .iter()
            .filter_map(|path| definition(&sources, path, 0));
        let is_own = |to: &Path| to.starts_with(from) || from.starts_with(to);
        (from, used.filter(|to| !is_own(to)).collect::<BTreeSet<_>>())
    });
    let edges: BTreeMap<_, _> = edges.collect();
    let reached = |from| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            open.extend(edges[next].iter().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reached: BTreeMap<_, _> = sources.keys().map(|from| (from, reached(from))).collect();
    let loops = reached
        .iter()
        .map(|(from, to)| to.iter().filter(|to| reached[*to].contains(*from)));
    loops
        .map(|group| group.cloned().collect())
        .filter(|group: &BTreeSet<_>| !group.is_empty())
        .collect()
}

#[test]
fn files_import_each_other_in_no_loop() {
    let listed = |text: &str| -> Vec<BTreeSet<Path>> {
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        lines
            .map(|(crate_of, names)| {
                names
                    .split(' ')
                    .map(|name| module(crate_of, name))
                    .collect()
            })
            .collect()
    };
    let (knots, still, found) = (listed(KNOTS), listed(STILL), loops());
    assert!(knots.len() <= 4 && knots.iter().all(|knot| knot.len() <= 4));
    for knot in &knots {
        assert!(found.contains(knot), "this loop exists no longer: {knot:?}");
    }
    for group in &still {
        let exists = found.iter().any(|knot| knot.is_subset(group));
        assert!(exists, "this loop exists no longer: {group:?}");
    }
    let is_known = |knot: &BTreeSet<Path>| {
        knots.contains(knot) || still.iter().any(|group| knot.is_subset(group))
    };
    let new: Vec<_> = found.iter().filter(|knot| !is_known(knot)).collect();
    assert!(
        new.is_empty(),
        "these files import each other in a loop: {new:#?}"
    );
}
