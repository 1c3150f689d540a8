//! Entries that SQL refuses although it takes others: they are set aside, do not count towards the
//! limit, stay visible, and are applied when SQL takes them.

use rstest::rstest;
use serde_json::Value;
use stocklock::ports::RedisMethod;

use super::{assert_exact, deduct, lose_level, run, sell};
use crate::store_contract::fixture::{Fixture, Raw, assert_deducted};
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres};

#[rstest]
#[tokio::test]
async fn refused_entry_is_set_aside_and_applied_later(#[values(Mysql, Postgres)] backend: Backend) {
    let fixture = Fixture::in_redis(backend, |mut options| {
        options.journal_limit = 3;
        options
    })
    .await;
    for sku in ["bad", "good"] {
        fixture.put(sku, 10).await;
    }
    // The movement that has created the level meets the constraint.
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let check = "ALTER TABLE movement ADD CONSTRAINT no_bad CHECK (sku <> 'bad' OR delta > 0)";
    raw.run(check).await.expect("the table can be changed");
    sell(&fixture, "bad", 3).await;
    // SQL refuses all entries: they stay, because the cause may not be in them.
    fixture.settle().await;
    assert_eq!(lengths(&fixture).await, (3, 0));
    sell(&fixture, "good", 1).await;
    let audit = fixture.audit("good").await;
    assert_eq!((audit.sold, audit.consistent()), (1, true), "{audit:?}");
    assert_eq!(lengths(&fixture).await, (0, 3));
    let audit = fixture.audit("bad").await;
    let found = (audit.sold, audit.on_hand, audit.pending, audit.drift());
    assert_eq!(found, (3, 7, 3, 0), "{audit:?}");
    // They do not count towards the limit of three movements.
    assert_deducted(&deduct(&fixture, "bad", RedisMethod::Script).await);
    // If Redis loses the level, the units of the refused sales are not on sale again.
    sell(&fixture, "good", 1).await;
    fixture.settle().await;
    assert_eq!(lengths(&fixture).await, (0, 4));
    lose_level(&fixture, "bad").await;
    assert_eq!(fixture.level("bad").await.on_hand, 6);

    assert_listed(&fixture).await;

    let accepted = raw.run("ALTER TABLE movement DROP CONSTRAINT no_bad").await;
    accepted.expect("the table can be changed");
    // A new consumer tries them at once.
    fixture.settle().await;
    assert_exact(&fixture, "bad", 4, 6).await;
    assert_eq!(lengths(&fixture).await, (0, 0));
}

/// The number of entries in all journals, and of those that were set aside.
async fn lengths(fixture: &Fixture) -> (i64, i64) {
    let mut sums = [0, 0];
    for (sum, pattern) in sums.iter_mut().zip(["journal:*}", "rejected:*"]) {
        for stream in run::<Vec<String>>(fixture, &["KEYS", pattern]).await {
            *sum += run::<i64>(fixture, &["XLEN", &stream]).await;
        }
    }
    sums.into()
}

/// The command lists each refused sale.
async fn assert_listed(fixture: &Fixture) {
    let redis = fixture.redis_url().expect("stock lives in Redis");
    let variables = [("DATABASE_URL", &*fixture.url), ("REDIS_URL", redis)];
    let listed = Process::run(&["journal", "rejected"], &variables).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    let lines = listed.stdout.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("lines of JSON");
    assert_eq!(lines.len(), 4, "{lines:?}");
    for line in &lines {
        let reason = line["reason"].as_str().expect("a text");
        assert!(reason.contains("no_bad"), "{line}");
        let movement = &line["movements"][0];
        assert_eq!(
            (&movement["sku"], &movement["delta"]),
            (&"bad".into(), &(-1).into()),
            "{line}"
        );
    }
}
