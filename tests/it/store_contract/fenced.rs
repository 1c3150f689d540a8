//! Writes under a lock: what the fence of the level refuses, what it lets pass, and what leaves it
//! there.

use rstest::rstest;
use stocklock::stock::{LevelChange, StockLevel};
use stocklock::store::{Attempt, Change, InRedis};

use super::fixture::{
    Fixture, On, Raw, adjustment, deduction, deduction_with_key, fence, level_change,
};

/// The SKU of these tests.
const SKU: &str = "a";
/// A lock's cluster, and another one.
const HERE: &str = "redis:0123456789abcdef0123456789abcdef";
const THERE: &str = "zookeeper:0123456789abcdef0123456789abcdef";

/// A fixture with one level, and a look at its fence.
struct Row {
    on: On,
    fixture: Fixture,
}

impl Row {
    /// With ten units.
    async fn new(on: On) -> Self {
        let fixture = Fixture::on(on).await;
        fixture.put(SKU, 10).await;
        Self { on, fixture }
    }

    async fn read(&self) -> StockLevel {
        self.fixture.level(SKU).await
    }

    /// Writes what follows from an earlier read, under a lock with this token of this source.
    async fn write(&self, read: &StockLevel, token: i64, source: &str) -> Attempt {
        let (store, fence) = (&self.fixture.store, fence(token, source));
        let deduction = deduction(SKU, 1);
        let attempt = store.deduct_if_fenced(&deduction, read, &fence).await;
        attempt.expect("no error")
    }

    /// The same of a level that is read just now.
    async fn read_and_write(&self, token: i64, source: &str) -> Attempt {
        self.write(&self.read().await, token, source).await
    }

    async fn fence(&self) -> (i64, String) {
        if self.on == On::Redis {
            let key = self.fixture.key("stock:*").await;
            let mut read = redis::cmd("HMGET");
            read.arg(key).arg(&["fence", "fence_source"]);
            let (token, source): (Option<i64>, Option<String>) = self.fixture.redis(&read).await;
            return (token.unwrap_or_default(), source.unwrap_or_default());
        }
        let mut raw = Raw::connect(self.on.backend(), &self.fixture.url).await;
        let fence = raw.text("SELECT concat(fence, '@', fence_source) FROM stock");
        let fence = fence.await.expect("there is one row");
        let (token, source) = fence.split_once('@').expect("as asked for");
        (token.parse().expect("a number"), source.to_owned())
    }

    /// The fence is this, and all that is sold is this much.
    async fn is(&self, token: i64, source: &str, sold: i64) {
        assert_eq!(self.fence().await, (token, source.to_owned()));
        let audit = self.fixture.audit(SKU).await;
        assert!(audit.consistent(), "{audit:?}");
        assert_eq!(audit.sold, sold);
    }
}

#[rstest]
#[tokio::test]
async fn each_holder_writes_and_leaves_its_fence(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    row.is(0, "", 0).await;
    // Twice under one lock, for an attempt may be repeated; then the next holders, up to the
    // greatest token that there can be.
    for (sold, token) in [
        (1, 7),
        (2, 7),
        (3, 8),
        (4, 1_790_000_000_000_000),
        (5, i64::MAX),
    ] {
        let remaining = 10 - sold;
        let attempt = row.read_and_write(token, HERE).await;
        assert_eq!(attempt, on.done(remaining));
        row.is(token, HERE, sold).await;
    }
}

#[rstest]
#[tokio::test]
async fn an_older_token_has_lost_its_lock_though_the_version_is_right(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    row.read_and_write(7, HERE).await;
    for token in [6, 0, -1] {
        let attempt = row.read_and_write(token, HERE).await;
        assert_eq!(attempt, Attempt::LockLost, "{token}");
    }
    row.is(7, HERE, 1).await;
}

#[rstest]
#[tokio::test]
async fn who_was_overtaken_by_the_next_holder_has_lost_its_lock(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    let read = row.read().await;
    row.read_and_write(8, HERE).await;
    assert_eq!(row.write(&read, 7, HERE).await, Attempt::LockLost);
    row.is(8, HERE, 1).await;
}

