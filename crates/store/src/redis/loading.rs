//! Reads levels, and loads levels that Redis does not have from their mirrors in SQL.

use redis::Cmd;
use stocklock_core::ports::Server;

use super::RedisStore;
use super::failure::bad_answer;
use super::scripts;
use crate::StoreError;
use crate::journal;
use crate::sql::Mirrored;
use stocklock_core::stock::{Home, Sku, StockLevel, Warehouse};

/// By how much a load increases the version of a level at least. Redis may have lost writes that SQL
/// does not have, and their versions must not be reused: a compare-and-set would confuse the states.
/// A journal holds fewer entries than this. The script uses Redis's clock in microseconds if that is
/// higher, so that the versions of two loads differ.
pub(super) const MIN_VERSION_JUMP: i64 = 10_000_000;

/// How often a load is repeated because a consumer acknowledged entries of the level during it, and
/// how often a level is loaded that is missing again when it is read.
pub(super) const MAX_LOADS: u32 = 20;

/// `on_hand`, `held`, `backorder_limit`, `version`. All are `None` if Redis does not have the level.
pub(super) type Counters = [Option<i64>; 4];

/// Of a journal's counters: `since`, and the number of acknowledged entries of one level.
type AckState = (Option<String>, Option<String>);

/// The command that reads the counters of a level.
pub(super) fn read_level(key: &str) -> Cmd {
    let mut command = redis::cmd("HMGET");
    command
        .arg(key)
        .arg(&["on_hand", "held", "backorder_limit", "version"]);
    command
}

/// Converts the counters to a level.
pub(super) fn level(
    (sku, warehouse): (&Sku, &Warehouse),
    counters: Counters,
) -> Result<Option<StockLevel>, StoreError> {
    let (on_hand, held, backorder_limit, version) = match counters {
        [Some(on_hand), Some(held), Some(limit), Some(version)] => (on_hand, held, limit, version),
        [None, None, None, None] => return Ok(None),
        half => return Err(bad_answer(half)),
    };
    Ok(Some(StockLevel {
        sku: sku.clone(),
        warehouse: warehouse.clone(),
        on_hand,
        held,
        backorder_limit,
        version,
        home: Home::Redis,
    }))
}

impl RedisStore {
    /// Reads one level, and loads it first if Redis does not have it.
    pub(crate) async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        let key = self.keys().await?.for_sku(sku).level(warehouse);
        for _ in 0..MAX_LOADS {
            let counters = self.shared.read(&read_level(&key)).await?;
            if let Some(level) = level((sku, warehouse), counters)? {
                return Ok(Some(level));
            }
            if self.load(sku, warehouse).await? != Some(Home::Redis) {
                return Ok(None);
            }
        }
        Err(evicted_again())
    }

    /// Reads the levels of one SKU in these warehouses from one snapshot.
    pub(crate) async fn levels_in(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
    ) -> Result<Vec<StockLevel>, StoreError> {
        let keys = self.keys().await?.for_sku(sku);
        let mut all = redis::pipe();
        all.atomic();
        for warehouse in warehouses {
            all.add_command(read_level(&keys.level(warehouse)));
        }
        for _ in 0..MAX_LOADS {
            let counters: Vec<Counters> = self.shared.read_all(&all).await?;
            if let Some(levels) = self.levels_or_load(sku, warehouses, counters).await? {
                return Ok(levels);
            }
        }
        Err(evicted_again())
    }

    /// Converts the counters to levels. If levels are missing, loads them and returns `None`; the
    /// caller then reads all levels again.
    pub(super) async fn levels_or_load(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
        counters: impl IntoIterator<Item = Counters>,
    ) -> Result<Option<Vec<StockLevel>>, StoreError> {
        let mut levels = Vec::with_capacity(warehouses.len());
        let mut loaded = false;
        for (warehouse, counters) in warehouses.iter().zip(counters) {
            if let Some(level) = level((sku, warehouse), counters)? {
                levels.push(level);
            } else {
                self.load(sku, warehouse).await?;
                loaded = true;
            }
        }
        Ok((!loaded).then_some(levels))
    }

    /// Loads a level from its mirror, unless Redis has it. Returns the SKU's home, or `None` if the
    /// level does not exist.
    pub(super) async fn load(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Home>, StoreError> {
        let keys = self.keys().await?;
        let sku_keys = keys.for_sku(sku);
        let level = sku_keys.level(warehouse);
        let counters = keys.counters(sku_keys.shard);
        let mut ack_state = redis::cmd("HMGET");
        ack_state.arg(&counters).arg("since").arg(&level);
        let script_keys = [level, keys.journal(sku_keys.shard), counters];
        for _ in 0..MAX_LOADS {
            let before: AckState = self.shared.read(&ack_state).await?;
            let Some(mirrored) = self.sql.mirrored(sku, warehouse).await? else {
                return Ok(None);
            };
            if mirrored.level.home != Home::Redis {
                return Ok(Some(mirrored.level.home));
            }
            let arguments = load_arguments(before, &mirrored);
            let answer = self
                .shared
                .script(&scripts::LOAD, &script_keys, &arguments)
                .await?;
            match answer.first().map(String::as_str) {
                Some("there" | "loaded") => return Ok(Some(Home::Redis)),
                Some("again") => {}
                Some("unsupported") => return Err(unsupported_entry(answer.get(1))),
                _ => return Err(bad_answer(answer)),
            }
        }
        Err(StoreError::Aborted(
            "entries were acknowledged while the level was loaded".into(),
        ))
    }
}

/// Redis evicts levels as soon as they are loaded: its memory is full.
pub(super) fn evicted_again() -> StoreError {
    StoreError::Unavailable(
        Server::Redis,
        "redis evicts levels as soon as they are loaded".into(),
    )
}

/// A journal entry of a newer format may have a later level than the mirror, so this build must not
/// load the level. A newer replica applies the entry.
fn unsupported_entry(version: Option<&String>) -> StoreError {
    let version = version.map_or("", String::as_str);
    let why = journal::check_version(version).err().unwrap_or_default();
    StoreError::Unavailable(Server::Redis, why.into())
}

fn load_arguments(before: AckState, mirrored: &Mirrored) -> Vec<String> {
    let Mirrored { level, entry } = mirrored;
    let (since, acked) = before;
    vec![
        since.unwrap_or_default(),
        acked.unwrap_or_default(),
        entry.to_string(),
        level.on_hand.to_string(),
        level.held.to_string(),
        level.backorder_limit.to_string(),
        level.version.to_string(),
        MIN_VERSION_JUMP.to_string(),
    ]
}
