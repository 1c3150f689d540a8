//! Reading levels, and bringing those that Redis does not have from SQL.

use redis::Cmd;
use stocklock_core::ports::Server;

use super::RedisStore;
use super::failure::bad_answer;
use super::scripts;
use crate::StoreError;
use crate::sql::Mirrored;
use stocklock_core::stock::{Home, Sku, StockLevel, Warehouse};

/// By how much a level's version leaps at least when it is loaded. Changes that Redis lost on their
/// way to SQL had versions too, which must not be given to others: whoever read one of them would
/// take another state for it. There were no more than the journal may hold, which is less than this.
/// Redis' clock in microseconds, where that is later, tells apart a load from the one before it.
pub(super) const LEAP: i64 = 10_000_000;

/// How often a load starts again because entries of its level left the journal meanwhile, which they
/// do only after another one has loaded it or just before it was lost, and how often a level
/// is loaded that is gone again when it is read.
pub(super) const LOADS: u32 = 20;

/// `on_hand`, held, `backorder_limit`, version; nothing where there is no level.
pub(super) type Counters = [Option<i64>; 4];

/// Since when it is counted what departs from a journal, and how many entries of one level have.
type Departed = (Option<String>, Option<String>);

/// What reads a level's counters.
pub(super) fn read_level(key: &str) -> Cmd {
    let mut command = redis::cmd("HMGET");
    command
        .arg(key)
        .arg(&["on_hand", "held", "backorder_limit", "version"]);
    command
}

/// The level behind `counters`, if there is one.
pub(super) fn level(
    (sku, warehouse): (&Sku, &Warehouse),
    counters: Counters,
) -> Result<Option<StockLevel>, StoreError> {
    let (on_hand, held, backorder_limit, version) = match counters {
        [Some(on_hand), Some(held), Some(limit), Some(version)] => (on_hand, held, limit, version),
        [None, None, None, None] => return Ok(None),
        half => return Err(bad_answer(half)),
    };
    Ok(Some(StockLevel {
        sku: sku.clone(),
        warehouse: warehouse.clone(),
        on_hand,
        held,
        backorder_limit,
        version,
        home: Home::Redis,
    }))
}

impl RedisStore {
    /// Reads one level, bringing it from SQL if need be.
    pub(crate) async fn level(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<StockLevel>, StoreError> {
        let key = self.keys().await?.of(sku).level(warehouse);
        for _ in 0..LOADS {
            let counters = self.shared.read(&read_level(&key)).await?;
            if let Some(level) = level((sku, warehouse), counters)? {
                return Ok(Some(level));
            }
            if self.load(sku, warehouse).await? != Some(Home::Redis) {
                return Ok(None);
            }
        }
        Err(lost_again())
    }

    /// Reads the levels of one SKU in these warehouses, all at one instant.
    pub(crate) async fn levels_in(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
    ) -> Result<Vec<StockLevel>, StoreError> {
        let keys = self.keys().await?.of(sku);
        let mut all = redis::pipe();
        all.atomic();
        for warehouse in warehouses {
            all.add_command(read_level(&keys.level(warehouse)));
        }
        for _ in 0..LOADS {
            let counters: Vec<Counters> = self.shared.read_all(&all).await?;
            if let Some(levels) = self.all_or_load(sku, warehouses, counters).await? {
                return Ok(levels);
            }
        }
        Err(lost_again())
    }

    /// The levels behind `counters`; where one is not there, it is loaded, and all are to be read
    /// again.
    pub(super) async fn all_or_load(
        &self,
        sku: &Sku,
        warehouses: &[Warehouse],
        counters: impl IntoIterator<Item = Counters>,
    ) -> Result<Option<Vec<StockLevel>>, StoreError> {
        let mut levels = Vec::with_capacity(warehouses.len());
        let mut loaded = false;
        for (warehouse, counters) in warehouses.iter().zip(counters) {
            if let Some(level) = level((sku, warehouse), counters)? {
                levels.push(level);
            } else {
                self.load(sku, warehouse).await?;
                loaded = true;
            }
        }
        Ok((!loaded).then_some(levels))
    }

    /// Brings a level that Redis does not have from its mirror; whoever comes second finds it there.
    /// Answers the SKU's home, or that there is no such level.
    pub(super) async fn load(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
    ) -> Result<Option<Home>, StoreError> {
        let keys = self.keys().await?;
        let of_sku = keys.of(sku);
        let level = of_sku.level(warehouse);
        let tally = keys.tally(of_sku.shard);
        let mut of_this = redis::cmd("HMGET");
        of_this.arg(&tally).arg("since").arg(&level);
        let touched = [level, keys.journal(of_sku.shard), tally];
        for _ in 0..LOADS {
            let before: Departed = self.shared.read(&of_this).await?;
            let Some(mirrored) = self.sql.mirrored(sku, warehouse).await? else {
                return Ok(None);
            };
            if mirrored.level.home != Home::Redis {
                return Ok(Some(mirrored.level.home));
            }
            let arguments = load_arguments(before, &mirrored);
            let answer = self
                .shared
                .script(&scripts::LOAD, &touched, &arguments)
                .await?;
            match answer.first().map(String::as_str) {
                Some("there" | "loaded") => return Ok(Some(Home::Redis)),
                Some("again") => {}
                _ => return Err(bad_answer(answer)),
            }
        }
        Err(StoreError::Aborted(
            "the journal moved while a level was loaded".into(),
        ))
    }
}

/// Redis keeps nothing: its memory is full, and its policy is to forget.
pub(super) fn lost_again() -> StoreError {
    StoreError::Unavailable(Server::Redis, "redis loses what is loaded into it".into())
}

fn load_arguments(before: Departed, mirrored: &Mirrored) -> Vec<String> {
    let Mirrored { level, entry } = mirrored;
    let (since, departed) = before;
    vec![
        since.unwrap_or_default(),
        departed.unwrap_or_default(),
        entry.to_string(),
        level.on_hand.to_string(),
        level.held.to_string(),
        level.backorder_limit.to_string(),
        level.version.to_string(),
        LEAP.to_string(),
    ]
}
