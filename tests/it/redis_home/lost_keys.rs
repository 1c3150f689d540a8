//! Redis loses everything after SQL has the sales: a retry gets its first answer, although no unit is
//! left.

use rstest::rstest;
use serde_json::json;

use super::{applied_audit, assert_sold, command, create};
use crate::faults::{KEY, send};
use crate::support::app::TestApp;
use crate::support::services::Backend::Sqlite;
use crate::support::services::fresh_redis;

/// What takes the last unit.
enum Change {
    Sale(&'static str),
    Adjustment,
}

/// Goal: a retry is not refused because its own first attempt took the last unit.
#[rstest]
#[case(Change::Sale("redis-lua"))]
#[case(Change::Sale("redis-watch"))]
#[case(Change::Sale("redis-lock"))]
#[case(Change::Sale("local-mutex"))]
#[case(Change::Sale("no-lock"))]
#[case(Change::Adjustment)]
#[tokio::test]
async fn retry_after_a_loss_is_not_refused_as_sold_out(#[case] change: Change) {
    let redis = fresh_redis().await;
    let app = TestApp::with_flags(Sqlite, 1, &["--redis-url", &redis.url]).await;
    create(&app, "a", 1).await;
    let request = |key| {
        let request = match change {
            Change::Sale(strategy) => app.deduct(0, strategy, &json!({"sku": "a"})),
            Change::Adjustment => app.adjust(0, "a", &json!({"delta": -1, "reason": "x"})),
        };
        send(request.header(KEY, key))
    };
    let first = request("k").await;
    assert_eq!((first.status, first.replayed), (200, false), "{first:?}");
    applied_audit(&app, "a").await;
    command::<()>(&redis.url, &["FLUSHDB"]).await;

    let retried = request("k").await;
    assert_eq!(
        (retried.status, retried.replayed),
        (200, true),
        "{retried:?}"
    );
    assert_eq!(retried.id, first.id);
    let refused = request("other").await;
    assert_eq!(refused.status_and_code(), (409, "insufficient-stock"));
    let audit = applied_audit(&app, "a").await;
    assert_eq!(audit["on_hand"], 0, "{audit}");
    if let Change::Sale(_) = change {
        assert_sold(&audit, 1);
    }
    app.stop().await;
}
