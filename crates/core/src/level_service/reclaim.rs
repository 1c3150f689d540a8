//! Ends holds whose time is over, when their units are needed and in the background.
//!
//! Guarantees: an attempt that finds too few units is refused only after a look-up that found no due hold of the
//! level and too few units, and that began less than 100 ms before. A refusal from memory needs a look-up that began
//! less than 500 ms before. That depends on no background task.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::{Changed, DELETE_WAIT, LevelService};
use crate::deduct::MAX_AGE;
use crate::ports::AttemptOutcome;
use crate::stock::{
    Change, HoldCursor, HoldFilter, Line, OpenHold, Operation, Refusal, RefusedLine, Sku,
    StockError, StockLevel, Warehouse,
};

/// For how long no request looks again for due holds of a level.
const PAUSE: Duration = Duration::from_millis(100);

/// How many levels are remembered.
const MAX_LEVELS: usize = 10_000;

/// How many due holds a look-up returns at most.
pub(super) const AT_ONCE: u32 = 256;

type Level = (Sku, Warehouse);

/// The levels that had no due hold a short time ago.
#[derive(Debug, Default)]
pub(super) struct Reclaims {
    none_due: Mutex<HashMap<Level, Found>>,
    /// One look-up for all that wait for the same level. No level waits for another.
    turns: Mutex<HashMap<Level, Turn>>,
    /// Up to here, due holds belong to other shards.
    foreign: Mutex<Option<HoldCursor>>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

/// A look-up that found no due hold.
#[derive(Debug, Clone, Copy)]
struct Found {
    began: Instant,
    ended: Instant,
    /// The units that were available; 0 if no hold can have given them back.
    available: i64,
}

impl Found {
    /// Whether another attempt may find these units, after one that began at `since` did not.
    fn is_worth_another(self, units: i64, since: Instant) -> bool {
        // An attempt that began before the end of the look-up may have read the level before a hold ended.
        self.ended > since && self.available >= units
    }
}

impl Reclaims {
    /// The last look-up that found no due hold of the level, if it began at most `age` ago.
    fn recent(&self, level: &Level, age: Duration) -> Option<Found> {
        let none_due = self.none_due.lock();
        let found = none_due.get(level).copied();
        found.filter(|found| found.began.elapsed() < age)
    }

    fn remember(&self, level: Level, found: Found) {
        let mut none_due = self.none_due.lock();
        if none_due.len() >= MAX_LEVELS {
            none_due.retain(|_, found| found.began.elapsed() < MAX_AGE);
        }
        if none_due.len() < MAX_LEVELS {
            none_due.insert(level, found);
        }
    }

    pub(super) fn foreign(&self) -> Option<HoldCursor> {
        *self.foreign.lock()
    }

    pub(super) fn skip_foreign(&self, last: HoldCursor) {
        *self.foreign.lock() = Some(last);
    }

    fn turn(&self, level: &Level) -> Turn {
        let mut turns = self.turns.lock();
        if turns.len() >= MAX_LEVELS {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        Arc::clone(turns.entry(level.clone()).or_default())
    }
}

impl LevelService {
    /// Makes an operation, which is not a deduction of one line. If units are missing, it is made again after the
    /// due holds of its levels have ended.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the change.
    pub async fn change(&self, operation: Operation) -> Result<Changed, StockError> {
        loop {
            let since = Instant::now();
            let changed = self.change_once(operation.clone()).await;
            let short: Vec<_> = match &changed {
                Err(StockError::Lines(lines)) => lines.iter().filter_map(short_line).collect(),
                Err(error) => {
                    let units = missing(error).into_iter();
                    units
                        .map(|units| (operation.owned_level(), units))
                        .collect()
                }
                Ok(_) => Vec::new(),
            };
            let mut is_again = false;
            for (level, units) in short {
                is_again |= self
                    .reclaim(level, units, (since, operation.deadline))
                    .await?;
            }
            if !is_again {
                let outcome = match &changed {
                    Ok(made) if made.replayed => "replayed",
                    Ok(_) => "made",
                    Err(error) => error.code(),
                };
                // A hold that replaces another one has ends, too.
                let is_hold = |line: &&Line| matches!(line.change, Change::Hold(_));
                let hold = operation.lines.iter().find(is_hold);
                let line = hold.unwrap_or(operation.first());
                self.metrics.operation(line.change.kind(), outcome);
                return changed;
            }
        }
    }