#[rstest]
#[tokio::test]
async fn an_older_version_is_stale_while_no_later_holder_has_written(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    let read = row.read().await;
    // Back to the same quantity: only the version tells.
    row.fixture.put(SKU, 9).await;
    row.fixture.put(SKU, 10).await;
    assert_eq!(row.write(&read, 7, HERE).await, Attempt::Stale);
    row.is(0, "", 0).await;

    let read = row.read().await;
    row.read_and_write(7, HERE).await;
    // Of this very lock, of a later one, and of one that does not compare.
    for (token, source) in [(7, HERE), (8, HERE), (6, THERE)] {
        let attempt = row.write(&read, token, source).await;
        assert_eq!(attempt, Attempt::Stale, "{token} of {source}");
    }
    row.is(7, HERE, 1).await;
}

#[rstest]
#[tokio::test]
async fn tokens_of_another_source_do_not_compare(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    row.read_and_write(1_000, HERE).await;
    let attempt = row.read_and_write(3, THERE).await;
    assert_eq!(attempt, on.done(8));
    row.is(3, THERE, 2).await;
    // Names of sources are compared as they are, not as people would.
    let attempt = row.read_and_write(2, &THERE.to_uppercase()).await;
    assert_eq!(attempt, on.done(7));
    row.is(2, &THERE.to_uppercase(), 3).await;
}

#[rstest]
#[tokio::test]
async fn the_fence_stays_whoever_else_writes(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    row.read_and_write(7, HERE).await;
    let before = row.read().await;
    let store = row.fixture.store.clone();
    let sale = || deduction(SKU, 1);
    let of_its_own = match on {
        On::Sql(_) => [
            store.deduct_if_available(&sale()).await,
            store.deduct_under_row_lock(&sale()).await,
        ],
        On::Redis => [
            store.deduct_in_redis(&sale(), InRedis::Script).await,
            store.deduct_in_redis(&sale(), InRedis::Watch).await,
        ],
    };
    let of_both = [
        store.deduct_if_version(&sale(), &row.read().await).await,
        store.overwrite(&sale(), &row.read().await).await,
    ];
    for (sold, attempt) in (2..).zip(of_its_own.into_iter().chain(of_both)) {
        assert_eq!(attempt.expect("no error"), on.done(10 - sold));
    }
    let adjusted = store.adjust(&adjustment(SKU, 2)).await;
    assert!(matches!(adjusted, Ok(Change::Done { .. })), "{adjusted:?}");
    row.fixture.put(SKU, 20).await;

    row.is(7, HERE, 5).await;
    // They held no lock, so what was read before them is stale, not a lock lost.
    assert_eq!(row.write(&before, 7, HERE).await, Attempt::Stale);
    assert_eq!(row.read_and_write(6, HERE).await, Attempt::LockLost);
    let attempt = row.read_and_write(7, HERE).await;
    assert_eq!(attempt, on.done(19));
}

/// Each change of the limit is a new version, so that a write never meets the constraint.
#[rstest]
#[tokio::test]
async fn a_limit_that_was_lowered_since_the_read_makes_it_stale(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    let with_limit = |backorder_limit| LevelChange {
        backorder_limit: Some(backorder_limit),
        ..level_change(SKU, 0)
    };
    let read = row.fixture.set(with_limit(2)).await;
    row.fixture.set(with_limit(0)).await;
    assert_eq!(row.write(&read, 7, HERE).await, Attempt::Stale);
    let sale = deduction(SKU, 1);
    let attempt = row.fixture.store.deduct_if_version(&sale, &read);
    assert_eq!(attempt.await.expect("no error"), Attempt::Stale);
    row.is(0, "", 0).await;
}

#[rstest]
#[tokio::test]
async fn a_duplicate_leaves_neither_units_nor_fence(
    #[values(On::SQLITE, On::MYSQL, On::POSTGRES, On::REDIS)] on: On,
) {
    let row = Row::new(on).await;
    let store = row.fixture.store.clone();
    let sale = deduction_with_key(SKU, 1, "key");
    for (token, expected) in [(7, on.done(9)), (8, Attempt::Duplicate)] {
        let (read, fence) = (row.read().await, fence(token, HERE));
        let attempt = store.deduct_if_fenced(&sale, &read, &fence).await;
        assert_eq!(attempt.expect("no error"), expected);
    }
    row.is(7, HERE, 1).await;
}
