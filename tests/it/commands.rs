//! The commands, through the program itself.

use reqwest::Client;
use serde_json::{Value, json};

use crate::support::process::{Ended, Process};
use crate::support::services::{Backend, fresh_database};

/// What must never be seen.
const CANARY: &str = "c4n4ry-p4ssw0rd";

async fn status_of(process: &Process, path: &str) -> u16 {
    let answer = reqwest::get(process.url(path)).await;
    answer.expect("an answer").status().as_u16()
}

async fn post(process: &Process, path: &str) -> (u16, Value) {
    let answer = Client::new().post(process.url(path)).send().await;
    let answer = answer.expect("an answer");
    (
        answer.status().as_u16(),
        answer.json().await.expect("its body is JSON"),
    )
}

async fn serve(variables: &[(&str, &str)]) -> Process {
    Process::serving(&["serve"], variables).await
}

#[tokio::test]
async fn serve_has_no_page_no_lab_and_one_strategy() {
    let serve = serve(&[]).await;
    for path in ["/", "/lab", "/lab/anything"] {
        assert_eq!(status_of(&serve, path).await, 404, "{path}");
    }
    for strategy in ["no-lock", "single-sql", "nonsense"] {
        let path = format!("/stock/deduct?sku=1001&strategy={strategy}");
        let (status, problem) = post(&serve, &path).await;
        assert_eq!((status, &problem["code"]), (422, &json!("strategy-fixed")));
    }
    for safeguard in ["guard=off", "check=off", "guard=on"] {
        let (status, problem) = post(&serve, &format!("/stock/deduct?sku=1001&{safeguard}")).await;
        let refused = (422, &json!("safeguards-fixed"));
        assert_eq!((status, &problem["code"]), refused, "{safeguard}");
    }
    let (status, problem) = post(&serve, "/stock/deduct").await;
    assert_eq!((status, &problem["code"]), (422, &json!("invalid-request")));
    assert_eq!(status_of(&serve, "/stock/1001").await, 404);
    for path in [
        "/healthz",
        "/metrics",
        "/docs/",
        "/openapi.json",
        "/strategies",
    ] {
        assert_eq!(status_of(&serve, path).await, 200, "{path}");
    }
}

#[tokio::test]
async fn lab_answers_the_first_curl_of_the_readme() {
    let lab = Process::serving(&["lab"], &[]).await;
    let (status, mut body) = post(&lab, "/stock/deduct").await;
    assert_eq!(status, 200, "{body}");
    let id = body["id"].take();
    assert_eq!(id.as_str().expect("an id").len(), 36);
    let expected = json!({
        "id": null, "sku": "1001", "warehouse": "main", "quantity": 1, "remaining": 4999,
        "strategy": "single-sql", "durability": "committed",
    });
    assert_eq!(body, expected);
    let (status, body) = post(&lab, "/stock/deduct?strategy=for-update").await;
    assert_eq!((status, &body["remaining"]), (200, &json!(4998)), "{body}");
    assert_eq!(body["strategy"], "for-update");
    assert_eq!(status_of(&lab, "/").await, 200);
    lab.terminate();
    let ended = lab.ended().await;
    assert!(ended.directory.path().join("stocklock.db").exists());
}

#[tokio::test]
async fn lab_keeps_the_stock_that_it_finds() {
    let database = fresh_database(Backend::Sqlite).await;
    for remaining in [4999, 4998] {
        let lab = Process::lab(&database.url, &[]).await;
        let (_, body) = post(&lab, "/stock/deduct").await;
        assert_eq!(body["remaining"], remaining, "{body}");
    }
}

#[tokio::test]
async fn an_unsafe_strategy_is_served_only_to_who_insists() {
    for strategy in ["no-lock", "local-mutex"] {
        let refused = Process::run(&["serve"], &[("STRATEGY", strategy)]).await;
        assert_is_told_in_one_line(&refused, "STRATEGY");
    }
    let insisting = [("STRATEGY", "no-lock"), ("ALLOW_UNSAFE", "true")];
    let served = serve(&insisting).await;
    assert_eq!(status_of(&served, "/healthz").await, 200);
}

/// Exit code 2, and one line that begins with whose it is and names the variable.
pub(crate) fn assert_is_told_in_one_line(ended: &Ended, variable: &str) {
    let Ended {
        code,
        stdout,
        stderr,
        ..
    } = ended;
    assert_eq!(*code, Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("stocklock: "), "{stderr}");
    assert!(stderr.contains(variable), "{variable}: {stderr}");
    assert!(stdout.is_empty(), "{stdout}");
}

