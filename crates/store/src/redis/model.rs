//! A model of stock in Redis under every schedule: a sale, a repeated sale with a key, two consumers of
//! the journal, a lease that ends too early, a Redis that loses data, and the binding if it loses everything.
//!
//! What SQL does with a batch is decided by the code of [`crate::sql::apply`]. What Redis does is decided
//! by one function per script, with the same decisions but without limits and deadlines. Its
//! clock is as bad as possible: after a loss, the ids of entries are used again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, LazyLock};

use anyhow::ensure;
use stocklock_core::model::{Decisions, Explorer, Failure, Task, World};
use stocklock_core::stock::{Home, StockLevel};
use uuid::Uuid;

use super::idempotency::KeyCheck;
use super::scripts::Answer::{self, Duplicate};
use crate::journal::tests::row;
use crate::journal::{EntryId, JournalEntry, last_of_each_level};
use crate::sql::apply::{drop_keys, new_movements, updated};
use crate::sql::ledger_row::LedgerRow;
use crate::sql::rows::MirrorRow;

mod scripts;
mod tasks;

use tasks::Model;

/// The id of the binding before Redis loses everything.
const FIRST_ID: u32 = 1;

static ROW: LazyLock<LedgerRow> = LazyLock::new(|| row("a"));

/// What the properties depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Safeguard {
    /// `ack.lua` removes nothing without the lease.
    LeaseCheck,
    /// `load.lua` refuses a mirror that was read before Redis lost its data.
    SinceCheck,
    /// `load.lua` knows the state after the last entry, which may wait, or be set aside.
    LastState,
    /// `load.lua` raises the last id of the journal.
    RaisedId,
    /// `load.lua` loads nothing if Redis does not have the key of the binding.
    BindingCheck,
    /// A Redis that has lost the key is bound under another id.
    NewId,
}

type Entries = BTreeMap<EntryId, Arc<JournalEntry>>;

/// The answer of `load.lua`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Done,
    /// The mirror must be read again.
    Again,
    /// Redis does not have the key of the binding.
    Unbound,
}

/// How the schedules differ. All at once would be too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// A lease may end too early.
    EarlyEnd,
    /// SQL may refuse an entry.
    Refusal,
    /// Redis has lost the level before the first schedule begins.
    LostLevel,
    /// Redis loses everything, and goes on.
    Flush,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    on_hand: i64,
    version: i64,
    /// Its version when it was loaded, which stands for the time. Then SQL must be asked for keys.
    loaded: Option<i64>,
}

#[derive(Clone, Default, PartialEq, Eq)]
struct Redis {
    level: Option<Level>,
    /// The units and the version of the level after the last entry.
    last: Option<(i64, i64)>,
    dedup: BTreeSet<Uuid>,
    journal: Entries,
    last_id: i64,
    /// The entries that were set aside.
    rejected: Entries,
    /// The counter `since`. 0 if Redis does not have it.
    since: u32,
    /// The id in the key of the binding.
    binding: Option<u32>,
    /// The consumer that has the lease.
    lease: Option<u32>,
    /// All operations that were sold with this data.
    sold: BTreeSet<Uuid>,
}

/// The binding in SQL: the id, and whether the Redis was used with it.
type Row = (u32, bool);

struct State {
    redis: Redis,
    row: Row,
    mirror: MirrorRow,
    ledger: Vec<LedgerRow>,
    /// What Redis has had until now. Empty after it has lost data.
    history: Vec<Redis>,
    /// Whether Redis loses everything.
    is_flushed: bool,
    /// How many leases may end early.
    early_ends: u32,
    /// How many entries SQL may refuse. While it may refuse one, Redis loses only the level.
    refusals: u32,
    /// The sales that were answered.
    sold: BTreeSet<Uuid>,
    /// Those that Redis lost before SQL had them, or whose units are on sale again.
    lost: BTreeSet<Uuid>,
    deleted_unapplied: bool,
    without: Option<Safeguard>,
    decisions: Decisions,
}

impl State {
    fn has(&self, safeguard: Safeguard) -> bool {
        self.without != Some(safeguard)
    }

    /// Writes the row of the binding if it is still `expected`.
    fn bind(&mut self, expected: Row, next: Row) {
        if self.row == expected {
            self.row = next;
        }
    }

