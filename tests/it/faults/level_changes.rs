//! Levels that are set or adjusted through a connection that is lost in COMMIT.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Answer, Cut, Proxied, SOON, keyed, send, settle, until};
use crate::support::app::TestApp;
use crate::support::services::Backend;

/// How often each case is played.
const ROUNDS: usize = 20;

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adjustment_in_doubt_is_made_once(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Cut::Before, Cut::After)] cut: Cut,
    #[values(false, true)] with_key: bool,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    subject.app.set_level("hot", 0).await;
    for round in 1..=ROUNDS {
        let trigger = cut.arm(&subject, 1);
        let request = subject.app.request(0, Method::POST, "/stock/hot/adjust");
        let request = request.json(&json!({"delta": 3, "reason": "delivery"}));
        let answer = settle(keyed(request, with_key)).await;
        assert_eq!(trigger.fired(), 1);
        assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
        let movements = subject.ledger.movements("hot").await;
        // The first movement is that of the level's creation.
        assert_eq!(movements.len(), 1 + round);
        assert_eq!(movements[0].operation.to_string(), answer.id);
    }
    let audit = subject.ledger.audit("hot").await;
    assert!(audit.consistent(), "{audit:?}");
    assert_eq!(audit.on_hand, 3 * i64::try_from(ROUNDS).unwrap());
    subject.app.stop().await;
}

#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_set_in_doubt_is_set_once(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Cut::Before, Cut::After)] cut: Cut,
) {
    let subject = Proxied::start(backend, 1, &[]).await;
    for round in 1..=ROUNDS {
        let trigger = cut.arm(&subject, 1);
        // Down and up, and twice the same, which moves nothing and is recorded all the same.
        let on_hand = [100, 250, 250, 40][round % 4];
        let request = subject.app.request(0, Method::PUT, "/stock/hot");
        let answer = settle(request.json(&json!({ "on_hand": on_hand }))).await;
        assert_eq!(trigger.fired(), 1);
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        assert_eq!(subject.ledger.movements("hot").await.len(), round);
        let audit = subject.ledger.audit("hot").await;
        assert!(audit.consistent(), "{audit:?}");
        assert_eq!(audit.on_hand, on_hand);
    }
    subject.app.stop().await;
}

/// Goal: a level is not set a second time over what others have sold since.
///
/// Method: the COMMIT of a PUT is cut, and so is every new connection until others, who reach the
/// database past the proxy, have sold three units. Only then can the PUT be tried again.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_sell_while_a_level_is_in_doubt_stays_sold(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Cut::Before, Cut::After)] cut: Cut,
) {
    let flags = ["--database-pool-size", "1", "--wait-limit-ms", "15000"];
    let flags = [&flags[..], &["--request-deadline-ms", "20000"]].concat();
    let subject = Proxied::start(backend, 1, &flags).await;
    let others = TestApp::on_migrated(&subject.database.url, 1, &[]).await;
    subject.app.set_level("hot", 50).await;

    let no_repeat = subject.proxy.cut_before(subject.greeting(), u32::MAX);
    let trigger = cut.arm(&subject, 1);
    let request = subject.app.request(0, Method::PUT, "/stock/hot");
    let setting = tokio::spawn(send(request.json(&json!({"on_hand": 100}))));
    until("a repeat is on its way", SOON, || async {
        trigger.fired() == 1 && no_repeat.fired() > 0
    })
    .await;
    for _ in 0..3 {
        let sale = others.deduct(0, "single-sql", &json!({"sku": "hot"}));
        assert_eq!(settle(sale).await.status, 200);
    }
    no_repeat.disarm();

    let answer: Answer = setting.await.unwrap().expect("the replica answers");
    assert_eq!(answer.status, 200, "{answer:?}");
    let movements = subject.ledger.movements("hot").await;
    // The creation, the change in doubt, three sales.
    assert_eq!(movements.len(), 5, "{movements:#?}");
    let audit = subject.ledger.audit("hot").await;
    assert!(audit.consistent(), "{audit:?}");
    let expected = match cut {
        // It was set, then they bought.
        Cut::After => 97,
        // They bought of the 50, then it was set.
        Cut::Before => 100,
    };
    assert_eq!(audit.on_hand, expected);
    others.stop().await;
    subject.app.stop().await;
}

/// Goal: who is not told whether a level was set is not told to use a key that PUT does not take.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_stays_in_doubt_is_to_be_read_again(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let flags = ["--database-pool-size", "1", "--wait-limit-ms", "500"];
    let subject = Proxied::start(backend, 1, &flags).await;
    subject.app.set_level("hot", 50).await;
    let no_repeat = subject.proxy.cut_before(subject.greeting(), u32::MAX);
    Cut::After.arm(&subject, 1);
    let request = subject.app.request(0, Method::PUT, "/stock/hot");
    let response = request.json(&json!({"on_hand": 100})).send().await;
    no_repeat.disarm();
    let problem: Value = response.unwrap().json().await.unwrap();
    assert_eq!(problem["code"], "outcome-unknown", "{problem}");
    let advice = problem["detail"].as_str().unwrap();
    assert!(advice.contains("read it again"), "{advice}");
    assert!(!advice.contains("Key"), "{advice}");
    assert_eq!(subject.ledger.audit("hot").await.on_hand, 100);
    subject.app.stop().await;
}
