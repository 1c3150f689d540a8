//! What Redis keeps of an operation after it has left the journal.

use rstest::rstest;
use stocklock::stock::Deduction;
use stocklock::store::{Attempt, Change, InRedis};

use crate::store_contract::fixture::{
    Fixture, On, adjustment, deduction, deduction_with_key, idempotency,
};
use crate::support::services::Backend;

async fn remembered(fixture: &Fixture) -> usize {
    let names: Vec<String> = fixture.redis(redis::cmd("KEYS").arg("op:*")).await;
    names.len()
}

/// Each is kept for as long as a flash sale may take: a second copy would halve what fits.
#[tokio::test]
async fn an_operation_is_remembered_once_with_a_key_or_without() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    let before = remembered(&fixture).await;
    let (scripted, watched, written) = (
        deduction_with_key("a", 1, "scripted"),
        deduction_with_key("a", 1, "watched"),
        deduction_with_key("a", 1, "written"),
    );
    let store = &fixture.store;
    for (sale, how) in [(&scripted, InRedis::Script), (&watched, InRedis::Watch)] {
        let sold = store.deduct_in_redis(sale, how).await.unwrap();
        assert!(matches!(sold, Attempt::Journaled { .. }), "{sold:?}");
    }
    let read = fixture.level("a").await;
    let sold = store.deduct_if_version(&written, &read).await.unwrap();
    assert!(matches!(sold, Attempt::Journaled { .. }), "{sold:?}");
    let mut adjusted = adjustment("a", 1);
    adjusted.idempotency = Some(idempotency("adjusted", scripted.idempotency.unwrap().hash));
    store.adjust(&adjusted).await.unwrap();
    assert_eq!(remembered(&fixture).await, before + 4);
    for how in [InRedis::Script, InRedis::Watch] {
        store
            .deduct_in_redis(&deduction("a", 1), how)
            .await
            .unwrap();
    }
    assert_eq!(remembered(&fixture).await, before + 6);
    // By the key the operation is found again, too.
    for (sale, how) in [(&watched, InRedis::Script), (&written, InRedis::Watch)] {
        let again = store.deduct_in_redis(sale, how).await.unwrap();
        assert_eq!(again, Attempt::Duplicate);
        let key = sale.idempotency.as_ref();
        let found = store
            .recorded(&sale.sku, sale.operation, key)
            .await
            .unwrap();
        assert_eq!(
            found.map(|movement| movement.operation),
            Some(sale.operation)
        );
    }
}

/// The ways to take units there.
#[derive(Debug, Clone, Copy)]
enum Way {
    Script,
    Watch,
    Write,
}

impl Way {
    async fn deduct(self, fixture: &Fixture, deduction: &Deduction) -> Attempt {
        let store = &fixture.store;
        let attempt = match self {
            Self::Script => store.deduct_in_redis(deduction, InRedis::Script).await,
            Self::Watch => store.deduct_in_redis(deduction, InRedis::Watch).await,
            Self::Write => {
                let read = fixture.level(deduction.sku.as_str()).await;
                store.deduct_if_version(deduction, &read).await
            }
        };
        attempt.expect("no error")
    }
}

/// A retry that comes after Redis has lost everything, and SQL has the sale.
#[rstest]
#[tokio::test]
async fn a_key_that_sql_has_is_not_forgotten_with_redis(
    #[values(Way::Script, Way::Watch, Way::Write)] way: Way,
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let fixture = Fixture::in_redis(backend, |options| options).await;
    for sku in ["a", "b"] {
        fixture.put(sku, 10).await;
    }
    let first = deduction_with_key("a", 2, "k");
    let sold = way.deduct(&fixture, &first).await;
    assert_eq!(sold, Attempt::Journaled { remaining: 8 });
    fixture.settle().await;
    fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;

    let (repeat, other) = (
        deduction_with_key("a", 2, "k"),
        deduction_with_key("a", 3, "k"),
    );
    for later in [&repeat, &other, &repeat] {
        assert_eq!(way.deduct(&fixture, later).await, Attempt::Duplicate);
        let key = later.idempotency.as_ref();
        let found = fixture
            .store
            .recorded(&later.sku, later.operation, key)
            .await;
        let found = found.expect("no error").expect("it is remembered again");
        let told = (found.operation, found.delta, found.available_after);
        assert_eq!(told, (first.operation, -2, 8));
        assert_eq!(
            found.request_hash,
            first.idempotency.as_ref().map(|key| key.hash)
        );
    }
    // Keys that are new, or of another SKU, are not taken for used.
    let new = way
        .deduct(&fixture, &deduction_with_key("a", 1, "new"))
        .await;
    assert_eq!(new, Attempt::Journaled { remaining: 7 });
    let of_another = way.deduct(&fixture, &deduction_with_key("b", 1, "k")).await;
    assert_eq!(of_another, Attempt::Journaled { remaining: 9 });
    for (sku, sold) in [("a", 3), ("b", 1)] {
        let audit = fixture.audit(sku).await;
        assert_eq!((audit.sold, audit.consistent()), (sold, true), "{audit:?}");
    }
}

#[tokio::test]
async fn an_adjustment_that_sql_has_is_not_repeated_after_a_loss() {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    let hash = deduction_with_key("a", 1, "k").idempotency.unwrap().hash;
    let adjusted = || {
        let mut adjustment = adjustment("a", 5);
        adjustment.idempotency = Some(idempotency("k", hash));
        adjustment
    };
    let done = fixture.store.adjust(&adjusted()).await.unwrap();
    assert!(matches!(done, Change::Done { .. }), "{done:?}");
    fixture.settle().await;
    fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
    let repeat = fixture.store.adjust(&adjusted()).await.unwrap();
    assert_eq!(repeat, Change::Duplicate);
    assert_eq!(fixture.level("a").await.on_hand, 15);
}

/// For as long as keys are remembered, and no longer, SQL is asked; of a level that was never lost
/// it need not be.
#[rstest]
#[case::never_lost(None, false)]
#[case::long_ago(Some(24 * 3600 + 1), false)]
#[case::lately(Some(24 * 3600 - 60), true)]
#[tokio::test]
async fn sql_is_asked_for_keys_only_where_redis_may_have_forgotten_them(
    #[values(InRedis::Script, InRedis::Watch)] how: InRedis,
    #[case] lost: Option<u64>,
    #[case] asked: bool,
) {
    let fixture = Fixture::on(On::REDIS).await;
    fixture.put("a", 10).await;
    let sell = async || {
        let sale = deduction_with_key("a", 1, "k");
        fixture.store.deduct_in_redis(&sale, how).await.unwrap()
    };
    sell().await;
    fixture.settle().await;
    if let Some(ago) = lost {
        fixture.redis::<()>(&redis::cmd("FLUSHDB")).await;
        fixture.level("a").await;
        let (now, _): (u64, u64) = fixture.redis(&redis::cmd("TIME")).await;
        let key = fixture.key("stock:*:a:main").await;
        let mut set = redis::cmd("HSET");
        set.arg(key).arg("loaded").arg((now - ago) * 1000);
        fixture.redis::<()>(&set).await;
    } else {
        let name = fixture.key("op:*:k").await;
        fixture.redis::<()>(redis::cmd("DEL").arg(name)).await;
    }
    let duplicate = sell().await == Attempt::Duplicate;
    assert_eq!(duplicate, asked);
}
