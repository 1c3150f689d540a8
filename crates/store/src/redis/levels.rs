//! Reads levels, and loads levels that Redis does not have from their mirrors in SQL.

use redis::Cmd;
use stocklock_core::ports::Server;

use super::errors::{Failed, bad_answer};
use super::keys::Shard;
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::{EntryId, check_version};
use stocklock_core::stock::{Home, Sku, StockLevel, Warehouse};

/// By how much a load increases the version of a level at least. Redis may have lost writes that SQL
/// does not have, and their versions must not be reused: a compare-and-set would confuse the states.
/// A journal holds fewer entries than this. The script uses Redis's clock in microseconds if that is
/// higher, so that the versions of two loads differ.
const MIN_VERSION_JUMP: i64 = 10_000_000;

/// How often a load is repeated because a consumer acknowledged entries of the level during it, and
/// how often a level is loaded that is missing again when it is read.
pub(super) const MAX_LOADS: u32 = 20;

/// `on_hand`, `held`, `backorder_limit`, `version`. All are `None` if Redis does not have the level.
pub(super) type Counters = [Option<i64>; 4];

/// The command that reads the counters of a level.
pub(super) fn read_level(key: &str) -> Cmd {
    Cmd::hmget(key, &["on_hand", "held", "backorder_limit", "version"])
}

/// Converts the counters to a level.
pub(super) fn level(
    sku: &Sku,
    warehouse: &Warehouse,
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
        let keys = self.keys().await?;
        let key = keys.level(Shard::for_sku(sku), sku, warehouse);
        for _ in 0..MAX_LOADS {
            let counters = self.shared.read(&read_level(&key)).await?;
            if let Some(level) = level(sku, warehouse, counters)? {
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
        Ok(self.snapshot(sku, warehouses).await?.0)
    }

    /// Reads the levels of one SKU in these warehouses, and the id of their journal's last entry, in
    /// one snapshot. Loads levels that Redis does not have, and then reads all levels again.
    pub(super) async fn snapshot(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
    ) -> Result<(Vec<StockLevel>, EntryId), StoreError> {
        let keys = self.keys().await?;
        let shard = Shard::for_sku(sku);
        let mut script = scripts::SNAPSHOT.key(keys.journal(shard));
        for warehouse in warehouses {
            script.key(keys.level(shard, sku, warehouse));
        }
        for _ in 0..MAX_LOADS {
            let answer: Vec<String> = self.shared.run(&script).await.map_err(Failed::reading)?;
            let (last, counters) = answer.split_first().ok_or_else(|| bad_answer(&answer))?;
            let counters = counters.as_chunks::<4>().0;
            let mut levels = Vec::with_capacity(warehouses.len());
            for (warehouse, counters) in warehouses.iter().zip(counters) {
                let counters = counters.each_ref().map(|number| number.parse().ok());
                match level(sku, warehouse, counters)? {
                    Some(level) => levels.push(level),
                    None => _ = self.load(sku, warehouse).await?,
                }
            }
            if levels.len() == warehouses.len() {
                return Ok((levels, last.parse().map_err(bad_answer)?));
            }
        }
        Err(evicted_again())
    }

    /// Loads a level from its mirror, unless Redis has it. Returns the SKU's home, or `None` if the
    /// level does not exist.
    pub(super) async fn load(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Home>, StoreError> {
        let keys = self.keys().await?;
        let shard = Shard::for_sku(sku);
        let key = keys.level(shard, sku, warehouse);
        let counters = keys.counters(shard);
        let ack_state = Cmd::hmget(&counters, &["since", &key]);
        for _ in 0..MAX_LOADS {
            let (since, acked): (Option<String>, Option<String>) =
                self.shared.read(&ack_state).await?;
            let Some((level, entry)) = self.sql.mirrored(sku, warehouse).await? else {
                return Ok(None);
            };
            if level.home != Home::Redis {
                return Ok(Some(level.home));
            }
            let mut script = scripts::LOAD.key(&key);
            script
                .key(keys.journal(shard))
                .key(&counters)
                .key(keys.rejected(shard))
                .arg(since.unwrap_or_default())
                .arg(acked.unwrap_or_default())
                .arg(entry.to_string())
                .arg(level.on_hand)
                .arg(level.held)
                .arg(level.backorder_limit)
                .arg(level.version)
                .arg(MIN_VERSION_JUMP);
            let answer: Vec<String> = self.shared.run(&script).await.map_err(Failed::writing)?;
            let words: Vec<&str> = answer.iter().map(String::as_str).collect();
            match words[..] {
                ["there" | "loaded"] => return Ok(Some(Home::Redis)),
                ["again"] => {}
                ["unsupported", version] => return Err(unsupported_entry(version)),
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
fn unsupported_entry(version: &str) -> StoreError {
    let why = check_version(version).err().unwrap_or_default();
    StoreError::Unavailable(Server::Redis, why.into())
}
