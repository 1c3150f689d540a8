//! The stock is given to another Redis while a replica still works with the previous one.

use rstest::rstest;

use super::{command, fixture, journal_lengths, sell};
use crate::faults::until;
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const SKU: &str = "a";

/// As when another replica takes over with another Redis between the reading and the commit. It has
/// loaded the stock from SQL by then, and the entries would not be in what it has loaded.
#[rstest]
#[tokio::test]
async fn entries_of_a_replaced_redis_are_not_applied(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let fixture = fixture(backend).await;
    let redis = fixture.redis_url().unwrap();
    fixture.put(SKU, 10).await;
    sell(&fixture, SKU, 3).await;
    let mut rival = Raw::connect(backend, &fixture.url).await;
    rival.begin().await;
    let statements = [
        "UPDATE ledger SET id = id",
        "UPDATE redis_binding SET id = 'another'",
    ];
    for statement in statements {
        rival.run(statement).await.expect("it succeeds");
    }
    let take_over = async {
        until("a consumer has read the entries", async || {
            let leases: Vec<String> = command(redis, &["KEYS", "consumer:*"]).await;
            !leases.is_empty() || journal_lengths(redis).await.is_empty()
        })
        .await;
        rival.run("COMMIT").await.expect("it succeeds");
    };
    tokio::join!(fixture.settle(), take_over);
    assert_eq!(journal_lengths(redis).await, [3]);
    let sold = "SELECT kind FROM movement WHERE kind = 'deducted'";
    assert_eq!(rival.text(sold).await, None);
}
