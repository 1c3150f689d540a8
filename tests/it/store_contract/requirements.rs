//! Server settings under which the service would fail, and PgBouncer before PostgreSQL.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, StoreError};
use stocklock::store::migrate;
use stocklock_testkit::assert_matches;
use tokio::time::timeout;

use super::fixture::{Fixture, Raw, SOON, committed, deduction, deduction_with_key};
use crate::support::process::Process;
use crate::support::rival::{Rival, as_user};
use crate::support::services::Backend::{Mysql, Postgres};
use crate::support::services::{PgBouncer, PrivateServer, Program, Settings, fresh_database};

async fn mariadb(arguments: &[&str]) -> PrivateServer {
    let started = PrivateServer::launch(Program::MariaDb, &Settings::Test, arguments).await;
    started.expect("MariaDB starts")
}

/// Asserts that `serve` ends with one line about the setting, and its remedy at the end.
async fn assert_refused(url: &str, setting: &str, remedy: &str) {
    let variables = [("DATABASE_URL", url)];
    let ended = timeout(SOON, Process::run(&["serve"], &variables)).await;
    let ended = ended.expect("it ends");
    let stderr = ended.stderr.trim_end();
    assert_eq!(ended.code, Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains(setting), "{stderr}");
    assert!(stderr.ends_with(remedy), "{stderr}");
}

#[rstest]
#[case(
    &["--log-bin=binary", "--server-id=1", "--binlog-format=STATEMENT"],
    "binlog_format is STATEMENT",
    "set binlog_format = ROW"
)]
#[case(&["--sysdate-is-now"], "sysdate_is_now is on", "remove sysdate_is_now")]
#[case(
    &["--max-allowed-packet=65536"],
    "max_allowed_packet is 65536",
    "set max_allowed_packet = 1048576 or more"
)]
#[case(
    &["--innodb-default-row-format=compact"],
    "innodb_default_row_format is compact",
    "set innodb_default_row_format = dynamic"
)]
#[tokio::test]
async fn setting_of_mariadb_that_breaks_sales_is_refused(
    #[case] arguments: &[&str],
    #[case] setting: &str,
    #[case] remedy: &str,
) {
    let server = mariadb(arguments).await;
    assert_refused(server.url(), setting, remedy).await;
    let mut raw = Raw::connect(Mysql, server.url()).await;
    let tables = "SELECT table_name FROM information_schema.tables
        WHERE table_schema = database() LIMIT 1";
    assert_eq!(raw.text(tables).await, None, "nothing is written before");
}

/// The tables keep the format with which they were created.
#[tokio::test]
async fn row_format_that_changes_later_is_accepted() {
    let server = PrivateServer::start(Mysql).await;
    let fixture = Fixture::at(Mysql, server.url().to_owned()).await;
    let mut raw = Raw::connect(Mysql, server.url()).await;
    let compact = "SET GLOBAL innodb_default_row_format = compact";
    raw.run(compact).await.unwrap();
    assert_eq!(migrate(&fixture.url).await, Ok(()));
    assert_sells(&fixture).await;
}

/// With a binary log, MariaDB asks for SUPER before it creates functions, but not procedures.
#[tokio::test]
async fn missing_privilege_or_procedure_is_refused() {
    let server = mariadb(&["--log-bin=binary", "--server-id=1"]).await;
    let mut root = Raw::connect(Mysql, server.url()).await;
    let as_user = |user: &str| as_user(server.url(), user);
    let refused = async |user: &str, problem: &str, remedy: &str| {
        let url = as_user(user);
        let refused = timeout(SOON, migrate(&url)).await;
        let refused = refused.expect("not tried again").unwrap_err();
        assert!(refused.contains(problem), "{refused}");
        assert!(refused.ends_with(remedy), "{refused}");
    };
    let users = "CREATE USER owner IDENTIFIED BY 'owner', till IDENTIFIED BY 'till';
        GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX ON *.* TO owner, till";
    root.run(users).await.unwrap();
    let remedy = "and for migrations also CREATE, ALTER, INDEX and CREATE ROUTINE";
    refused("owner", "Access denied", remedy).await;
    let routines = "GRANT CREATE ROUTINE, EXECUTE ON *.* TO owner";
    root.run(routines).await.unwrap();
    let fixture = Fixture::at(Mysql, as_user("owner")).await;
    assert_sells(&fixture).await;

    refused("till", "execute command denied", remedy).await;
    let execute = "GRANT EXECUTE ON *.* TO till";
    root.run(execute).await.unwrap();
    let fixture = Fixture::at(Mysql, as_user("till")).await;
    assert_eq!(fixture.level("货").await.on_hand, 7);

    let lost = "DROP PROCEDURE stocklock_deduct_1";
    root.run(lost).await.unwrap();
    refused("owner", "stocklock_deduct_1 does not exist", "--routines").await;
}

#[tokio::test]
async fn postgresql_database_that_is_not_utf8_is_refused() {
    let server = PrivateServer::start(Postgres).await;
    let mut raw = Raw::connect(Postgres, server.url()).await;
    let create = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'
        LOCALE_PROVIDER libc";
    raw.run(create).await.unwrap();
    let mut url = reqwest::Url::parse(server.url()).unwrap();
    url.set_path("latin");
    let remedy = "create the database with ENCODING 'UTF8'";
    assert_refused(url.as_str(), "encoding is LATIN1", remedy).await;
}

#[tokio::test]
async fn account_that_may_create_no_tables_is_refused() {
    let server = PrivateServer::start(Postgres).await;
    let mut raw = Raw::connect(Postgres, server.url()).await;
    let create = "CREATE ROLE till LOGIN PASSWORD 'till'";
    raw.run(create).await.unwrap();
    let url = as_user(server.url(), "till");
    let (problem, remedy) = ("permission denied for schema public", "on all tables");
    assert_refused(&url, problem, remedy).await;
}

/// Every kind of write, and the refusal of a duplicate.
async fn assert_sells(fixture: &Fixture) {
    fixture.put("货", 10).await;
    let store = &fixture.store;
    let attempt = store.deduct(&deduction("货", 1)).await;
    assert_eq!(attempt.unwrap(), committed(9));
    let attempt = store.write(&deduction("货", 1)).await;
    assert_eq!(attempt.unwrap(), committed(8));
    let with_key = deduction_with_key("货", 1, "K");
    for expected in [committed(7), AttemptOutcome::Duplicate] {
        let attempt = store.deduct(&with_key).await;
        assert_eq!(attempt.unwrap(), expected);
    }
    assert!(fixture.audit("货").await.consistent());
}

#[tokio::test]
async fn pgbouncer_in_session_mode_works() {
    let database = fresh_database(Postgres).await;
    let bouncer = PgBouncer::before(&database.url, "session").await;
    let fixture = Fixture::at(Postgres, bouncer.url().to_owned()).await;
    assert_sells(&fixture).await;

    let _rival = Rival::holding_stock(Postgres, &database.url).await;
    let waiting = deduction("货", 1);
    let waiting = fixture.store.deduct(&waiting);
    let waited = timeout(SOON, waiting).await.expect("bounded");
    assert_matches!(waited, Err(StoreError::LockWait(_)));
    Process::serving(&["serve"], &[("DATABASE_URL", bouncer.url())]).await;
}

#[rstest]
#[case("transaction")]
#[case("statement")]
#[tokio::test]
async fn pgbouncer_in_another_mode_is_refused(#[case] mode: &str) {
    let database = fresh_database(Postgres).await;
    let bouncer = PgBouncer::before(&database.url, mode).await;
    assert_refused(bouncer.url(), "pooler", "set pool_mode = session").await;
}
