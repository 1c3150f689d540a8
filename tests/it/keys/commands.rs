//! `stocklock keys`, and `serve` with and without keys, as processes.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::bulk::{lines, with_rows};
use crate::commands::assert_one_line_error;
use crate::faults::until;
use crate::support::app::send;
use crate::support::process::{Ended, Process};
use crate::support::rival::Raw;
use crate::support::services::Backend::Sqlite;
use crate::support::services::fresh_database;

async fn keys(url: &str, words: &[&str]) -> Ended {
    let words: Vec<_> = std::iter::once("keys")
        .chain(words.iter().copied())
        .collect();
    Process::run(&words, &[("DATABASE_URL", url)]).await
}

async fn create(url: &str, words: &[&str]) -> String {
    let ended = keys(
        url,
        &[&["create", "--name=web", "--caller=shop"], words].concat(),
    )
    .await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout.trim_end().to_owned()
}

async fn listed(url: &str) -> Vec<Value> {
    let ended = keys(url, &["list"]).await;
    let lines = ended.stdout.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("lines of JSON")
}

#[tokio::test]
async fn serve_without_a_valid_key_does_not_start() {
    let database = fresh_database(Sqlite).await;
    let variables = [("DATABASE_URL", &*database.url), ("AUTH", "keys")];
    let refused = Process::run(&["serve"], &variables).await;
    assert_one_line_error(&refused, "AUTH");
    let is_told = refused.stderr.contains("stocklock keys create");
    assert!(is_told, "{}", refused.stderr);

    let key = create(&database.url, &["--scopes=sell,read"]).await;
    let serve = Process::serving(&["serve"], &variables).await;
    let request = serve.request(Method::GET, "/stock");
    assert_eq!(send(request).await.status_and_code(), (401, "unauthorized"));
    send(serve.request(Method::GET, "/stock").bearer_auth(&key))
        .await
        .ok();
    assert!(!serve.log().await.contains("WARN"), "{}", serve.log().await);
    drop(serve);

    let id = key.split('_').nth(1).expect("an id");
    assert_eq!(keys(&database.url, &["revoke", id]).await.code, Some(0));
    let refused = Process::run(&["serve"], &variables).await;
    assert_one_line_error(&refused, "AUTH");
    let open = [("DATABASE_URL", &*database.url), ("AUTH", "none")];
    let serve = Process::serving(&["serve"], &open).await;
    assert!(
        serve.log().await.contains("AUTH=none"),
        "{}",
        serve.log().await
    );
}

