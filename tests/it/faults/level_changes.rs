//! Levels that are set or adjusted, and holds, over a connection that is lost in the COMMIT.

use std::sync::Arc;

use reqwest::header::IF_MATCH;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;

use super::{Cut, Proxied, Trigger, add_key_if, copy, send, send_until_final, until};
use crate::support::app::TestApp;
use crate::support::services::Backend;

/// How often each cut is repeated.
const ROUNDS: usize = 8;

/// Sets the level, in any state.
fn set_hot(subject: &Proxied, on_hand: i64) -> RequestBuilder {
    let put = subject.app.put(0, "hot", &json!({ "on_hand": on_hand }));
    put.header(IF_MATCH, "*")
}

/// The database would refuse the second attempt if the first one had happened, so its answer needs no look-up.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adjustment_that_a_repeat_made_is_answered_without_a_look_up(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    subject.app.set_level("hot", 0).await;
    let trigger = Cut::Before.arm(&subject);
    let look_up = subject.proxy.cut_before(b"ORDER BY operation_id = ", 10);
    let more = json!({"delta": 3, "reason": "delivery"});
    let answer = send(subject.app.adjust(0, "hot", &more)).await;
    assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
    assert_eq!((trigger.fired(), look_up.fired()), (1, 0));
    let movements = subject.ledger.movements("hot").await;
    assert_eq!(movements.len(), 2, "the creation, and one adjustment");
    assert_eq!(movements[0].operation.to_string(), answer.id);
    subject.ledger.assert_consistent("hot").await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn level_set_with_lost_commit_is_set_once(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    for round in 0..2 * ROUNDS {
        let trigger = Cut::of(round).arm(&subject);
        let (sku, change) = (["first", "second"][round % 2], round / 2);
        let on_hand = [100, 250, 20, 40][change % 4];
        let create = subject.app.put(0, sku, &json!({ "on_hand": on_hand }));
        // If the first attempt has created the level, the repeat finds nothing to write.
        let (request, status) = match change {
            0 => (create, 201),
            _ => (create.header(IF_MATCH, "*"), 200),
        };
        let answer = send_until_final(request).await;
        assert_eq!(trigger.fired(), 1);
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(subject.ledger.movements(sku).await.len(), change + 1);
        let audit = subject.ledger.assert_consistent(sku).await;
        assert_eq!(audit.on_hand, on_hand);
    }
}

/// Goal: a level whose outcome is unknown is not set a second time after others have sold.
///
/// Method: the COMMIT of a PUT is cut, and so is every new connection until other buyers, who reach
/// the database without the proxy, have sold three units. Only then can the PUT be tried again.
#[rstest]
#[case(Cut::After, 97)] // set to 100, then sold
#[case(Cut::Before, 100)] // sold from the old level, then set
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_during_an_unknown_level_change_are_not_undone(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[case] cut: Cut,
    #[case] expected: i64,
) {
    let flags = [
        "--database-pool-size=1",
        "--wait-limit-ms=15000",
        "--request-deadline-ms=20000",
    ];
    let subject = Proxied::start(backend, 1, &flags).await;
    let others = TestApp::on_migrated(&subject.database.url, 1, &[]).await;
    subject.app.set_level("hot", 50).await;

    let refused = subject.refuse_new_connections();
    let trigger = cut.arm(&subject);
    let answer = tokio::spawn(send(set_hot(&subject, 100)));
    until("the service tries again", async || {
        trigger.fired() == 1 && refused.fired() > 0
    })
    .await;
    for _ in 0..3 {
        let sale = others.deduct(0, "single-sql", &json!({"sku": "hot"}));
        assert_eq!(send_until_final(sale).await.status, 200);
    }
    refused.disarm();

    let answer = answer.await.unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let movements = subject.ledger.movements("hot").await;
    // The creation, the change, three sales.
    assert_eq!(movements.len(), 5, "{movements:#?}");
    let audit = subject.ledger.assert_consistent("hot").await;
    assert_eq!(audit.on_hand, expected);
}

/// PUT takes no key, so the advice must be another one.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_level_change_advises_to_read_the_level_again(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let flags = ["--database-pool-size=1", "--wait-limit-ms=500"];
    let subject = Proxied::start(backend, 1, &flags).await;
    subject.app.set_level("hot", 50).await;
    let refused = subject.refuse_new_connections();
    Cut::After.arm(&subject);
    let answer = send(set_hot(&subject, 100)).await;
    refused.disarm();
    assert_eq!(answer.status_and_code(), (504, "outcome-unknown"));
    assert!(answer.detail.contains("read it again"), "{answer:?}");
    assert!(!answer.detail.contains("Key"), "{answer:?}");
    assert_eq!(subject.ledger.audit("hot").await.on_hand, 100);
}

/// Cuts the commit of several lines, one of which is of `lost`.
fn arm_for_lines(cut: Cut, subject: &Proxied) -> Arc<Trigger> {
    match (subject.backend, cut) {
        // A call writes the levels, as JSON with their numbers, and commits.
        (Backend::Mysql, Cut::Before) => subject.proxy.cut_before(b"1,\"lost\"", 1),
        (Backend::Mysql, Cut::After) => subject.proxy.cut_after(b"1,\"lost\"", 1),
        _ => cut.arm(subject),
    }
}

/// Goal: a hold whose commit has an unknown outcome is made once, and its answer says when it ends; also if it took
/// the last units, or replaces another one, which has ended when the attempt is repeated.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_with_lost_commit_is_made_once(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    for sku in ["lost", "other"] {
        subject.app.set_level(sku, 2).await;
    }
    let mut body = json!({"lines": [{"sku": "other"}, {"sku": "lost"}], "expires_in_s": 600});
    for round in 0..2 * ROUNDS {
        let trigger = arm_for_lines(Cut::of(round), &subject);
        let hold = subject.app.request(0, Method::POST, "/holds").json(&body);
        let answer = send_until_final(add_key_if(true, hold)).await;
        assert_eq!(trigger.fired(), 1);
        assert_eq!((answer.status, answer.replayed), (201, false), "{answer:?}");
        assert!(answer.body["expires_at"].is_string(), "{answer:?}");
        assert_eq!(answer.body["lines"][1]["quantity"], 1, "{answer:?}");
        // Two holds stay; the others replace the second one.
        if round > 0 {
            body["replaces"] = answer.id.into();
        }
    }
    for sku in ["lost", "other"] {
        assert_eq!(subject.ledger.assert_consistent(sku).await.held, 2, "{sku}");
    }
}

/// Goal: a hold that is made is not answered as if nothing had been changed, although its end cannot be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_whose_end_cannot_be_read_is_unknown() {
    let subject = Proxied::start(Backend::Postgres, 1, &[]).await;
    subject.app.set_level("hot", 2).await;
    let trigger = Cut::After.arm(&subject);
    let read = b"WHERE operation_id = $1 ORDER BY line";
    let read = subject.proxy.cut_before(read, u32::MAX);
    let body = json!({"lines": [{"sku": "hot"}]});
    let hold = subject.app.request(0, Method::POST, "/holds").json(&body);
    let hold = add_key_if(true, hold);
    let answer = send(copy(&hold)).await;
    assert_eq!(trigger.fired(), 1);
    assert!(read.fired() > 0, "{answer:?}");
    assert_eq!(answer.status_and_code(), (504, "outcome-unknown"));
    read.disarm();
    let answer = send_until_final(hold).await;
    assert_eq!((answer.status, answer.replayed), (201, true), "{answer:?}");
    assert_eq!(subject.ledger.assert_consistent("hot").await.held, 1);
}
