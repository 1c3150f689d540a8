//! The lock crate can be packaged: its package, and the Rust version that it needs.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use stocklock_testkit::run::variable;

const CRATE: &str = "stocklock-locks";

fn cargo(arguments: &[&str]) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(arguments).current_dir(root).output();
    let output = output.expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("a text")
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/locks");
    std::fs::read_to_string(root.join(path)).expect(path)
}

/// The version as numbers; zero if there is none.
fn version(package: &Value) -> (u32, u32) {
    let text = package["rust_version"].as_str().unwrap_or("0.0");
    let mut parts = text.split('.').map(|part| part.parse().expect("a number"));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().expect("a text")
}

/// The lock crate, and all packages that it needs in its normal and build dependencies.
fn needed(metadata: &Value) -> (&Value, Vec<&Value>) {
    let all = ["--package", CRATE, "--all-features", "--target", "all"];
    let edges = [
        "--edges",
        "normal,build",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ];
    let tree = cargo(&[&["tree", "--locked"][..], &all, &edges].concat());
    let names: BTreeSet<_> = tree
        .lines()
        .map(|line| line.split(' ').take(2))
        .map(Vec::from_iter)
        .collect();
    let is_needed = |it: &&Value| {
        let version = format!("v{}", text(it, "version"));
        names.contains(&vec![text(it, "name"), &version])
    };
    let needed = list(&metadata["packages"]).iter().filter(is_needed);
    let (own, needed): (Vec<_>, Vec<_>) = needed.partition(|it| text(it, "name") == CRATE);
    (own[0], needed)
}

/// `rust-version` is the highest of the dependencies, so it is neither too low nor higher than necessary.
/// Clippy checks the code of the crate (`incompatible_msrv`).
#[test]
fn rust_version_of_lock_crate_is_that_of_its_dependencies() {
    // Not `--offline`: cargo also reads dependencies of other platforms, which no build here has downloaded.
    let metadata = cargo(&["metadata", "--locked", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let (lock_crate, needed) = needed(&metadata);
    assert!(needed.len() > 50, "only {} dependencies", needed.len());
    let newest = needed
        .into_iter()
        .max_by_key(|it| version(it))
        .expect("one");
    let version_of_crate @ (major, minor) = version(lock_crate);
    assert_eq!(version_of_crate, version(newest), "{}", newest["name"]);
    let readme = read("README.md");
    assert!(readme.contains(&format!("Rust {major}.{minor} or newer")));
}

/// The package has what its users read and run, and needs nothing else of the workspace: no dependency is
/// a path. With `TEST_PACKAGE` it is also compiled, alone and with each back end alone: in the workspace,
/// its dependencies have the features that other crates need.
#[test]
fn lock_crate_can_be_packaged() {
    let target = tempfile::tempdir().expect("a directory");
    let path = target.path().to_str().expect("a text");
    let package = ["package", "--offline", "--allow-dirty", "--package", CRATE];
    let list = cargo(&[&package[..], &["--list"]].concat());
    let files: BTreeSet<_> = list.lines().collect();
    let expected = [
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "docs/lock.md",
        "docs/names.md",
        "examples/tour.rs",
        "src/lib.rs",
    ];
    for file in expected {
        assert!(files.contains(file), "{file} is missing:\n{list}");
    }
    let has_tests = files.iter().any(|file| file.starts_with("tests"));
    assert!(!has_tests, "{list}");

    let is_compiled = variable("TEST_PACKAGE").is_some();
    let features = ["", "redis", "sql", "zookeeper"];
    for feature in features.into_iter().filter(|_| is_compiled) {
        let check = ["check", "--offline", "--quiet", "--package", CRATE];
        let only = ["--no-default-features", "--features", feature];
        cargo(&[&check[..], &only, &["--target-dir", path]].concat());
    }
    let unless_compiled = (!is_compiled).then_some("--no-verify");
    let to_target = [unless_compiled, Some("--target-dir"), Some(path)];
    let to_target: Vec<_> = to_target.into_iter().flatten().collect();
    cargo(&[&package[..], &to_target].concat());
    let archives = target.path().join("package");
    let mut archives = archives.read_dir().expect("a directory");
    let archive = archives.find_map(|entry| {
        let path = entry.expect("it can be read").path();
        (path.extension()? == "crate").then_some(path)
    });
    let mut tar = Command::new("tar");
    tar.args([
        "--extract",
        "--to-stdout",
        "--wildcards",
        "*/Cargo.toml",
        "--file",
    ]);
    let manifest = tar.arg(archive.expect("a package")).output();
    let manifest = String::from_utf8(manifest.expect("tar runs").stdout).expect("a text");
    assert!(manifest.contains("[dependencies.tokio]"), "{manifest}");
    let tables = manifest.split("\n[");
    let mut dependencies = tables.filter(|table| table.contains("dependencies."));
    assert!(dependencies.all(|it| !it.contains("path = ")), "{manifest}");
    assert!(!manifest.contains("stocklock-testkit"), "{manifest}");
}
