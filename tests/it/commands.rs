//! The commands of the program, run as processes.

use std::io::pipe;
use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::strategies::WITHOUT_SERVICES;
use crate::support::app::{Answer, send};
use crate::support::process::{Ended, Process, this_build};
use crate::support::services::Backend::Sqlite;
use crate::support::services::fresh_database;

/// A password that must never be printed.
pub(crate) const PASSWORD: &str = "c4n4ry-p4ssw0rd";

/// A deduction without a body. `query` is empty or starts with `?`.
pub(crate) async fn deduct(process: &Process, query: &str) -> Answer {
    let path = format!("/stock/deduct{query}");
    send(process.request(Method::POST, &path)).await
}

async fn serve(variables: &[(&str, &str)]) -> Process {
    Process::serving(&["serve"], variables).await
}

#[tokio::test]
async fn serve_has_no_page_no_lab_and_one_strategy() {
    let serve = serve(&[]).await;
    for (method, path) in [
        (Method::GET, "/"),
        (Method::GET, "/lab/races"),
        (Method::POST, "/lab/races"),
        (Method::GET, "/lab/failures"),
        (Method::GET, "/lab/locks?sku=1001"),
        (Method::DELETE, "/lab/locks?sku=1001"),
        (Method::GET, "/lab/page/app.js"),
        (Method::GET, "/lab/races/1/events"),
        (Method::POST, "/lab/races/1/stop"),
    ] {
        let answer = send(serve.request(method, path)).await;
        assert_eq!(answer.status_and_code(), (404, "no-such-route"), "{path}");
    }
    assert_eq!(serve.get("/stock/1001").await.status, 404);
    for (query, code) in [
        ("?sku=1001&strategy=no-lock", "strategy-fixed"),
        ("?sku=1001&strategy=single-sql", "strategy-fixed"),
        ("?sku=1001&strategy=nonsense", "strategy-fixed"),
        ("?sku=1001&guard=off", "safeguards-fixed"),
        ("?sku=1001&check=off", "safeguards-fixed"),
        ("?sku=1001&guard=on", "safeguards-fixed"),
        ("", "invalid-request"),
    ] {
        let refused = deduct(&serve, query).await;
        assert_eq!(refused.status_and_code(), (422, code), "{query}");
    }
    let documents = ["/docs/", "/openapi.json", "/strategies"];
    for path in ["/healthz", "/metrics"].into_iter().chain(documents) {
        assert_eq!(serve.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn lab_answers_the_first_curl_of_the_readme() {
    let lab = Process::serving(&["lab"], &[]).await;
    let mut sold = deduct(&lab, "").await.ok().clone();
    let id = sold["id"].take();
    assert_eq!(id.as_str().expect("an id").len(), 36);
    let expected = json!({
        "id": null, "sku": "1001", "warehouse": "main", "quantity": 1, "remaining": 4999,
        "strategy": "group-commit",
    });
    assert_eq!(sold, expected);
    let sold = deduct(&lab, "?strategy=for-update").await;
    assert_eq!(sold.ok()["remaining"], 4998);
    assert_eq!(sold.body["strategy"], "for-update");
    assert_eq!(lab.get("/").await.status, 200);
    lab.terminate();
    let ended = lab.ended().await;
    assert!(ended.directory.path().join("stocklock.db").exists());
}

#[tokio::test]
async fn lab_keeps_stock_that_already_exists() {
    let database = fresh_database(Sqlite).await;
    for remaining in [4999, 4998] {
        let lab = Process::lab(&database.url, &[]).await;
        assert_eq!(deduct(&lab, "").await.ok()["remaining"], remaining);
    }
}

#[tokio::test]
async fn serve_refuses_an_unsafe_strategy_without_allow_unsafe() {
    for strategy in ["no-lock", "local-mutex", "redis-get-set"] {
        let refused = Process::run(&["serve"], &[("STRATEGY", strategy)]).await;
        assert_one_line_error(&refused, "STRATEGY");
    }
    let allowed = [("STRATEGY", "no-lock"), ("ALLOW_UNSAFE", "true")];
    assert_eq!(serve(&allowed).await.get("/healthz").await.status, 200);
}

/// Asserts exit code 2 and one line that starts with the program's name and names the variable.
pub(crate) fn assert_one_line_error(ended: &Ended, variable: &str) {
    let stderr = &ended.stderr;
    assert_eq!(ended.code, Some(2), "{stderr}");
    // A migration that was applied before is logged.
    let lines: Vec<_> = (stderr.lines())
        .filter(|line| !line.contains(" INFO "))
        .collect();
    let [line] = *lines else { panic!("{stderr}") };
    assert!(line.starts_with("stocklock: "), "{stderr}");
    assert!(line.contains(variable), "{variable}: {stderr}");
    assert!(ended.stdout.is_empty(), "{}", ended.stdout);
}

#[rstest]
#[case("LISTEN", "nonsense")]
#[case("LISTEN", "127.0.0.1")]
#[case("LISTEN", "203.0.113.1:8080")] // Reserved for documentation: no machine has this address.
#[case("WAIT_LIMIT_MS", "soon")]
#[case("WAIT_LIMIT_MS", "0")]
#[case("WAIT_LIMIT_MS", "-1")]
#[case("WAIT_LIMIT_MS", "4801")] // Less than 200 ms below REQUEST_DEADLINE_MS.
#[case("DATABASE_URL", "oracle://host/db")]
#[case("DATABASE_URL", "mysql://root@127.0.0.1")] // Names no database.
#[case("DATABASE_URL", "mysql://root@127.0.0.1:nonsense/db")]
#[case("DATABASE_URL", "postgres://127.0.0.1:99999/db")]
#[case("DATABASE_POOL_SIZE", "0")]
#[case("STRATEGY", "prayer")]
#[case("STRATEGY", "redis-lua")] // Needs REDIS_URL.
#[case("ALLOW_UNSAFE", "perhaps")]
#[case("LOG", "stocklock=nonsense")]
#[case("LOG_FORMAT", "xml")]
#[case("MAX_IN_FLIGHT", "0")]
#[case("MAX_BODY_BYTES", "1")]
#[case("MAX_BATCH_BODY_BYTES", "1")]
#[case("REPLICA_ID", "two words")]
#[case("REDIS_URL", "c4n4ry-p4ssw0rd")]
#[case("REDIS_URL", "http://shop:c4n4ry-p4ssw0rd@127.0.0.1/")]
#[case("REDIS_URL", "redis://shop:c4n4ry-p4ssw0rd@127.0.0.1:nonsense/0")]
#[case("REDIS_URL", "redis://shop:c4n4ry-p4ssw0rd@127.0.0.1/nonsense")]
#[case("REDLOCK_URLS", "redis://a,redis://b,redis://c,redis://d")]
#[case("REDLOCK_URLS", "redis://a,redis://b,redis://:c4n4ry-p4ssw0rd@b/1")]
#[case("REDLOCK_URLS", "redis://a,redis://b,redis+sentinel://c/stock")]
#[case(
    "REDLOCK_URLS",
    "redis://a,redis://b,redis://:c4n4ry-p4ssw0rd@c:nonsense"
)]
#[case("ZOOKEEPER_CONNECT", "127.0.0.1:nonsense")]
#[case("ZOOKEEPER_CONNECT", "127.0.0.1:2181,")]
#[case("ZOOKEEPER_CONNECT", "127.0.0.1:2181/chroot/")]
#[case("ZOOKEEPER_AUTH", "shop:c4n4ry-p4ssw0rd")]
#[case("OTEL_EXPORTER_OTLP_ENDPOINT", "http://shop:c4n4ry-p4ssw0rd@127.0.0.1")]
#[case("LOCK_LEASE_MS", "99")]
#[case("LOCK_POLL_MS", "1001")]
#[case("LOCK_LEASE_MS", "soon")]
#[tokio::test]
async fn wrong_value_is_reported_in_one_line(#[case] variable: &str, #[case] value: &str) {
    let ended = Process::run(&["serve"], &[(variable, value)]).await;
    assert_one_line_error(&ended, variable);
    assert!(!ended.stderr.contains(PASSWORD), "{}", ended.stderr);
}

#[tokio::test]
async fn address_in_use_is_reported_in_one_line() {
    let first = serve(&[]).await;
    let variables = [("LISTEN", &*first.address())];
    let second = Process::run(&["serve"], &variables).await;
    assert_one_line_error(&second, "LISTEN");
}

// An unknown host name fails immediately. A host that refuses connections is tried again.
#[rstest]
#[case("mysql://shop:c4n4ry-p4ssw0rd@nowhere.invalid/stock")]
#[case("postgres://shop:c4n4ry-p4ssw0rd@nowhere.invalid/stock")]
#[case("mysql://shop:c4n4ry-p4ssw0rd@127.0.0.1:nonsense/stock")]
#[case("postgres://shop:c4n4ry-p4ssw0rd@127.0.0.1:nonsense/stock")]
#[case("oracle://shop:c4n4ry-p4ssw0rd@127.0.0.1/stock")]
#[case("sqlite://nowhere/c4n4ry-p4ssw0rd/stock.db?mode=nonsense")]
#[case("shop:c4n4ry-p4ssw0rd@127.0.0.1/stock")]
#[case("c4n4ry-p4ssw0rd")]
#[tokio::test]
async fn password_of_the_database_is_never_printed(#[case] url: &str) {
    assert!(url.contains(PASSWORD));
    let redis = "redis://shop:c4n4ry-p4ssw0rd@127.0.0.1:1/0";
    let variables = [
        ("DATABASE_URL", url),
        ("LOG", "trace"),
        ("REDIS_URL", redis),
    ];
    let flag = format!("--database-url={url}");
    for words in [
        &["serve"][..],
        &["migrate"],
        &["race", "--stock=1", "--buyers=1", "--orders=1"],
        &["serve", "--help"],
        &["race", "--help"],
    ] {
        for (words, variables) in [
            (words.to_vec(), &variables[..]),
            ([words, &[&flag]].concat(), &variables[1..]),
        ] {
            let ended = Process::run(&words, variables).await;
            for printed in [&ended.stdout, &ended.stderr] {
                assert!(!printed.contains(PASSWORD), "{words:?}: {printed}");
            }
            let is_help = words.contains(&"--help");
            let code = ended.code;
            assert_eq!(code == Some(0), is_help, "{words:?}: {}", ended.stderr);
        }
    }
}

#[tokio::test]
async fn openapi_prints_the_document() {
    for (words, lab) in [(&["openapi"][..], false), (&["openapi", "--lab"], true)] {
        let ended = Process::run(words, &[]).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let printed: Value = serde_json::from_str(&ended.stdout).expect("it is JSON");
        assert_eq!(printed, stocklock::http::document(lab));
    }
}

/// As after `| head`.
#[rstest]
#[case("openapi")]
#[case("failures")]
#[case("failures --json")]
#[case("failures --markdown")]
#[tokio::test]
async fn command_ends_quietly_if_its_output_is_closed(#[case] words: &str) {
    let (reader, stdout) = pipe().expect("a pipe");
    drop(reader);
    let directory = TempDir::new().expect("a directory");
    let process = Command::new(this_build())
        .args(words.split(' '))
        .env_clear()
        .current_dir(&directory)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let ended = timeout(Duration::from_mins(1), process.wait_with_output()).await;
    let ended = ended.expect("it ends").expect("its output can be read");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(ended.status.code(), Some(141));
}

#[tokio::test]
async fn race_exits_with_0_if_only_unsafe_strategies_oversell() {
    let words = "race --stock 100 --buyers 20 --orders 6 --json race.json --html race.html --quiet";
    let words: Vec<_> = words.split(' ').collect();
    let ended = Process::run(&words, &[]).await;
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let file = std::fs::read(ended.directory.path().join("race.json"));
    let report: Value = serde_json::from_slice(&file.expect("the file")).expect("it is JSON");
    let html = std::fs::read_to_string(ended.directory.path().join("race.html"));
    let html = html.expect("the file");
    assert!(!ended.stderr.contains("orders in"), "{}", ended.stderr);
    for strategy in WITHOUT_SERVICES {
        let is_named = html.contains(&format!("\"strategy\":\"{strategy}\""));
        assert!(is_named, "{strategy}");
        assert!(ended.stdout.contains(strategy), "{}", ended.stdout);
        assert!(report.to_string().contains(strategy), "{report}");
    }
}

#[tokio::test]
async fn race_shows_its_progress_unless_it_is_quiet() {
    let race = [
        "race",
        "--strategy=single-sql",
        "--stock=9",
        "--buyers=3",
        "--orders=4",
    ];
    let loud = Process::run(&race, &[]).await;
    let is_told = loud.stderr.contains("single-sql: 12 orders");
    assert!(is_told, "{}", loud.stderr);
    for (flag, width) in [("--quiet", 100), ("--wide", 170)] {
        let ended = Process::run(&[&race[..], &[flag]].concat(), &[]).await;
        let is_wide = flag == "--wide";
        assert_eq!(
            ended.stderr.contains("orders in"),
            is_wide,
            "{}",
            ended.stderr
        );
        assert_eq!(ended.stdout.contains("p50 ms"), is_wide, "{}", ended.stdout);
        let table = ended.stdout.lines().filter(|line| line.contains('│'));
        let widest = table.map(|line| line.chars().count()).max();
        assert!(widest.expect("a table") <= width, "{}", ended.stdout);
        assert!(!ended.stdout.contains('\u{1b}'), "no colour in a pipe");
    }
}

#[tokio::test]
async fn replica_of_a_race_stops_with_its_standard_input() {
    let ended = Process::run(&["lab", "--replica", "1"], &[]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let line: Value = serde_json::from_str(&ended.stdout).expect("one line of JSON");
    let address = line["listening"].as_str().expect("an address");
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
}

#[tokio::test]
async fn race_refuses_a_target_that_is_not_in_lab_mode() {
    let serve = serve(&[]).await;
    let ended = Process::run(&["race", "--target", &serve.url("")], &[]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("lab"), "{}", ended.stderr);
    assert!(ended.stderr.contains(&serve.url("")), "{}", ended.stderr);
    let words = ["race", "--target", &serve.url(""), "--rtt=1ms"];
    let ended = Process::run(&words, &[]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}
