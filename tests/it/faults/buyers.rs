//! Buyers that keep buying one SKU while a test breaks something, and the check of their answers
//! against the ledger.
//!
//! A buyer with a key repeats each request until its outcome is known. A buyer without a key sends each
//! request once: after a 503 there must be no sale, after a 504 there may be one. Each purchase has its
//! own reference, by which its sale is found in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::RequestBuilder;
use reqwest::header::IF_MATCH;
use serde_json::json;
use stocklock_testkit::eventually;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

mod pauses;

pub(crate) use pauses::Pause;
use pauses::Sales;

use super::{Answer, KEY, Ledger, SOON, copy, new_key, send, try_send};

/// More units than the buyers of a test can buy.
pub(crate) const PLENTY: i64 = 1_000_000_000;
/// Fewer units than the largest quantity, for [`Keys::AllScarce`].
pub(crate) const SCARCE: i64 = 9_000;
/// How long a test waits for sales, and a buyer for the answer to one key.
const PATIENCE: Duration = SOON.saturating_mul(2);
const MAX_QUANTITY: u32 = 10_000;
pub(crate) const SHORT: &str = "insufficient-stock";
/// After this time no attempt of a killed replica can sell: the wait limit of the service and a margin.
pub(crate) const EXPIRED: Duration = Duration::from_secs(3);

/// Which buyers send an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// All, for different quantities. The stock is at most [`SCARCE`], so some of them are refused. Half of
    /// them accept a 503 and do not repeat the request.
    AllScarce,
    /// All. Half of the buyers accept a 503 and do not repeat the request.
    All,
    /// Every other pair, so that both of two replicas get requests of either kind.
    Half,
    /// The same, and the stock may run out.
    HalfScarce,
}

impl Keys {
    fn units(self, number: u32) -> u32 {
        match self {
            Self::HalfScarce => 1,
            Self::AllScarce if number % 16 == 15 => MAX_QUANTITY,
            Self::AllScarce | Self::All | Self::Half => number % 7 + 1,
        }
    }

    fn are_all(self) -> bool {
        matches!(self, Self::All | Self::AllScarce)
    }

    fn may_be_short(self) -> bool {
        matches!(self, Self::AllScarce | Self::HalfScarce)
    }
}

/// What a buyer does if a request ends without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnCut {
    /// Fails the test.
    Panic,
    /// Leaves. The request must not have sold anything.
    Leave,
    /// Repeats the request with its key, at the replica of the next buyer. Without a key, the outcome is
    /// unknown if the request was sent.
    Retry,
}

/// Sets the level of a SKU for [`Keys::AllScarce`]. `put` is a PUT of that SKU.
pub(crate) async fn restock(put: RequestBuilder) {
    let put = put.header(IF_MATCH, "*").json(&json!({"on_hand": SCARCE}));
    eventually("the SKU is restocked", PATIENCE, async || {
        send(copy(&put)).await.status == 200
    })
    .await;
}

pub(crate) struct Buyers {
    market: Arc<Market>,
    tasks: JoinSet<Vec<Purchase>>,
}

/// What the buyers of a SKU share with the test.
struct Market {
    sku: String,
    keys: Keys,
    /// One of each buyer.
    orders: Vec<RequestBuilder>,
    /// How many requests of each buyer have ended.
    ended: Vec<AtomicUsize>,
    sold: AtomicUsize,
    sales: Mutex<Sales>,
    stop: AtomicBool,
    on_cut: Mutex<OnCut>,
    numbers: AtomicU32,
    check_refusal: CheckRefusal,
}

/// Checks an answer that asks for a retry, and the time that it took.
type CheckRefusal = Box<dyn Fn(&Answer, Duration) + Send + Sync>;

pub(crate) struct Purchases {
    sku: String,
    keys: Keys,
    all: Vec<Purchase>,
}

/// The last that a buyer knows about a purchase.
struct Purchase {
    reference: String,
    units: u32,
    end: End,
    /// Whether a retry resolved an unknown outcome.
    resolved: bool,
}

enum End {
    /// The operation is acknowledged.
    Sold(String),
    /// Nothing was sold.
    Refused,
    Unknown,
}

impl Buyers {
    /// Starts a buyer for each of these deductions of one unit of `sku`. `check_refusal` gets each
    /// answer that asks for a retry, and the time that it took.
    pub(crate) fn start(
        sku: &str,
        keys: Keys,
        orders: impl IntoIterator<Item = RequestBuilder>,
        check_refusal: impl Fn(&Answer, Duration) + Send + Sync + 'static,
    ) -> Self {
        let orders: Vec<_> = orders.into_iter().collect();
        let market = Arc::new(Market {
            sku: sku.to_owned(),
            keys,
            ended: orders.iter().map(|_| AtomicUsize::default()).collect(),
            orders,
            sold: AtomicUsize::default(),
            sales: Mutex::new(Sales::from_now()),
            stop: AtomicBool::default(),
            on_cut: Mutex::new(OnCut::Panic),
            numbers: AtomicU32::default(),
            check_refusal: Box::new(check_refusal),
        });
        let buyer = |number| Arc::clone(&market).keep_buying(number);
        let tasks = (0..market.orders.len()).map(buyer).collect();
        Self { market, tasks }
    }

