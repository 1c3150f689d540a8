//! `stocklock import` and `stocklock export`.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use rstest::rstest;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::lines;
use crate::commands::assert_one_line_error;
use crate::support::process::{Ended, Process};
use crate::support::services::Backend::Sqlite;
use crate::support::services::fresh_database;

const CSV: &str = "\
sku,warehouse,on_hand,create,from,add
a,,5,true,,
b,north,7,true,,

a,,,,,3
\"a
\",,6,,8,
a,,1,,8,
a,,,,,many

absent,,,,,1
";

async fn run(replica: &Process, arguments: &[&str]) -> Ended {
    let url = replica.url("");
    Process::run(&[arguments, &["--url", &url]].concat(), &[]).await
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_is_imported_once_and_its_errors_have_line_numbers(
    #[values("\n", "\r\n")] line_break: &str,
) {
    let csv = CSV.replace('\n', line_break);
    let database = fresh_database(Sqlite).await;
    let replica = Process::serving(&["serve"], &[("DATABASE_URL", &database.url)]).await;
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("first delivery.csv");
    fs::write(&path, &csv).expect("a file");
    let file = path.to_str().expect("a text");
    let dry = run(&replica, &["import", file, "--dry-run"]).await;
    let levels = async || lines(&replica.get("/export").await);
    assert_eq!(levels().await.len(), 0, "{dry:?}");
    for (ended, before) in [
        (dry, 0),
        (run(&replica, &["import", file]).await, 0),
        (run(&replica, &["import", file]).await, 4),
    ] {
        let report = format!("rows: 7, made before: {before}, failed: 3\n");
        assert_eq!(
            (ended.code, ended.stdout),
            (Some(1), report),
            "{}",
            ended.stderr
        );
        let errors = ended
            .stderr
            .lines()
            .filter(|line| line.starts_with("line "));
        let errors: Vec<_> = errors
            .map(|line| line.splitn(3, ": ").take(2).collect::<Vec<_>>())
            .collect();
        let expected = [
            ["line 8", "precondition-failed"],
            ["line 9", "invalid-request"],
            ["line 11", "unknown-sku"],
        ];
        assert_eq!(errors, expected, "{}", ended.stderr);
    }
    let units: Vec<_> = levels()
        .await
        .iter()
        .map(|one| one["on_hand"].clone())
        .collect();
    assert_eq!(units, [json!(6), json!(7)]);
    let exported = run(&replica, &["export"]).await;
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    assert_eq!(exported.stdout, replica.get("/export").await.text());

    // A line before the others was changed.
    fs::write(&path, csv.replace("5,true", "4,true")).expect("a file");
    let changed = run(&replica, &["import", file]).await;
    assert_eq!(changed.code, Some(1));
    let is_told = changed.stderr.contains("file-changed");
    assert!(is_told, "{}", changed.stderr);
    let rows = directory.path().join("rows.ndjson");
    fs::write(&rows, "{\"sku\": \"a\", \"add\": 1}\n").expect("a file");
    let rows = rows.to_str().expect("a text");
    let other = run(&replica, &["import", rows, "--key", "more"]).await;
    assert_eq!(
        (other.code, &*other.stdout),
        (Some(0), "rows: 1, made before: 0, failed: 0\n"),
        "{}",
        other.stderr
    );
}

/// Goal: a line that is no CSV is named, and the file is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_line_is_reported_at_once() {
    let database = fresh_database(Sqlite).await;
    let replica = Process::serving(&["serve"], &[("DATABASE_URL", &database.url)]).await;
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("rows.csv");
    let file = path.to_str().expect("a text");
    for line in [&b"b,2,3\n"[..], b"\xff,2\n"] {
        fs::write(&path, [b"sku,add\r\na,1\r\n", line].concat()).expect("a file");
        for arguments in [&["import", file][..], &["import", file, "--dry-run"]] {
            let ended = run(&replica, arguments).await;
            assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
            let errors: Vec<_> = ended.stderr.lines().collect();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("cannot read"), "{errors:?}");
            assert!(errors[0].contains("line 3: "), "{errors:?}");
        }
    }
}

/// Goal: the attempts of an import are counted from its last progress on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_that_comes_further_is_not_given_up() {
    let requests = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&requests);
    let answer = async move |_: Bytes| {
        let number = seen.fetch_add(1, Ordering::Relaxed) + 1;
        let status = if number == 7 { 0 } else { 503 };
        json!({"done": number == 7, "rows": number * 500, "status": status}).to_string()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let server = axum::serve(listener, Router::new().route("/import", post(answer)));
    let _server = AbortOnDropHandle::new(tokio::spawn(async move {
        server.await.expect("it serves");
    }));
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("rows.ndjson");
    fs::write(&path, "{}\n").expect("a file");
    let file = path.to_str().expect("a text");
    let ended = Process::run(&["import", file, "--url", &url], &[]).await;
    assert_eq!(requests.load(Ordering::Relaxed), 7, "{}", ended.stderr);
}

#[tokio::test]
async fn command_says_what_is_wrong() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("rows.csv");
    fs::write(&path, "sku,colour\na,red\n").expect("a file");
    let file = path.to_str().expect("a text");
    let ended = Process::run(&["import", file], &[]).await;
    assert_eq!(ended.code, Some(1));
    let is_told = ended.stderr.contains("line 1: `colour`");
    assert!(is_told, "{}", ended.stderr);
    // That the password is not printed is checked at the end of each process.
    let url = "http://shop:c4n4ry-p4ssw0rd@127.0.0.1";
    let ended = Process::run(&["export", "--url", url], &[]).await;
    assert_one_line_error(&ended, "--url");
    let ended = Process::run(&["import", "/nowhere"], &[]).await;
    assert!(
        ended.stderr.contains("cannot read /nowhere"),
        "{}",
        ended.stderr
    );
    let database = fresh_database(Sqlite).await;
    let variables = [("DATABASE_URL", &*database.url)];
    let replica = Process::serving(&["serve"], &variables).await;
    let url = replica.url("/none");
    let ended = Process::run(&["export", "--url", &url], &[]).await;
    assert!(ended.stderr.contains("404"), "{}", ended.stderr);
}