    /// Ends due holds of a level in which an attempt that began at `since` did not find these units. Returns
    /// whether another attempt may find them.
    ///
    /// # Errors
    /// Those of the store, and [`StockError::Overloaded`]: then it is not known whether units are missing.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a write that was sent. Each hold is either open, or has ended and its
    /// units are given back.
    pub async fn reclaim(
        &self,
        level: (Sku, Warehouse),
        units: i64,
        (since, deadline): (Instant, Instant),
    ) -> Result<bool, StockError> {
        if let Some(found) = self.reclaims.recent(&level, PAUSE) {
            return Ok(found.is_worth_another(units, since));
        }
        let turn = self.reclaims.turn(&level);
        let what = "holds that are over could not be ended before the deadline; the request changed nothing";
        let in_time = timeout_at(deadline, turn.lock()).await;
        let _turn = in_time.map_err(|_elapsed| StockError::Overloaded { what })?;
        if let Some(found) = self.reclaims.recent(&level, PAUSE) {
            return Ok(found.is_worth_another(units, since));
        }
        let began = Instant::now();
        let due = self.due(Some(level.clone()), None).await?;
        if !due.is_empty() {
            return match self.expire(due, deadline, "sale").await {
                Err(error) if !matches!(error, StockError::OutcomeUnknown { .. }) => Err(error),
                _ if Instant::now() >= deadline => Err(StockError::Overloaded { what }),
                // The next attempt sees what has become of them.
                _ => Ok(true),
            };
        }
        let now = self.store.level(&level.0, &level.1).await?;
        let mut available = now.as_ref().map_or(0, StockLevel::available);
        if available >= units && !self.store.was_held(&level.0, &level.1).await? {
            // They were added meanwhile. The refusal was right when it was decided.
            available = 0;
        }
        let found = Found {
            began,
            ended: Instant::now(),
            available,
        };
        self.reclaims.remember(level, found);
        Ok(found.is_worth_another(units, since))
    }

    /// Whether a look-up less than [`MAX_AGE`] ago found no due hold of the level, and no unit that a hold has given
    /// back.
    pub(crate) fn has_no_unit_from_holds(&self, level: &(Sku, Warehouse)) -> bool {
        let found = self.reclaims.recent(level, MAX_AGE);
        found.is_some_and(|found| found.available <= 0)
    }

    /// Ends due holds of any level, in the background. Returns how many have ended.
    ///
    /// # Errors
    /// Those of the store, after all levels were tried.
    ///
    /// # Cancel safety
    /// As [`LevelService::reclaim`].
    pub async fn expire_due(&self, deadline: Instant) -> Result<usize, StockError> {
        let due = self.due_of_shard().await?;
        let mut levels: HashMap<_, Vec<_>> = HashMap::new();
        for hold in due {
            let level = (hold.sku.clone(), hold.warehouse.clone());
            levels.entry(level).or_default().push(hold);
        }
        let mut ended = Ok(0);
        for due in levels.into_values() {
            let of_level = self.expire(due, deadline, "background").await;
            ended = ended.and_then(|ended| Ok(ended + of_level?));
        }
        ended
    }

    pub(super) async fn due(
        &self,
        level: Option<(Sku, Warehouse)>,
        after: Option<HoldCursor>,
    ) -> Result<Vec<OpenHold>, StockError> {
        let filter = HoldFilter {
            level,
            after,
            only_due: true,
            limit: AT_ONCE,
        };
        Ok(self.store.open_holds(&filter).await?)
    }

    /// Ends holds of one level, if possible in one transaction. Returns how many have ended; one that another
    /// request ends at the same time is not counted.
    async fn expire(
        &self,
        due: Vec<OpenHold>,
        deadline: Instant,
        by: &'static str,
    ) -> Result<usize, StockError> {
        let Some(first) = due.first() else {
            return Ok(0);
        };
        let level = (first.sku.clone(), first.warehouse.clone());
        let slot = self.writes.admit(&level.0, [])?;
        let ends: Vec<_> = due.into_iter().map(|one| one.expire(deadline)).collect();
        let this = self.clone();
        let write = async move {
            let answers = this.scheduler.attempt_all(ends).await;
            this.forget([level].into()).await;
            let mut ended = 0;
            for answer in answers {
                if matches!(answer?, AttemptOutcome::Changed(_)) {
                    this.metrics.operation("expired", "made");
                    this.metrics.hold_expired(by);
                    ended += 1;
                }
            }
            Ok(ended)
        };
        self.writes.run(slot, deadline, write).await
    }

    /// Forgets what this replica remembers of levels that may have changed.
    async fn forget(&self, levels: BTreeSet<(Sku, Warehouse)>) {
        for level in &levels {
            self.scheduler.sold_out().forget(level);
            self.cached.forget(&level.0);
        }
        self.forget_counters(levels).await;
    }

    /// Deletes the counters of levels in Redis: best effort. If that takes longer than [`DELETE_WAIT`], it goes
    /// on in the background.
    pub(super) async fn forget_counters(&self, levels: BTreeSet<(Sku, Warehouse)>) {
        let Some(counters) = self.counters.clone() else {
            return;
        };
        let deleting = tokio::spawn(async move {
            for level in &levels {
                counters.forget(level).await;
            }
        });
        let _ = tokio::time::timeout(DELETE_WAIT, deleting).await;
    }
}

/// The level of a line that is refused because units are missing, and how many units must be available for another
/// attempt. Another attempt is worthwhile if the level now has one unit more than this one found.
fn short_line(line: &RefusedLine) -> Option<((Sku, Warehouse), i64)> {
    let (StockError::Insufficient {
        available,
        requested,
    }
    | StockError::Refused(Refusal::HoldExpired {
        available,
        requested,
    })) = &line.error
    else {
        return None;
    };
    let units = (available + 1).min(*requested);
    Some(((line.sku.clone(), line.warehouse.clone()), units))
}

/// How many units are needed, if too few were available.
pub(crate) fn missing(error: &StockError) -> Option<i64> {
    match error {
        StockError::Insufficient { requested, .. }
        | StockError::Refused(Refusal::HoldExpired { requested, .. }) => Some(*requested),
        _ => None,
    }
}