    /// Returns after `more` further sales.
    pub(crate) async fn sell(&self, more: usize) {
        let goal = self.sales() + more;
        let what = format!("{more} more sales of {}", self.market.sku);
        let reached = || async { self.sales() >= goal };
        eventually(&what, PATIENCE, reached).await;
    }

    /// Returns after a request of each buyer has ended, and with it all that are in progress now.
    pub(crate) async fn are_answered(&self) {
        let count = || {
            let ended = self.market.ended.iter();
            ended.map(|count| count.load(Ordering::SeqCst))
        };
        let before: Vec<_> = count().collect();
        let all_end = async || count().zip(&before).all(|(now, before)| now > *before);
        eventually("each buyer is answered", PATIENCE, all_end).await;
    }

    pub(crate) fn sales(&self) -> usize {
        self.market.sold.load(Ordering::SeqCst)
    }

    /// The next [`Self::longest_pause`] is one of those from now on.
    pub(crate) fn watch(&self) {
        *self.market.sales.lock().expect("no panic") = Sales::from_now();
    }

    /// The longest time between two sales. One that has not ended does not count.
    pub(crate) fn longest_pause(&self) -> Pause {
        self.market.sales.lock().expect("no panic").longest
    }

    /// Lets a buyer whose request ends without an answer leave from now on.
    pub(crate) fn replicas_stop(&self) {
        *self.market.on_cut.lock().expect("no panic") = OnCut::Leave;
    }

    /// Lets a buyer with a key repeat a request that ends without an answer from now on. Without a key,
    /// the outcome is unknown if the request was sent.
    pub(crate) fn replicas_are_killed(&self) {
        *self.market.on_cut.lock().expect("no panic") = OnCut::Retry;
    }

    pub(crate) async fn stop(self) -> Purchases {
        self.market.stop.store(true, Ordering::SeqCst);
        Purchases {
            sku: self.market.sku.clone(),
            keys: self.market.keys,
            all: self.tasks.join_all().await.into_iter().flatten().collect(),
        }
    }
}

impl Purchases {
    pub(crate) fn acknowledged(&self) -> usize {
        self.count(|one| matches!(one.end, End::Sold(_)))
    }

    pub(crate) fn refused(&self) -> usize {
        self.count(|one| matches!(one.end, End::Refused))
    }

    pub(crate) fn resolved(&self) -> usize {
        self.count(|one| one.resolved)
    }

    /// How many acknowledged sales the ledger does not have.
    pub(crate) async fn lost(&self, ledger: &Ledger) -> usize {
        let recorded = ledger.sold(&self.sku).await;
        self.count(|one| matches!(&one.end, End::Sold(operation) if !recorded.contains(operation)))
    }

    fn count(&self, is_one: impl Fn(&Purchase) -> bool) -> usize {
        self.all.iter().filter(|one| is_one(one)).count()
    }

    /// Asserts that the ledger has each acknowledged sale once, besides at most one sale for each
    /// purchase whose outcome is unknown, and no others; and that its sum is the level.
    pub(crate) async fn assert_exact(self, ledger: &Ledger) {
        let sku = &self.sku;
        let movements = ledger.movements(sku).await;
        let mut recorded = BTreeMap::<String, Vec<(String, i64)>>::new();
        for sale in movements.iter().filter(|it| it.strategy.is_some()) {
            let reference = sale.reference.clone().expect("each order has one");
            let sale = (sale.operation.to_string(), -sale.delta);
            recorded.entry(reference.into()).or_default().push(sale);
        }
        let mut operations = BTreeSet::new();
        for purchase in self.all {
            let reference = purchase.reference;
            let found = recorded.remove(&reference).unwrap_or_default();
            match purchase.end {
                End::Sold(operation) => {
                    let sale = (operation.clone(), i64::from(purchase.units));
                    assert_eq!(found, [sale], "{reference} is acknowledged");
                    let is_new = operations.insert(operation);
                    assert!(is_new, "{reference} has the sale of another one");
                }
                End::Refused => assert!(found.is_empty(), "{reference} was refused: {found:?}"),
                End::Unknown => assert!(found.len() <= 1, "{reference}: {found:?}"),
            }
        }
        assert!(recorded.is_empty(), "not ordered: {recorded:?}");
        let audit = ledger.assert_consistent(sku).await;
        let deltas = movements.iter().map(|it| it.delta);
        assert_eq!(audit.on_hand, deltas.sum::<i64>(), "{sku}");
        if !self.keys.may_be_short() {
            assert_eq!(audit.on_hand, PLENTY - audit.sold, "{sku}");
        }
    }
}

