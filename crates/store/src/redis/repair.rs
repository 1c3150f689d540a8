//! Corrects levels that are too high, because Redis has lost sales that SQL has.
//!
//! Guarantees: the units are counted by an audit, and are taken once, even if several repairs run at
//! once or the level is loaded in between. Sales go on, and none is lost.

use redis::Cmd;

use super::errors::{Failed, bad_answer};
use super::keys::Shard;
use super::{RedisStore, scripts};
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
        let state = Cmd::hmget(&level, &["repairs", "loaded"]);
        for _ in 0..TRIES {
            // The audit does not load the level.
            self.level(sku, warehouse).await?;
            // Before the audit: it is about this state or a later one.
            let (repairs, loaded): (Option<String>, Option<String>) =
                self.shared.read(&state).await?;
            let Some(audit) = self.audit_level(sku, warehouse).await? else {
                continue;
            };
            let repair = |on_hand, result| Repair {
                warehouse: warehouse.clone(),
                drift: audit.drift(),
                on_hand,
                result,
            };
            if audit.drift() <= 0 {
                let result = match audit.drift() {
                    0 => Repaired::NotNeeded,
                    _ => Repaired::TooLow,
                };
                return Ok(repair(audit.on_hand, result));
            }
            if self.has_unreadable_entries(sku, &level).await? {
                return Ok(repair(audit.on_hand, Repaired::UnreadableEntries));
            }
            let mut script = scripts::REPAIR.key(&level);
            script.arg(audit.drift());
            script.arg(repairs.unwrap_or_default());
            script.arg(loaded.unwrap_or_default());
            let answer: Vec<String> = self.shared.run(&script).await.map_err(Failed::writing)?;
            match &answer[..] {
                [] => {}
                [on_hand] => {
                    let on_hand = on_hand.parse().map_err(|_| bad_answer(&answer))?;
                    return Ok(repair(on_hand, Repaired::Corrected));
                }
                _ => return Err(bad_answer(answer)),
            }
        }
        let why = "the level was loaded or repaired again and again";
        Err(StoreError::Aborted(why.into()))
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
