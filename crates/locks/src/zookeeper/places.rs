//! Every place in a queue that a server may have of ours, until it is known to be gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::session::Session;
use crate::nonce::Nonce;

#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<Nonce, Place>>);

/// One place. It is here from before its creation is asked for.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) session: Arc<Session>,
    /// The lock's directory.
    pub(super) directory: String,
    /// The node's name, once it is known to exist.
    pub(super) node: Option<String>,
    /// Its deletion was asked for without an answer: that it is gone is our own doing.
    pub(super) deletion_unclear: bool,
}

impl Place {
    /// The path of its node.
    pub(super) fn path(&self) -> Option<String> {
        let node = self.node.as_ref()?;
        Some(format!("{}/{node}", self.directory))
    }
}

impl Places {
    pub(super) fn get(&self, nonce: Nonce) -> Option<Place> {
        self.places().get(&nonce).cloned()
    }

    pub(super) fn insert(&self, nonce: Nonce, place: Place) {
        self.places().insert(nonce, place);
    }

    pub(super) fn change(&self, nonce: Nonce, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.places().get_mut(&nonce) {
            change(place);
        }
    }

    pub(super) fn remove(&self, nonce: Nonce) {
        let removed = self.places().remove(&nonce);
        // It may be the last one of its session, which closes: not with the mutex held.
        drop(removed);
    }

    pub(super) fn clear(&self) {
        let removed = std::mem::take(&mut *self.places());
        drop(removed);
    }

    pub(super) fn len(&self) -> usize {
        self.places().len()
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Nonce, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
