//! Orders that want the same levels at the same time, and a level that someone else has locked.
//!
//! `TEST_ORDER_PAIRS` is the number of pairs. `TEST_ORDER_LEVELS` and `TEST_ORDER_BUYERS` are those of the
//! sell-out. A row is locked for `TEST_ORDER_SECONDS`.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::{number, rng};
use tokio::time::Instant;

use super::order;
use crate::faults::{KEY, new_key, send_until_final};
use crate::support::app::{TestApp, send};
use crate::support::deadlocks::{DeadlockCounter, PLENTY, sku};
use crate::support::rival::{Raw, Rival};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const DEFAULT_PAIRS: usize = 100;
const DEFAULT_LEVELS: usize = 8;
const DEFAULT_SECONDS: usize = 2;

/// How many carts are in progress at the same time.
const AT_ONCE: usize = 16;

/// How many sales there are, and how many movements they have.
const SALES: &str = "SELECT CAST(count(DISTINCT operation_id) * 1000000 + count(*) AS char(20))
    FROM movement WHERE kind = 'deducted'";

async fn operations(raw: &mut Raw) -> [usize; 2] {
    let both = raw.text(SALES).await.expect("a row");
    let both: usize = both.trim().parse().expect("a number");
    [both / 1_000_000, both % 1_000_000]
}

/// Goal: two carts that name the same levels in opposite orders never wait for each other.
///
/// Method: each pair is sent to two replicas at the same time, and several pairs share the levels.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reversed_carts_never_deadlock(#[values(Mysql, Postgres)] backend: Backend) {
    let pairs = number("TEST_ORDER_PAIRS", DEFAULT_PAIRS);
    let mut shop = DeadlockCounter::start(backend, 6).await;
    let app = Arc::clone(&shop.app);
    let mut movements = 0;
    let begin = Instant::now();
    let carts: Vec<Vec<Value>> = (0..pairs)
        .map(|_| {
            let mut skus: Vec<_> = (0..6).map(sku).collect();
            rng().shuffle(&mut skus);
            skus.truncate(rng().usize(2..=5));
            movements += 2 * skus.len();
            skus.iter().map(|sku| json!({ "sku": sku })).collect()
        })
        .collect();
    let pair = |cart: Vec<Value>| {
        let app = Arc::clone(&app);
        async move {
            let reversed: Vec<_> = cart.iter().rev().cloned().collect();
            let buy = |replica, lines: &[Value]| {
                let request = order(&app, replica, &json!(lines));
                send_until_final(request.header(KEY, new_key()))
            };
            let (one, other) = tokio::join!(buy(0, &cart), buy(1, &reversed));
            assert_eq!((one.status, other.status), (200, 200), "{one:?} {other:?}");
        }
    };
    let pairs_of_carts = stream::iter(carts.into_iter().map(pair));
    pairs_of_carts
        .for_each_concurrent(AT_ONCE, |pair| pair)
        .await;

    let took = begin.elapsed();
    println!("figure: {backend:?}: {pairs} pairs in {took:.1?}");
    shop.is_zero().await;
    assert_eq!(operations(&mut shop.raw).await, [2 * pairs, movements]);
    let mut sold = 0;
    for sku in (0..6).map(sku) {
        let audit = app.assert_consistent(&sku).await;
        sold += audit["sold"].as_u64().expect("a number");
    }
    assert_eq!(sold, movements as u64);
}

