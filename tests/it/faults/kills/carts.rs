//! `kill -9` of replicas and of the database while carts of several lines sell everything out.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::rng;

use super::super::new_key;
use super::{Caller, SHORT, Shop, kills, name};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const CARTS: usize = 64;
const SKUS: usize = 20;
/// Units of each SKU for each kill. Most of them are sold between the kills.
const UNITS: i64 = 50;

/// The units of each line that was sold, by SKU and operation.
type Sold = BTreeMap<(String, String), Vec<i64>>;

/// A cart that was bought: its operation, and its lines.
type Bought = (String, Vec<(String, i64)>);

fn random_lines() -> Vec<(String, i64)> {
    let line = |_| (name(rng().usize(..SKUS)), rng().i64(1..=3));
    (0..rng().usize(1..=5)).map(line).collect()
}

/// Buys carts until it is stopped, and then what is left of a SKU.
async fn buy(cart: Caller) -> Vec<Bought> {
    let mut bought = Vec::new();
    loop {
        let is_last = cart.is_stopped();
        let lines = if is_last {
            vec![(name(cart.number % SKUS), 1)]
        } else {
            random_lines()
        };
        let line = |(sku, quantity): &(String, i64)| json!({"sku": sku, "quantity": quantity});
        let body = json!({"lines": lines.iter().map(line).collect::<Vec<Value>>()});
        let answer = cart.post("/stock/deduct", &body, Some(&new_key())).await;
        cart.has_ended();
        match answer.status {
            200 => bought.push((answer.id, lines)),
            _ => assert_eq!(answer.status_and_code(), (409, SHORT), "{answer:?}"),
        }
        if is_last && answer.status == 409 {
            return bought;
        }
    }
}

/// Goal: everything is sold to the unit, a cart that is acknowledged has all its movements, and the ledger has
/// no others.
///
/// Method: replicas and database are killed in turns.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_leaves_all_lines_of_a_cart_or_none(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (mut shop, server, _database) = Shop::on(backend).await;
    let units = UNITS * i64::try_from(kills()).expect("few kills");
    for sku in (0..SKUS).map(name) {
        shop.replicas[0].set_level(&sku, units).await;
    }
    let bought = shop.kill_in_turns(server.as_ref(), CARTS, buy).await;
    println!(
        "figure: carts on {backend:?}: {} kills, {} carts",
        2 * kills(),
        bought.len()
    );

    let mut expected = Sold::new();
    for (operation, lines) in bought {
        for (sku, units) in lines {
            expected
                .entry((sku, operation.clone()))
                .or_default()
                .push(units);
        }
    }
    let mut sold = Sold::new();
    for sku in (0..SKUS).map(name) {
        let audit = shop.ledger.assert_consistent(&sku).await;
        assert_eq!((audit.on_hand, audit.sold), (0, units), "{sku}");
        let movements = shop.ledger.movements(&sku).await.into_iter();
        for sale in movements.filter(|movement| movement.strategy.is_some()) {
            let place = (sku.clone(), sale.operation.to_string());
            sold.entry(place).or_default().push(-sale.delta);
        }
    }
    let lines = expected.values_mut().chain(sold.values_mut());
    lines.for_each(|units| units.sort_unstable());
    assert!(
        sold == expected,
        "the ledger has other sales than the buyers"
    );
}
