//! The OpenAPI document says exactly what is accepted: schemathesis generates requests from it, valid
//! and invalid ones, and checks the answers.
//!
//! `tests/schemathesis/` has its versions, its settings, and what the document cannot say.
//! `TEST_EXAMPLES` is the number of examples for each operation. `TEST_SEED` replaces their fixed seed.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use stocklock_testkit::run::variable;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::services::Backend::Sqlite;

const DEFAULT_EXAMPLES: &str = "10";

/// More time than 1,000 examples need.
const LIMIT: Duration = Duration::from_hours(1);

/// Runs a program of the Python environment that `tests/install.sh` makes.
pub(crate) async fn run_python(
    program: &str,
    limit: Duration,
    configure: impl FnOnce(&mut Command) -> &mut Command,
) -> Output {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let program = target
        .expect("a directory")
        .join("python/bin")
        .join(program);
    let missing = "is missing: run tests/install.sh";
    assert!(program.exists(), "{} {missing}", program.display());
    let mut run = Command::new(program);
    let output = timeout(limit, configure(&mut run).kill_on_drop(true).output()).await;
    output.expect("it ends in time").expect("it can be run")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_requests_are_answered_as_documented() {
    let services = LockServices::fresh().await;
    let app = TestApp::with_flags(Sqlite, 1, &services.flags()).await;
    // The SKU of a deduction that names none.
    app.set_level("1001", 1_000_000).await;
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemathesis");
    let examples = variable("TEST_EXAMPLES");
    let examples = examples.as_deref().unwrap_or(DEFAULT_EXAMPLES);
    let directory = TempDir::new().expect("a directory");

    let output = run_python("schemathesis", LIMIT, |run| {
        run.args(["--config-file", &format!("{settings}/schemathesis.toml")])
            .args(["run", "--max-examples", examples])
            .args(variable("TEST_SEED").map(|seed| format!("--seed={seed}")))
            .arg(format!("{}/openapi.json", app.base(0)))
            .env("PYTHONPATH", settings)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(directory.path())
    })
    .await;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let summary = text.lines().rfind(|line| line.contains(" generated, "));
    println!(
        "figure: {examples} examples: {}",
        summary.unwrap_or_default().trim()
    );
    assert!(output.status.success(), "{text}\n{errors}");
}
