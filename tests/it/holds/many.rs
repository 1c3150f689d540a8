//! What a hold and a sale cost while a SKU has many open holds.
//!
//! `TEST_OPEN_HOLDS` is their number. From 100,000 on, the times are checked.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use stocklock_testkit::run::number;
use tokio::time::Instant;

use super::{end, level};
use crate::faults::{KEY, new_key};
use crate::support::app::{TestApp, send};
use crate::support::rival::Raw;
use crate::support::seeded_ledger::hold;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;
use crate::support::timing::p99;

const DEFAULT_HOLDS: usize = 2_000;
/// From this number on, the times are checked.
const LARGE: usize = 100_000;
const DEFAULT_ROUNDS: usize = 20;
/// Enough for a 99th percentile.
const ROUNDS: usize = 3_000;
/// More units than a test holds or sells.
const PLENTY: i64 = 100_000_000;

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_holds_cost_a_hold_and_a_sale_nothing(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let holds = number("TEST_OPEN_HOLDS", DEFAULT_HOLDS);
    let rounds = if holds < LARGE {
        DEFAULT_ROUNDS
    } else {
        ROUNDS
    };
    let database = fresh_database(backend).await;
    let app = TestApp::on(&database.url, 1, &[]).await.patient();
    for sku in ["few", "many"] {
        app.set_level(sku, PLENTY).await;
    }
    let mut raw = Raw::connect(backend, &database.url).await;
    hold(&mut raw, "many", holds as u64).await;
    if backend == Postgres {
        raw.run("ANALYZE").await.expect("it is analysed");
    }

    let mut times = [(); 4].map(|()| Vec::with_capacity(rounds));
    let timed = async |request: reqwest::RequestBuilder, times: &mut Vec<Duration>| {
        let start = Instant::now();
        let answer = send(request.header(KEY, new_key())).await;
        times.push(start.elapsed());
        assert!([200, 201].contains(&answer.status), "{answer:?}");
        answer
    };
    for round in 0..rounds {
        let mut skus = [("few", 0), ("many", 2)];
        if round % 2 == 1 {
            skus.reverse();
        }
        for (sku, place) in skus {
            let body = json!({"lines": [{ "sku": sku }]});
            let held = app.request(0, Method::POST, "/holds").json(&body);
            let held = timed(held, &mut times[place]).await;
            timed(
                app.deduct(0, "group-commit", &json!({ "sku": sku })),
                &mut times[place + 1],
            )
            .await;
            let released = end(&app, 0, &held.id, "release", &json!({})).await;
            released.ok();
        }
    }

    let sold = i64::try_from(rounds).expect("few rounds");
    assert_eq!(level(&app, "few").await, json!([PLENTY - sold, 0]));
    assert_eq!(level(&app, "many").await, json!([PLENTY - sold, holds]));
    let audit = app.assert_consistent("many").await;
    assert_eq!(audit["held"], holds, "{audit}");
    let [hold_few, sale_few, hold_many, sale_many] = times.map(p99);
    println!(
        "figure: {backend:?}, p99 beside {holds} open holds of the SKU, and beside none: a hold {hold_many:.1?} \
         and {hold_few:.1?}, a sale {sale_many:.1?} and {sale_few:.1?}"
    );
    if holds >= LARGE {
        assert!(hold_many <= hold_few.mul_f64(1.2), "holds");
        assert!(sale_many <= sale_few.mul_f64(1.2), "sales");
    }
}
