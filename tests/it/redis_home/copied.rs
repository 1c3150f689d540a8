//! Copies: of a Redis, and of a database. A copy sells nothing, and deletes no journal entries, while the
//! original is used.

use std::fs;
use std::process::Command;

use reqwest::Url;
use rstest::rstest;
use stocklock::ports::{RedisMethod, StoreError};
use stocklock::store::{StoreRouter, Stores};
use stocklock_testkit::assert_matches;
use tempfile::TempDir;

use super::bound::{PERSISTENT, bound_id, buy, is_answered, replica, sold, write};
use super::{
    applied_audit, assert_exact, assert_sold, command, create, deduct, fixture, journal_lengths,
    sell,
};
use crate::faults::until;
use crate::store_contract::fixture::{Fixture, options, redis_options};
use crate::support::services::{Backend, PrivateServer, TestDatabase, find, fresh_database};

const SKU: &str = "a";

/// As on a machine where production's dump was restored: the copy has the same id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_of_a_redis_sells_nothing_and_deletes_nothing() {
    let database = fresh_database(Backend::Sqlite).await;
    let (first, second) = (
        PrivateServer::redis(&PERSISTENT).await,
        PrivateServer::redis(&[]).await,
    );
    let seller = replica(&database.url, first.url(), &[]).await;
    create(&seller, SKU, 10).await;
    sold(&seller).await;
    copy_redis(&first, &second).await;
    assert_eq!(bound_id(second.url()).await, bound_id(first.url()).await);

    let other = replica(&database.url, second.url(), &[]).await;
    let refused = buy(&other).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    // Only while the refusal may end without an operator.
    assert_eq!(refused.retry_after, refused.code == "unavailable");
    let refused = is_answered(&other, 503, "other replicas sell this stock").await;
    assert_eq!(refused.code, "strategy-unavailable");
    sold(&seller).await;
    assert_sold(&applied_audit(&seller, SKU).await, 2);

    seller.stop().await;
    is_answered(&other, 200, "").await;
    other.stop().await;
}

/// Copies the data of a Redis to another one.
async fn copy_redis(from: &PrivateServer, to: &PrivateServer) {
    command::<()>(from.url(), &["SAVE"]).await;
    to.kill9();
    let copied = fs::copy(
        from.directory().join("dump.rdb"),
        to.directory().join("dump.rdb"),
    );
    copied.expect("the dump can be copied");
    to.restart().await;
}

/// A copy of a database.
struct Restored {
    url: String,
    _database: Option<TestDatabase>,
    _directory: Option<TempDir>,
}

/// Dumps the database of a fixture, and restores the dump as another database.
async fn restore(fixture: &Fixture) -> Restored {
    if fixture.backend == Backend::Sqlite {
        write(fixture, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("copy.db");
        let original = fixture.url.strip_prefix("sqlite://").expect("a file");
        fs::copy(original, &file).expect("the database can be copied");
        return Restored {
            url: format!("sqlite://{}", file.display()),
            _database: None,
            _directory: Some(directory),
        };
    }
    let database = fresh_database(fixture.backend).await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("dump.sql");
    let dumped = fs::File::create(&file).expect("a file");
    let [dump, restore] = match fixture.backend {
        Backend::Postgres => ["pg_dump", "psql"],
        _ => ["mariadb-dump", "mariadb"],
    };
    let extra: &[&str] = match dump {
        "pg_dump" => &["--no-owner"],
        _ => &["--routines", "--single-transaction"],
    };
    run(client(dump, &fixture.url).args(extra).stdout(dumped));
    let dumped = fs::File::open(&file).expect("the dump can be read");
    run(client(restore, &database.url).stdin(dumped));
    Restored {
        url: database.url.clone(),
        _database: Some(database),
        _directory: None,
    }
}

/// A program of the server, connected to the database of the URL.
fn client(program: &str, url: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|error| panic!("{error:#}")));
    if url.starts_with("postgres") {
        command.arg("--dbname").arg(url);
        return command;
    }
    let url = Url::parse(url).expect("a URL");
    let host = url.host_str().expect("a host");
    let port = url.port().expect("a port").to_string();
    command.args(["--host", host, "--port", &port, "--user", url.username()]);
    command.env("MYSQL_PWD", url.password().unwrap_or_default());
    command.arg(url.path().trim_start_matches('/'));
    command
}