/// Goal: carts with one to five lines, in which a SKU may be twice, sell the stock exactly: never more, and no
/// cart in part.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn carts_sell_out_to_the_unit(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    const STOCK: i64 = 20;
    let levels = number("TEST_ORDER_LEVELS", DEFAULT_LEVELS);
    let app = Arc::new(TestApp::start(backend).await);
    for sku in (0..levels).map(sku) {
        app.set_level(&sku, STOCK).await;
    }
    let cart = move || {
        let line = |_| json!({"sku": sku(rng().usize(..levels)), "quantity": rng().u32(1..=3)});
        (0..rng().usize(1..=5)).map(line).collect::<Vec<_>>()
    };
    let sold = Arc::new(std::sync::Mutex::new(Vec::<Value>::new()));
    let buyer = |buyer: usize| {
        let (app, sold) = (Arc::clone(&app), Arc::clone(&sold));
        async move {
            // Until a cart is refused; then units of each SKU, until that is refused.
            let (mut lines, mut refused) = (cart(), 0);
            while refused <= levels {
                let request = order(&app, buyer, &json!(lines));
                let answer = send_until_final(request.header(KEY, new_key())).await;
                if answer.status == 200 {
                    let made = answer.body["lines"].as_array().expect("lines");
                    assert_eq!(made.len(), lines.len());
                    sold.lock().expect("no panic").extend(made.iter().cloned());
                } else {
                    assert_eq!(answer.code, "insufficient-stock", "{answer:?}");
                    refused += 1;
                }
                lines = match refused {
                    0 => cart(),
                    refused => vec![json!({"sku": sku(refused - 1)})],
                };
            }
        }
    };
    let buyers = number("TEST_ORDER_BUYERS", AT_ONCE);
    let buyers = stream::iter((0..buyers).map(buyer));
    buyers.for_each_concurrent(None, |buyer| buyer).await;
    let sold = mem::take(&mut *sold.lock().expect("no panic"));
    for sku in (0..levels).map(sku) {
        let units = sold.iter().filter(|line| line["sku"] == json!(sku));
        let units: i64 = units
            .map(|line| line["quantity"].as_i64().expect("units"))
            .sum();
        let audit = app.audit(&sku).await;
        let sums = ["sold", "on_hand", "oversold", "drift"].map(|sum| &audit[sum]);
        assert_eq!(units, STOCK, "{sku}");
        assert_eq!(json!(sums), json!([STOCK, 0, 0, 0]), "{sku}");
    }
    let mut raw = Raw::connect(backend, &app.database_url).await;
    let [_, movements] = operations(&mut raw).await;
    assert_eq!(movements, sold.len());
}

/// The levels of a wide order, and the place of the level that another transaction has locked.
const LEVELS: usize = 100;
const LOCKED: usize = 60;

/// Sells single units of all SKUs but the locked one, one after the other, for so long: at both replicas, with and
/// without the scheduler. Returns how many, and how long the slowest sale took.
async fn sell(app: &TestApp, time: Duration) -> (f64, Duration) {
    let (mut slowest, mut sold, begin) = (Duration::ZERO, 0, Instant::now());
    while begin.elapsed() < time {
        let strategy = ["group-commit", "single-sql"][sold / 2 % 2];
        let place = (LOCKED + 1 + sold % (LEVELS - 1)) % LEVELS;
        let request = app.deduct(sold % 2, strategy, &json!({"sku": sku(place)}));
        let answer = send(request).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        slowest = slowest.max(answer.after);
        sold += 1;
    }
    (f64::from(u32::try_from(sold).expect("few sales")), slowest)
}

/// Goal: an order of 100 lines, of which someone else has locked one, does not stop the sales of the other 99.
///
/// Method: the order is repeated as long as the row is locked. Meanwhile, and for as long before, the other SKUs
/// are bought.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_beside_a_locked_row_stops_no_other_sku(#[values(Mysql, Postgres)] backend: Backend) {
    let seconds = number("TEST_ORDER_SECONDS", DEFAULT_SECONDS);
    let held = Duration::from_secs(seconds as u64);
    // In a short time, one pause of the machine counts for much: only a stop is an error.
    let (least, longest) = match seconds {
        ..=DEFAULT_SECONDS => (0.1, held),
        _ => (0.9, Duration::from_millis(800)),
    };
    let app = Arc::new(TestApp::with_flags(backend, 2, &["--wait-limit-ms=1000"]).await);
    for sku in (0..LEVELS).map(sku) {
        app.set_level(&sku, PLENTY).await;
    }
    let (before, _) = sell(&app, held).await;
    let lock = format!("UPDATE stock SET held = held WHERE sku = '{}'", sku(LOCKED));
    let rival = Rival::holding(backend, &app.database_url, lock.leak()).await;
    let cart: Vec<_> = (0..LEVELS)
        .map(|number| json!({"sku": sku(number)}))
        .collect();
    let wide = order(&app, 0, &json!(cart)).header(KEY, new_key());
    let wide = tokio::spawn(send_until_final(wide));

    let (beside, slowest) = sell(&app, held).await;
    assert!(!wide.is_finished(), "the row is locked");
    rival.let_go().await;
    let wide = wide.await.expect("no panic");
    assert_eq!(wide.status, 200, "{wide:?}");
    let ratio = beside / before;
    println!(
        "figure: {backend:?}: {beside} of {before} sales ({ratio:.2}), the slowest took {slowest:.0?}"
    );
    assert!(slowest < longest, "{slowest:?}");
    assert!(ratio >= least, "{ratio}");
}
