//! Looking up an operation whose transaction is still open on the server.

use rstest::rstest;
use stocklock::stock::{Caller, IdempotencyKey, OperationFilter, OperationId, OperationStatus};
use stocklock_testkit::eventually;
use uuid::Uuid;

use super::fixture::{Fixture, Raw, SOON};
use crate::support::services::Backend::{self, Mysql, Postgres};

/// What must pass after a request's deadline, in milliseconds: the difference of the clocks, and the
/// limit of a statement.
const CLOCKS_AND_STATEMENT: i64 = 10_000 + 1_500;

/// How long the servers let a transaction idle.
const IDLE_LIMIT: i64 = 10_000;

/// The database's clock in milliseconds.
pub(crate) async fn clock(raw: &mut Raw) -> i64 {
    let now = match raw {
        Raw::Postgres(_) => "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::text",
        _ => "SELECT cast(floor(unix_timestamp(sysdate(6)) * 1000) AS char(20))",
    };
    let text = raw.text(now).await.expect("a clock");
    text.trim().parse().expect("a number")
}

/// Such a transaction may have sent its COMMIT, which waits for a standby or for the disk.
#[tokio::test]
async fn operation_of_an_open_write_is_pending_on_postgresql() {
    operation_is_pending_until_its_write_ends(Postgres).await;
}

async fn operation_is_pending_until_its_write_ends(backend: Backend) {
    let fixture = Fixture::new(backend).await;
    let mut open = Raw::recording_key(backend, &fixture.url).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let last_statement = clock(&mut raw).await + 1;
    let deadline = last_statement - CLOCKS_AND_STATEMENT;
    let is_late = async || clock(&mut raw).await > last_statement + IDLE_LIMIT;
    eventually("all limits have passed", 2 * SOON, is_late).await;

    let status = async |of: &OperationFilter| {
        let found = fixture.store.operations(of, Some(deadline)).await;
        found.expect("no error").0
    };
    let key = IdempotencyKey::parse("K").expect("a key");
    let by_id = OperationFilter::Id(OperationId(Uuid::from_u128(1)));
    let by_key = OperationFilter::Key(Caller::anonymous(), key);
    for of in [&by_id, &by_key] {
        assert_eq!(status(of).await, OperationStatus::Pending, "{of:?}");
    }
    open.run("ROLLBACK").await.expect("an answer");
    for of in [&by_id, &by_key] {
        assert_eq!(status(of).await, OperationStatus::NotRecorded, "{of:?}");
    }
}

full! { operation_is_pending_until_its_write_ends(backend: Backend [Mysql]); }
