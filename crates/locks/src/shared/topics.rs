//! Wakes the tasks of this process that wait for a lock to become free.
//!
//! A topic exists only while it has listeners, so names do not accumulate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::shared::lock::lock;

#[derive(Debug, Clone, Default)]
pub(crate) struct Topics(Arc<Mutex<HashMap<String, watch::Sender<u64>>>>);

/// A subscription to one topic. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    topics: Topics,
    topic: String,
    changes: watch::Receiver<u64>,
}

impl Topics {
    pub(crate) fn listen(&self, topic: &str) -> Listener {
        let mut topics = lock(&self.0);
        let sender = topics.entry(topic.to_owned()).or_default();
        Listener {
            topics: self.clone(),
            topic: topic.to_owned(),
            changes: sender.subscribe(),
        }
    }

    pub(crate) fn publish(&self, topic: &str) {
        if let Some(sender) = lock(&self.0).get(topic) {
            sender.send_modify(|changes| *changes += 1);
        }
    }

    #[cfg(any(feature = "redis", feature = "sql"))]
    pub(crate) fn publish_to_all(&self) {
        for sender in lock(&self.0).values() {
            sender.send_modify(|changes| *changes += 1);
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn has_listeners(&self, topic: &str) -> bool {
        lock(&self.0).contains_key(topic)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn names(&self) -> Vec<String> {
        lock(&self.0).keys().cloned().collect()
    }
}

impl Listener {
    /// Waits for the next change after the last call, or after the subscription.
    pub(crate) async fn changed(&mut self) {
        // The sender lives as long as any listener, so this cannot fail.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = lock(&self.topics.0);
        // The count still includes this listener.
        if topics
            .get(&self.topic)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            topics.remove(&self.topic);
        }
    }
}