    fn recorded(&self, sale: Uuid) -> usize {
        let is_sale = |row: &&LedgerRow| row.operation_id == sale;
        self.ledger.iter().filter(is_sale).count()
    }

    fn has_key(&mut self) -> bool {
        let mut rows = self.ledger.iter();
        rows.any(|row| row.idempotency_key.is_some())
    }

    /// One transaction with entries that were read from the Redis with this id. SQL may refuse the last of
    /// several entries. Returns how many it has applied, or `None` if the ledger is bound to another id.
    fn apply(&mut self, from: u32, entries: &[Arc<JournalEntry>]) -> Option<usize> {
        if self.row.0 != from {
            return None;
        }
        let refuses = entries.len() > 1 && self.refusals > 0 && self.decisions.choose(2) == 1;
        self.refusals -= u32::from(refuses);
        let applied = entries.len() - usize::from(refuses);
        let batch: Vec<_> = entries[..applied].iter().map(|entry| &**entry).collect();
        let recorded: HashSet<_> = self.ledger.iter().map(|row| row.operation_id).collect();
        let mut rows = new_movements(&batch, &recorded);
        let key = |row: &LedgerRow| Some((row.caller.to_string(), row.idempotency_key.clone()?));
        drop_keys(&mut rows, &self.ledger.iter().filter_map(key).collect());
        self.ledger.extend(rows);
        for last in last_of_each_level(&batch) {
            self.mirror = updated(&self.mirror, last);
        }
        Some(applied)
    }

    /// Redis loses everything; or its level, or all that happened since some time. That can be nothing.
    fn lose(&mut self) {
        let mut history = std::mem::take(&mut self.history);
        let is_level_only = self.refusals > 0;
        history.retain(|_| !is_level_only);
        if self.is_flushed {
            self.redis = Redis::default();
        } else {
            match self.decisions.choose(history.len() + 1) {
                0 => self.redis.level = None,
                earlier => self.redis = history.swap_remove(earlier - 1),
            }
        }
        let is_lost = |sale: &Uuid| {
            let in_sql = self.redis.level.is_none() && self.recorded(*sale) == 1;
            !self.redis.sold.contains(sale) && !in_sql
        };
        self.lost = self.sold.iter().copied().filter(is_lost).collect();
    }
}

/// Of three units, two are sold, one of them with a key. A consumer has read both entries.
fn world(
    decisions: &Decisions,
    variant: Variant,
    without: Option<Safeguard>,
) -> World<Model, Option<Answer>> {
    let level = StockLevel {
        sku: ROW.sku.clone(),
        warehouse: ROW.warehouse.clone(),
        on_hand: 3,
        held: 0,
        backorder_limit: 0,
        version: 0,
        home: Home::Redis,
    };
    let redis = Redis {
        level: Some(Level {
            on_hand: level.on_hand,
            version: level.version,
            loaded: None,
        }),
        since: 1,
        binding: Some(FIRST_ID),
        ..Redis::default()
    };
    let mut state = State {
        redis,
        row: (FIRST_ID, true),
        mirror: MirrorRow {
            level,
            entry: EntryId::default(),
            ledger_version: None,
        },
        ledger: Vec::new(),
        history: Vec::new(),
        is_flushed: variant == Variant::Flush,
        early_ends: u32::from(variant == Variant::EarlyEnd),
        refusals: u32::from(variant == Variant::Refusal),
        sold: BTreeSet::new(),
        lost: BTreeSet::new(),
        deleted_unapplied: false,
        without,
        decisions: decisions.clone(),
    };
    state.deduct(1, true, KeyCheck::NotNeeded);
    state.deduct(2, false, KeyCheck::NotNeeded);
    let batch = state.take(1).expect("the lease is free");
    if variant == Variant::LostLevel {
        state.redis.level = None;
    }
    // Another level of the shard was loaded since.
    let flushed = Redis {
        since: 2,
        binding: Some(FIRST_ID),
        ..Redis::default()
    };
    if !state.is_flushed {
        state.history = vec![flushed, state.redis.clone()];
    }
    let model = Model::new(state);
    let [buyer, paused, other, redis] = [(); 4].map(|()| model.clone());
    let mut tasks: Vec<Task<_>> = vec![
        Box::pin(async move {
            buyer.sell(3, false).await;
            Some(buyer.sell(4, true).await)
        }),
        Box::pin(async move {
            paused.finish(1, &batch).await;
            None
        }),
        Box::pin(async move {
            redis.step("loss", State::lose).await;
            None
        }),
    ];
    if variant != Variant::Flush {
        tasks.push(Box::pin(async move {
            if let Some(batch) = other.step("TAKE", |state| state.take(2)).await {
                other.finish(2, &batch).await;
            }
            None
        }));
    }
    World {
        state: model,
        tasks,
    }
}

