//! The flags of `stocklock race`, and the plan that they describe.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};

use crate::cli::inherit::Inherited;
use crate::cli::servers::ServerArgs;
use crate::race::Race;
use stocklock_core::strategy::Safeguards;
use stocklock_lab::race::{Entrants, RacePlan, TableStyle, Target};

/// The longest round trip of `--rtt`. Opening a connection takes several round trips, which must
/// fit into the wait limit.
const MAX_RTT: Duration = Duration::from_millis(100);

/// Sell a fresh SKU with each strategy over HTTP and show which strategies oversell.
///
/// Without --target, the race starts replicas as child processes. They use the database of
/// `DATABASE_URL`, or a temporary SQLite file. In your own database, the SKUs that were sold
/// (`race-…`) and their ledgers stay.
///
/// Exit code 1: a strategy broke its promise, or orders failed, so that the race proves nothing.
/// Unsafe strategies promise nothing, so they may oversell.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RaceArgs {
    /// `all`, or names separated by commas; see GET /strategies
    #[arg(long, value_name = "NAMES", default_value = "all")]
    strategy: Entrants,

    /// A known race instead of --stock, --buyers, --orders and --connections
    #[arg(long, value_enum, conflicts_with_all = ["stock", "buyers", "orders", "connections"])]
    case: Option<Case>,

    /// Units in stock before each run
    #[arg(long, value_name = "N", default_value_t = 5000,
          value_parser = value_parser!(i64).range(1..=1_000_000_000))]
    stock: i64,

    /// Buyers who order at the same time
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = value_parser!(u32).range(1..=100_000))]
    buyers: u32,

    /// Orders of each buyer, one after the other
    #[arg(long, value_name = "N", default_value_t = 60,
          value_parser = value_parser!(u32).range(1..=1_000_000))]
    orders: u32,

    /// Units of each order
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value_parser!(i64).range(1..=1_000))]
    quantity: i64,

    /// Connections that the buyers share [default: one per buyer]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,

    /// Replicas to start
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "target",
          value_parser = value_parser!(u32).range(1..=16))]
    pub(super) replicas: u32,

    /// Use this running replica instead, `http://host:port`; repeatable. All targets must be in lab
    /// mode, share one database, and serve nothing else. Name each replica, not a proxy in front of
    /// them: the race reads /metrics of each target
    #[arg(long, value_name = "URL")]
    pub(super) target: Vec<Target>,

    /// `off`: strategies with a lock write unconditionally, so a lost lock can oversell
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = Switch::On)]
    guard: Switch,

    /// `off`: strategies with a lock do not check whether they lost it; the guard still refuses the
    /// write
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = Switch::On)]
    check: Switch,

    /// Add this round trip between the replicas and the database, Redis and ZooKeeper, such as
    /// `1ms` or `500us`, up to 100ms [default: 0]
    #[arg(long, value_name = "TIME", value_parser = round_trip, conflicts_with = "target")]
    rtt: Option<Duration>,

    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Write a report with charts to this file; it needs no network to open
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// Show every column, in up to 170 characters
    #[arg(long)]
    wide: bool,

    /// Show no progress
    #[arg(long)]
    pub(super) quiet: bool,

    /// The settings of the replicas.
    #[command(flatten)]
    pub(super) settings: Inherited<ServerArgs>,
}

/// Whether a safeguard is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// As in production
    On,
    /// To see what the safeguard prevents
    Off,
}

/// Known races.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Case {
    /// 100 in stock, 10,000 buyers over 256 connections, one order each
    Seckill,
    /// 5,000 in stock, 100 buyers with 50 orders each: enough for all
    Jmeter,
}

impl RaceArgs {
    /// Describes where the stock is.
    pub(super) fn place(&self) -> String {
        let configured = &self.settings.parsed.database;
        if !self.target.is_empty() {
            "the targets' database".to_owned()
        } else if configured.database_url.is_some() {
            format!("{} (DATABASE_URL)", configured.place())
        } else {
            "a temporary SQLite file".to_owned()
        }
    }

    /// The round trip to add, if any.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.filter(|rtt| !rtt.is_zero())
    }

    /// The race, if it starts its own replicas.
    pub(super) fn race(&self) -> Race {
        Race {
            plan: self.plan(),
            replicas: self.replicas,
            rtt: self.rtt(),
            targets: self.target.clone(),
        }
    }

    /// The form of the table.
    pub(super) fn table(&self) -> TableStyle {
        TableStyle {
            wide: self.wide,
            coloured: std::io::stdout().is_terminal(),
        }
    }

    /// The plan of the race.
    pub(super) fn plan(&self) -> RacePlan {
        let mut plan = match self.case {
            Some(Case::Seckill) => RacePlan::seckill(),
            Some(Case::Jmeter) => RacePlan::jmeter(),
            None => RacePlan::new(self.stock, self.buyers as usize, self.orders as usize),
        };
        if let Some(connections) = self.connections {
            plan.connections = connections as usize;
        }
        plan.strategies = self.strategy.clone();
        plan.quantity = self.quantity;
        plan.safeguards = Safeguards {
            guard: self.guard == Switch::On,
            check: self.check == Switch::On,
        };
        plan
    }
}

/// Parses the value of `--rtt`.
fn round_trip(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(rtt) if rtt <= MAX_RTT => Ok(rtt),
        _ => Err("expected a time in us or ms, up to 100ms, such as 1ms; or 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_has_a_unit_and_a_bound() {
        for (text, microseconds) in [("0", 0), ("500us", 500), ("1ms", 1000), ("100ms", 100_000)] {
            let expected = Duration::from_micros(microseconds);
            assert_eq!(round_trip(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "1",
            "ms",
            "-1ms",
            "1m",
            "101ms",
            "1s",
            "99999999999999999999s",
        ] {
            assert!(round_trip(text).is_err(), "{text:?}");
        }
    }
}
