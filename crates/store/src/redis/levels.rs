//! Reads levels, and loads levels that Redis does not have from their mirrors in SQL.
//!
//! Guarantee: only writers load levels. What clients read never writes, so a crawler does not copy the
//! catalogue into Redis.

use std::sync::Arc;

use redis::{Cmd, ScriptInvocation};
use stocklock_core::ports;

use super::errors::{Failed, bad_answer};
use super::keys::{Keys, Shard};
use super::nodes::Server;
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::{EntryId, parse_version};
use stocklock_core::stock::{Home, Sku, StockLevel, Warehouse};

/// By how much a load, or the next run of Redis, increases the version of a level at least. Redis may have lost
/// writes that SQL does not have, and their versions must not be reused: a compare-and-set would confuse the states.
/// A journal holds fewer entries than this. The scripts use Redis's clock in microseconds if that is
/// higher, so that the versions of two loads differ.
pub(super) const MIN_VERSION_JUMP: i64 = 10_000_000;

/// How often a load is repeated because Redis has lost the journal's counters during it, and how often a
/// level is loaded that is missing again when it is read.
pub(super) const MAX_LOADS: u32 = 20;

/// How many SKUs one message reads. Deductions share the connection, so more would delay them.
const SKUS_AT_ONCE: usize = 100;

/// `units`, `held`, `backorder_limit`, `version`. All are `None` if Redis does not have the level. The first
/// is `None` if it has the level as release 0.1.0 wrote it: loading the level changes that.
pub(super) type Counters = [Option<i64>; 4];

/// The command that reads the counters of a level.
pub(super) fn read_level(key: &str) -> Cmd {
    Cmd::hmget(key, &["units", "held", "backorder_limit", "version"])
}

/// Converts the counters to a level.
pub(super) fn level(
    sku: &Sku,
    warehouse: &Warehouse,
    counters: Counters,
) -> Result<Option<StockLevel>, StoreError> {
    let (on_hand, held, backorder_limit, version) = match counters {
        [Some(on_hand), Some(held), Some(limit), Some(version)] => (on_hand, held, limit, version),
        [None, ..] => return Ok(None),
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

/// The script that reads the levels of one SKU.
fn snapshot_of<'a>(
    keys: &Keys,
    sku: &Sku,
    warehouses: impl IntoIterator<Item = &'a Warehouse>,
) -> ScriptInvocation<'static> {
    let shard = Shard::for_sku(sku);
    let mut script = scripts::SNAPSHOT.key(keys.journal(shard));
    for warehouse in warehouses {
        script.key(keys.level(shard, sku, warehouse));
    }
    script
}

/// Converts the answer of that script: the levels that Redis has, and the journal's last entry.
fn parse_snapshot<'a>(
    answer: &[String],
    sku: &Sku,
    warehouses: impl IntoIterator<Item = &'a Warehouse>,
) -> Result<Snapshot, StoreError> {
    let (last, counters) = answer.split_first().ok_or_else(|| bad_answer(answer))?;
    let levels = warehouses.into_iter().zip(counters.as_chunks::<4>().0);
    let levels = levels.map(|(warehouse, counters)| {
        level(sku, warehouse, counters.each_ref().map(|n| n.parse().ok()))
    });
    let levels = levels.collect::<Result<_, _>>()?;
    Ok((levels, last.parse().map_err(bad_answer)?))
}

/// Levels, each `None` if Redis does not have it, and the id of their journal's last entry.
pub(super) type Snapshot = (Vec<Option<StockLevel>>, EntryId);

