//! After a restart or a failover, Redis may have lost the last writes, while SQL has some of them.
//! Levels that are older than their mirrors are deleted, so that their next use loads them from SQL,
//! with a version that was never used. The others get such a version too: Redis may have lost writes of them
//! that SQL does not have, and a client may have read their versions.
//!
//! This is done before the stock is used in the new run, and after the row in SQL says so: then SQL takes no
//! entries of the earlier run. So no lost sale that SQL has is sold again. Several replicas may do it at once,
//! also while others sell already: a level in use is never older than its mirror, and a write that follows from
//! its previous version is only repeated.

use crate::StoreError;
use crate::redis::keys::{Keys, Shard};
use crate::redis::levels::MIN_VERSION_JUMP;
use crate::redis::nodes::Connections;
use crate::redis::scripts;
use crate::sql::SqlBackend;
use stocklock_core::stock::{Home, LevelCursor};

/// How many levels are compared at once.
const PAGE: u32 = 1_000;

/// Deletes the levels that are older than their mirrors, and logs each. Gives the others another version.
pub(super) async fn drop_older(
    sql: &dyn SqlBackend,
    connections: &Connections,
    keys: &Keys,
) -> Result<(), StoreError> {
    let mut after: Option<LevelCursor> = None;
    loop {
        let mut page = sql.levels(after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after = Some(LevelCursor {
            sku: last.sku.clone(),
            warehouse: last.warehouse.clone(),
        });
        page.retain(|level| level.home == Home::Redis);
        if page.is_empty() {
            continue;
        }
        let drop_older = page.iter().map(|mirror| {
            let shard = Shard::for_sku(&mirror.sku);
            let key = keys.level(shard, &mirror.sku, &mirror.warehouse);
            let mut script = scripts::DROP_OLDER.key(key);
            script.arg(mirror.version).arg(MIN_VERSION_JUMP);
            let mut commands = redis::pipe();
            commands.invoke_script(&script);
            (keys.slot(shard), commands)
        });
        let drop_older: Vec<_> = drop_older.collect();
        // The script is safe to repeat.
        let dropped = connections.query_each(Some(&scripts::DROP_OLDER), &drop_older);
        let dropped: Vec<[Vec<i64>; 1]> = dropped.await?;
        for (mirror, [dropped]) in page.iter().zip(dropped) {
            if let [on_hand, version] = dropped[..] {
                let (sku, warehouse) = (mirror.sku.as_str(), mirror.warehouse.as_str());
                tracing::warn!(
                    sku,
                    warehouse,
                    on_hand_in_redis = on_hand,
                    version_in_redis = version,
                    on_hand_in_sql = mirror.on_hand,
                    version_in_sql = mirror.version,
                    "Redis had lost writes of a level; it is loaded from SQL"
                );
            }
        }
    }
}
