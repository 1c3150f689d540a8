//! A mutex that goes to its waiters in order of arrival, or in any order that the explorer tries.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::explore::Decisions;

/// The mutex; clones share it.
#[derive(Debug, Clone)]
pub(super) struct ModelMutex {
    queue: Arc<Mutex<Queue>>,
    /// Set if the next holder is a decision.
    decisions: Option<Decisions>,
}

#[derive(Debug, Default)]
struct Queue {
    is_held: bool,
    waiting: Vec<oneshot::Sender<ModelGuard>>,
}

/// The mutex, held. Dropping this hands it on.
#[derive(Debug)]
pub(super) struct ModelGuard(ModelMutex);

impl ModelMutex {
    pub(super) fn new(decisions: Option<&Decisions>) -> Self {
        Self {
            queue: Arc::default(),
            decisions: decisions.cloned(),
        }
    }

    /// Waits for the mutex. Cancel safe.
    pub(super) async fn lock(&self) -> ModelGuard {
        let granted = {
            let mut queue = self.queue.lock();
            if !queue.is_held {
                queue.is_held = true;
                return ModelGuard(self.clone());
            }
            let (grant, granted) = oneshot::channel();
            queue.waiting.push(grant);
            granted
        };
        granted.await.expect("each holder hands the mutex on")
    }

    /// Takes the mutex if it is free.
    pub(super) fn try_lock(&self) -> Option<ModelGuard> {
        let mut queue = self.queue.lock();
        if queue.is_held {
            return None;
        }
        queue.is_held = true;
        Some(ModelGuard(self.clone()))
    }
}

impl Drop for ModelGuard {
    fn drop(&mut self) {
        let mutex = &self.0;
        let next = {
            let mut queue = mutex.queue.lock();
            queue.waiting.retain(|waiter| !waiter.is_closed());
            queue.is_held = !queue.waiting.is_empty();
            match (queue.waiting.len(), &mutex.decisions) {
                (0, _) => None,
                (waiting, Some(decisions)) => Some(queue.waiting.remove(decisions.choose(waiting))),
                (_, None) => Some(queue.waiting.remove(0)),
            }
        };
        if let Some(next) = next {
            // The waiter exists: nothing ran since the queue was locked.
            let _ = next.send(ModelGuard(mutex.clone()));
        }
    }
}
