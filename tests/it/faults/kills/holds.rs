//! `kill -9` of replicas and of the database while holds are made, extended, confirmed and released.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::json;
use stocklock::stock::MovementKind;

use super::super::new_key;
use super::{Caller, HASTY, Shop, kills, name};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::PrivateServer;

const CARTS: usize = 32;
/// More units than the carts can hold.
const STOCK: i64 = 1_000_000;

/// What a cart knows about a hold: its id, the path of its end, and the id of that.
type Ended = (String, &'static str, String);

/// Makes holds, and ends each, until it is stopped.
async fn hold_and_end(cart: Caller) -> Vec<Ended> {
    let (hot, mut seen) = (name(0), Vec::new());
    while !cart.is_stopped() {
        let lines = json!([{"sku": hot}, {"sku": "other", "quantity": 2}]);
        let body = json!({"lines": lines, "expires_in_s": 600});
        let held = cart.post("/holds", &body, Some(&new_key())).await;
        assert_eq!(held.status, 201, "{held:?}");
        let path = |end: &str| format!("/operations/{}/{end}", held.id);
        if seen.len().is_multiple_of(3) {
            let longer = json!({"expires_in_s": 900});
            cart.post(&path("extend"), &longer, None).await.ok();
        }
        let end = ["confirm", "release"][seen.len() % 2];
        let ended = cart.post(&path(end), &json!({}), None).await;
        ended.ok();
        seen.push((held.id, end, ended.id));
        cart.has_ended();
    }
    seen
}

/// Goal: the ledger has each hold that was acknowledged once, and its end once, and nothing else; no unit stays
/// held.
///
/// Method: replicas and database are killed in turns. A cart repeats each request until its answer is definite.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_loses_no_hold_and_ends_none_twice(#[values(Mysql, Postgres)] backend: Backend) {
    let server = PrivateServer::start(backend).await;
    let mut shop = Shop::open(server.url(), &HASTY).await;
    let hot = name(0);
    for sku in [&*hot, "other"] {
        shop.replicas[0].set_level(sku, STOCK).await;
    }
    let seen = shop.kill_in_turns(Some(&server), CARTS, hold_and_end).await;
    let confirmed = seen.iter().filter(|(_, end, _)| *end == "confirm").count();
    println!(
        "figure: holds on {backend:?}: {} kills, {} holds, {confirmed} of them confirmed",
        2 * kills(),
        seen.len()
    );
    for (sku, units) in [(&*hot, 1), ("other", 2)] {
        let mut recorded = BTreeMap::new();
        for movement in shop.ledger.movements(sku).await {
            let once = (movement.kind, movement.delta, movement.held_delta);
            let is_first = recorded
                .insert(movement.operation.to_string(), once)
                .is_none();
            assert!(is_first, "{sku}: {} twice", movement.operation);
        }
        for (hold, end, by) in &seen {
            let (held, end) = match *end {
                "confirm" => (hold, (MovementKind::Deducted, -units, -units)),
                _ => (hold, (MovementKind::Released, 0, -units)),
            };
            let held = recorded.remove(held);
            assert_eq!(held, Some((MovementKind::Held, 0, units)), "{hold}");
            assert_eq!(recorded.remove(by), Some(end), "{by} ends {hold}");
        }
        recorded.retain(|_, (kind, ..)| *kind != MovementKind::Received);
        assert!(recorded.is_empty(), "no answer names {recorded:?}");
        let audit = shop.ledger.assert_consistent(sku).await;
        let sold = units * i64::try_from(confirmed).expect("few holds");
        assert_eq!((audit.on_hand, audit.held), (STOCK - sold, 0));
    }
}
