//! What a race is: who runs, how much is in stock, who buys how much, over how many connections.
//!
//! Where it runs is not decided here: the targets are given beside the plan.

use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::RaceError;
use stocklock_core::stock::Home;
use stocklock_core::strategy::{Safeguards, Strategy, Tier, UnknownStrategy};

/// The most orders of one run: their latencies are kept in memory.
const MAX_ORDERS: usize = 10_000_000;

/// The most connections: each takes a port of the client's machine for each target.
const MAX_CONNECTIONS: usize = 10_000;

/// Where is ordered.
const DEDUCT: &str = "/stock/deduct";

/// Who runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entrants {
    /// Every strategy that the targets can run; the others are skipped, and named.
    Everyone,
    /// These, in this order; one that a target cannot run is an error.
    Only(Vec<Strategy>),
}

impl FromStr for Entrants {
    type Err = UnknownStrategy;

    /// Parses `all`, or names separated by commas.
    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        if text.trim() == "all" {
            return Ok(Self::Everyone);
        }
        let names = text.split(',').map(|name| name.trim().parse());
        names.collect::<Result<_, _>>().map(Self::Only)
    }
}

impl Serialize for Entrants {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Everyone => serializer.serialize_str("all"),
            Self::Only(strategies) => {
                serializer.collect_seq(strategies.iter().map(|strategy| strategy.name()))
            }
        }
    }
}

/// One race: the same sale for each strategy, of a fresh SKU each time.
#[derive(Debug, Clone, Serialize)]
pub struct RacePlan {
    /// Who runs.
    pub strategies: Entrants,
    /// Where the stock lives that is sold.
    pub home: Home,
    /// Units in stock before each run.
    pub stock: i64,
    /// Buyers who order at the same time.
    pub buyers: usize,
    /// Orders of each buyer, one after the other, of one unit each.
    pub orders: usize,
    /// Keep-alive connections over which the buyers are spread; more than buyers are not opened.
    pub connections: usize,
    /// What keeps a lock strategy from harm when its lock is lost.
    pub safeguards: Safeguards,
    /// The longest that one strategy's run may take; what is not settled by then has failed.
    #[serde(rename = "deadline_seconds", serialize_with = "as_seconds")]
    pub deadline: Duration,
    /// The longest that the ledger may take to follow a run in Redis; what is journaled and not in
    /// SQL by then is a finding.
    #[serde(rename = "ledger_limit_seconds", serialize_with = "as_seconds")]
    pub ledger_limit: Duration,
}

impl RacePlan {
    /// Every strategy, a connection for each buyer, all safeguards, stock in SQL, two minutes for
    /// each run.
    #[must_use]
    pub fn new(stock: i64, buyers: usize, orders: usize) -> Self {
        Self {
            strategies: Entrants::Everyone,
            home: Home::Sql,
            stock,
            buyers,
            orders,
            connections: buyers,
            safeguards: Safeguards::default(),
            deadline: Duration::from_mins(2),
            ledger_limit: Duration::from_secs(5),
        }
    }

    /// The flash sale: 100 in stock, 10,000 buyers of one order each over 256 connections.
    #[must_use]
    pub fn seckill() -> Self {
        Self {
            connections: 256,
            ..Self::new(100, 10_000, 1)
        }
    }

    /// The load of many a tutorial: 5,000 in stock, 100 threads of 50 orders each.
    #[must_use]
    pub fn jmeter() -> Self {
        Self::new(5_000, 100, 50)
    }

    /// Orders of all buyers.
    #[must_use]
    pub fn total_orders(&self) -> usize {
        self.buyers.saturating_mul(self.orders)
    }

    /// What an exact run sells.
    #[must_use]
    pub fn expected_sales(&self) -> i64 {
        let orders = i64::try_from(self.total_orders()).unwrap_or(i64::MAX);
        self.stock.min(orders)
    }

