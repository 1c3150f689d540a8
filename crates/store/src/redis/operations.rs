//! Whether the journals can still hold an operation.

use redis::streams::StreamRangeReply;

use super::RedisStore;
use super::keys::Shard;
use crate::Result;
use crate::journal::EntryId;

impl RedisStore {
    /// Whether SQL has every movement that was written to a journal up to this time, in milliseconds
    /// since 1970, and no script that expired by then can still write one.
    pub(crate) async fn is_applied_past(&self, millis: i64) -> Result<bool> {
        let keys = self.keys_to_read().await?;
        // Before the journals: ids of entries never go back.
        let now = self.shared.millis().await?;
        let mut commands = redis::pipe();
        for shard in Shard::all() {
            // An entry is deleted when SQL has it.
            commands.xrange_count(keys.journal(shard), "-", "+", 1);
        }
        let oldest: Vec<StreamRangeReply> = self.shared.read_all(&commands).await?;
        let is_later = |id: &str| id.parse().is_ok_and(|id: EntryId| id.millis > millis);
        let mut oldest = oldest.iter().flat_map(|page| &page.ids);
        Ok(now > millis && oldest.all(|entry| is_later(&entry.id)))
    }
}
