//! The bound on concurrent writes, and the check that this deployment has their SKUs. Each write runs in its own
//! task.
//!
//! Guarantees: no change of stock is made without a [`WriteSlot`], and a slot is given for SKUs of this
//! deployment's shard only. So a request that was sent to the wrong deployment can sell nothing.
//!
//! Guarantees: a SKU gets a slot only while more slots are free than it has. So one hot SKU gets at most
//! half of them, and a SKU without a slot is refused only if none is free.
//!
//! A client that disconnects, or a deadline, must not cut a write short, because either may come in
//! the middle of a commit. So the write runs detached, and the caller only waits for it.

use std::collections::HashMap;
use std::error::Error;
use std::iter;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::stock::{Shard, Sku, StockError};

/// The running writes of one replica. Clones share the bound.
#[derive(Debug, Clone)]
pub struct WritePool {
    tasks: TaskTracker,
    slots: Arc<Mutex<Slots>>,
    shard: Shard,
}

#[derive(Debug)]
struct Slots {
    free: usize,
    /// The number of slots of each SKU that has any.
    taken: HashMap<Sku, usize>,
}

/// The right to run one more write of a SKU. Dropping it frees the slot.
#[derive(Debug)]
pub struct WriteSlot {
    slots: Arc<Mutex<Slots>>,
    sku: Sku,
}

impl WritePool {
    /// At most `max_in_flight` writes at once, of SKUs of `shard`.
    #[must_use]
    pub fn new(max_in_flight: usize, shard: Shard) -> Self {
        Self {
            tasks: TaskTracker::new(),
            slots: Arc::new(Mutex::new(Slots {
                free: max_in_flight,
                taken: HashMap::new(),
            })),
            shard,
        }
    }

    /// The shard whose SKUs can be written.
    #[must_use]
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Reserves a slot for a write of `sku` and `others`. It counts for `sku`.
    ///
    /// # Errors
    /// [`StockError::WrongShard`] if one of them belongs to another deployment; [`StockError::Overloaded`] if
    /// `sku` has as many slots as are still free, or none is free.
    pub fn admit<'a>(
        &self,
        sku: &'a Sku,
        others: impl IntoIterator<Item = &'a Sku>,
    ) -> Result<WriteSlot, StockError> {
        self.shard.check(iter::once(sku).chain(others))?;
        let mut slots = self.slots.lock();
        let taken = slots.taken.get(sku).copied().unwrap_or(0);
        if taken >= slots.free {
            return Err(StockError::Overloaded {
                what: "this replica already runs as many writes of this SKU, or in all, as \
                       MAX_IN_FLIGHT allows",
            });
        }
        slots.free -= 1;
        slots.taken.insert(sku.clone(), taken + 1);
        Ok(WriteSlot {
            slots: Arc::clone(&self.slots),
            sku: sku.clone(),
        })
    }

    /// Runs `write` in its own task, and waits for it until `deadline`.
    ///
    /// # Errors
    /// The errors of `write`, and [`StockError::OutcomeUnknown`] if it panics, or if the deadline passes
    /// first; the task continues then.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the write.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        slot: WriteSlot,
        deadline: Instant,
        write: impl Future<Output = Result<T, StockError>> + Send + 'static,
    ) -> Result<T, StockError> {
        let caller = Arc::new(());
        let waiting = Arc::downgrade(&caller);
        let task = async move {
            let result = write.await;
            drop(slot);
            if let (Err(error), 0) = (&result, waiting.strong_count()) {
                log_unanswered(error);
            }
            result
        };
        let answer = tokio::time::timeout_at(deadline, self.tasks.spawn(task.in_current_span()));
        let result = match answer.await {
            Ok(Ok(result)) => result,
            // It may have panicked after a commit.
            Ok(Err(join_error)) => Err(StockError::OutcomeUnknown {
                source: join_error.into(),
            }),
            Err(deadline) => Err(StockError::OutcomeUnknown {
                source: deadline.into(),
            }),
        };
        drop(caller);
        result
    }

    /// The number of running writes.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// Waits until no write runs. Cancel safe.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for WriteSlot {
    fn drop(&mut self) {
        let mut slots = self.slots.lock();
        slots.free += 1;
        if let Some(taken) = slots.taken.get_mut(&self.sku) {
            *taken -= 1;
            if *taken == 0 {
                slots.taken.remove(&self.sku);
            }
        }
    }
}

/// Logs the error of a write whose caller no longer waits: the client has disconnected, or was answered
/// at the deadline. Refusals cost the client nothing, so only defects and unknown outcomes are warnings.
fn log_unanswered(error: &StockError) {
    match error {
        StockError::Internal { .. } | StockError::OutcomeUnknown { .. } => {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(%error, cause, "a write failed after its caller had left");
        }
        _ => tracing::debug!(%error, "a write was refused after its caller had left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn write_keeps_its_slot_after_its_caller_has_left() {
        let pool = WritePool::new(1, Shard::WHOLE);
        let sku = Sku::parse("a").expect("a valid SKU");
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let slot = pool.admit(&sku, []).expect("a free slot");
        let write = async move {
            ended.await.expect("the test ends the write");
            Ok(())
        };
        let answer = pool.run(slot, Instant::now(), write).await;
        assert!(matches!(answer, Err(StockError::OutcomeUnknown { .. })));
        assert!(pool.admit(&sku, []).is_err());
        end.send(()).expect("the write runs");
        pool.drained().await;
        assert!(pool.admit(&sku, []).is_ok());
    }

    /// It may have committed before.
    #[tokio::test]
    async fn write_that_panics_has_an_unknown_outcome() {
        let pool = WritePool::new(1, Shard::WHOLE);
        let sku = Sku::parse("a").expect("a valid SKU");
        let slot = pool.admit(&sku, []).expect("a free slot");
        let later = Instant::now() + std::time::Duration::from_mins(1);
        let write = async { panic!("a defect") };
        let answer = pool.run::<()>(slot, later, write).await;
        assert!(matches!(answer, Err(StockError::OutcomeUnknown { .. })));
        assert!(pool.admit(&sku, []).is_ok());
    }

    #[test]
    fn hot_skus_leave_slots_for_others() {
        let pool = WritePool::new(12, Shard::WHOLE);
        let fill = |name: &str| {
            let sku = Sku::parse(name).expect("a valid SKU");
            std::iter::from_fn(|| pool.admit(&sku, []).ok()).collect::<Vec<_>>()
        };
        let hot = fill("hot");
        let warm = fill("warm");
        let cold = fill("cold");
        assert_eq!([hot.len(), warm.len(), cold.len()], [6, 3, 2]);
        drop((hot, warm, cold));
        assert!(pool.slots.lock().taken.is_empty());
        assert_eq!(fill("hot").len(), 6);
    }

    #[test]
    fn write_of_another_shard_gets_no_slot() {
        let pool = WritePool::new(12, "1/2".parse().expect("a shard"));
        let skus = (0..20).map(|number| Sku::parse(format!("s{number}")).expect("a SKU"));
        let (own, foreign): (Vec<_>, Vec<_>) = skus.partition(|sku| pool.shard().has(sku));
        assert!(pool.admit(&own[0], &own).is_ok());
        for (sku, others) in [(&foreign[0], &own), (&own[0], &foreign)] {
            let refused = pool.admit(sku, others).map(|_| ());
            assert!(matches!(refused, Err(StockError::WrongShard(_))));
        }
        assert!(pool.slots.lock().taken.is_empty());
    }
}
