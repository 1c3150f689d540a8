//! Writes that reach Redis late. The replica has lost the connection on which it sent the write.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::IF_MATCH;
use rstest::rstest;
use serde_json::json;

use super::{applied_audit, assert_sold, create, order};
use crate::faults::{KEY, send, until};
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

    let hold = proxy.hold_and_cut(b"\"redis-lua\"");
    let request = order(&app, "redis-lua", "a");
    let request = if with_key {
        request.header(KEY, "k")
    } else {
        request
    };
    let look_up = proxy.hold_request(b"$3\r\nGET\r\n");
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

/// A write that follows from an earlier read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    Watch,
    UnderLock,
    Adjustment,
    Put,
}

/// Goal: a write that is released after its expiry changes nothing, although the level is still the one
/// that it follows from.
///
/// Method: the proxy refuses new connections until the replica has answered, so that no other attempt
/// changes the level.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_write_changes_nothing_after_the_answer(
    #[values(Write::Watch, Write::UnderLock, Write::Adjustment, Write::Put)] write: Write,
    #[values(false, true)] with_key: bool,
) {
    let redis = fresh_redis().await;
    let (proxy, url) = Proxy::before(&redis.url).await;
    let flags = [
        "--redis-url",
        &url,
        "--redis-pool-size=1",
        "--wait-limit-ms=1000",
        "--request-deadline-ms=4000",
    ];
    let app = TestApp::with_flags(Sqlite, 1, &flags).await;
    create(&app, "a", 10).await;
    // From now on Redis knows the scripts, and the connections are open.
    for strategy in ["redis-watch", "redis-lock"] {
        assert_eq!(send(order(&app, strategy, "a")).await.status, 200);
    }

    let (request, message): (_, &[u8]) = match write {
        Write::Watch => (order(&app, "redis-watch", "a"), b"EXEC\r\n"),
        Write::UnderLock => (order(&app, "redis-lock", "a"), b"\"redis-lock\""),
        Write::Adjustment => {
            let delivery = json!({"delta": 5, "reason": "delivery"});
            (app.adjust(0, "a", &delivery), b"\"received\"")
        }
        Write::Put => {
            let put = app.request(0, Method::PUT, "/stock/a");
            let put = put.json(&json!({"on_hand": 20})).header(IF_MATCH, "*");
            (put, b"\"received\"")
        }
    };
    // A PUT has no key.
    let request = if with_key && write != Write::Put {
        request.header(KEY, "k")
    } else {
        request
    };
    let hold = proxy.hold_and_cut(message);
    let refused = proxy.cut_before(b"SETINFO", u32::MAX);
    let answer = send(request).await;
    let unknown = (504, "outcome-unknown");
    assert_eq!(answer.status_and_code(), unknown, "{answer:?}");
    assert!(answer.after >= Duration::from_secs(1), "{answer:?}");
    assert!(refused.fired() > 0, "another attempt was made");
    refused.disarm();
    hold.deliver().await;

    let audit = applied_audit(&app, "a").await;
    assert_sold(&audit, 2);
    assert_eq!(audit["on_hand"], 8, "{audit}");
    app.stop().await;
}
