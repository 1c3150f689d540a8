//! The page of the lab in a real browser: `tests/page/` drives a headless Chromium.

use std::time::Duration;

use rstest::rstest;

use crate::schemathesis::run_python;
use crate::support::lock_services::LockServices;
use crate::support::process::Process;

/// Several times what the tests take.
const LIMIT: Duration = Duration::from_mins(10);

/// All tests of the page, if the case names none.
#[rstest]
#[case::first_visit(&["test_race.Bare"])]
#[case::verdict(&["test_race.Race.test_no_lock_red_number_is_that_of_the_audit", "test_race.Race.test_single_sql_shows_zero"])]
#[case::orders(&["test_race.Race.test_orders_of_lines_are_held_and_confirmed", "test_views.Stock.test_open_hold_shows_how_long_it_lasts"])]
#[case::keyboard(&["test_views.KeyboardRace", "test_views.Keyboard.test_tab_reaches_every_control_and_shows_where"])]
#[case::axe(&["test_views.Looks.test_no_view_scrolls_sideways_and_axe_finds_nothing"])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_shows_what_the_races_found(#[case] tests: &[&str]) {
    let services = LockServices::fresh().await;
    let arguments = [&["lab"][..], &services.flags()].concat();
    let lab = Process::serving(&arguments, &[]).await;
    let bare = Process::serving(&["lab"], &[]).await;

    let output = run_python("python", LIMIT, |run| {
        run.args(["-B", "-m", "unittest", "-v"])
            .args(tests)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page"))
            .env("PAGE_URL", lab.url(""))
            .env("PAGE_URL_BARE", bare.url(""))
            .env("PAGE_LOOKS", if tests.is_empty() { "all" } else { "one" })
    })
    .await;
    let text = String::from_utf8_lossy(&output.stderr);
    let summary = text.lines().rfind(|line| line.starts_with("Ran "));
    println!("figure: {}", summary.unwrap_or_default());
    assert!(output.status.success(), "{text}");
}

full! { page_shows_what_the_races_found(tests: &[&str] [&[]]); }
