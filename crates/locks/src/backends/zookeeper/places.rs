//! The places that this process may have on the ensemble, until they are known to be gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::session::Session;
use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;

#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<Nonce, Place>>);

/// A place in the queue of a lock. It is recorded before its creation is requested.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) session: Arc<Session>,
    pub(super) directory: String,
    /// The name of the node, once it is known to exist.
    pub(super) node: Option<String>,
    /// A delete request got no answer. If the node is gone, that request may have deleted it.
    pub(super) deletion_unclear: bool,
}

impl Place {
    pub(super) fn path(&self) -> Option<String> {
        let node = self.node.as_ref()?;
        Some(format!("{}/{node}", self.directory))
    }
}

impl Places {
    pub(super) fn get(&self, nonce: Nonce) -> Option<Place> {
        lock(&self.0).get(&nonce).cloned()
    }

    pub(super) fn insert(&self, nonce: Nonce, place: Place) {
        lock(&self.0).insert(nonce, place);
    }

    pub(super) fn change(&self, nonce: Nonce, change: impl FnOnce(&mut Place)) {
        if let Some(place) = lock(&self.0).get_mut(&nonce) {
            change(place);
        }
    }

    pub(super) fn remove(&self, nonce: Nonce) {
        let removed = lock(&self.0).remove(&nonce);
        // Dropping the last place of a session may close it, so unlock the mutex first.
        drop(removed);
    }

    pub(super) fn clear(&self) {
        let removed = std::mem::take(&mut *lock(&self.0));
        drop(removed);
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}
