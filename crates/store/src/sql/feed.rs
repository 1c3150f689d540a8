//! The feed: numbers the movements of the ledger in the order in which they are published.
//!
//! A sale writes nothing for it. A level's movements have its versions 1, 2, 3, …, and are committed with it. So a
//! publisher that reads a committed version knows that all movements up to it are there. Publishers are serialized
//! by the one row of `feed_state`: numbers have no gaps, and are visible in their order. No snapshot of the
//! database and no sequence decides that, so a late commit cannot be skipped: its level has a later version then.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;

use super::SqlStore;
use super::dialect::Dialect;
use super::errors::conflict_if_duplicate;
use super::rows::rows;
use super::statement::values;
use super::write::json;
use crate::{Result, StoreError};
use stocklock_core::stock::{Event, EventCursor, EventPage, Sku, Warehouse};

mod changed;

pub(super) use changed::Changed;
use changed::Place;

/// How many levels are published in one transaction. With the longest names, their list has half a megabyte.
const LEVELS: usize = 1_000;

/// How many rows a step of the start fills, and how many a step of the retention deletes.
const STEP: i64 = 5_000;

/// How many rows of the feed a page reads, if a filter leaves most of them out.
const ROWS: i64 = 1_000;

rows! {
    /// A row of the feed, if there is one, beside the state.
    #[derive(Debug)]
    struct FeedRow {
        end_seq: i64,
        filled: i64,
        seq: Option<i64>,
        sku: Option<String>,
        warehouse: Option<String>,
        first_version: Option<i64>,
        last_version: Option<i64>,
    }
}

/// Versions of a level that were published together.
#[derive(Debug)]
struct Versions {
    seq: i64,
    sku: Sku,
    warehouse: Warehouse,
    first: i64,
    last: i64,
    /// Whether the last one is the last of the row.
    to_end: bool,
}

impl FeedRow {
    fn versions(self) -> Option<Versions> {
        Some(Versions {
            seq: self.seq?,
            sku: Sku::parse(self.sku?).ok()?,
            warehouse: Warehouse::parse(self.warehouse?).ok()?,
            first: self.first_version?,
            last: self.last_version?,
            to_end: true,
        })
    }
}

impl Versions {
    /// The position after this version.
    fn cursor(&self, version: i64) -> EventCursor {
        EventCursor {
            seq: self.seq,
            version: (version < self.last || !self.to_end).then_some(version),
        }
    }
}

/// Publishes changes, and reads what was published.
#[async_trait]
pub trait Feed: Send + Sync {
    /// From now on, the levels that this store changes are remembered, and published by [`Feed::publish`].
    fn follow_changes(&self);

    /// When events are switched on for the first time, the levels are as if they had been published: this does the
    /// next of them. Returns whether all are done.
    async fn fill_published(&self) -> Result<bool>;

    /// Publishes the changes of the levels that are remembered now; those that are remembered meanwhile are left.
    /// Returns the number of the last row; `None`: there was nothing to publish. After an error, the levels that are
    /// not published are still remembered.
    async fn publish(&self) -> Result<Option<i64>>;

    /// The position after the last row. `None`: the events were just switched on, so changes may never be published.
    async fn last_published(&self) -> Result<Option<EventCursor>>;

    /// At most `limit` events after a position, or else from the oldest one that is kept; of all levels or of one
    /// SKU. Reads a bounded number of rows.
    async fn events(
        &self,
        after: Option<EventCursor>,
        sku: Option<&Sku>,
        limit: u32,
    ) -> Result<EventPage>;

    /// Deletes some of the rows that were published this long ago, the oldest first. Returns whether there may be
    /// more.
    async fn trim_feed(&self, age: Duration) -> Result<bool>;
}

#[async_trait]
impl<D: Dialect> Feed for SqlStore<D> {
    fn follow_changes(&self) {
        self.changed.follow();
    }

