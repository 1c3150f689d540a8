//! Corrects levels that are too high, because Redis has lost sales that SQL has.
//!
//! Guarantees:
//! - The units are counted by an audit, and are taken once, even if several repairs run at once, the level is
//!   loaded in between, or Redis fails over. Sales go on, and none is lost.
//! - After a repair, the mirror in SQL is not older than the corrected level. If the repair ends before
//!   that, the next one writes it.

use redis::Cmd;

use super::errors::bad_answer;
use super::keys::Shard;
use super::{RedisStore, levels, scripts};
use crate::sql::BoundRedis;
use crate::{Repair, Repaired, StoreError};
use stocklock_core::stock::{Audit, Sku, Warehouse};

/// How often a level is audited again, because it was loaded or repaired by another caller.
const TRIES: usize = 5;

impl RedisStore {
    /// Repairs the levels of the SKU in all warehouses.
    pub(crate) async fn repair(&self, sku: &Sku) -> Result<Vec<Repair>, StoreError> {
        let mut repairs = Vec::new();
        for audit in self.audit(sku).await? {
            repairs.push(self.repair_level(sku, &audit.warehouse).await?);
        }
        Ok(repairs)
    }

    async fn repair_level(&self, sku: &Sku, warehouse: &Warehouse) -> Result<Repair, StoreError> {
        let (keys, shard) = (self.keys().await?, Shard::for_sku(sku));
        let level = keys.level(shard, sku, warehouse);
        let state = Cmd::hmget(&level, &["repairs", "loaded", "version"]);
        for _ in 0..TRIES {
            // Before the level is read: if Redis loses its data later, SQL refuses the level.
            let Some(from) = self.confirm(&self.nodes).await? else {
                continue;
            };
            // The audit does not load the level.
            self.level(sku, warehouse).await?;
            // Before the audit: it is about this state or a later one.
            let (repairs, loaded, version): (Option<String>, Option<String>, Option<i64>) =
                self.nodes.read(keys.slot(shard), &state).await?;
            let (Some(version), Some(audit)) = (version, self.audit_level(sku, warehouse).await?)
            else {
                continue;
            };
            let repair = |on_hand, result| Repair {
                warehouse: warehouse.clone(),
                drift: audit.drift(),
                on_hand,
                result,
            };
            if audit.drift() < 0 {
                return Ok(repair(audit.on_hand, Repaired::TooLow));
            }
            let is_right = audit.drift() == 0;
            if !is_right && self.has_unreadable_entries(sku, &level).await? {
                return Ok(repair(audit.on_hand, Repaired::UnreadableEntries));
            }
            let mut script = scripts::REPAIR.key(&level);
            script.key(keys.journal(shard)).key(keys.counters(shard));
            script.arg(audit.drift());
            script.arg(repairs.unwrap_or_default());
            script.arg(loaded.unwrap_or_default());
            // Another run of Redis raises it by the full jump, less the writes that Redis lost.
            script.arg(version).arg(levels::MIN_VERSION_JUMP / 2);
            let answer: Vec<String> = self.nodes.run(keys.slot(shard), &script).await?;
            let Some((entry, counters)) = answer.split_first() else {
                continue;
            };
            let on_hand = self
                .mirror(&from, (sku, warehouse), entry, counters)
                .await?;
            return Ok(if is_right {
                repair(on_hand, Repaired::NotNeeded)
            } else {
                repair(on_hand, Repaired::Corrected)
            });
        }
        let why = "the level was loaded or repaired again and again, or Redis was replaced";
        Err(StoreError::Aborted(why.into()))
    }

    /// Writes a level with these counters, read `from` a Redis, to SQL. It is as all entries before `entry` left
    /// it. Returns its units on hand.
    async fn mirror(
        &self,
        from: &BoundRedis,
        (sku, warehouse): (&Sku, &Warehouse),
        entry: &str,
        counters: &[String],
    ) -> Result<i64, StoreError> {
        let bad = || bad_answer(counters);
        let numbers = counters.first_chunk().ok_or_else(bad)?;
        let numbers = numbers.each_ref().map(|n: &String| n.parse().ok());
        let level = levels::level(sku, warehouse, numbers)?.ok_or_else(bad)?;
        let entry = entry.parse().map_err(bad_answer)?;
        self.sql.mirror_level(from, &level, entry).await?;
        Ok(level.on_hand)
    }

    async fn audit_level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Audit>, StoreError> {
        let mut audits = self.audit(sku).await?.into_iter();
        Ok(audits.find(|audit| audit.warehouse == *warehouse))
    }
}
