//! What a race reports while it runs. The terminal and the page of the lab show the same events.

use serde::Serialize;

use super::lineup::Lineup;
use super::row::Row;
use super::text::as_text;
use stocklock_core::strategy::{Strategy, Tier};

/// Receives the events of a race in their order. It must return at once: the race waits for it.
pub type Observer<'a> = &'a (dyn Fn(Event) + Send + Sync);

/// Something that happened in a race.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Event {
    /// The strategies that run, before the first one starts.
    Lineup(Lineup),
    /// A strategy starts.
    Start(Start),
    /// How far it is: five times a second, and once after the last order.
    Tick(Tick),
    /// It has ended, and its ledger is read.
    Row(Box<Row>),
}

/// The start of one strategy's run.
#[derive(Debug, Clone, Serialize)]
pub struct Start {
    /// The strategy.
    #[serde(serialize_with = "as_text")]
    pub strategy: Strategy,
    /// Its tier.
    #[serde(serialize_with = "as_text")]
    pub tier: Tier,
    /// The SKU that is sold; of several, the first.
    pub sku: String,
    /// Orders of all buyers.
    pub orders: i64,
    /// Units of all SKUs in stock before the first one.
    pub stock: i64,
    /// Units of each order, in all of its lines.
    pub quantity: i64,
}

/// A moment of one strategy's run. Rate and latencies are those since the tick before.
#[derive(Debug, Clone, Serialize)]
pub struct Tick {
    /// The strategy.
    #[serde(serialize_with = "as_text")]
    pub strategy: Strategy,
    /// Milliseconds since its first order.
    pub ms: u64,
    /// Units sold, according to the answers.
    pub sold: i64,
    /// Units on hand, according to the levels; `None` if it could not be read.
    pub left: Option<i64>,
    /// Orders that were refused.
    pub refused: i64,
    /// Orders that failed.
    pub failed: i64,
    /// Exchanges that were repeated.
    pub retried: u64,
    /// Exchanges answered 200 or 409 `insufficient-stock`, per second.
    pub rate: f64,
    /// Median of their latency.
    pub p50_ms: Option<f64>,
    /// 99th percentile of their latency.
    pub p99_ms: Option<f64>,
    /// Milliseconds that requests waited for the strategy's lock, per second, in all replicas; `None`
    /// if the strategy has no lock in a server, or it is not known yet.
    pub lock_waits_ms: Option<f64>,
}
