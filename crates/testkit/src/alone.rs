//! Runs a test in a separate process, so that it can count that process's threads and files.

use std::path::Path;
use std::process::Command;

/// Set in the process that runs one test.
const ALONE: &str = "STOCKLOCK_TEST_ALONE";

/// Runs `body` in a process that runs only the test with the path `test`, which must be the caller.
/// `variables` are added to the environment of that process. Prints its figures.
///
/// # Panics
/// If the test fails there.
pub fn alone(test: &str, variables: &[(&str, &Path)], body: impl FnOnce()) {
    if crate::run::variable(ALONE).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("the program of the tests can be started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && stdout.contains("1 passed");
    assert!(passed, "{stdout}\n{stderr}");
    // The harness has begun the line with the name of the test.
    for figure in stdout
        .lines()
        .filter_map(|line| line.split_once("figure: "))
    {
        println!("figure: {}", figure.1);
    }
}
