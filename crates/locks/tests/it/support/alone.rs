//! A test that has a whole process to itself, so that it can count what the process has.

use std::path::Path;
use std::process::Command;

/// Set in the process that a test has to itself.
const ALONE: &str = "STOCKLOCK_TEST_ALONE";

/// Runs `body` in a process that runs nothing but the test with this path, which is the caller.
#[expect(
    clippy::disallowed_methods,
    reason = "it tells two processes of one program apart, and configures neither"
)]
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("a program knows where it is");
    let output = Command::new(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .expect("the tests' own program runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(passed, "{said}\n{error}");
}

/// How many entries a directory of this process in `/proc` has.
pub(crate) fn count(what: &str) -> usize {
    let directory = Path::new("/proc/self").join(what);
    std::fs::read_dir(directory).expect("Linux").count()
}
