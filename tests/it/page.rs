//! The page of the lab in a real browser: `tests/page/` drives a headless Chromium.

use std::path::Path;
use std::time::Duration;

use stocklock_testkit::run::variable;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::lock_services::LockServices;
use crate::support::process::Process;

/// Several times what the tests take.
const LIMIT: Duration = Duration::from_mins(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_shows_what_the_races_found() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let python = target.expect("a directory").join("page/bin/python");
    let missing = "is missing: run tests/page/install.sh";
    assert!(python.exists(), "{} {missing}", python.display());
    let services = LockServices::fresh().await;
    let flags = services.flags();
    let mut arguments = vec!["lab"];
    arguments.extend(flags.iter().map(String::as_str));
    let lab = Process::serving(&arguments, &[]).await;
    let bare = Process::serving(&["lab"], &[]).await;

    let mut run = Command::new(python);
    run.args(["-B", "-m", "unittest", "-v"])
        .args(variable("TEST_PAGE"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page"))
        .env("PAGE_URL", lab.url(""))
        .env("PAGE_URL_BARE", bare.url(""))
        .kill_on_drop(true);
    let output = timeout(LIMIT, run.output()).await;
    let output = output.expect("the browser's tests end in time");
    let output = output.expect("they can be run");

    let text = String::from_utf8_lossy(&output.stderr);
    let summary = text.lines().rfind(|line| line.starts_with("Ran "));
    println!("figure: {}", summary.unwrap_or_default());
    assert!(output.status.success(), "{text}");
}
