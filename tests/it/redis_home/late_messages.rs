//! Writes that reach Redis late. The replica has lost the connection on which it sent the write.

use std::time::Duration;

use reqwest::RequestBuilder;
use reqwest::header::IF_MATCH;
use rstest::rstest;
use serde_json::json;

use super::{applied_audit, assert_sold, create, order};
use crate::faults::{add_key_if, send, until};
use crate::support::app::TestApp;
use crate::support::proxy::Proxy;
use crate::support::services::Backend::Sqlite;
use crate::support::services::fresh_redis;

/// The replica makes another attempt while the first one is still on its way.
///
/// Released after its expiry, the script sells nothing. Released before, it may sell, because the
/// replica refuses the request only after the expiry.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_script_sells_nothing_after_a_refusal(
    #[values(false, true)] with_key: bool,
    #[values(false, true)] in_time: bool,
) {
    let redis = fresh_redis().await;
    let (proxy, url) = Proxy::before(&redis.url).await;
    let wait_limit = Duration::from_secs(if in_time { 6 } else { 1 });
    let wait_limit_ms = format!("--wait-limit-ms={}", wait_limit.as_millis());
    let flags = [
        "--redis-url",
        &url,
        &wait_limit_ms,
        "--request-deadline-ms=20000",
    ];
    let app = TestApp::with_flags(Sqlite, 1, &flags).await;
    create(&app, "a", 1).await;
    // From now on Redis knows the script and executes it when its hash is sent.
    assert_eq!(send(order(&app, "redis-lua", "a")).await.status, 200);

    let hold = proxy.hold_and_cut(b"\tredis-lua\t");
    let request = add_key_if(with_key, order(&app, "redis-lua", "a"));
    let look_up = proxy.hold_request(b"$4\r\nHGET\r\n");
    let answer = tokio::spawn(send(request));
    hold.held().await;
    // A refused attempt looks for its dedup entry.
    look_up.held().await;
    look_up.let_go();
    if !in_time {
        until("the request is answered", async || answer.is_finished()).await;
    }
    let delivery = json!({"delta": 5, "reason": "delivery"});
    send(app.adjust(0, "a", &delivery)).await.ok();
    hold.deliver().await;
    if in_time {
        assert!(!answer.is_finished(), "refused before the expiry");
    }
    let answer = answer.await.unwrap();
    if in_time {
        assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
    } else {
        let refused = (409, "insufficient-stock");
        assert_eq!(answer.status_and_code(), refused, "{answer:?}");
        assert!(answer.after >= wait_limit, "{answer:?}");
    }
    let audit = applied_audit(&app, "a").await;
    assert_sold(&audit, 1 + i64::from(in_time));
    assert_eq!(audit["on_hand"], 5 - i64::from(in_time), "{audit}");
    app.stop().await;
}

/// A write that follows from an earlier read, of `a`, which has eight units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Watch,
    KeyedWatch,
    UnderLock,
    KeyedUnderLock,
    Adjustment,
    KeyedAdjustment,
    /// It takes no key.
    Put,
}

use Write::{Adjustment, KeyedAdjustment, KeyedUnderLock, KeyedWatch, Put, UnderLock, Watch};

impl Write {
    /// The request, and what only its message has.
    fn request(self, app: &TestApp) -> (RequestBuilder, &'static [u8]) {
        let (request, message): (_, &[u8]) = match self {
            Watch | KeyedWatch => (order(app, "redis-watch", "a"), b"EXEC\r\n"),
            UnderLock | KeyedUnderLock => (order(app, "redis-lock", "a"), b"\tredis-lock\t"),
            Adjustment | KeyedAdjustment => {
                let delivery = json!({"delta": 5, "reason": "delivery"});
                (app.adjust(0, "a", &delivery), b"\treceived\t")
            }
            Put => {
                let put = app.put(0, "a", &json!({"on_hand": 20}));
                (put.header(IF_MATCH, "*"), b"\treceived\t")
            }
        };
        let is_keyed = matches!(self, KeyedWatch | KeyedUnderLock | KeyedAdjustment);
        (add_key_if(is_keyed, request), message)
    }

    /// The level after it.
    fn level_after(self) -> i64 {
        match self {
            Watch | KeyedWatch | UnderLock | KeyedUnderLock => 7,
            Adjustment | KeyedAdjustment => 13,
            Put => 20,
        }
    }
}

/// Goal: a write that is released after its expiry changes nothing, although the level is still the one
/// that it follows from. Released before, it counts once, and was not refused.
///
/// Method: the proxy refuses new connections until the write may be released, so that no other attempt
/// changes the level.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_write_changes_nothing_after_the_answer(
    #[values(
        Watch,
        KeyedWatch,
        UnderLock,
        KeyedUnderLock,
        Adjustment,
        KeyedAdjustment,
        Put
    )]
    write: Write,
    #[values(false, true)] in_time: bool,
) {
    let redis = fresh_redis().await;
    let (proxy, url) = Proxy::before(&redis.url).await;
    let [wait_limit, deadline] = if in_time {
        ["--wait-limit-ms=6000", "--request-deadline-ms=20000"]
    } else {
        ["--wait-limit-ms=1000", "--request-deadline-ms=4000"]
    };
    let pool = "--redis-pool-size=1";
    let flags = ["--redis-url", &url, pool, wait_limit, deadline];
    let app = TestApp::with_flags(Sqlite, 1, &flags).await;
    create(&app, "a", 10).await;
    // From now on Redis knows the scripts, and the connections are open.
    for strategy in ["redis-watch", "redis-lock"] {
        assert_eq!(send(order(&app, strategy, "a")).await.status, 200);
    }

    let (request, message) = write.request(&app);
    let hold = proxy.hold_and_cut(message);
    let refused = proxy.cut_before(b"SETINFO", u32::MAX);
    let answer = tokio::spawn(send(request));
    let (mut on_hand, mut sold) = (8, 2);
    if in_time {
        hold.held().await;
        until("it makes another attempt", async || refused.fired() > 0).await;
        hold.deliver().await;
        assert!(
            !answer.is_finished(),
            "answered before the outcome is known"
        );
        refused.disarm();
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
        on_hand = write.level_after();
        sold += i64::from(on_hand == 7);
    } else {
        let answer = answer.await.unwrap();
        let unknown = (504, "outcome-unknown");
        assert_eq!(answer.status_and_code(), unknown, "{answer:?}");
        assert!(answer.after >= Duration::from_secs(1), "{answer:?}");
        assert!(refused.fired() > 0, "another attempt was made");
        refused.disarm();
        hold.deliver().await;
    }
    let audit = applied_audit(&app, "a").await;
    assert_sold(&audit, sold);
    assert_eq!(audit["on_hand"], on_hand, "{audit}");
    app.stop().await;
}