    async fn fill_published(&self) -> Result<bool> {
        let texts = D::texts();
        self.write(async {
            let mut tx = self.writers.begin(texts.begin.as_str()).await?;
            let state: Vec<(i64, i64)> = tx.rows(&texts.feed_state_locked, &[]).await?;
            if state.iter().all(|(_, filled)| *filled == 1) {
                tx.roll_back().await;
                return Ok(true);
            }
            let mut last: Vec<(String, String)> = tx.rows(&texts.last_filled, &[]).await?;
            let (sku, warehouse) = last.pop().unwrap_or_default();
            let page = values![&*sku, &*warehouse, STEP];
            let filled = tx.change(&texts.fill_published, &page).await?;
            let is_last = filled < STEP.unsigned_abs();
            if is_last {
                tx.change(&texts.set_filled, &[]).await?;
            }
            tx.commit().await?;
            Ok(is_last)
        })
        .await
    }

    async fn publish(&self) -> Result<Option<i64>> {
        let levels = self.changed.take();
        let (mut left, mut last) = (&levels[..], None);
        while !left.is_empty() {
            let (next, others) = left.split_at(left.len().min(LEVELS));
            match self.publish_levels(next).await {
                Ok(seq) => last = Some(seq),
                Err(error) => {
                    self.changed.remember(left.iter().map(|(a, b)| (a, b)));
                    return Err(error);
                }
            }
            left = others;
        }
        if let Some(last) = last {
            self.feed_at_standby(last).await?;
        }
        Ok(last)
    }

    async fn last_published(&self) -> Result<Option<EventCursor>> {
        let state: Vec<(i64, i64)> = self
            .select(&self.readers, &D::texts().feed_state, &[])
            .await?;
        let started = state.first().filter(|(_, filled)| *filled == 1);
        let Some(&(seq, _)) = started else {
            return Ok(None);
        };
        self.feed_at_standby(seq).await?;
        Ok(Some(EventCursor { seq, version: None }))
    }

    async fn events(
        &self,
        after: Option<EventCursor>,
        sku: Option<&Sku>,
        limit: u32,
    ) -> Result<EventPage> {
        let from = after.map_or(0, EventCursor::next_row);
        let page = values![from, ROWS];
        let rows: Vec<FeedRow> = self
            .select(&self.ledger_readers, &D::texts().feed_page, &page)
            .await?;
        let state = rows.first().map(|row| (row.end_seq, row.filled));
        let (end, filled) = state.unwrap_or_default();
        let rows: Vec<_> = rows.into_iter().filter_map(FeedRow::versions).collect();
        let first = rows.first().map_or(end + 1, |row| row.seq);
        let after = after.unwrap_or(EventCursor {
            seq: first - 1,
            version: None,
        });
        if filled == 0 {
            return Ok(EventPage::Starting);
        }
        if after.next_row() != first {
            return Ok(EventPage::Expired);
        }
        self.feed_at_standby(end).await?;
        let (chosen, cursor) = choose(rows, after, sku, limit);
        let events = self.events_of(&chosen).await?;
        Ok(EventPage::Events {
            events,
            cursor,
            end,
        })
    }

