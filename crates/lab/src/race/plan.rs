//! The plan of a race: strategies, stock, buyers, connections, replicas. It is the flags of `stocklock race`, the
//! body with which the page starts a race, and what page and report show of it.

use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser as _};
use clap::{ArgAction, Args, value_parser};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::RaceError;
use super::text::{as_milliseconds, from_milliseconds};
use stocklock_core::strategy::{Strategy, Tier, UnknownStrategy};
use stocklock_core::whole::whole;

/// The largest number of lines of one run: their latencies and operation ids are kept in memory.
const MAX_ORDERS: i64 = 10_000_000;

/// The largest number of connections: each one needs a port of the client for each target.
const MAX_CONNECTIONS: usize = 10_000;

/// The longest time of one run. Orders that are not settled by then have failed.
pub(super) const DEADLINE: Duration = Duration::from_mins(2);

/// The longest round trip that is added. Opening a connection takes several round trips, which must fit into the
/// wait limit.
const MAX_RTT: Duration = Duration::from_millis(100);

/// Why another strategy cannot race with orders of several lines or with holds.
pub(crate) const ONLY_GROUP_COMMIT: &str =
    "orders of several lines and holds are made by group-commit under every strategy";

/// The strategies of a race.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Names")]
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

/// The strategies of a race: `"all"`, or a list of names.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Names {
    /// The word `all`.
    All(String),
    /// Names.
    These(Vec<String>),
}

impl TryFrom<Names> for Entrants {
    type Error = String;

    fn try_from(names: Names) -> Result<Self, String> {
        let names = match names {
            Names::All(word) if word == "all" => return Ok(Self::Everyone),
            Names::All(_) => Vec::new(),
            Names::These(names) => names,
        };
        if names.is_empty() {
            return Err(
                "expected \"all\", or a list of names; GET /strategies lists them".to_owned(),
            );
        }
        let mut strategies = Vec::new();
        for name in &names {
            let strategy: Strategy = name
                .parse()
                .map_err(|_| format!("`{name}` is not a strategy; GET /strategies lists them"))?;
            if strategies.contains(&strategy) {
                return Err("a name is repeated".to_owned());
            }
            strategies.push(strategy);
        }
        Ok(Self::Only(strategies))
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

/// One race: the same sale for each strategy, each time of a fresh SKU. What is left out has the default of
/// `stocklock race`.
#[derive(Debug, Clone, Serialize, Deserialize, Args, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = NewRace)]
pub struct RacePlan {
    /// `all`, or names separated by commas; see GET /strategies
    #[arg(long = "strategy", value_name = "NAMES", default_value = "all")]
    #[schema(value_type = Names)]
    pub strategies: Entrants,

    /// Units in stock before each run
    #[arg(long, value_name = "N", default_value_t = RacePlan::default().stock,
          value_parser = value_parser!(i64).range(1..=1_000_000_000))]
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub stock: i64,

    /// Buyers who order at the same time
    #[arg(long, value_name = "N", default_value_t = RacePlan::default().buyers, value_parser = up_to(100_000))]
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 1000)]
    pub buyers: usize,

    /// Orders of each buyer, one after the other
    #[arg(long, value_name = "N", default_value_t = RacePlan::default().orders, value_parser = up_to(1_000_000))]
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub orders: usize,

    /// Units of each order
    #[arg(long, value_name = "N", default_value_t = RacePlan::default().quantity,
          value_parser = value_parser!(i64).range(1..=1_000))]
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 100)]
    pub quantity: i64,

    /// Lines of each order, each of another SKU: all are taken, or nothing. Several lines are an operation of their
    /// own, which no strategy but `group-commit` makes
    #[arg(long, value_name = "N", default_value_t = RacePlan::default().lines, value_parser = up_to(100))]
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10)]
    pub lines: usize,

    /// Each buyer first holds the units of an order and then confirms it, as after a payment; only `group-commit`
    /// races
    #[arg(long)]
    pub holds: bool,

    /// Connections that the buyers share [default: one per buyer]
    #[arg(long, value_name = "N", value_parser = up_to(10_000))]
    #[serde(skip_deserializing)]
    pub connections: Option<usize>,

    /// Replicas to start
    #[arg(long, value_name = "N", default_value_t = RacePlan::default().replicas, conflicts_with = "targets",
          value_parser = value_parser!(u32).range(1..=16))]
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 4)]
    pub replicas: u32,

    /// `off` (in JSON `false`): strategies with a lock write unconditionally, so a lost lock can oversell
    #[arg(long, value_name = "SWITCH", default_value = "on", value_parser = switch(),
          action = ArgAction::Set)]
    pub guard: bool,

    /// `off`: strategies with a lock do not check whether they lost it; the guard still refuses the
    /// write
    #[arg(long, value_name = "SWITCH", default_value = "on", value_parser = switch(),
          action = ArgAction::Set)]
    #[serde(skip_deserializing)]
    pub check: bool,

    /// Add this round trip between the replicas and the database, Redis and ZooKeeper, such as
    /// `1ms` or `500us`, up to 100ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = round_trip,
          conflicts_with = "targets")]
    #[serde(rename = "rtt_ms", serialize_with = "as_milliseconds")]
    #[serde(deserialize_with = "from_milliseconds")]
    #[schema(value_type = f64, minimum = 0, maximum = 100, default = 0.0)]
    pub rtt: Duration,
}

fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Parses whether a safeguard is used.
fn switch() -> impl clap::builder::TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|switch| switch == "on")
}

/// Parses the value of `--rtt`.
fn round_trip(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(rtt) if rtt <= MAX_RTT => Ok(rtt),
        _ => Err("expected a time in us or ms, up to 100ms, such as 1ms; or 0".to_owned()),
    }
}

impl Default for RacePlan {
    /// The race without any flag.
    fn default() -> Self {
        Self::new(5_000, 100, 60)
    }
}

impl RacePlan {
    /// All strategies, one unit per order, one connection per buyer, all safeguards, two replicas.
    #[must_use]
    pub fn new(stock: i64, buyers: usize, orders: usize) -> Self {
        Self {
            strategies: Entrants::Everyone,
            stock,
            buyers,
            orders,
            quantity: 1,
            lines: 1,
            holds: false,
            connections: None,
            replicas: 2,
            guard: true,
            check: true,
            rtt: Duration::ZERO,
        }
    }

    /// The flash sale: 100 in stock, 10,000 buyers of one order each over 256 connections.
    #[must_use]
    pub fn seckill() -> Self {
        Self {
            connections: Some(256),
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

    /// Units of all SKUs before each run.
    pub(super) fn units_in_stock(&self) -> i64 {
        self.stock * self.skus()
    }

    /// Units of all lines of an order.
    #[must_use]
    pub fn units_of_order(&self) -> i64 {
        self.quantity * self.skus()
    }

    fn skus(&self) -> i64 {
        i64::try_from(self.lines).unwrap_or(i64::MAX)
    }

    /// Whether purchases are orders of several lines or holds, which share transactions under every strategy.
    #[must_use]
    pub fn is_only_for_group_commit(&self) -> bool {
        self.lines > 1 || self.holds
    }

    /// Whether it names a strategy besides this one.
    pub(crate) fn names_another_than(&self, strategy: Strategy) -> bool {
        match &self.strategies {
            Entrants::Everyone => false,
            Entrants::Only(named) => named.iter().any(|one| *one != strategy),
        }
    }

    /// The path of a purchase under `strategy`.
    pub(super) fn purchase_path(&self, strategy: Strategy) -> String {
        if self.holds {
            return "/holds".to_owned();
        }
        self.order_path(strategy)
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
        let parameters = [(self.guard, "&guard=off"), (self.check, "&check=off")];
        let off = parameters.into_iter().filter(|(on, _)| !on);
        off.map(|(_, parameter)| parameter).collect()
    }

    /// The number of connections that are opened: at most one for each buyer.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections
            .map_or(self.buyers, |shared| shared.min(self.buyers))
    }

    /// Refuses a race that would be too large. The command and the page have checked each number.
    pub(super) fn check(&self) -> Result<(), RaceError> {
        let problem = if self.connections() > MAX_CONNECTIONS {
            "at most 10,000 connections; use fewer for the same buyers"
        } else if self.total_orders().saturating_mul(self.skus()) > MAX_ORDERS {
            "at most 10,000,000 lines of orders (buyers × orders × lines)"
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
    fn round_trip_has_a_unit_and_a_bound() {
        for (text, microseconds) in [("0", 0), ("500us", 500), ("1ms", 1000), ("100ms", 100_000)] {
            let expected = Duration::from_micros(microseconds);
            assert_eq!(round_trip(text), Ok(expected), "{text}");
        }
        for text in " 1 ms -1ms 1m 101ms 1s 99999999999999999999s".split(' ') {
            assert!(round_trip(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_lock_strategies_get_the_safeguards() {
        let mut plan = RacePlan::jmeter();
        plan.check = false;
        let path = |strategy| format!("/stock/deduct?strategy={strategy}");
        let (locked, unlocked) = (Strategy::RedisLock, Strategy::Optimistic);
        assert_eq!(plan.order_path(locked), path(locked) + "&check=off");
        assert_eq!(plan.order_path(unlocked), path(unlocked));
        plan.guard = false;
        let both = "&guard=off&check=off";
        assert_eq!(plan.order_path(locked), path(locked) + both);
        assert_eq!(plan.probe_path(), path(Strategy::SingleSql) + both);
    }

    #[test]
    fn impossible_plans_are_refused() {
        assert!(RacePlan::seckill().check().is_ok());
        assert!(RacePlan::new(1, 10_001, 10_000).check().is_err());
        let mut plan = RacePlan::new(1, 1_001, 1_000);
        for (lines, possible) in [(9, true), (10, false)] {
            plan.lines = lines;
            assert_eq!(plan.check().is_ok(), possible, "{lines} lines");
        }
    }
}
