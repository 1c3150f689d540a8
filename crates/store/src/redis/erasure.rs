//! Removing a ledger's stock from Redis, where the ledger itself is about to go.

use super::RedisStore;
use crate::StoreError;

/// How many keys one step of the search looks at.
const LOOKED_AT: u32 = 1_000;

impl RedisStore {
    /// Removes every key of this ledger. Nobody else may use it meanwhile.
    pub(crate) async fn erase(&self) -> Result<(), StoreError> {
        let pattern = self.keys().await?.all();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern);
            let scan = scan.arg("COUNT").arg(LOOKED_AT);
            let (next, keys): (u64, Vec<String>) = self.shared.read(scan).await?;
            if !keys.is_empty() {
                // Like a command that changes nothing, it may be given up and repeated.
                let mut unlink = redis::cmd("UNLINK");
                self.shared.read::<u64>(unlink.arg(&keys)).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}
