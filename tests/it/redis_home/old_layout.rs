//! What release 0.1.0 wrote to Redis: levels with the field `on_hand`, and a string for each dedup entry.
//! Of two replicas of both releases, one at most can sell a level.

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use rstest::rstest;
use stocklock::ports::{AttemptOutcome, LedgerReader as _, RedisMethod};
use stocklock::stock::OperationId;
use stocklock_testkit::assert_matches;

use super::dedup::Way;
use super::{assert_exact, deduct, run, sell};
use crate::store_contract::fixture::{Fixture, On, deduction_with_key};

/// Changes the level to what release 0.1.0 wrote. Returns its key.
async fn make_old(fixture: &Fixture, sku: &str) -> String {
    let level = fixture.key(&format!("stock:*:{sku}:main")).await;
    let units: String = run(fixture, &["HGET", &level, "units"]).await;
    run::<()>(fixture, &["HSET", &level, "on_hand", &units]).await;
    run::<()>(fixture, &["HDEL", &level, "units", "loaded"]).await;
    level
}

/// Goal: a retry during and after the upgrade gets its first answer, and no unit is lost.
#[rstest]
#[tokio::test]
async fn key_of_the_previous_release_is_remembered(
    #[values(Way::Script, Way::Watch, Way::Write)] way: Way,
) {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 3).await;
    let level = make_old(&fixture, "a").await;
    let audit = fixture.audit("a").await;
    assert_eq!((audit.on_hand, audit.drift()), (7, 0), "{audit:?}");
    let (first, again) = (OperationId::mint(), deduction_with_key("a", 1, "k"));
    let operation = BASE64.encode(first.0);
    let hash = BASE64.encode(again.idempotency.as_ref().unwrap().hash.0);
    let entry = format!(
        r#"8 ["{operation}","a","main","deducted",-1,null,"redis-lua","anonymous","k","{hash}",null,null]"#
    );
    let tag = level
        .strip_prefix("stock:")
        .and_then(|rest| rest.split_once('}'));
    let old = format!("op:{}}}:a:anonymous:k", tag.expect("a tag").0);
    run::<()>(&fixture, &["SET", &old, &entry]).await;

    assert_eq!(
        way.deduct(&fixture, &again).await,
        AttemptOutcome::Duplicate
    );

    let key = again.idempotency.as_ref();
    let found = fixture
        .store
        .recorded(&again.sku, again.operation, key)
        .await;
    let found = found.unwrap().expect("it is remembered");
    let found = (found.operation, found.available_after, found.request_hash);
    assert_eq!(found, (first, 8, key.map(|key| key.hash)));
    let new = way
        .deduct(&fixture, &deduction_with_key("a", 1, "new"))
        .await;
    assert_eq!(new, On::Redis.done(6));
    assert_exact(&fixture, "a", 4, 6).await;
}

/// Goal: a replica of release 0.1.0 sells nothing once this release has used the level, because it would
/// not know what this release has sold.
#[tokio::test]
async fn previous_release_finds_no_units_in_a_used_level() {
    let fixture = Fixture::on(On::Redis).await;
    fixture.put("a", 10).await;
    sell(&fixture, "a", 1).await;
    let level = make_old(&fixture, "a").await;

    let sold = deduct(&fixture, "a", RedisMethod::Script).await;

    assert_matches!(sold, Ok(AttemptOutcome::Deducted { remaining: 8, .. }));
    // Its scripts read this field, and refuse if it is missing.
    let on_hand: Option<i64> = run(&fixture, &["HGET", &level, "on_hand"]).await;
    assert_eq!(on_hand, None);
    // It refuses to load a level from a journal with such an entry.
    let journal = fixture.key("journal:*").await;
    let entries: Vec<(String, Vec<String>)> = run(&fixture, &["XRANGE", &journal, "-", "+"]).await;
    let versions = entries.iter().map(|(_, fields)| &fields[..2]);
    assert!(versions.into_iter().all(|v| v == ["v", "2"]), "{entries:?}");
}
