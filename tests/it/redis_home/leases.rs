//! The leases of the journals: what a consumer does that has lost one, and what becomes of the consumer
//! groups of release 0.1.0.

use rstest::rstest;
use stocklock_testkit::eventually;
use tokio_util::sync::CancellationToken;

use super::exactly_once::ack;
use super::{assert_exact, consume, fixture, flush, journal_lengths, run, sell};
use crate::store_contract::fixture::{Fixture, SOON, redis_options};
use crate::support::proxy::Proxy;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// An entry of a stream: its id and its fields.
type Entry = (String, Vec<String>);

async fn entries(fixture: &Fixture, journal: &str) -> Vec<Entry> {
    run(fixture, &["XRANGE", journal, "-", "+"]).await
}

/// Adds an entry with these fields. Returns its id.
async fn add(fixture: &Fixture, journal: &str, id: &str, fields: &[String]) -> String {
    let fields = fields.iter().map(String::as_str);
    let words: Vec<_> = ["XADD", journal, id].into_iter().chain(fields).collect();
    run(fixture, &words).await
}

/// Goal: a consumer that has lost its lease removes nothing. After a data loss, Redis can use the id of
/// an applied entry again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_without_its_lease_removes_no_entry() {
    let fixture = fixture(Sqlite).await;
    let redis = fixture.redis_url().expect("stock lives in Redis");
    let (proxy, url) = Proxy::before(redis).await;
    let far = Fixture::at(Sqlite, fixture.url.clone()).await;
    let far = far.with(redis_options(&url));
    fixture.put("a", 10).await;
    sell(&fixture, "a", 2).await;
    let journal = fixture.key("journal:*}").await;
    let sales = entries(&fixture, &journal).await;
    run::<()>(&fixture, &["XDEL", &journal, &sales[1].0]).await;
    let held = proxy.hold_request(&ack(redis).await);
    let stop = CancellationToken::new();
    let consumer = tokio::spawn(consume(far.consumer(), stop.clone()));
    held.held().await;

    flush(&fixture).await;
    add(&fixture, &journal, &sales[0].0, &sales[1].1).await;
    held.let_go();

    eventually("the ledger has both sales", SOON, async || {
        fixture.movements("a").await.len() == 3
    })
    .await;
    stop.cancel();
    consumer.await.expect("the consumer stops");
}

/// Goal: an upgrade from release 0.1.0 loses nothing and applies nothing twice.
///
/// Method: a consumer group, as that release has it, has delivered entries to a consumer that has not
/// acknowledged them. It has applied some of them.
#[rstest]
#[tokio::test]
async fn entries_that_an_old_group_has_delivered_are_applied_once(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let journal = fixture.key("journal:*}").await;
    let applied = entries(&fixture, &journal).await;
    fixture.settle().await;
    // As if that consumer had died before its acknowledgement.
    let again = add(&fixture, &journal, "*", &applied[0].1).await;
    sell(&fixture, "a", 2).await;
    run::<()>(&fixture, &["XGROUP", "CREATE", &journal, "ledger", "0"]).await;
    let read = [
        "XREADGROUP",
        "GROUP",
        "ledger",
        "old",
        "STREAMS",
        &journal,
        ">",
    ];
    run::<redis::Value>(&fixture, &read).await;
    sell(&fixture, "a", 3).await;

    assert_exact(&fixture, "a", 6, 4).await;

    let redis = fixture.redis_url().expect("stock lives in Redis");
    assert!(journal_lengths(redis).await.is_empty());
    // A replica of that release that still runs acknowledges what it has read, and goes on.
    run::<()>(&fixture, &["XACK", &journal, "ledger", &again]).await;
    sell(&fixture, "a", 1).await;
    assert_exact(&fixture, "a", 7, 3).await;
}