impl Market {
    async fn keep_buying(self: Arc<Self>, buyer: usize) -> Vec<Purchase> {
        let with_key = self.keys.are_all() || (buyer / 2).is_multiple_of(2);
        let mut purchases = Vec::new();
        while !self.stop.load(Ordering::SeqCst) {
            let number = self.numbers.fetch_add(1, Ordering::SeqCst);
            let purchase = if with_key {
                self.buy_with_key(buyer, number).await
            } else {
                self.buy_without_key(buyer, number).await
            };
            match purchase {
                Ok(purchase) => purchases.push(purchase),
                Err(_) => break,
            }
        }
        purchases
    }

    async fn buy_with_key(&self, buyer: usize, number: u32) -> reqwest::Result<Purchase> {
        let (key, started) = (new_key(), Instant::now());
        let gives_up = self.keys.are_all() && number.is_multiple_of(2);
        let (mut at, mut was_unknown, mut last_cut) = (buyer, false, None::<Instant>);
        loop {
            let order = self.order(at, number).header(KEY, &key);
            let attempt = self.attempt(buyer, order).await;
            let end = match &attempt {
                Ok(answer) if answer.status == 200 => Some(End::Sold(answer.id.clone())),
                // The refusal is about this request. An earlier one may still sell until it expires.
                Ok(answer) if answer.code == SHORT => last_cut
                    .is_none_or(|cut| cut.elapsed() > EXPIRED)
                    .then_some(End::Refused),
                Ok(answer) if answer.status == 503 && gives_up && !was_unknown => {
                    Some(End::Refused)
                }
                Ok(answer) => {
                    was_unknown |= matches!(answer.status, 502 | 504);
                    None
                }
                Err(error) => {
                    if self.on_cut() == OnCut::Leave {
                        return Err(attempt.expect_err("it is an error"));
                    }
                    at += 1;
                    if !error.is_connect() {
                        was_unknown = true;
                        last_cut = Some(Instant::now());
                    }
                    None
                }
            };
            if let Some(end) = end {
                return Ok(self.purchase(number, end, was_unknown));
            }
            assert!(started.elapsed() < PATIENCE, "still {attempt:?}");
        }
    }

    async fn buy_without_key(&self, buyer: usize, number: u32) -> reqwest::Result<Purchase> {
        let end = match self.attempt(buyer, self.order(buyer, number)).await {
            Ok(answer) if answer.status == 200 => End::Sold(answer.id),
            Ok(answer) if answer.status == 504 => End::Unknown,
            Err(error) if self.on_cut() == OnCut::Leave => return Err(error),
            // The request was sent.
            Err(error) if !error.is_connect() => End::Unknown,
            _ => End::Refused,
        };
        Ok(self.purchase(number, end, false))
    }

    fn purchase(&self, number: u32, end: End, resolved: bool) -> Purchase {
        Purchase {
            reference: self.reference(number),
            units: self.keys.units(number),
            end,
            resolved,
        }
    }

    fn reference(&self, number: u32) -> String {
        format!("{}-{number}", self.sku)
    }

    fn order(&self, buyer: usize, number: u32) -> RequestBuilder {
        let order = copy(&self.orders[buyer % self.orders.len()]);
        let (units, reference) = (self.keys.units(number), self.reference(number));
        order.json(&json!({"sku": self.sku, "quantity": units, "reference": reference}))
    }

    fn on_cut(&self) -> OnCut {
        *self.on_cut.lock().expect("no panic")
    }

    async fn attempt(&self, buyer: usize, request: RequestBuilder) -> reqwest::Result<Answer> {
        let started = Instant::now();
        let answer = try_send(request).await;
        self.ended[buyer].fetch_add(1, Ordering::SeqCst);
        let answer = answer.inspect_err(|error| {
            let on_cut = self.on_cut();
            assert_ne!(on_cut, OnCut::Panic, "a replica always answers: {error}");
        });
        if answer.as_ref().is_ok_and(|answer| answer.status == 200) {
            self.sold.fetch_add(1, Ordering::SeqCst);
            self.sales.lock().expect("no panic").one_more();
            return answer;
        }
        if let Ok(answer) = &answer
            && !(self.keys.may_be_short() && answer.code == SHORT)
        {
            assert!(answer.asks_for_retry(), "{answer:?}");
            (self.check_refusal)(answer, started.elapsed());
        }
        sleep(Duration::from_millis(10)).await;
        answer
    }
}
