//! Two Redis servers may have sold in turn, each without the last sales of the other: sentinels may replace a master,
//! and its replica a moment later, before the first server has become a replica. Then the journals of the first one
//! have sales that SQL lacks, and SQL has sales that its levels lack.
//!
//! So SQL records what waits in the journals, and subtracts the units from its own levels. Then all levels in Redis are
//! deleted, and their next use loads them from SQL.
//!
//! Not covered: in a cluster, only the node with the key of the binding shows that another one has sold.

use redis::streams::StreamRangeReply;
use redis::{Pipeline, Value};

use super::{Binding, server};
use crate::StoreError;
use crate::journal::JournalEntry;
use crate::redis::consumer::took_too_long;
use crate::redis::keys::{Keys, Shard};
use crate::redis::nodes::Connections;
use crate::redis::streams::{Source, StreamEntry};
use crate::sql::{BoundRedis, SqlBackend};

/// How many entries of a journal are read at once.
const PAGE: usize = 30;

impl Binding {
    /// Merges the journals. `row`: what it says until the levels are compared.
    pub(super) async fn merge(
        &self,
        connections: &Connections,
        row: &BoundRedis,
    ) -> Result<(), StoreError> {
        let keys = self.keys().await?;
        let mut starts = vec!["-".to_owned(); Shard::all().count()];
        let mut are_levels_deleted = false;
        loop {
            let merged = merge_from(&mut starts, &*self.sql, connections, keys, row).await?;
            if merged > 0 {
                tracing::warn!(
                    entries = merged,
                    "another Redis may have sold in between; SQL has recorded what waited in this one"
                );
            } else if are_levels_deleted {
                return Ok(());
            }
            // A replica that does not know yet that another Redis was used may still sell here, and load levels that
            // it has read before. So after the levels are deleted, the journals are read again.
            server::end_loads(connections, keys).await?;
            self.delete_all(connections, &keys.levels_pattern()).await?;
            are_levels_deleted = true;
        }
    }
}

/// Merges the entries from `starts` on, one for each journal, and moves `starts` behind them. Returns their number.
async fn merge_from(
    starts: &mut [String],
    sql: &dyn SqlBackend,
    connections: &Connections,
    keys: &Keys,
    row: &BoundRedis,
) -> Result<usize, StoreError> {
    let mut merged = 0;
    loop {
        let read = |(shard, from): (Shard, &String)| {
            let mut commands = redis::pipe();
            commands.xrange_count(keys.journal(shard), from, "+", PAGE);
            (keys.slot(shard), commands)
        };
        let pages: Vec<_> = Shard::all().zip(&*starts).map(read).collect();
        let pages: Vec<[StreamRangeReply; 1]> = connections.query_each(None, &pages).await?;
        if pages.iter().all(|[page]| page.ids.is_empty()) {
            return Ok(merged);
        }
        for ((shard, start), [page]) in Shard::all().zip(starts.iter_mut()).zip(pages) {
            let Some(end) = page.ids.last() else { continue };
            *start = format!("({}", end.id);
            // The consumer sets those aside that cannot be parsed.
            let read = StreamEntry::parse_all(shard, Source::Journal, page.ids);
            let read: Vec<StreamEntry> = read.filter(|entry| entry.parsed.is_ok()).collect();
            merged += merge_page(&read, sql, connections, keys, row).await?;
        }
    }
}

/// Merges entries of one journal, and then deletes them there. Leaves those to the consumer that SQL refuses, unless it
/// refuses all. Returns how many were merged.
async fn merge_page(
    read: &[StreamEntry],
    sql: &dyn SqlBackend,
    connections: &Connections,
    keys: &Keys,
    row: &BoundRedis,
) -> Result<usize, StoreError> {
    let (mut parts, mut refused, mut merged) = (vec![read], None, 0);
    while let Some(part) = parts.pop() {
        let entries = part.iter().filter_map(|entry| entry.parsed.as_ref().ok());
        let entries: Vec<&JournalEntry> = entries.collect();
        if entries.is_empty() {
            continue;
        }
        let is_refused = |error: &StoreError| matches!(error, StoreError::Bug(_));
        match sql.merge_entries(row, &entries).await {
            Ok(()) => {
                delete(part, connections, keys).await?;
                merged += part.len();
            }
            Err(error) if part.len() > 1 && (is_refused(&error) || took_too_long(&error)) => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(error) if is_refused(&error) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    match refused {
        Some(error) if merged == 0 => Err(error),
        _ => Ok(merged),
    }
}

/// Deletes entries of one journal that are recorded.
async fn delete(
    read: &[StreamEntry],
    connections: &Connections,
    keys: &Keys,
) -> Result<(), StoreError> {
    let shard = read[0].shard;
    let ids: Vec<&str> = read.iter().map(|entry| &*entry.id).collect();
    let movements: usize = read.iter().map(StreamEntry::counted).sum();
    let mut commands = Pipeline::new();
    commands.xdel(keys.journal(shard), &ids);
    // Approximate if two replicas merge at once: the number of entries bounds it.
    let fewer = -i64::try_from(movements).unwrap_or(i64::MAX);
    commands.hincr(keys.counters(shard), "waiting", fewer);
    let deleted = [(keys.slot(shard), commands)];
    connections
        .query_each::<Value>(None, &deleted)
        .await
        .map(drop)
}