    async fn trim_feed(&self, age: Duration) -> Result<bool> {
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let oldest = values![age, STEP];
        let old: Vec<(Option<i64>,)> = self
            .select(&self.ledger_readers, &D::texts().last_old, &oldest)
            .await?;
        let Some((Some(last),)) = old.first() else {
            return Ok(false);
        };
        let range = values![*last];
        let trimmed = self.change_rows(&D::texts().trim_feed, &range).await?;
        Ok(trimmed >= STEP.unsigned_abs())
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Publishes the changes of these levels. Returns the number of the last row.
    async fn publish_levels(&self, levels: &[Place]) -> Result<i64> {
        let (texts, list) = (D::texts(), places(levels.iter().map(|(a, b)| (a, b))));
        self.write(async {
            let mut tx = self.writers.begin(texts.begin.as_str()).await?;
            let state: Vec<(i64, i64)> = tx.rows(&texts.feed_state_locked, &[]).await?;
            let Some((seq, 1)) = state.first() else {
                return Err(StoreError::Bug("the feed has not started".into()));
            };
            // A later statement than the one that waited for the lock, so it sees what the last holder wrote.
            let published = tx.execute(&texts.publish, &values![&*list, *seq]).await;
            let published = published.map_err(conflict_if_duplicate)?;
            if published == 0 {
                tx.roll_back().await;
                return Ok(*seq);
            }
            let end = seq + i64::try_from(published).unwrap_or_default();
            for (statement, number) in [(&texts.set_published, *seq), (&texts.set_feed_state, end)]
            {
                tx.change(statement, &values![number]).await?;
            }
            tx.commit().await?;
            // The commit has waited for the standby.
            self.feed_at_standby.fetch_max(end, Ordering::Relaxed);
            Ok(end)
        })
        .await
    }

    /// Remembers those of the levels that have unpublished changes, if events are on: a replica that has ended may
    /// have made them.
    pub(super) async fn remember_unpublished<'a>(
        &self,
        levels: impl Iterator<Item = (&'a Sku, &'a Warehouse)> + Send,
    ) -> Result<()> {
        if !self.changed.is_followed() {
            return Ok(());
        }
        let list = places(levels);
        let unpublished = &D::texts().unpublished;
        let found: Vec<(String, String)> = self
            .select(&self.ledger_readers, unpublished, &values![&*list])
            .await?;
        for (sku, warehouse) in found {
            if let (Ok(sku), Ok(warehouse)) = (Sku::parse(sku), Warehouse::parse(warehouse)) {
                self.changed.remember([(&sku, &warehouse)]);
            }
        }
        Ok(())
    }

    /// The events of these rows.
    async fn events_of(&self, rows: &[Versions]) -> Result<Vec<Event>> {
        // The movement before the first one has the units that were available before that.
        let wanted = rows.iter().flat_map(|row| {
            let versions = (row.first - 1).max(1)..=row.last;
            versions.map(|version| (row.sku.as_str(), row.warehouse.as_str(), version))
        });
        let wanted: Vec<_> = wanted.collect();
        let mut movements = HashMap::new();
        for list in wanted.chunks(LEVELS) {
            let list = json(list.iter());
            let found = self
                .select_movements(
                    &self.ledger_readers,
                    &D::texts().with_versions,
                    &values![&*list],
                )
                .await?;
            movements.extend(found.into_iter().map(|one| {
                let level = (one.sku.clone(), one.warehouse.clone());
                ((level, one.level_version), one)
            }));
        }
        let mut events = Vec::new();
        for row in rows {
            let level = (row.sku.clone(), row.warehouse.clone());
            let mut before = movements.get(&(level.clone(), row.first - 1));
            for version in row.first..=row.last {
                let Some(movement) = movements.get(&(level.clone(), version)) else {
                    return Err(StoreError::Bug(
                        format!("the ledger has no movement {version} of {}", row.sku).into(),
                    ));
                };
                events.push(Event {
                    cursor: row.cursor(version),
                    before: before.map_or(0, |one| one.available_after),
                    movement: movement.clone(),
                });
                before = Some(movement);
            }
        }
        Ok(events)
    }
}

/// The list of levels for a statement.
fn places<'a>(levels: impl Iterator<Item = (&'a Sku, &'a Warehouse)>) -> String {
    json(levels.map(|(sku, warehouse)| (sku.as_str(), warehouse.as_str())))
}

/// At most `limit` versions after a position, and the position after them.
fn choose(
    rows: Vec<Versions>,
    after: EventCursor,
    sku: Option<&Sku>,
    limit: u32,
) -> (Vec<Versions>, EventCursor) {
    let (mut chosen, mut cursor) = (Vec::new(), after);
    let mut left = i64::from(limit);
    for mut row in rows {
        if let Some(version) = after.version.filter(|_| row.seq == after.seq) {
            row.first = version + 1;
        }
        if sku.is_none_or(|sku| row.sku == *sku) && row.first <= row.last {
            if left == 0 {
                break;
            }
            let end = row.last.min(row.first + left - 1);
            (row.to_end, row.last) = (row.last == end, end);
            left -= row.last - row.first + 1;
            cursor = row.cursor(row.last);
            chosen.push(row);
        } else {
            cursor = EventCursor {
                seq: row.seq,
                version: None,
            };
        }
        if cursor.version.is_some() {
            break;
        }
    }
    (chosen, cursor)
}
