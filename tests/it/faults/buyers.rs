//! Buyers that keep buying one SKU while a test breaks something, and the check of their answers
//! against the ledger.
//!
//! A buyer with a key buys one unit at a time and repeats each request until the answer is 200. A
//! buyer without a key sends each request once, for a quantity by which its sale can be recognized
//! in the ledger: after a 503 there must be no such sale, after a 504 there may be one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::json;
use stocklock_testkit::eventually;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Answer, KEY, Ledger, SOON, copy, new_key, try_send};

/// More units than the buyers of a test can buy.
pub(crate) const PLENTY: i64 = 1_000_000_000;
/// How long a test waits for sales, and a buyer for the answer to one key.
const PATIENCE: Duration = SOON.saturating_mul(2);
/// The largest quantity of a deduction.
const MAX_QUANTITY: u32 = 10_000;

/// Which buyers send an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    All,
    /// Every other pair, so that both of two replicas get requests of either kind.
    Half,
}

/// Buyers of one SKU.
pub(crate) struct Buyers {
    market: Arc<Market>,
    tasks: JoinSet<Vec<Purchase>>,
}

/// What the buyers of a SKU share with the test.
struct Market {
    sku: String,
    sold: AtomicUsize,
    refused: AtomicUsize,
    stop: AtomicBool,
    /// Whether a request may end without an answer.
    replicas_stop: AtomicBool,
    quantities: AtomicU32,
    check_refusal: CheckRefusal,
}

/// Checks an answer that asks for a retry, and the time that it took.
type CheckRefusal = Box<dyn Fn(&Answer, Duration) + Send + Sync>;

/// The purchases of one SKU that were not refused.
pub(crate) struct Purchases {
    sku: String,
    /// Each acknowledged operation, with its units.
    pub(crate) acknowledged: BTreeMap<String, i64>,
    /// The units of each purchase whose outcome is unknown.
    unknown: Vec<i64>,
}

/// Units, and the acknowledged operation or `None` if the outcome is unknown.
type Purchase = (i64, Option<String>);

impl Buyers {
    /// Starts a buyer for each of these deductions of one unit of `sku`. `check_refusal` gets each
    /// answer that asks for a retry, and the time that it took.
    pub(crate) fn start(
        sku: &str,
        keys: Keys,
        orders: impl IntoIterator<Item = RequestBuilder>,
        check_refusal: impl Fn(&Answer, Duration) + Send + Sync + 'static,
    ) -> Self {
        let market = Arc::new(Market {
            sku: sku.to_owned(),
            sold: AtomicUsize::default(),
            refused: AtomicUsize::default(),
            stop: AtomicBool::default(),
            replicas_stop: AtomicBool::default(),
            quantities: AtomicU32::default(),
            check_refusal: Box::new(check_refusal),
        });
        let buyer = |(number, order)| {
            let with_key = keys == Keys::All || number / 2 % 2 == 0;
            Arc::clone(&market).keep_buying(order, with_key)
        };
        let tasks = orders.into_iter().enumerate().map(buyer).collect();
        Self { market, tasks }
    }

    /// Returns after `more` further sales.
    pub(crate) async fn sell(&self, more: usize) {
        self.count_up("sales", &self.market.sold, more).await;
    }

    /// Returns after `more` further refusals.
    pub(crate) async fn are_refused(&self, more: usize) {
        self.count_up("refusals", &self.market.refused, more).await;
    }

    async fn count_up(&self, what: &str, counter: &AtomicUsize, more: usize) {
        let goal = counter.load(Ordering::SeqCst) + more;
        let what = format!("{more} more {what} of {}", self.market.sku);
        let reached = || async { counter.load(Ordering::SeqCst) >= goal };
        eventually(&what, PATIENCE, reached).await;
    }

    /// How many sales were acknowledged so far.
    pub(crate) fn sales(&self) -> usize {
        self.market.sold.load(Ordering::SeqCst)
    }