fn check(state: &mut State, retry: Option<Answer>) -> anyhow::Result<()> {
    ensure!(!state.deleted_unapplied, "an entry was deleted unapplied");
    // A later batch applies what is left.
    let Redis {
        journal, rejected, ..
    } = &state.redis;
    let left: Vec<_> = journal.values().chain(rejected.values()).cloned().collect();
    state.refusals = 0;
    state.apply(state.row.0, &left);
    for &sale in &state.sold {
        let (recorded, is_lost) = (state.recorded(sale), state.lost.contains(&sale));
        ensure!(
            recorded == 1 || recorded == 0 && is_lost,
            "{recorded} of {sale}"
        );
    }
    let (sold, left) = (state.ledger.len(), state.mirror.level.on_hand);
    if state.is_flushed {
        let is_sold_once = sold + usize::try_from(left)? == 3;
        ensure!(is_sold_once, "of 3, {sold} are sold and {left} left");
        let mut level = state.redis.level.iter();
        let in_sql = level.all(|level| level.on_hand == left);
        ensure!(in_sql, "SQL has {left}, and Redis {:?}", state.redis.level);
        let is_answered = state.recorded(Uuid::from_u128(1)) == 0 || retry == Some(Duplicate);
        ensure!(is_answered, "the retry is answered {retry:?}");
    }
    if state.lost.is_empty() {
        ensure!(retry == Some(Duplicate), "the retry is answered {retry:?}");
        ensure!(
            sold == 3 && left == 0,
            "of 3, {sold} are sold and {left} left"
        );
    }
    Ok(())
}

/// Returns the number of schedules, and of those in which Redis lost a sale.
fn explore(variant: Variant, without: Option<Safeguard>) -> Result<(u64, u64), Failure> {
    let mut with_loss = 0;
    let schedules = Explorer::up_to(100_000).explore(
        |decisions| world(decisions, variant, without),
        |model, answers| {
            let state = &mut *model.state();
            with_loss += u64::from(!state.lost.is_empty());
            check(state, answers[0])
        },
    )?;
    Ok((schedules, with_loss))
}

/// The schedule counts are exact on purpose: they change only if the model or the explorer changes.
#[test]
fn every_sale_that_redis_keeps_is_recorded_once() {
    for (variant, schedules) in [
        (Variant::EarlyEnd, (24_581, 10_456)),
        (Variant::Refusal, (2_232, 724)),
        (Variant::LostLevel, (21_616, 7_925)),
        (Variant::Flush, (475, 448)),
    ] {
        let explored = explore(variant, None);
        let explored = explored.unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(explored, schedules, "{variant:?}");
    }
}

#[test]
fn model_without_one_safeguard_fails() {
    let wrong_level = "of 3, 3 are sold and";
    for (without, variant, why) in [
        (
            Safeguard::LeaseCheck,
            Variant::EarlyEnd,
            "an entry was deleted unapplied",
        ),
        (
            Safeguard::SinceCheck,
            Variant::LostLevel,
            "the retry is answered",
        ),
        (Safeguard::RaisedId, Variant::EarlyEnd, wrong_level),
        (Safeguard::LastState, Variant::EarlyEnd, wrong_level),
        (Safeguard::LastState, Variant::Refusal, wrong_level),
        (Safeguard::BindingCheck, Variant::Flush, "are sold and"),
        (Safeguard::NewId, Variant::Flush, "are sold and"),
    ] {
        let Err(failure) = explore(variant, Some(without)) else {
            panic!("{without:?} is not needed");
        };
        assert!(failure.why.contains(why), "{without:?}: {failure}");
    }
}
