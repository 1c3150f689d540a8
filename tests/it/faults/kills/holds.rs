//! `kill -9` of replicas and of the database while holds of scarce units are made, extended, confirmed and
//! released, or expire.

use std::collections::BTreeMap;
use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use stocklock::stock::MovementKind::{self, Deducted, Expired, Held, Received, Released};
use tokio::time::sleep;

use super::super::{new_key, until};
use super::{Caller, SHORT, Shop, kills, name};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const CARTS: usize = 32;
/// Units of the scarce SKU for each kill. In the last third of the test, there are only those that others give
/// back.
const UNITS: i64 = 50;
/// A cart that found nothing waits as long.
const PAUSE: Duration = Duration::from_millis(20);

/// What a cart knows about a hold: its id, how it ended, and by which operation, unless it expired.
type Ended = (String, MovementKind, Option<String>);

/// Makes holds, and ends each or forgets it, until it is stopped.
async fn hold_and_end(cart: Caller) -> Vec<Ended> {
    let (hot, mut seen) = (name(0), Vec::new());
    while !cart.is_stopped() {
        let turn = seen.len() % 4;
        let seconds = if turn == 3 { 1 } else { 600 };
        let lines = json!([{"sku": hot}, {"sku": "other", "quantity": 2}]);
        let body = json!({"lines": lines, "expires_in_s": seconds});
        let held = cart.post("/holds", &body, Some(&new_key())).await;
        cart.has_ended();
        if held.status != 201 {
            assert_eq!(held.status_and_code(), (409, SHORT), "{held:?}");
            sleep(PAUSE).await;
            continue;
        }
        let path = |end: &str| format!("/operations/{}/{end}", held.id);
        if turn == 2 {
            let longer = json!({"expires_in_s": 900});
            let extended = cart.post(&path("extend"), &longer, None).await;
            let ends = [&held, &extended].map(|answer| answer.body["expires_at"].as_str());
            assert!(ends[0] < ends[1], "{held:?} {extended:?}");
        }
        let (end, kind) = match turn {
            1 => ("release", Released),
            3 => {
                seen.push((held.id, Expired, None));
                continue;
            }
            _ => ("confirm", Deducted),
        };
        let ended = cart.post(&path(end), &json!({}), None).await;
        ended.ok();
        seen.push((held.id, kind, Some(ended.id)));
    }
    seen
}

/// Goal: the ledger has each hold that was acknowledged once, and its end once, and nothing else; no unit stays
/// held, and none is sold that was not there.
///
/// Method: replicas and database are killed in turns. A cart repeats each request until its answer is definite.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_loses_no_hold_and_ends_none_twice(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (mut shop, server, _database) = Shop::on(backend).await;
    let stock = UNITS * i64::try_from(kills()).expect("few kills");
    let hot = name(0);
    let skus = [(&*hot, 1), ("other", 2)];
    for (sku, units) in skus {
        shop.replicas[0].set_level(sku, units * stock).await;
    }
    let seen = shop
        .kill_in_turns(server.as_ref(), CARTS, hold_and_end)
        .await;
    until("the last holds expire", async || {
        let (hot, other) = tokio::join!(shop.ledger.audit(&hot), shop.ledger.audit("other"));
        (hot.held, other.held) == (0, 0)
    })
    .await;
    let count = |kind| seen.iter().filter(|(_, end, _)| *end == kind).count();
    let [sold, expired] = [Deducted, Expired].map(count);
    println!(
        "figure: holds on {backend:?}: {} kills, {} holds, {sold} of them confirmed, {expired} expired",
        2 * kills(),
        seen.len(),
    );
    for (sku, units) in skus {
        let (mut held, mut ended) = (BTreeMap::new(), BTreeMap::new());
        for movement in shop.ledger.movements(sku).await {
            let changes = (movement.delta, movement.held_delta);
            let by = movement.operation.to_string();
            let twice = match (movement.kind, movement.reverses) {
                (Received, None) => continue,
                (Held, None) => held.insert(by, changes).is_some(),
                (kind, Some(hold)) => {
                    let end = (kind, changes, by);
                    ended.insert(hold.to_string(), end).is_some()
                }
                (kind, None) => panic!("{sku}: {kind:?} by {by}"),
            };
            assert!(!twice, "{sku}: {} twice", movement.operation);
        }
        for (hold, end, by) in &seen {
            assert_eq!(held.remove(hold), Some((0, units)), "{sku}: {hold}");
            let (kind, changes, operation) = ended.remove(hold).expect("an end");
            let delta = if *end == Deducted { -units } else { 0 };
            assert_eq!((&kind, changes), (end, (delta, -units)), "{sku}: {hold}");
            assert!(
                by.as_ref().is_none_or(|by| *by == operation),
                "{sku}: {hold}"
            );
        }
        assert!(held.is_empty(), "{sku}: no answer names {held:?}");
        assert!(ended.is_empty(), "{sku}: no answer names {ended:?}");
        let audit = shop.ledger.assert_consistent(sku).await;
        let left = stock - i64::try_from(sold).expect("few holds");
        assert_eq!((audit.on_hand, audit.held), (units * left, 0), "{sku}");
    }
}