    /// Where buyers order under `strategy`. Only a strategy with a lock is told which safeguards
    /// are off; the others have none.
    pub(super) fn order_path(&self, strategy: Strategy) -> String {
        match strategy.tier() {
            Tier::Guarded => self.path(strategy),
            Tier::Safe | Tier::Volatile | Tier::Unsafe => {
                format!("{DEDUCT}?strategy={strategy}")
            }
        }
    }

    /// The same for a single order that shows whether a target takes all that a race may send.
    pub(super) fn probe_path(&self) -> String {
        self.path(Strategy::SingleSql)
    }

    fn path(&self, strategy: Strategy) -> String {
        let switch = |is_on, off| if is_on { "" } else { off };
        let Safeguards { guard, check } = self.safeguards;
        let guard = switch(guard, "&guard=off");
        let check = switch(check, "&check=off");
        format!("{DEDUCT}?strategy={strategy}{guard}{check}")
    }

    /// Connections that are really opened.
    pub(super) fn connections(&self) -> usize {
        self.connections.min(self.buyers)
    }

    pub(super) fn check(&self) -> Result<(), RaceError> {
        let problem = if self.stock < 0 {
            "the stock must not be negative"
        } else if self.buyers == 0 || self.orders == 0 || self.connections == 0 {
            "buyers, orders and connections must each be at least 1"
        } else if self.connections() > MAX_CONNECTIONS {
            "at most 10,000 connections: spread the buyers over fewer"
        } else if self.total_orders() > MAX_ORDERS {
            "at most 10,000,000 orders (buyers × orders)"
        } else if self.strategies == Entrants::Only(Vec::new()) {
            "no strategy is named"
        } else {
            return Ok(());
        };
        Err(RaceError::Plan(problem))
    }
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entrants_are_all_or_named_ones() {
        assert_eq!("all".parse(), Ok(Entrants::Everyone));
        assert_eq!(
            "no-lock, single-sql".parse(),
            Ok(Entrants::Only(vec![Strategy::NoLock, Strategy::SingleSql]))
        );
        assert_eq!("".parse::<Entrants>(), Err(UnknownStrategy));
        assert_eq!("all,no-lock".parse::<Entrants>(), Err(UnknownStrategy));
    }

    #[test]
    fn an_exact_run_sells_no_more_than_there_is_and_no_more_than_is_ordered() {
        assert_eq!(RacePlan::seckill().expected_sales(), 100);
        assert_eq!(RacePlan::jmeter().expected_sales(), 5_000);
        assert_eq!(RacePlan::new(10, 2, 3).expected_sales(), 6);
    }

    #[test]
    fn only_a_strategy_with_a_lock_is_told_that_a_safeguard_is_off() {
        let mut plan = RacePlan::jmeter();
        let locked = "/stock/deduct?strategy=redis-lock";
        assert_eq!(plan.order_path(Strategy::RedisLock), locked);
        plan.safeguards.check = false;
        let unchecked = format!("{locked}&check=off");
        assert_eq!(plan.order_path(Strategy::RedisLock), unchecked);
        plan.safeguards.guard = false;
        let neither = format!("{locked}&guard=off&check=off");
        assert_eq!(plan.order_path(Strategy::RedisLock), neither);
        let without_lock = "/stock/deduct?strategy=optimistic";
        assert_eq!(plan.order_path(Strategy::Optimistic), without_lock);
        let probe = "/stock/deduct?strategy=single-sql&guard=off&check=off";
        assert_eq!(plan.probe_path(), probe);
    }

    #[test]
    fn plans_that_cannot_be_run_are_refused() {
        assert!(RacePlan::seckill().check().is_ok());
        for (stock, buyers, orders) in [(-1, 1, 1), (1, 0, 1), (1, 1, 0), (1, 10_001, 10_000)] {
            assert!(RacePlan::new(stock, buyers, orders).check().is_err());
        }
    }
}
