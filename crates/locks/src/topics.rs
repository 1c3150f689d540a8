//! Who in this process waits for which lock to become free.
//!
//! A topic exists while somebody listens to it, so names do not pile up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// All topics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Topics(Arc<Mutex<HashMap<String, watch::Sender<u64>>>>);

/// An interest in one topic; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    topics: Topics,
    topic: String,
    changes: watch::Receiver<u64>,
}

impl Topics {
    /// Listens from now on.
    pub(crate) fn listen(&self, topic: &str) -> Listener {
        let mut topics = self.topics();
        let sender = topics.entry(topic.to_owned()).or_default();
        Listener {
            topics: self.clone(),
            topic: topic.to_owned(),
            changes: sender.subscribe(),
        }
    }

    /// Wakes all who listen to a topic.
    pub(crate) fn publish(&self, topic: &str) {
        if let Some(sender) = self.topics().get(topic) {
            sender.send_modify(|changes| *changes += 1);
        }
    }

    /// Wakes everybody.
    #[cfg(feature = "redis")]
    pub(crate) fn publish_to_all(&self) {
        for sender in self.topics().values() {
            sender.send_modify(|changes| *changes += 1);
        }
    }

    /// Whether anybody listens to a topic.
    #[cfg(feature = "redis")]
    pub(crate) fn has_listeners(&self, topic: &str) -> bool {
        self.topics().contains_key(topic)
    }

    /// Whether nobody listens at all.
    #[cfg(feature = "redis")]
    pub(crate) fn is_empty(&self) -> bool {
        self.topics().is_empty()
    }

    /// What is listened to.
    #[cfg(feature = "redis")]
    pub(crate) fn names(&self) -> Vec<String> {
        self.topics().keys().cloned().collect()
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// Completes after the next change since the last call, or since the beginning.
    pub(crate) async fn changed(&mut self) {
        // The sender lives as long as a listener does.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = self.topics.topics();
        // This one still counts.
        if topics
            .get(&self.topic)
            .is_some_and(|sender| sender.receiver_count() <= 1)
        {
            topics.remove(&self.topic);
        }
    }
}
