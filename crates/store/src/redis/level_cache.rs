//! The cache of levels that all replicas of a ledger share.
//!
//! Guarantees, on the clock of the node that has the slot of the SKU, while the slot does not move to a node with
//! another clock:
//! - A value expires `max_age` after its reader missed the cache. That was before the reader asked the
//!   database, so no value is older.
//! - After [`SharedLevels::forget`], no value is found that was read before. A reader that asked the
//!   database before the change, and is slow to fill the cache, fills nothing.
//!
//! The key of a SKU contains a value, or the mark of a change. A mark lives as long as a value can.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Script;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::RedisStore;
use super::cluster::Slot;
use super::keys::Shard;
use crate::Result;
use stocklock_core::stock::{Home, Sku, StockLevel, Warehouse};

/// Fills the cache if it is as the reader found it, and the value has not expired. KEYS: the cached
/// levels. ARGV: what the reader found, or an empty text; the value; when it expires, in milliseconds.
static FILL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local now = redis.call('TIME')
        local left = tonumber(ARGV[3]) - (now[1] * 1000 + math.floor(now[2] / 1000))
        if left > 0 and (redis.call('GET', KEYS[1]) or '') == ARGV[1] then
            redis.call('SET', KEYS[1], ARGV[2], 'PX', left)
            return 1
        end
        return 0",
    )
});

/// The start of a value in this format. Values in other formats count as misses.
const FORMAT: &str = "1 ";

/// The cache of levels in Redis. Clones share it.
#[derive(Debug, Clone)]
pub struct SharedLevels {
    pub(crate) redis: Arc<RedisStore>,
    pub(crate) max_age: Duration,
}

/// What the cache has of a SKU.
#[derive(Debug)]
pub enum Cached {
    /// All levels of the SKU, in warehouse order. Empty if there was no such SKU.
    Hit(Vec<StockLevel>),
    /// Nothing.
    Miss(Miss),
}

/// A miss, to fill the cache after the database was read.
#[derive(Debug)]
pub struct Miss {
    /// What the key contained.
    found: Option<String>,
    /// When the value expires, in milliseconds since 1970.
    expires_at: i64,
}

/// A level in the cache.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    warehouse: Warehouse,
    on_hand: i64,
    held: i64,
    backorder_limit: i64,
    version: i64,
    home: Home,
}

impl SharedLevels {
    /// Looks a SKU up.
    ///
    /// # Errors
    /// Redis does not answer, or does not have the stock of this ledger.
    pub async fn get(&self, sku: &Sku) -> Result<Cached> {
        let (slot, key) = self.key(sku).await?;
        let mut commands = redis::pipe();
        // The clock first: a change between these commands ends later than the value.
        commands.cmd("TIME").cmd("GET").arg(key);
        let answer = self.redis.nodes.read_all(slot, &commands).await?;
        let ((seconds, micros), found): ((i64, i64), Option<String>) = answer;
        if let Some(levels) = found.as_deref().and_then(|value| parse(sku, value)) {
            return Ok(Cached::Hit(levels));
        }
        let expires_at = seconds * 1000 + micros / 1000 + self.max_age_in_millis();
        Ok(Cached::Miss(Miss { found, expires_at }))
    }

    /// Fills the cache with levels that were read after this miss. Returns whether it stored them. If
    /// not, the SKU may have changed since the miss.
    ///
    /// # Errors
    /// Redis does not answer, or refuses the write. The cache may be filled nevertheless.
    pub async fn fill(&self, sku: &Sku, miss: Miss, levels: &[StockLevel]) -> Result<bool> {
        let (slot, key) = self.key(sku).await?;
        let found = miss.found.unwrap_or_default();
        let mut script = FILL.key(key);
        script.arg(found).arg(value(levels)).arg(miss.expires_at);
        self.redis.nodes.run(slot, &script).await
    }

    /// Forgets a SKU that has changed.
    ///
    /// # Errors
    /// Redis does not answer, or refuses the write. An older value may then be found until it expires.
    pub async fn forget(&self, sku: &Sku) -> Result<()> {
        let (slot, key) = self.key(sku).await?;
        // A new mark for each change, so that a fill can tell two changes apart.
        let mark = format!("changed {}", Uuid::now_v7());
        let mut command = redis::cmd("SET");
        let command = command.arg(key).arg(mark).arg("PX");
        let command = command.arg(self.max_age_in_millis());
        self.redis.nodes.read(slot, command).await
    }

    async fn key(&self, sku: &Sku) -> Result<(Slot, String)> {
        let (keys, shard) = (self.redis.keys_to_read().await?, Shard::for_sku(sku));
        Ok((keys.slot(shard), keys.cached(shard, sku)))
    }

    fn max_age_in_millis(&self) -> i64 {
        i64::try_from(self.max_age.as_millis()).unwrap_or(i64::MAX)
    }
}

fn value(levels: &[StockLevel]) -> String {
    let rows: Vec<_> = levels.iter().map(Row::of).collect();
    let rows = serde_json::to_string(&rows).expect("texts and numbers are JSON");
    format!("{FORMAT}{rows}")
}

fn parse(sku: &Sku, value: &str) -> Option<Vec<StockLevel>> {
    let rows: Vec<Row> = serde_json::from_str(value.strip_prefix(FORMAT)?).ok()?;
    Some(rows.into_iter().map(|row| row.level(sku)).collect())
}

impl Row {
    fn of(level: &StockLevel) -> Self {
        Self {
            warehouse: level.warehouse.clone(),
            on_hand: level.on_hand,
            held: level.held,
            backorder_limit: level.backorder_limit,
            version: level.version,
            home: level.home,
        }
    }

    fn level(self, sku: &Sku) -> StockLevel {
        StockLevel {
            sku: sku.clone(),
            warehouse: self.warehouse,
            on_hand: self.on_hand,
            held: self.held,
            backorder_limit: self.backorder_limit,
            version: self.version,
            home: self.home,
        }
    }
}
