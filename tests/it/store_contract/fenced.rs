//! Writes under a lock: which ones the fence of the level refuses, and which ones change the fence.

use rstest::rstest;
use stocklock::ports::{AttemptOutcome, Condition};
use stocklock::stock::StockLevel;
use stocklock_testkit::assert_matches;

use super::fixture::{
    Fixture, MODEL, MYSQL, On, POSTGRES, Raw, SQLITE, adjustment, committed, deduction,
    deduction_with_key, fence, limit_change, name,
};

const SKU: &str = "a";
/// Two sources of fencing tokens.
const HERE: &str = "redis:0123456789abcdef0123456789abcdef";
const THERE: &str = "zookeeper:0123456789abcdef0123456789abcdef";
const SHOUTED: &str = "ZOOKEEPER:0123456789ABCDEF0123456789ABCDEF";

/// A fixture with one level.
struct Row {
    on: On,
    fixture: Fixture,
}

impl Row {
    /// A level of ten units.
    async fn new(on: On) -> Self {
        let fixture = Fixture::with(on, SKU, 10).await;
        Self { on, fixture }
    }

    async fn read(&self) -> StockLevel {
        self.fixture.level(SKU).await
    }

    /// Deducts one unit under a lock, from a level that was read before.
    async fn write(&self, read: &StockLevel, token: i64, source: &str) -> AttemptOutcome {
        let fence = fence(token, source);
        let attempt = self.fixture.write_back(read, Condition::Fence(&fence));
        attempt.await.expect("no error")
    }

    async fn read_and_write(&self, token: i64, source: &str) -> AttemptOutcome {
        self.write(&self.read().await, token, source).await
    }

    async fn fence(&self) -> (i64, String) {
        if let Some(model) = self.fixture.model() {
            let fence = model.fence_now(&name(SKU));
            return fence.map_or_else(Default::default, |fence| {
                (fence.token, fence.source.to_string())
            });
        }
        let mut raw = Raw::connect(self.on.backend(), &self.fixture.url).await;
        let fence = raw.text("SELECT concat(fence, '@', fence_source) FROM stock");
        let fence = fence.await.expect("there is a row");
        let (token, source) = fence.split_once('@').expect("an `@`");
        (token.parse().expect("a number"), source.to_owned())
    }

    /// Asserts the fence and the number of units sold.
    async fn assert(&self, token: i64, source: &str, sold: i64) {
        assert_eq!(self.fence().await, (token, source.to_owned()));
        let audit = self.fixture.audit(SKU).await;
        assert!(audit.consistent(), "{audit:?}");
        assert_eq!(audit.sold, sold);
    }
}

/// Writes with these tokens, one after the other: of a holder that reads the level then, or (`true`) has read it
/// before the first write. The ledger has those that do not lose their lock. At the end, the level has this fence.
#[rstest]
#[case::each_holder(&[(7, HERE, false), (7, HERE, false), (8, HERE, false), (i64::MAX, HERE, false)], 4, (i64::MAX, HERE))]
#[case::older_token(&[(7, HERE, false), (6, HERE, false), (0, HERE, false), (-1, HERE, false)], 1, (7, HERE))]
#[case::after_next_holder(&[(8, HERE, false), (7, HERE, true)], 1, (8, HERE))]
// Tokens of two sources are not compared. Sources that differ only in case are different.
#[case::other_source(&[(1_000, HERE, false), (3, THERE, false), (2, SHOUTED, false)], 3, (2, SHOUTED))]
#[tokio::test]
async fn fence_admits_later_holders_only(
    #[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On,
    #[case] writes: &[(i64, &str, bool)],
    #[case] admitted: i64,
    #[case] fence: (i64, &str),
) {
    let row = Row::new(on).await;
    row.assert(0, "", 0).await;
    let before = row.read().await;
    for (sold, &(token, source, is_early)) in (1..).zip(writes) {
        let read = if is_early {
            before.clone()
        } else {
            row.read().await
        };
        let written = row.write(&read, token, source).await;
        let expected = if sold <= admitted {
            committed(10 - sold)
        } else {
            AttemptOutcome::LockLost
        };
        assert_eq!(written, expected, "{token} of {source}");
    }
    row.assert(fence.0, fence.1, admitted).await;
}

#[rstest]
#[tokio::test]
async fn write_with_older_version_is_a_conflict(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let row = Row::new(on).await;
    let read = row.read().await;
    // The same level again, with a new version. So no write from before reaches the constraint of the limit.
    for limit in [2, 0] {
        row.fixture.set(limit_change(SKU, 10, limit)).await;
    }
    assert_eq!(row.write(&read, 7, HERE).await, AttemptOutcome::Conflict);
    let attempt = row.fixture.write_back(&read, Condition::Version);
    assert_eq!(attempt.await.expect("no error"), AttemptOutcome::Conflict);
    row.assert(0, "", 0).await;

    let read = row.read().await;
    row.read_and_write(7, HERE).await;
    // The same token, a later one, and one of another source.
    for (token, source) in [(7, HERE), (8, HERE), (6, THERE)] {
        let attempt = row.write(&read, token, source).await;
        assert_eq!(attempt, AttemptOutcome::Conflict, "{token} of {source}");
    }
    row.assert(7, HERE, 1).await;
}

#[rstest]
#[tokio::test]
async fn writes_without_a_lock_keep_the_fence(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let row = Row::new(on).await;
    row.read_and_write(7, HERE).await;
    let before = row.read().await;
    let store = row.fixture.deductions();
    let sale = || deduction(SKU, 1);
    let mut attempts = vec![store.deduct(&sale()).await, store.write(&sale()).await];
    for condition in [Condition::Version, Condition::None] {
        let read = row.read().await;
        attempts.push(row.fixture.write_back(&read, condition).await);
    }
    for (sold, attempt) in (2..).zip(attempts) {
        assert_eq!(attempt.expect("no error"), committed(10 - sold));
    }
    let adjusted = row.fixture.changes().write(&adjustment(SKU, 2)).await;
    assert_matches!(adjusted, Ok(AttemptOutcome::Changed(_)));
    row.fixture.put(SKU, 20).await;

    row.assert(7, HERE, 5).await;
    // They held no lock, so a write from an older read is a conflict, not a lost lock.
    assert_eq!(row.write(&before, 7, HERE).await, AttemptOutcome::Conflict);
    assert_eq!(row.read_and_write(6, HERE).await, AttemptOutcome::LockLost);
    let attempt = row.read_and_write(7, HERE).await;
    assert_eq!(attempt, committed(19));
}

#[rstest]
#[tokio::test]
async fn duplicate_keeps_units_and_fence(#[values(SQLITE, MYSQL, POSTGRES, MODEL)] on: On) {
    let row = Row::new(on).await;
    let store = row.fixture.deductions();
    let sale = deduction_with_key(SKU, 1, "key");
    for (token, expected) in [(7, committed(9)), (8, AttemptOutcome::Duplicate)] {
        let (read, fence) = (row.read().await, fence(token, HERE));
        let attempt = store.write_back(&sale, (&read).into(), Condition::Fence(&fence));
        assert_eq!(attempt.await.expect("no error"), expected);
    }
    row.assert(7, HERE, 1).await;
}