#[tokio::test]
async fn list_shows_keys_without_their_secrets() {
    let database = fresh_database(Sqlite).await;
    let url = &*database.url;
    let limited = [
        "--scopes=stock",
        "--rate=10",
        "--burst=20",
        "--expires-in-days=1",
    ];
    let created = [
        create(url, &["--scopes=sell,read"]).await,
        create(url, &limited).await,
    ];
    let id = |key: &str| key.split('_').nth(1).expect("an id").to_owned();
    assert_ne!(created[0], created[1]);
    let secrets = created
        .iter()
        .map(|key| key.rsplit('_').next().expect("a secret"));
    let text = keys(url, &["list"]).await.stdout;
    assert!(secrets.clone().all(|secret| secret.len() == 64));
    let is_hidden = secrets.clone().all(|secret| !text.contains(secret));
    assert!(is_hidden, "{text}");
    let list = listed(url).await;
    let of = |key: &str| {
        list.iter()
            .find(|one| one["id"] == id(key))
            .expect("it is listed")
    };
    let (plain, limited) = (of(&created[0]), of(&created[1]));
    assert_eq!(plain["scopes"], serde_json::json!(["sell", "read"]));
    assert_eq!(
        (&plain["rate"], &plain["expires_at"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        (&limited["rate"], &limited["burst"]),
        (&10.into(), &20.into())
    );
    let is_complete = limited["expires_at"].is_string() && limited["valid"] == true;
    assert!(is_complete, "{limited}");

    // An id, or the whole key.
    for named in [&id(&created[0]), &created[0]] {
        assert_eq!(keys(url, &["revoke", named]).await.code, Some(0));
    }
    let list = listed(url).await;
    let revoked: Vec<_> = list.iter().filter(|one| one["valid"] == false).collect();
    let is_one = matches!(revoked[..], [one] if one["id"] == id(&created[0]));
    assert!(is_one, "{list:?}");
    for unknown in ["0000000000000000", "slk_secret"] {
        let refused = keys(url, &["revoke", unknown]).await;
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert!(!refused.stderr.contains(unknown), "{}", refused.stderr);
    }
}

#[tokio::test]
async fn wrong_key_options_are_refused() {
    let database = fresh_database(Sqlite).await;
    for wrong in [
        "--scopes=everything",
        "--scopes=",
        "--scopes=read --caller=a,b c",
        "--scopes=read --rate=0",
        "--scopes=read --burst=1",
        "--scopes=read --expires-in-days=0",
    ] {
        let words: Vec<_> = wrong.splitn(2, ' ').collect();
        let ended = keys(
            &database.url,
            &[&["create", "--name=web"], &words[..]].concat(),
        )
        .await;
        assert_eq!(ended.code, Some(2), "{wrong}: {}", ended.stderr);
    }
    assert!(listed(&database.url).await.is_empty());
}

/// Goal: keys that are not valid do not count: no command deletes them.
#[tokio::test]
async fn number_of_valid_keys_is_bounded() {
    let database = fresh_database(Sqlite).await;
    create(&database.url, &["--scopes=read"]).await;
    let mut raw = Raw::connect(Sqlite, &database.url).await;
    for change in [
        "INSERT INTO api_key (id, name, caller, secret_hash, scopes, created_at, revoked_at)
            WITH RECURSIVE numbers (number) AS (
                SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 10000
            ) SELECT printf('%016d', number), 'old', 'shop', zeroblob(32), 'read', 1, 2 FROM numbers",
        "UPDATE api_key SET revoked_at = NULL, expires_at = 2 WHERE name = 'old'",
    ] {
        raw.run(change).await.expect("the keys are changed");
        create(&database.url, &["--scopes=read"]).await;
    }
    let valid = "UPDATE api_key SET expires_at = NULL";
    raw.run(valid).await.expect("the keys are changed");
    let words = ["create", "--name=web", "--caller=shop", "--scopes=read"];
    let refused = keys(&database.url, &words).await;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let is_told = refused.stderr.contains("10000 valid keys");
    assert!(is_told, "{}", refused.stderr);
}

/// Goal: an import waits for its limit for a bounded time, which also ends at shutdown; what was made is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_waits_a_bounded_time_for_its_limit() {
    let database = fresh_database(Sqlite).await;
    let with = async |limit: &[&str]| {
        let words = [&["--scopes=stock,read"], limit].concat();
        create(&database.url, &words).await
    };
    let slow = with(&["--rate=1", "--burst=4"]).await;
    let small = with(&["--rate=1", "--burst=2"]).await;
    let faster = with(&["--rate=20", "--burst=4"]).await;
    let unlimited = with(&[]).await;
    let variables = [("DATABASE_URL", &*database.url), ("AUTH", "keys")];
    let serve = Process::serving(&["serve"], &variables).await;
    let rows = "{\"sku\": \"a\", \"on_hand\": 0, \"create\": true}\n".to_owned()
        + &"{\"sku\": \"a\", \"add\": 1}\n".repeat(599);
    let import = async |api_key: &str, key: &str| {
        let request = serve.request(Method::POST, "/import").bearer_auth(api_key);
        let answer = send(with_rows(request, key, rows.clone())).await;
        (lines(&answer).pop().expect("an end"), answer.after)
    };
    let (refused, _) = import(&slow, "K").await;
    let seen = json!([refused["done"], refused["code"], refused["rows"]]);
    assert_eq!(seen, json!([false, "too-many-requests", 500]));
    let seconds = refused["retry_after"].as_u64().expect("seconds");
    assert!((400..=498).contains(&seconds), "{seconds}");
    for (key, replayed) in [(&unlimited, 500), (&small, 600)] {
        let (end, _) = import(key, "K").await;
        let seen = json!([end["done"], end["rows"], end["replayed"]]);
        assert_eq!(seen, json!([true, 600, replayed]));
    }

    let ends = async {
        until("the first rows are made", async || {
            let level = serve.request(Method::GET, "/stock/a");
            send(level.bearer_auth(&unlimited)).await.ok()["available"] == 599 + 499
        })
        .await;
        serve.terminate();
    };
    let ((ended, after), ()) = tokio::join!(import(&faster, "L"), ends);
    assert_eq!(ended["code"], "overloaded", "{ended}");
    // Its limit is reached for 25 s.
    assert!(after < Duration::from_secs(20), "{after:?}");
}

#[tokio::test]
async fn secret_of_a_key_is_never_logged_or_stored() {
    let database = fresh_database(Sqlite).await;
    let key = create(&database.url, &["--scopes=sell,read"]).await;
    let secret = key.rsplit('_').next().expect("a secret");
    let variables = [
        ("DATABASE_URL", &*database.url),
        ("AUTH", "keys"),
        ("LOG", "trace"),
    ];
    let serve = Process::serving(&["serve"], &variables).await;
    // An answer of each kind: read, refused for its scope, for its fields, for its secret.
    let wrong = format!("{}{}", &key[..key.len() - 4], "0000");
    for (method, path, key, status) in [
        (Method::GET, "/stock", &key, 200),
        (Method::PUT, "/stock/tea", &key, 403),
        (Method::POST, "/stock/deduct?sku=tea&quantity=x", &key, 422),
        (Method::GET, "/stock", &wrong, 401),
    ] {
        let answer = send(serve.request(method, path).bearer_auth(key)).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let shown = format!("{:?}{}", answer.headers, answer.body);
        assert!(!shown.contains(&secret[..32]), "{shown}");
    }
    until("the refusals are logged", async || {
        serve.stderr().contains("unauthorized")
    })
    .await;
    let log = serve.stderr();
    assert!(!log.contains(&secret[..32]), "{log}");
    let file = database.url.trim_start_matches("sqlite://");
    for suffix in ["", "-wal"] {
        let stored = std::fs::read(format!("{file}{suffix}")).unwrap_or_default();
        let stored = String::from_utf8_lossy(&stored);
        assert!(!stored.contains(&secret[..32]), "{suffix}");
    }
}
