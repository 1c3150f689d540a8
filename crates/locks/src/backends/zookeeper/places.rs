//! The places that this process may have on the ensemble, until they are known to be gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zookeeper_client::Error;

use super::session::{Session, backend_error};
use super::{ZooKeeper, contender, names};
use crate::backend::Release;
use crate::shared::error::{BackendError, LostReason};
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
        // Dropping the last place of a session may close it, so unlock the mutex first.
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

impl ZooKeeper {
    /// Deletes a place.
    pub(super) async fn delete(
        &self,
        nonce: Nonce,
        mut place: Place,
    ) -> Result<Release, BackendError> {
        if place.node.is_none() {
            let prefix = names::nonce_prefix(nonce);
            let found = contender::find(&place, &prefix).await;
            place.node = found.map_err(backend_error)?;
        }
        let Some(path) = place.path() else {
            let removed = contender::remove_unused(&place).await;
            return removed.map(|()| Release::NotHeld(LostReason::Stolen));
        };
        // Record this before the request, because this future may be dropped.
        self.places
            .change(nonce, |known| known.deletion_unclear = true);
        let session = &place.session;
        match session.write(session.client.delete(&path, None)).await {
            Ok(()) => Ok(Release::Released),
            Err(Error::NoNode) if place.deletion_unclear => Ok(Release::Released),
            Err(Error::NoNode) => Ok(Release::NotHeld(self.reason(session, nonce).await)),
            Err(Error::SessionExpired) => Ok(Release::NotHeld(LostReason::SessionExpired)),
            Err(error) => Err(backend_error(error)),
        }
    }
}
