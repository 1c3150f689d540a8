//! A connection that is lost in the commit. The COMMIT may be a message of its own or the end of
//! the one that writes. The service sees the same error whether the commit happened or not.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;
use stocklock::strategy::{Strategy, Tier};
use tokio::task::JoinSet;

use super::lock_servers::assert_locks_released;
use super::{Cut, Proxied, add_key_if, copy, send, send_until_final, until};
use crate::support::lock_services::LockServices;
use crate::support::services::Backend;

/// How often each case is repeated; a commit is cut each time.
const ROUNDS: usize = 4;
/// How many buy at once in every other round.
const CROWD: usize = 4;
const STOCK: i64 = 1_000;
/// One strategy for each code path; `make verify` runs the others, too.
const EXAMPLES: &str = "no-lock single-sql for-update optimistic group-commit redis-lock redis-lua";

/// Runs `case` for each cut, with and without a key, for the examples or all other strategies. Each strategy has its own
/// replicas, and all run at the same time, because most of the time is spent waiting.
async fn for_strategies(
    examples: bool,
    backend: Backend,
    replicas: u32,
    more_flags: &[&str],
    case: impl AsyncFn(&Proxied, Cut, Strategy, bool),
) {
    let run = async |strategy| {
        let services = LockServices::fresh().await;
        let flags = [&services.flags()[..], more_flags].concat();
        let subject = Proxied::start(backend, replicas, &flags).await;
        for cut in [Cut::Before, Cut::After] {
            case(&subject, cut, strategy, false).await;
            case(&subject, cut, strategy, true).await;
        }
        assert_locks_released(&services, &subject.database.url).await;
    };
    let is_example = |strategy: &Strategy| EXAMPLES.split(' ').any(|name| name == strategy.name());
    let chosen = |strategy: &Strategy| is_example(strategy) == examples;
    join_all(Strategy::ALL.into_iter().filter(chosen).map(run)).await;
}

/// Goal: a deduction whose commit has an unknown outcome ends as one sale and a 200.
///
/// Method: the proxy cuts one commit in each round. In every other round there is one buyer, so
/// that the commit is that buyer's; in the others, several buyers buy the same SKU at once from two
/// replicas. Each 200 must be in the ledger with its id, and nothing else may be.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deduction_with_lost_commit_ends_as_one_sale(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(true)] examples: bool,
) {
    for_strategies(examples, backend, 2, &[], assert_one_sale_each).await;
}

async fn assert_one_sale_each(subject: &Proxied, cut: Cut, strategy: Strategy, with_key: bool) {
    let sku = format!("{strategy}-{cut:?}-{with_key}");
    let order = json!({ "sku": sku });
    subject.app.set_level(&sku, STOCK).await;
    let mut sold = BTreeSet::new();
    for round in 0..ROUNDS {
        let buyers = if round % 2 == 0 { 1 } else { CROWD };
        let trigger = cut.arm_for(subject, strategy);
        let mut requests = JoinSet::new();
        for buyer in 0..buyers {
            let request = subject.app.deduct(round + buyer, strategy.name(), &order);
            requests.spawn(send_until_final(add_key_if(with_key, request)));
        }
        for answer in requests.join_all().await {
            assert_eq!(answer.status, 200, "{sku}: {answer:?}");
            // A single buyer sends one request, which cannot be a replay.
            assert!(buyers > 1 || !answer.replayed, "{sku}: {answer:?}");
            assert!(sold.insert(answer.id), "{sku}: one sale was answered twice");
        }
        assert_eq!(trigger.fired(), 1, "{sku}: no commit was cut");
    }
    let sold: Vec<_> = sold.into_iter().collect();
    subject.ledger.assert_sold(&sku, &sold).await;
    if strategy.tier() != Tier::Unsafe {
        let audit = subject.ledger.assert_consistent(&sku).await;
        assert_eq!(audit.on_hand, STOCK - i64::try_from(sold.len()).unwrap());
    }
}

/// Goal: if the service cannot repeat the deduction either, it answers 504. The client's own repeat
/// with the same key then returns what happened.
///
/// Method: the pool has one connection, so that the service needs a new one after the cut. New
/// connections are cut at their first message until the answer is there.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_outcome_is_answered_504_and_resolved_by_its_key(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(true)] examples: bool,
) {
    let flags = ["--database-pool-size", "1", "--wait-limit-ms", "1000"];
    for_strategies(examples, backend, 1, &flags, assert_stays_unknown).await;
}

async fn assert_stays_unknown(subject: &Proxied, cut: Cut, strategy: Strategy, with_key: bool) {
    let Proxied { app, ledger, .. } = subject;
    let sku = format!("{strategy}-{cut:?}-{with_key}");
    app.set_level(&sku, STOCK).await;
    let other = format!("other-{sku}");
    app.set_level(&other, STOCK).await;
    // A lock may need a connection of its own, which is opened when it is first used.
    let first = app.deduct(0, strategy.name(), &json!({ "sku": other }));
    until("the lock can be taken within the wait limit", async || {
        send(copy(&first)).await.status == 200
    })
    .await;
    let refused = subject.refuse_new_connections();
    let trigger = cut.arm_for(subject, strategy);
    let order = app.deduct(0, strategy.name(), &json!({ "sku": sku }));
    let order = add_key_if(with_key, order);

    let answer = send(copy(&order)).await;
    refused.disarm();
    assert_eq!(trigger.fired(), 1, "{sku}");
    assert!(refused.fired() > 0, "{sku}");
    answer.assert_is(504, "outcome-unknown");
    let happened = cut == Cut::After;
    let sold = ledger.sold(&sku).await;
    assert_eq!(sold.len(), usize::from(happened), "{sku}");

    if with_key {
        let answer = send_until_final(order).await;
        assert_eq!(answer.status, 200, "{sku}: {answer:?}");
        assert_eq!(answer.replayed, happened, "{sku}");
        assert_eq!(ledger.sold(&sku).await, [answer.id], "{sku}");
    }
    // The counter may still lack the units of the first attempt, and redis-get-set sets the level to it.
    if strategy != Strategy::RedisGetSet {
        ledger.assert_consistent(&sku).await;
    }
}

full! {
    deduction_with_lost_commit_ends_as_one_sale(
        backend: Backend [Backend::Mysql, Backend::Postgres], examples: bool [false]
    );
    unknown_outcome_is_answered_504_and_resolved_by_its_key(
        backend: Backend [Backend::Mysql, Backend::Postgres], examples: bool [false]
    );
}
