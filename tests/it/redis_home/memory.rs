//! What Redis keeps of an operation after it has left the journal.

use stocklock::store::{Attempt, InRedis};

use crate::store_contract::fixture::{
    Fixture, On, adjustment, deduction, deduction_with_key, idempotency,
};

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