fn run(command: &mut Command) {
    let done = command.output().expect("the program can be run");
    let problem = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {problem}");
}

/// Increases the beat, as a replica does.
pub(super) async fn beat(store: &StoreRouter) {
    let seen = store.confirm_redis(0).await.expect("the ledger is bound");
    store.confirm_redis(seen).await.expect("the same");
}

/// As when production's database is restored elsewhere, and `REDIS_URL` still leads to production.
#[rstest]
#[tokio::test]
async fn restored_dump_deletes_no_entries(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 1).await;
    beat(&fixture.store).await;
    let restored = restore(&fixture).await;
    beat(&fixture.store).await;
    sell(&fixture, SKU, 2).await;

    let redis = redis_options(fixture.redis_url().unwrap());
    let copy = Fixture::at(backend, restored.url.clone()).await.with(redis);
    copy.settle().await;
    let refused = deduct(&copy, SKU, RedisMethod::Script).await;
    assert_matches!(refused, Err(StoreError::Unavailable(..)));
    until("the copy knows that it is one", async || {
        beat(&fixture.store).await;
        let refused = deduct(&copy, SKU, RedisMethod::Script).await;
        matches!(refused, Err(StoreError::NotBound(why)) if why.contains("older"))
    })
    .await;
    copy.settle().await;

    let waiting = journal_lengths(fixture.redis_url().unwrap()).await;
    assert_eq!(waiting, [3]);
    assert_exact(&fixture, SKU, 3, 7).await;
}

/// Production was stopped when its database was copied, so both have the same beat.
#[tokio::test]
async fn database_and_its_copy_are_not_used_together() {
    let fixture = fixture(Backend::Sqlite).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 1).await;
    beat(&fixture.store).await;
    let restored = restore(&fixture).await;
    let url = fixture.redis_url().unwrap();
    let open = |database: &str| {
        let stores = Stores::open(database, &options(2), Some(redis_options(url)));
        stores.expect("valid URLs").store
    };
    let (original, copy) = (open(&fixture.url), open(&restored.url));
    let (mut seen, mut used_together) = ([0; 2], Vec::new());
    for round in 0..20 {
        let both = tokio::join!(original.confirm_redis(seen[0]), copy.confirm_redis(seen[1]));
        match both {
            (Ok(first), Ok(second)) => {
                used_together.push(round);
                seen = [first, second];
            }
            (Ok(first), Err(_)) => seen[0] = first,
            (Err(_), Ok(second)) => seen[1] = second,
            // On a busy machine, both may time out.
            (Err(StoreError::Unavailable(..)), Err(StoreError::Unavailable(..))) => {}
            (Err(first), Err(second)) => panic!("both are refused: {first:?}, {second:?}"),
        }
    }
    // Both read the beat in round 0, increase it in round 1, and compare it in round 2.
    assert!(
        used_together.iter().all(|&round| round < 2),
        "{used_together:?}"
    );
}

/// As after a failover to a replica of the database that had not received the last writes.
#[tokio::test]
async fn database_that_lost_the_last_beats_is_used_on() {
    let fixture = fixture(Backend::Sqlite).await;
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 1).await;
    beat(&fixture.store).await;
    let lost = "UPDATE redis_binding SET beat = beat - 9000000, beat_before = beat - 9900000";
    write(&fixture, lost).await;
    let redis = redis_options(fixture.redis_url().unwrap());
    let other = Stores::open(&fixture.url, &options(2), Some(redis)).expect("valid URLs");
    let unknown = other.store.confirm_redis(0).await;
    assert_matches!(unknown, Err(StoreError::Unavailable(..)));
    // This replica has seen the latest beat, so it knows that the database is not a copy.
    beat(&fixture.store).await;
    sell(&fixture, SKU, 1).await;
    until("the other replica follows", async || {
        other.store.confirm_redis(0).await.is_ok()
    })
    .await;
    assert_exact(&fixture, SKU, 2, 8).await;
}
