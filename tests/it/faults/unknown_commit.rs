//! A connection that is lost in the commit, which may be a message of its own, or the end of the one
//! that also writes: the service sees the same error whether it happened or not.

use std::collections::BTreeSet;

use serde_json::json;
use stocklock::strategy::{Strategy, Tier};
use tokio::task::JoinSet;

use super::lock_servers::{LockPlace, flags, no_lock_is_left, strategies};
use super::{Cut, Proxied, keyed, send, settle};
use crate::support::services::Backend;

/// How often each case is played.
const ROUNDS: usize = 20;
/// How many buy at once in every other round.
const CROWD: usize = 4;
const STOCK: i64 = 1_000;

/// Goal: a commit in doubt ends as one sale and a 200, whether it had happened or not.
///
/// Method: the proxy cuts one commit in each round. In every other round the buyer is alone, so
/// that it is known whose it is; in the others more buy the same at once, on both replicas. Then
/// each 200 must stand in the ledger under its own id, and the ledger must hold nothing else.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_in_doubt_ends_as_one_sale(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Cut::Before, Cut::After)] cut: Cut,
) {
    let places = LockPlace::both().await;
    let subject = start(backend, 2, &[], &places).await;
    for strategy in strategies() {
        for with_key in [false, true] {
            one_sale_each(&subject, cut, strategy, with_key).await;
        }
        no_lock_is_left(&places).await;
    }
    subject.app.stop().await;
}

/// Replicas with all strategies.
async fn start(backend: Backend, count: u32, more: &[&str], places: &[LockPlace]) -> Proxied {
    let flags = flags(places);
    let flags = flags.iter().map(String::as_str);
    let flags: Vec<_> = flags.chain(more.iter().copied()).collect();
    Proxied::start(backend, count, &flags).await
}

async fn one_sale_each(subject: &Proxied, cut: Cut, strategy: Strategy, with_key: bool) {
    let sku = format!("{strategy}-{with_key}");
    let order = json!({ "sku": sku });
    subject.app.set_level(&sku, STOCK).await;
    let mut sold = BTreeSet::new();
    for round in 0..ROUNDS {
        let buyers = if round % 2 == 0 { 1 } else { CROWD };
        let trigger = cut.arm_for(subject, strategy);
        let mut buying = JoinSet::new();
        for buyer in 0..buyers {
            let request = subject.app.deduct(round + buyer, strategy.name(), &order);
            buying.spawn(settle(keyed(request, with_key)));
        }
        for answer in buying.join_all().await {
            assert_eq!(answer.status, 200, "{sku}: {answer:?}");
            // A lone buyer who has sent one request has seen no earlier answer.
            assert!(buyers > 1 || !answer.replayed, "{sku}: {answer:?}");
            assert!(sold.insert(answer.id), "{sku}: one sale was answered twice");
        }
        assert_eq!(trigger.fired(), 1, "{sku}: no commit was cut");
    }
    let recorded: BTreeSet<_> = subject.ledger.sales(&sku).await.into_iter().collect();
    assert_eq!(recorded, sold, "{sku}");
    if strategy.tier() != Tier::Unsafe {
        let audit = subject.ledger.audit(&sku).await;
        assert!(audit.consistent(), "{sku}: {audit:?}");
        assert_eq!(audit.on_hand, STOCK - i64::try_from(sold.len()).unwrap());
    }
}

/// Goal: where not even a repeat gets through, the answer is an honest 504, and the client's own
/// repeat with the same key finds out what happened.
///
/// Method: one pooled connection, so that after the cut a new one is needed; and new ones are cut
/// at their first word until the answer is there.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_stays_in_doubt_is_answered_504_and_settled_by_its_key(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Cut::Before, Cut::After)] cut: Cut,
) {
    let flags = ["--database-pool-size", "1", "--wait-limit-ms", "500"];
    let places = LockPlace::both().await;
    let subject = start(backend, 1, &flags, &places).await;
    for strategy in strategies() {
        for with_key in [false, true] {
            stays_in_doubt(&subject, cut, strategy, with_key).await;
        }
        no_lock_is_left(&places).await;
    }
    subject.app.stop().await;
}

async fn stays_in_doubt(subject: &Proxied, cut: Cut, strategy: Strategy, with_key: bool) {
    let Proxied { app, ledger, .. } = subject;
    let sku = format!("{strategy}-{with_key}");
    app.set_level(&sku, STOCK).await;
    let no_repeat = subject.proxy.cut_before(subject.greeting(), u32::MAX);
    let trigger = cut.arm_for(subject, strategy);
    let order = app.deduct(0, strategy.name(), &json!({ "sku": sku }));
    let order = keyed(order, with_key);
    let repeat = order.try_clone().expect("the body is in memory");

    let answer = send(order).await.expect("the replica answers");
    no_repeat.disarm();
    assert_eq!(trigger.fired(), 1, "{sku}");
    assert!(no_repeat.fired() > 0, "{sku}");
    assert_eq!(answer.status, 504, "{sku}: {answer:?}");
    assert_eq!(answer.code, "outcome-unknown", "{sku}");
    let happened = cut == Cut::After;
    let sales = ledger.sales(&sku).await;
    assert_eq!(sales.len(), usize::from(happened), "{sku}");

    if with_key {
        let answer = settle(repeat).await;
        assert_eq!(answer.status, 200, "{sku}: {answer:?}");
        assert_eq!(answer.replayed, happened, "{sku}");
        assert_eq!(ledger.sales(&sku).await, [answer.id], "{sku}");
    }
    let audit = ledger.audit(&sku).await;
    assert!(audit.consistent(), "{sku}: {audit:?}");
}