impl RedisStore {
    /// Replaces levels from SQL by those in Redis, those of one SKU from one snapshot. A level that
    /// Redis does not have stays as SQL has it: movements that wait in its journal are missing.
    pub(crate) async fn show(&self, mut levels: Vec<&mut StockLevel>) -> Result<(), StoreError> {
        let keys = self.keys_to_read().await?;
        let mut skus: Vec<_> = levels.chunk_by_mut(|a, b| a.sku == b.sku).collect();
        for some in skus.chunks_mut(SKUS_AT_ONCE) {
            let snapshots = some.iter().map(|of_sku| {
                let sku = &of_sku[0].sku;
                let warehouses = of_sku.iter().map(|level| &level.warehouse);
                let mut commands = redis::pipe();
                commands.invoke_script(&snapshot_of(keys, sku, warehouses));
                (keys.slot(Shard::for_sku(sku)), commands)
            });
            let snapshots: Vec<_> = snapshots.collect();
            let script = Some(&*scripts::SNAPSHOT);
            let answers: Vec<[Vec<String>; 1]> = self.nodes.read_each(script, &snapshots).await?;
            for (of_sku, [answer]) in some.iter_mut().zip(answers) {
                let warehouses = of_sku.iter().map(|level| &level.warehouse);
                let (found, _) = parse_snapshot(&answer, &of_sku[0].sku, warehouses)?;
                for (level, found) in of_sku.iter_mut().zip(found) {
                    if let Some(found) = found {
                        **level = found;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads one level, and loads it first if Redis does not have it.
    pub(crate) async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        let keys = self.keys().await?;
        let shard = Shard::for_sku(sku);
        let read = read_level(&keys.level(shard, sku, warehouse));
        for _ in 0..MAX_LOADS {
            let counters = self.nodes.read(keys.slot(shard), &read).await?;
            if let Some(level) = level(sku, warehouse, counters)? {
                return Ok(Some(level));
            }
            if self.load(sku, warehouse).await? != Some(Home::Redis) {
                return Ok(None);
            }
        }
        Err(evicted_again())
    }

    /// Reads the levels of one SKU in these warehouses from one snapshot. Loads levels that Redis does
    /// not have, and then reads all levels again.
    pub(crate) async fn levels_in(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
    ) -> Result<Vec<StockLevel>, StoreError> {
        self.keys().await?;
        for _ in 0..MAX_LOADS {
            let (found, _) = self.snapshot(sku, warehouses).await?;
            let mut levels = Vec::with_capacity(warehouses.len());
            for (warehouse, found) in warehouses.iter().zip(found) {
                match found {
                    Some(level) => levels.push(level),
                    None => _ = self.load(sku, warehouse).await?,
                }
            }
            if levels.len() == warehouses.len() {
                return Ok(levels);
            }
        }
        Err(evicted_again())
    }

    /// Reads the levels of one SKU in these warehouses, and the id of their journal's last entry.
    pub(super) async fn snapshot(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
    ) -> Result<Snapshot, StoreError> {
        let keys = self.keys_to_read().await?;
        let script = snapshot_of(keys, sku, warehouses);
        let script = &script;
        let read = |server: Arc<Server>| async move {
            let answer = server.shared.run(script).await;
            answer.map_err(Failed::reading)
        };
        let slot = keys.slot(Shard::for_sku(sku));
        let answer: Vec<String> = self.nodes.on(slot, read).await?;
        parse_snapshot(&answer, sku, warehouses)
    }

    /// Whether these levels of one SKU have not changed since they were read, and the replicas have them.
    pub(super) async fn is_replicated(
        &self,
        sku: &Sku,
        read: &[StockLevel],
    ) -> Result<bool, StoreError> {
        if self.writer.replicas == 0 {
            return Ok(true);
        }
        let keys = self.keys().await?;
        let warehouses = || read.iter().map(|level| &level.warehouse);
        let mut commands = redis::pipe();
        commands.load_script(&scripts::SNAPSHOT).ignore();
        commands.invoke_script(&snapshot_of(keys, sku, warehouses()));
        let shard = Shard::for_sku(sku);
        let answer = self.writer.read_replicated(&commands, keys, shard);
        let [answer]: [Vec<String>; 1] = answer.await?;
        let (levels, _) = parse_snapshot(&answer, sku, warehouses())?;
        Ok(levels.iter().flatten().eq(read))
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
        let (slot, key) = (keys.slot(shard), keys.level(shard, sku, warehouse));
        let counters = keys.counters(shard);
        let since = Cmd::hget(&counters, "since");
        for _ in 0..MAX_LOADS {
            let since: Option<String> = self.nodes.read(slot, &since).await?;
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
                .key(keys.bound(shard))
                .arg(since.unwrap_or_default())
                .arg(entry.to_string())
                .arg(level.on_hand)
                .arg(level.held)
                .arg(level.backorder_limit)
                .arg(level.version)
                .arg(MIN_VERSION_JUMP);
            let answer: Vec<String> = self.nodes.run(slot, &script).await?;
            let words: Vec<&str> = answer.iter().map(String::as_str).collect();
            match words[..] {
                ["there" | "loaded"] => return Ok(Some(Home::Redis)),
                ["again"] => {}
                ["unbound"] => {
                    self.binding.forget();
                    self.keys().await?;
                }
                ["unsupported", version] => return Err(unsupported_entry(version)),
                _ => return Err(bad_answer(answer)),
            }
        }
        Err(StoreError::Aborted(
            "Redis lost its data while the level was loaded".into(),
        ))
    }
}

/// Redis evicts levels as soon as they are loaded: its memory is full.
pub(super) fn evicted_again() -> StoreError {
    StoreError::Unavailable(
        ports::Server::Redis,
        "redis evicts levels as soon as they are loaded".into(),
    )
}

/// A journal entry of a newer format may have a later level than the mirror, so this build must not
/// load the level. A newer replica applies the entry.
fn unsupported_entry(version: &str) -> StoreError {
    let why = parse_version(version).err().unwrap_or_default();
    StoreError::Unavailable(ports::Server::Redis, why.into())
}
