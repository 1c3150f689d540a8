//! Two requests for one sale at the same time: two reversals, or a reversal and a PUT of its level.
//!
//! `TEST_PAIRS` is the number of pairs.

use std::sync::Arc;

use reqwest::Method;
use reqwest::header::IF_MATCH;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::{number, rng};
use tokio::task::JoinSet;

use super::sell;
use crate::faults::send_until_final;
use crate::store_contract::fixture::Raw;
use crate::support::app::{Answer, TestApp};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

const DEFAULT_PAIRS: usize = 200;

/// How many pairs run at the same time.
const AT_ONCE: usize = 8;

const SKUS: [&str; 2] = ["a", "b"];

const SOLD: u32 = 3;

/// A sale of which more came back than was sold.
const EXCEEDED: &str = "SELECT sold.sku FROM movement sold
    WHERE sold.kind = 'deducted' AND -sold.delta < (
        SELECT sum(returned) FROM movement back WHERE back.reverses = sold.operation_id)";

fn pairs() -> usize {
    number("TEST_PAIRS", DEFAULT_PAIRS)
}

#[derive(Debug, Clone)]
struct Pair {
    sku: &'static str,
    reversal: Value,
    /// The other reversal, or `None` for a PUT.
    other: Option<Value>,
}

impl Pair {
    fn random(number: usize) -> Self {
        let reversal = || {
            let quantity = rng().u32(1..=SOLD);
            let restock = rng().bool();
            json!({"quantity": quantity, "reason": "x", "restock": restock})
        };
        let both = rng().bool();
        Self {
            sku: SKUS[number % SKUS.len()],
            reversal: reversal(),
            other: both.then(reversal),
        }
    }

    /// Returns how many units came back.
    async fn run(&self, app: &TestApp) -> i64 {
        let sale = sell(app, self.sku, SOLD).await;
        let path = format!("/operations/{sale}/reverse");
        let reverse = |replica, body: &Value| app.request(replica, Method::POST, &path).json(body);
        let first = send_until_final(reverse(0, &self.reversal));
        let put = json!({"on_hand": 1_000_000});
        let second = send_until_final(match &self.other {
            Some(other) => reverse(1, other),
            None => app.put(1, self.sku, &put).header(IF_MATCH, "*"),
        });
        let (first, second) = tokio::join!(first, second);
        [first, second]
            .iter()
            .map(|answer| self.units(answer))
            .sum()
    }

    fn units(&self, answer: &Answer) -> i64 {
        if answer.status == 200 {
            return answer.body["quantity"].as_i64().unwrap_or_default();
        }
        assert_eq!(answer.code, "exceeds-sale", "{self:?}: {answer:?}");
        0
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_comes_back_than_was_sold(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = Arc::new(TestApp::start(backend).await);
    for sku in SKUS {
        app.set_level(sku, 1_000_000).await;
    }
    let mut pairs = (0..pairs()).map(Pair::random);
    let mut running = JoinSet::new();
    let mut returned = 0;
    loop {
        for pair in pairs.by_ref().take(AT_ONCE - running.len()) {
            let app = Arc::clone(&app);
            running.spawn(async move { pair.run(&app).await });
        }
        let Some(units) = running.join_next().await else {
            break;
        };
        let units = units.expect("the pair succeeds");
        assert!((1..=i64::from(SOLD)).contains(&units), "{units}");
        returned += units;
    }
    let mut raw = Raw::connect(backend, &app.database_url).await;
    println!("figure: {backend:?}: {returned} units came back");
    assert_eq!(raw.text(EXCEEDED).await, None);
    for sku in SKUS {
        assert_eq!(app.assert_consistent(sku).await["drift"], 0);
    }
}
