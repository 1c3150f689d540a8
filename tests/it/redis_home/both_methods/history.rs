//! Random histories of one SKU with two warehouses.

use std::fmt;

use stocklock::stock::{
    Adjustment, Deduction, Home, Idempotency, LevelChange, Precondition, RequestHash,
};
use tokio::time::Instant;

use crate::store_contract::fixture::{
    adjustment, deduction, idempotency, later, level_change, place,
};

pub(super) const WAREHOUSES: [&str; 2] = ["main", "east"];
/// How long the dedup entry of a key is kept at least, in seconds.
const KEPT: i64 = 24 * 3600;

pub(super) enum Step {
    /// Of one level, all at once. `redis-watch` makes them one after the other.
    Deduct(Vec<Deduction>),
    Adjust(Adjustment),
    Set(LevelChange),
    /// The journal is applied to SQL.
    Apply,
    /// Redis loses the level of this warehouse.
    LoseLevel(&'static str),
    /// SQL has the journal, and Redis loses this level and the dedup entries of all keys.
    LoseKeys(&'static str),
    /// Both levels were loaded so many seconds ago, unless they were never lost.
    Age(i64),
}

impl fmt::Debug for Step {
    /// Short, so that a failing history can be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = |idempotency: &Option<Idempotency>| {
            let key = idempotency.as_ref().map(|found| found.key.as_str());
            key.unwrap_or("no key").to_owned()
        };
        match self {
            Self::Deduct(sales) => {
                let sale = |sale: &Deduction| {
                    let (units, warehouse) = (sale.quantity.units(), &sale.warehouse);
                    let key = key(&sale.idempotency);
                    let has_expired = sale.deadline <= Instant::now();
                    let expired = if has_expired { ", expired" } else { "" };
                    format!(
                        "{units} of {warehouse} ({key}, {}{expired})",
                        sale.operation
                    )
                };
                let sales: Vec<_> = sales.iter().map(sale).collect();
                write!(f, "deduct {}", sales.join(" and "))
            }
            Self::Adjust(change) => {
                let (delta, key) = (change.delta, key(&change.idempotency));
                write!(f, "adjust {} by {delta} ({key})", change.warehouse)
            }
            Self::Set(LevelChange {
                warehouse,
                on_hand,
                backorder_limit,
                ..
            }) => {
                write!(
                    f,
                    "set {warehouse} to {on_hand:?}, limit {backorder_limit:?}"
                )
            }
            Self::Apply => f.write_str("apply the journal"),
            Self::LoseLevel(warehouse) => write!(f, "lose {warehouse}"),
            Self::LoseKeys(warehouse) => {
                write!(f, "apply the journal, lose {warehouse} and the keys")
            }
            Self::Age(seconds) => write!(f, "loaded {seconds} s ago"),
        }
    }
}

/// Makes the steps of a history. `pick` draws a number below another one.
pub(super) struct Generator<P> {
    pub(super) pick: P,
    sku: String,
    made: Vec<Deduction>,
    /// Whether Redis has lost a level. Then a deduction may need several calls, and those that are made at once
    /// have no order.
    lost: bool,
}

impl<P: FnMut(usize) -> usize> Generator<P> {
    pub(super) fn new(pick: P) -> Self {
        Self {
            pick,
            sku: String::new(),
            made: Vec::new(),
            lost: false,
        }
    }

    /// Begins a history of another SKU. Returns the changes that create it.
    pub(super) fn begin(&mut self, sku: &str) -> [LevelChange; 2] {
        (self.sku, self.lost) = (sku.to_owned(), false);
        self.made.clear();
        let on_hand = self.one_of(&[5, 12]);
        WAREHOUSES.map(|warehouse| LevelChange {
            warehouse: place(warehouse),
            ..level_change(sku, on_hand)
        })
    }

    pub(super) fn one_of<T: Clone>(&mut self, options: &[T]) -> T {
        options[(self.pick)(options.len())].clone()
    }

    pub(super) fn next_step(&mut self) -> Step {
        let warehouse = self.one_of(&WAREHOUSES);
        match (self.pick)(24) {
            0..3 if !self.made.is_empty() => {
                let deadline = later();
                let again = self.one_of(&self.made.clone());
                Step::Deduct(vec![Deduction { deadline, ..again }])
            }
            3..6 if !self.lost => {
                let with_key = self.one_of(&[false, true]);
                let count = 2 + (self.pick)(4);
                let sales = (0..count).map(|_| self.deduct(warehouse, with_key));
                Step::Deduct(sales.collect())
            }
            16..18 => Step::Adjust(self.adjust(warehouse)),
            18 => Step::Set(self.set(warehouse)),
            19 => Step::Apply,
            20..22 => {
                self.lost = true;
                let keys = self.one_of(&[false, true]);
                let step = if keys {
                    Step::LoseKeys
                } else {
                    Step::LoseLevel
                };
                step(warehouse)
            }
            22.. if self.lost => Step::Age(KEPT + self.one_of(&[-3600, -60, 60, 3600])),
            _ => {
                let with_key = self.one_of(&[false, true, true]);
                Step::Deduct(vec![self.deduct(warehouse, with_key)])
            }
        }
    }

    /// A key of this SKU, because SQL accepts a key once.
    fn key(&mut self, hash: RequestHash) -> Idempotency {
        let key = format!("{}-{}", self.sku, (self.pick)(4));
        idempotency(&key, hash)
    }

    fn deduct(&mut self, warehouse: &str, with_key: bool) -> Deduction {
        let quantity = self.one_of(&[1, 1, 2, 4]);
        let has_expired = (self.pick)(6) == 0;
        let mut sale = Deduction {
            warehouse: place(warehouse),
            ..deduction(&self.sku, quantity)
        };
        if has_expired {
            sale.deadline = Instant::now();
        }
        let hash = RequestHash::of_deduction(&sale.sku, &sale.warehouse, sale.quantity, None);
        sale.idempotency = with_key.then(|| self.key(hash));
        self.made.push(sale.clone());
        sale
    }

    fn adjust(&mut self, warehouse: &str) -> Adjustment {
        let delta = self.one_of(&[-2, 1, 6]);
        let change = adjustment(&self.sku, delta);
        let hash = RequestHash::of_reversal(change.operation, None, true, "count");
        let with_key = self.one_of(&[false, true]);
        Adjustment {
            warehouse: place(warehouse),
            idempotency: with_key.then(|| self.key(hash)),
            ..change
        }
    }

    fn set(&mut self, warehouse: &str) -> LevelChange {
        LevelChange {
            warehouse: place(warehouse),
            on_hand: Some(self.one_of(&[3, 8])),
            backorder_limit: self.one_of(&[None, Some(0), Some(3)]),
            home: Some(Home::Redis),
            precondition: Some(Precondition::Exists),
            ..level_change(&self.sku, 0)
        }
    }
}
