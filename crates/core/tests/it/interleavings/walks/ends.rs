//! What must hold at the end of a walk, and what has happened in it.

use std::collections::BTreeSet;

use anyhow::ensure;
use stocklock_core::deduct::WritePool;
use stocklock_core::stock::{Deducted, Movement, Operation, Shard, StockError};
use stocklock_core::strategy::Strategy::{self, RedisLua, RedisWatch};
use stocklock_core::strategy::Tier;

use super::super::answers::check_answers;
use super::super::requests::{SKU, sku};
use super::super::scenario::Scenario;
use super::{Answer, ENOUGH, State};

/// What protects no update from being lost.
pub(super) fn unprotected(scenario: &Scenario) -> Option<&'static str> {
    match scenario.strategy.tier() {
        Tier::Unsafe => Some(scenario.strategy.name()),
        Tier::Guarded if !scenario.safeguards.guard => Some("a lock without guard"),
        Tier::Guarded | Tier::Safe => None,
    }
}

/// The slots that one SKU can have.
fn free_slots(pool: &WritePool) -> usize {
    let sku = sku(SKU);
    let admitted = std::iter::from_fn(|| pool.admit(&sku, []).ok());
    admitted.collect::<Vec<_>>().len()
}

impl State {
    /// Returns what has lost an update, if it is allowed to.
    pub(super) fn check(&self, answers: &[Answer]) -> anyhow::Result<Option<&'static str>> {
        check_answers(&self.store, answers)?;
        let ledger = self.store.movements_now();
        let mut keys = BTreeSet::new();
        for one in &ledger {
            let is_first = one
                .idempotency_key
                .as_ref()
                .is_none_or(|key| keys.insert(key));
            let returns = ledger
                .iter()
                .filter(|it| it.reverses == Some(one.operation));
            let returned: i64 = returns.filter_map(|it| it.returned).sum();
            ensure!(
                is_first && returned <= one.delta.abs(),
                "{one:?} in {ledger:?}"
            );
        }
        for ((strategy, order), (_, answer)) in self.orders.iter().zip(answers) {
            let is_right = self.is_right(*strategy, order, answer, &ledger);
            ensure!(is_right, "{order:?} got {answer:?} in {ledger:?}");
        }
        let all = free_slots(&WritePool::new(self.slots, Shard::WHOLE));
        ensure!(free_slots(&self.pool) == all, "a slot is not free again");
        match (self.check_levels(&ledger), unprotected(&self.scenario)) {
            (Err(error), None) => Err(error),
            (levels, unprotected) => Ok(unprotected.filter(|_| levels.is_err())),
        }
    }

    /// What happened besides the steps of the model.
    pub(super) fn met(&self, answers: &[Answer]) -> impl Iterator<Item = &'static str> {
        let gives_up = |it: &StockError| it.code() == "contended";
        let gives_up = answers
            .iter()
            .any(|(_, it)| it.as_ref().is_err_and(gives_up));
        let again = |it: &Option<Deducted>| it.as_ref().is_some_and(|it| it.replayed);
        let again = answers.iter().any(|(_, it)| it.as_ref().is_ok_and(again));
        let ledger = self.store.movements_now();
        let is_returned = ledger.iter().any(|it| it.reverses.is_some());
        let raised = ledger.iter().any(|it| it.delta > 0 && it.level_version > 1);
        let happened = [
            (gives_up, "a buyer gives up"),
            (again, "a sale is answered again"),
            (is_returned, "units are returned"),
            (raised, "a level is raised"),
        ];
        happened
            .into_iter()
            .filter_map(|(is_met, what)| is_met.then_some(what))
    }

    /// The movements of each level lead from one to the next, never below zero, and to the level.
    fn check_levels(&self, ledger: &[Movement]) -> anyhow::Result<()> {
        for (sku, warehouse) in &self.levels {
            let (mut version, mut available) = (0, 0);
            for one in ledger {
                if (&one.sku, &one.warehouse) == (sku, warehouse) {
                    (version, available) = (version + 1, available + one.delta);
                    let follows = (one.level_version, one.available_after) == (version, available);
                    ensure!(follows && available >= 0, "{one:?} in {ledger:?}");
                }
            }
            let levels = self.store.levels_now(sku);
            let level = levels.iter().find(|it| it.warehouse == *warehouse);
            let last = level.map(|it| (it.version, it.available()));
            ensure!(
                last == Some((version, available)),
                "{level:?} after {ledger:?}"
            );
        }
        Ok(())
    }

    /// Whether a buyer's answer can be right, besides what all answers promise.
    fn is_right(
        &self,
        strategy: Strategy,
        order: &Operation,
        answer: &Result<Option<Deducted>, StockError>,
        ledger: &[Movement],
    ) -> bool {
        let (place, units) = (order.level(), order.units());
        let mut own = ledger.iter().filter(|it| (&it.sku, &it.warehouse) == place);
        match answer {
            Ok(Some(sold)) => own.any(|it| {
                (it.operation, -it.delta, it.available_after)
                    == (sold.operation, units, sold.remaining)
            }),
            // The level had so many units, unless a counter refuses or updates are lost.
            Err(StockError::Insufficient { available, .. }) => {
                let is_counted = matches!(strategy, RedisLua | RedisWatch);
                let any = is_counted || unprotected(&self.scenario).is_some();
                *available < units && (any || own.any(|it| it.available_after == *available))
            }
            Err(StockError::IdempotencyKeyReused) => {
                let sent = order.idempotency.as_ref();
                let (key, hash) = sent.map(|it| (it.key.as_str(), it.hash)).unzip();
                let mut ledger = ledger.iter();
                ledger.any(|it| it.idempotency_key.as_deref() == key && it.request_hash != hash)
            }
            Err(StockError::Overloaded { .. }) => self.slots < ENOUGH,
            Err(error) if error.code() == "contended" => true,
            Err(error) => {
                let codes = ["outcome-unknown", "strategy-unavailable", "unavailable"];
                !self.is_calm && codes.contains(&error.code())
            }
            Ok(None) => false,
        }
    }
}
