//! The plan of a race: strategies, stock, buyers, connections. The targets are given separately.

use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::RaceError;
use stocklock_core::strategy::{Safeguards, Strategy, Tier, UnknownStrategy};

/// The largest number of orders of one run: their latencies and operation ids are kept in memory.
const MAX_ORDERS: i64 = 10_000_000;

/// The largest number of connections: each one needs a port of the client for each target.
const MAX_CONNECTIONS: usize = 10_000;

/// The longest time of one run. Orders that are not settled by then have failed.
pub(super) const DEADLINE: Duration = Duration::from_mins(2);

/// The strategies of a race.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entrants {
    /// All strategies that the targets can run. The others are skipped and listed.
    Everyone,
    /// These strategies, in this order. If a target cannot run one, the race fails.
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

/// One race: the same sale for each strategy, each time of a fresh SKU.
#[derive(Debug, Clone, Serialize)]
pub struct RacePlan {
    /// The strategies.
    pub strategies: Entrants,
    /// Units in stock before each run.
    pub stock: i64,
    /// Buyers who order at the same time.
    pub buyers: usize,
    /// Orders of each buyer, one after the other.
    pub orders: usize,
    /// Units of each order.
    pub quantity: i64,
    /// Keep-alive connections that the buyers share. At most one per buyer is opened.
    pub connections: usize,
    /// The safeguards of the strategies with a lock.
    pub safeguards: Safeguards,
}

impl RacePlan {
    /// All strategies, one unit per order, one connection per buyer, all safeguards.
    #[must_use]
    pub fn new(stock: i64, buyers: usize, orders: usize) -> Self {
        Self {
            strategies: Entrants::Everyone,
            stock,
            buyers,
            orders,
            quantity: 1,
            connections: buyers,
            safeguards: Safeguards::default(),
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

    /// The load of many tutorials: 5,000 in stock, 100 threads of 50 orders each.
    #[must_use]
    pub fn jmeter() -> Self {
        Self::new(5_000, 100, 50)
    }

    /// Orders of all buyers.
    #[must_use]
    pub fn total_orders(&self) -> i64 {
        let orders = self.buyers.saturating_mul(self.orders);
        i64::try_from(orders).unwrap_or(i64::MAX)
    }

    /// Orders for which there is stock.
    pub(super) fn orders_in_stock(&self) -> i64 {
        self.stock / self.quantity
    }

    /// The path of an order under `strategy`. Only strategies with a lock have safeguards.
    pub(super) fn order_path(&self, strategy: Strategy) -> String {
        let safeguards = match strategy.tier() {
            Tier::Guarded => self.safeguards_query(),
            Tier::Safe | Tier::Unsafe => String::new(),
        };
        format!("/stock/deduct?strategy={strategy}{safeguards}")
    }

    /// The path of an order that contains all parameters of this plan.
    pub(super) fn probe_path(&self) -> String {
        self.order_path(Strategy::SingleSql) + &self.safeguards_query()
    }

    fn safeguards_query(&self) -> String {
        let Safeguards { guard, check } = self.safeguards;
        let parameters = [(guard, "&guard=off"), (check, "&check=off")];
        let off = parameters.into_iter().filter(|(on, _)| !on);
        off.map(|(_, parameter)| parameter).collect()
    }

    /// The number of connections that are opened.
    pub(super) fn connections(&self) -> usize {
        self.connections.min(self.buyers)
    }

    pub(super) fn check(&self) -> Result<(), RaceError> {
        let problem = if self.stock < 0 {
            "the stock must not be negative"
        } else if self.quantity < 1 {
            "the quantity of an order must be at least 1"
        } else if self.buyers == 0 || self.orders == 0 || self.connections == 0 {
            "buyers, orders and connections must each be at least 1"
        } else if self.connections() > MAX_CONNECTIONS {
            "at most 10,000 connections; use fewer for the same buyers"
        } else if self.total_orders() > MAX_ORDERS {
            "at most 10,000,000 orders (buyers × orders)"
        } else if self.strategies == Entrants::Only(Vec::new()) {
            "no strategy is named"
        } else {
            return Ok(());
        };
        Err(format!("the race cannot be run: {problem}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entrants_are_all_or_named() {
        let two = Entrants::Only(vec![Strategy::NoLock, Strategy::SingleSql]);
        assert_eq!("all".parse(), Ok(Entrants::Everyone));
        assert_eq!("no-lock, single-sql".parse(), Ok(two));
        for text in ["", "all,no-lock"] {
            assert_eq!(text.parse::<Entrants>(), Err(UnknownStrategy), "{text}");
        }
    }

    #[test]
    fn only_lock_strategies_get_the_safeguards() {
        let mut plan = RacePlan::jmeter();
        plan.safeguards.check = false;
        let path = |strategy| format!("/stock/deduct?strategy={strategy}");
        let (locked, unlocked) = (Strategy::RedisLock, Strategy::Optimistic);
        assert_eq!(plan.order_path(locked), path(locked) + "&check=off");
        assert_eq!(plan.order_path(unlocked), path(unlocked));
        plan.safeguards.guard = false;
        let both = "&guard=off&check=off";
        assert_eq!(plan.order_path(locked), path(locked) + both);
        assert_eq!(plan.probe_path(), path(Strategy::SingleSql) + both);
    }

    #[test]
    fn impossible_plans_are_refused() {
        assert!(RacePlan::seckill().check().is_ok());
        for (stock, buyers, orders) in [(-1, 1, 1), (1, 0, 1), (1, 1, 0), (1, 10_001, 10_000)] {
            assert!(RacePlan::new(stock, buyers, orders).check().is_err());
        }
    }
}
