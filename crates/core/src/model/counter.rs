//! A model of the counters in Redis, whose keys may vanish and whose loads may be late.
//!
//! Each command is one step. A key may expire, or be lost, at any step: both look the same to a client.
//! A load may arrive at any later step, with the value that was read before.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::explore::{Decisions, yield_once};
use crate::ports::{CounterAnswer, CounterError, CounterMethod, CounterStore};
use crate::stock::{Sku, Warehouse};

/// The model; clones share it.
#[derive(Debug, Clone)]
pub struct ModelCounter {
    state: Arc<Mutex<State>>,
    decisions: Decisions,
}

#[derive(Debug)]
struct State {
    counters: HashMap<(Sku, Warehouse), Value>,
    /// How many keys may still vanish.
    losses: u32,
    /// How many loads may still be late.
    late_loads: u32,
    /// How many requests may still fail.
    outages: u32,
    writes: u64,
}

/// A counter, and the number of its last write.
#[derive(Debug, Clone, Copy)]
struct Value {
    units: i64,
    write: u64,
}

impl ModelCounter {
    /// No counters. At most `losses` vanish, `late_loads` loads are late, and `outages` requests fail.
    #[must_use]
    pub fn new(decisions: &Decisions, losses: u32, late_loads: u32, outages: u32) -> Self {
        let state = State {
            counters: HashMap::new(),
            losses,
            late_loads,
            outages,
            writes: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            decisions: decisions.clone(),
        }
    }

    /// Creates the counter of a level, as a load would.
    pub fn create(&self, sku: &Sku, warehouse: &Warehouse, units: i64) {
        self.state.lock().load(&(sku, warehouse), units);
    }

    /// One command. It may fail before it is executed, and the key may vanish before it.
    async fn step(&self, command: &'static str, level: &Level<'_>) -> Result<(), CounterError> {
        yield_once().await;
        self.decisions.note(command);
        if self.happens(|state| &mut state.outages) {
            self.decisions.note("redis is away");
            return Err(CounterError::Unavailable("away".into()));
        }
        let exists = self.state.lock().get(level).is_some();
        if exists && self.happens(|state| &mut state.losses) {
            self.decisions.note("the counter is lost");
            self.state.lock().counters.remove(&owned(level));
        }
        Ok(())
    }

    /// Decides whether a fault happens, while some are left.
    fn happens(&self, left: impl Fn(&mut State) -> &mut u32) -> bool {
        let mut state = self.state.lock();
        let left = left(&mut state);
        let happens = *left > 0 && self.decisions.choose_fault(2) == 1;
        *left -= u32::from(happens);
        happens
    }
}

type Level<'a> = (&'a Sku, &'a Warehouse);

fn owned((sku, warehouse): &Level<'_>) -> (Sku, Warehouse) {
    ((*sku).clone(), (*warehouse).clone())
}

impl State {
    fn get(&self, level: &Level<'_>) -> Option<Value> {
        self.counters.get(&owned(level)).copied()
    }

    fn set(&mut self, level: &Level<'_>, units: i64) {
        self.writes += 1;
        let write = self.writes;
        self.counters.insert(owned(level), Value { units, write });
    }

    /// `SET … NX`.
    fn load(&mut self, level: &Level<'_>, units: i64) {
        if self.get(level).is_none() {
            self.set(level, units);
        }
    }
}

#[async_trait]
impl CounterStore for ModelCounter {
    async fn take(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        units: i64,
        method: CounterMethod,
    ) -> Result<CounterAnswer, CounterError> {
        let level = (sku, warehouse);
        self.step("GET the counter", &level).await?;
        let Some(read) = self.state.lock().get(&level) else {
            return Ok(CounterAnswer::Missing);
        };
        if read.units < units {
            let available = read.units;
            return Ok(CounterAnswer::Refused { available });
        }
        // The script is one step.
        if method != CounterMethod::Script {
            self.step("SET the counter", &level).await?;
        }
        let left = read.units - units;
        {
            let mut state = self.state.lock();
            let now = state.get(&level).map(|value| value.write);
            if method == CounterMethod::Watch && now != Some(read.write) {
                return Ok(CounterAnswer::Conflict);
            }
            // `XX`: a key that has vanished is not created.
            if now.is_some() {
                state.set(&level, left);
            }
        }
        yield_once().await;
        self.decisions.note("the answer of the counter arrives");
        if self.happens(|state| &mut state.outages) {
            return Err(CounterError::Unavailable("the answer is lost".into()));
        }
        Ok(CounterAnswer::Admitted { left })
    }

    async fn now(&self, sku: &Sku, warehouse: &Warehouse) -> Result<i64, CounterError> {
        self.step("TIME", &(sku, warehouse)).await?;
        Ok(0)
    }

    async fn load(
        &self,
        sku: &Sku,
        warehouse: &Warehouse,
        available: i64,
        _read_at: i64,
    ) -> Result<(), CounterError> {
        let level = (sku, warehouse);
        self.step("load the counter", &level).await?;
        if !self.happens(|state| &mut state.late_loads) {
            self.state.lock().load(&level, available);
            return Ok(());
        }
        let (model, level) = (self.clone(), owned(&level));
        self.decisions.spawn(Box::pin(async move {
            yield_once().await;
            model.decisions.note("a late load arrives");
            model.state.lock().load(&(&level.0, &level.1), available);
        }));
        Ok(())
    }

    async fn give_back(&self, sku: &Sku, warehouse: &Warehouse, units: i64) {
        let level = (sku, warehouse);
        if self.step("give units back", &level).await.is_ok() {
            let mut state = self.state.lock();
            if let Some(value) = state.get(&level) {
                state.set(&level, value.units + units);
            }
        }
    }

    async fn delete(&self, sku: &Sku, warehouse: &Warehouse) {
        let level = (sku, warehouse);
        if self.step("DEL the counter", &level).await.is_ok() {
            self.state.lock().counters.remove(&owned(&level));
        }
    }
}
