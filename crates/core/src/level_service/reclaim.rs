//! Ends holds whose time is over, when their units are needed and in the background.
//!
//! Guarantees: an operation is refused for units only by an attempt before whose start, and at most 100 ms
//! before, no hold of its levels was due. That depends on no background task.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::LevelService;
use crate::stock::{HoldFilter, OpenHold, Sku, StockError, Warehouse};

/// For how long a look-up that has found no due hold of a level holds for attempts that start after it.
const PAUSE: Duration = Duration::from_millis(100);

/// How many levels are remembered.
const MAX_LEVELS: usize = 10_000;

/// How many holds end in one transaction.
const AT_ONCE: u32 = 256;

/// When a look-up began that has found no due hold of a level.
#[derive(Debug, Default)]
pub(super) struct Reclaims {
    none_due: Mutex<HashMap<(Sku, Warehouse), Instant>>,
}

impl Reclaims {
    /// Whether an attempt that began at `since` has seen a level without due holds.
    fn had_none(&self, level: &(Sku, Warehouse), since: Instant) -> bool {
        let none_due = self.none_due.lock().unwrap_or_else(PoisonError::into_inner);
        let found = none_due.get(level);
        found.is_some_and(|at| *at <= since && since - *at < PAUSE)
    }

    /// Returns whether the level is remembered: there may be too many.
    fn remember(&self, level: (Sku, Warehouse), at: Instant) -> bool {
        let mut none_due = self.none_due.lock().unwrap_or_else(PoisonError::into_inner);
        if none_due.len() >= MAX_LEVELS {
            none_due.retain(|_, at| at.elapsed() < PAUSE);
        }
        let has_room = none_due.len() < MAX_LEVELS;
        if has_room {
            let last = none_due.entry(level).or_insert(at);
            *last = at.max(*last);
        }
        has_room
    }
}

impl LevelService {
    /// Ends due holds of a level whose units an attempt that began at `since` did not find. Returns whether
    /// another attempt may find them: another request may have ended holds since.
    ///
    /// # Errors
    /// Those of the store: then it is not known whether units are missing.
    ///
    /// # Cancel safety
    /// Dropping the future leaves holds that have ended or not, each with its units.
    pub async fn reclaim(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        (since, deadline): (Instant, Instant),
    ) -> Result<bool, StockError> {
        let level = (sku.clone(), warehouse.clone());
        if Instant::now() >= deadline || self.reclaims.had_none(&level, since) {
            return Ok(false);
        }
        let at = Instant::now();
        let due = self.due(Some(level.clone())).await?;
        if due.is_empty() {
            return Ok(self.reclaims.remember(level, at));
        }
        self.expire(due, deadline).await?;
        Ok(true)
    }

    /// Ends due holds of any level, in the background. Returns how many were found.
    ///
    /// # Errors
    /// Those of the store.
    ///
    /// # Cancel safety
    /// As [`LevelService::reclaim`].
    pub async fn expire_due(&self, deadline: Instant) -> Result<usize, StockError> {
        let due = self.due(None).await?;
        let found = due.len();
        let mut levels: HashMap<_, Vec<_>> = HashMap::new();
        for hold in due {
            let level = (hold.sku.clone(), hold.warehouse.clone());
            levels.entry(level).or_default().push(hold);
        }
        for due in levels.into_values() {
            self.expire(due, deadline).await?;
        }
        Ok(found)
    }

    async fn due(&self, level: Option<(Sku, Warehouse)>) -> Result<Vec<OpenHold>, StockError> {
        let filter = HoldFilter::Page {
            level,
            after: None,
            only_due: true,
            limit: AT_ONCE,
        };
        Ok(self.store.open_holds(&filter).await?)
    }

    /// Ends holds of one level, most of them in one transaction. What another request ends at the same time is left to it.
    async fn expire(&self, due: Vec<OpenHold>, deadline: Instant) -> Result<(), StockError> {
        let Some(first) = due.first() else {
            return Ok(());
        };
        let level = (first.sku.clone(), first.warehouse.clone());
        let slot = self.writes.admit(&level.0)?;
        let ends: Vec<_> = due.into_iter().map(|one| one.expire(deadline)).collect();
        let this = self.clone();
        let write = async move {
            let answers = this.scheduler.attempt_all(ends).await;
            this.forget([level].into()).await;
            let failed = answers.into_iter().find_map(Result::err);
            failed.map_or(Ok(()), |error| Err(error.into()))
        };
        self.writes.run(slot, deadline, write).await
    }
}
