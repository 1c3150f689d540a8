//! Deletes a ledger's stock from Redis before the ledger itself is deleted.

use super::RedisStore;
use crate::StoreError;

/// How many keys one `SCAN` looks at.
const KEYS_PER_SCAN: u32 = 1_000;

impl RedisStore {
    /// Deletes every key of this ledger. The caller ensures that no replica uses the ledger.
    pub(crate) async fn purge(&self) -> Result<(), StoreError> {
        let pattern = self.keys().await?.pattern();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern);
            let scan = scan.arg("COUNT").arg(KEYS_PER_SCAN);
            let (next, keys): (u64, Vec<String>) = self.shared.read(scan).await?;
            if !keys.is_empty() {
                // `read` is correct here because UNLINK is safe to repeat.
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