    /// Lets a buyer whose request ends without an answer leave from now on.
    pub(crate) fn replicas_stop(&self) {
        self.market.replicas_stop.store(true, Ordering::SeqCst);
    }

    /// Stops the buyers.
    pub(crate) async fn stop(self) -> Purchases {
        self.market.stop.store(true, Ordering::SeqCst);
        let mut purchases = Purchases {
            sku: self.market.sku.clone(),
            acknowledged: BTreeMap::new(),
            unknown: Vec::new(),
        };
        for (units, operation) in self.tasks.join_all().await.concat() {
            if let Some(operation) = operation {
                let earlier = purchases.acknowledged.insert(operation, units);
                assert_eq!(earlier, None, "an operation was acknowledged twice");
            } else {
                purchases.unknown.push(units);
            }
        }
        purchases
    }
}

impl Purchases {
    /// Asserts that the ledger has each acknowledged sale once, besides at most one sale for each
    /// purchase whose outcome is unknown, and no others.
    pub(crate) async fn assert_exact(mut self, ledger: &Ledger) {
        let sku = &self.sku;
        let mut unexplained: BTreeMap<_, _> = ledger.sales(sku).await.into_iter().collect();
        for (operation, units) in self.acknowledged {
            let recorded = unexplained.remove(&operation);
            assert_eq!(recorded, Some(units), "{sku}: {operation} is acknowledged");
        }
        for (operation, units) in unexplained {
            let index = self.unknown.iter().position(|&unknown| unknown == units);
            let index = index.unwrap_or_else(|| panic!("{sku}: {operation} was refused"));
            self.unknown.swap_remove(index);
        }
        let audit = ledger.assert_consistent(sku).await;
        assert_eq!(audit.on_hand, PLENTY - audit.sold, "{sku}");
    }
}

impl Market {
    async fn keep_buying(self: Arc<Self>, order: RequestBuilder, with_key: bool) -> Vec<Purchase> {
        let mut purchases = Vec::new();
        while !self.stop.load(Ordering::SeqCst) {
            let purchase = if with_key {
                self.buy_with_key(&order).await
            } else {
                self.buy_without_key(&order).await
            };
            match purchase {
                Ok(purchase) => purchases.extend(purchase),
                Err(_) => break,
            }
        }
        purchases
    }

    async fn buy_with_key(&self, order: &RequestBuilder) -> reqwest::Result<Option<Purchase>> {
        let order = copy(order).header(KEY, new_key());
        let started = Instant::now();
        loop {
            let answer = self.attempt(copy(&order)).await?;
            if answer.status == 200 {
                return Ok(Some((1, Some(answer.id))));
            }
            assert!(started.elapsed() < PATIENCE, "still {answer:?}");
        }
    }

    async fn buy_without_key(&self, order: &RequestBuilder) -> reqwest::Result<Option<Purchase>> {
        let number = self.quantities.fetch_add(1, Ordering::SeqCst);
        let units = number % (MAX_QUANTITY - 1) + 2;
        let order = copy(order).json(&json!({"sku": self.sku, "quantity": units}));
        let answer = self.attempt(order).await?;
        Ok(match answer.status {
            200 => Some((units.into(), Some(answer.id))),
            504 => Some((units.into(), None)),
            _ => None,
        })
    }

    /// Sends a request once and counts its answer.
    async fn attempt(&self, request: RequestBuilder) -> reqwest::Result<Answer> {
        let started = Instant::now();
        let answer = try_send(request).await.inspect_err(|error| {
            let expected = self.replicas_stop.load(Ordering::SeqCst);
            assert!(expected, "a replica always answers: {error}");
        })?;
        if answer.status == 200 {
            self.sold.fetch_add(1, Ordering::SeqCst);
        } else {
            assert!(answer.asks_for_retry(), "{answer:?}");
            (self.check_refusal)(&answer, started.elapsed());
            self.refused.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(10)).await;
        }
        Ok(answer)
    }
}
