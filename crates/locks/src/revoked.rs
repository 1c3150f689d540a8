//! The holders from which a lock was taken away, used by the back ends `local` and `memory`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::admin::{LockView, REMEMBERED};
use crate::backend::Release;
use crate::clock::Moment;
use crate::nonce::Nonce;

/// Remembers each of them until its lease would have ended, and for a minute at least.
#[derive(Debug, Default)]
pub(crate) struct Revoked(Mutex<HashMap<Nonce, Moment>>);

impl Revoked {
    /// Releases the lock of this holder, if it has it, and remembers that. Returns whether it had it.
    pub(crate) fn take_away(
        &self,
        now: Moment,
        view: &LockView,
        nonce: Nonce,
        release: impl FnOnce() -> Release,
    ) -> bool {
        let Some(holder) = view.holders.iter().find(|holder| holder.nonce == nonce) else {
            return false;
        };
        if release() == Release::NotHeld {
            return false;
        }
        let rest = holder.expires_in.unwrap_or_default();
        let mut nonces = self.nonces();
        nonces.retain(|_, until| *until > now);
        nonces.insert(nonce, now + rest.max(REMEMBERED));
        true
    }

    pub(crate) fn contains(&self, now: Moment, nonce: Nonce) -> bool {
        self.nonces().get(&nonce).is_some_and(|until| *until > now)
    }

    pub(crate) fn clear(&self) {
        self.nonces().clear();
    }

    fn nonces(&self) -> MutexGuard<'_, HashMap<Nonce, Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