#[rstest::rstest]
#[case("LISTEN", "nonsense")]
#[case("LISTEN", "127.0.0.1")]
#[case("LISTEN", "203.0.113.1:8080")] // It is nobody's address, and so not this machine's.
#[case("WAIT_LIMIT_MS", "soon")]
#[case("WAIT_LIMIT_MS", "0")]
#[case("WAIT_LIMIT_MS", "-1")]
#[case("WAIT_LIMIT_MS", "5000")] // Not below REQUEST_DEADLINE_MS.
#[case("DATABASE_URL", "oracle://host/db")]
#[case("DATABASE_URL", "")]
#[case("DATABASE_URL", "mysql://root@127.0.0.1")] // Names no database.
#[case("DATABASE_URL", "mysql://root@127.0.0.1:nonsense/db")]
#[case("DATABASE_URL", "postgres://127.0.0.1:99999/db")]
#[case("DATABASE_POOL_SIZE", "0")]
#[case("STRATEGY", "prayer")]
#[case("STRATEGY", "")]
#[case("STRATEGY", "redis-lua")] // Not there yet.
#[case("ALLOW_UNSAFE", "perhaps")]
#[case("LOG", "stocklock=nonsense")]
#[case("LOG_FORMAT", "xml")]
#[case("MAX_IN_FLIGHT", "0")]
#[case("MAX_BODY_BYTES", "1")]
#[case("REPLICA_ID", "two words")]
#[tokio::test]
async fn a_wrong_value_is_told_in_one_line(#[case] variable: &str, #[case] value: &str) {
    let ended = Process::run(&["serve"], &[(variable, value)]).await;
    assert_is_told_in_one_line(&ended, variable);
}

#[tokio::test]
async fn an_address_in_use_is_told_in_one_line() {
    let first = serve(&[]).await;
    let variables = [("LISTEN", &*first.address())];
    let second = Process::run(&["serve"], &variables).await;
    assert_is_told_in_one_line(&second, "LISTEN");
}

// A name that nobody has fails at once; an address at which nobody listens yet is waited for.
#[rstest::rstest]
#[case("mysql://shop:c4n4ry-p4ssw0rd@nowhere.invalid/stock")]
#[case("postgres://shop:c4n4ry-p4ssw0rd@nowhere.invalid/stock")]
#[case("mysql://shop:c4n4ry-p4ssw0rd@127.0.0.1:nonsense/stock")]
#[case("postgres://shop:c4n4ry-p4ssw0rd@127.0.0.1:nonsense/stock")]
#[case("oracle://shop:c4n4ry-p4ssw0rd@127.0.0.1/stock")]
#[case("sqlite://nowhere/c4n4ry-p4ssw0rd/stock.db?mode=nonsense")]
#[case("shop:c4n4ry-p4ssw0rd@127.0.0.1/stock")]
#[case("c4n4ry-p4ssw0rd")]
#[tokio::test]
async fn the_databases_password_is_never_seen(#[case] url: &str) {
    assert!(url.contains(CANARY));
    let by_variable = [("DATABASE_URL", url), ("LOG", "trace")];
    let by_flag = format!("--database-url={url}");
    for words in [
        &["serve"][..],
        &["migrate"],
        &["race", "--stock=1", "--buyers=1", "--orders=1"],
        &["serve", "--help"],
        &["race", "--help"],
    ] {
        for (words, variables) in [
            (words.to_vec(), &by_variable[..]),
            ([words, &[&by_flag]].concat(), &by_variable[1..]),
        ] {
            // `migrate` knows no LISTEN, and nobody minds.
            let ended = Process::run(&words, variables).await;
            assert!(
                !ended.stdout.contains(CANARY),
                "{words:?}: {}",
                ended.stdout
            );
            assert!(
                !ended.stderr.contains(CANARY),
                "{words:?}: {}",
                ended.stderr
            );
            let helped = words.contains(&"--help");
            assert_eq!(ended.code == Some(0), helped, "{words:?}: {}", ended.stderr);
        }
    }
}

#[rstest::rstest]
#[tokio::test]
async fn processes_that_start_at_once_on_a_fresh_database_all_come_up(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let variables = [("DATABASE_URL", database.url.as_str())];
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(Process::start(&["serve"], &variables));
    }
    for process in &mut processes {
        process.is_ready().await;
    }
}

#[tokio::test]
async fn migrate_prepares_a_database_and_may_be_repeated() {
    let database = fresh_database(Backend::Sqlite).await;
    for _ in 0..2 {
        let ended = Process::run(&["migrate"], &[("DATABASE_URL", &database.url)]).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
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

#[tokio::test]
async fn race_tells_who_oversold_and_exits_well_when_that_was_to_be_expected() {
    let words = "race --stock 100 --buyers 20 --orders 6 --json race.json";
    let words: Vec<_> = words.split(' ').collect();
    let ended = Process::run(&words, &[]).await;
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let file = std::fs::read(ended.directory.path().join("race.json"));
    let report: Value = serde_json::from_slice(&file.expect("the file")).expect("it is JSON");
    for strategy in [
        "no-lock",
        "local-mutex",
        "single-sql",
        "for-update",
        "optimistic",
    ] {
        assert!(ended.stdout.contains(strategy), "{}", ended.stdout);
        assert!(report.to_string().contains(strategy), "{report}");
    }
}

#[tokio::test]
async fn race_refuses_a_target_that_is_not_in_lab_mode() {
    let serve = serve(&[]).await;
    let ended = Process::run(&["race", "--target", &serve.url("")], &[]).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("lab"), "{}", ended.stderr);
    assert!(ended.stderr.contains(&serve.url("")), "{}", ended.stderr);
}
