//! The holders from which a lock was taken away, used by the back ends `local` and `memory`.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::claims::LockView;
use crate::claims::{Release, Renewal, Renewed};
use crate::shared::clock::Moment;
use crate::shared::error::LostReason;
use crate::shared::lock::lock;
use crate::shared::nonce::{Nonce, REMEMBERED};

/// Remembers each of them until its lease would have ended, and for two minutes at least.
#[derive(Debug, Default)]
pub(crate) struct Revoked(Mutex<HashMap<Nonce, Moment>>);

impl Revoked {
    /// Releases the lock of this holder, if it has it, and remembers that. Returns whether it had it.
    pub(crate) fn take_away(
        &self,
        now: Moment,
        view: &LockView,
        nonce: Nonce,
        release: impl FnOnce() -> bool,
    ) -> bool {
        let Some(holder) = view.holders.iter().find(|holder| holder.nonce == nonce) else {
            return false;
        };
        // Locked before the release: a holder that finds its lock released waits for the note.
        let mut nonces = lock(&self.0);
        if !release() {
            return false;
        }
        let rest = holder.expires_in.unwrap_or_default();
        nonces.retain(|_, until| *until > now);
        nonces.insert(nonce, now + rest.max(REMEMBERED));
        true
    }

    /// The answer to a renewal.
    pub(crate) fn renewed(&self, now: Moment, renewal: &Renewal, is_held: bool) -> Renewed {
        if is_held {
            Renewed::Held(renewal.lease)
        } else {
            Renewed::Gone(self.reason(now, renewal.nonce))
        }
    }

    /// The answer to a release.
    pub(crate) fn released(&self, now: Moment, nonce: Nonce, was_held: bool) -> Release {
        if was_held {
            Release::Released
        } else {
            Release::NotHeld(self.reason(now, nonce))
        }
    }

    /// Why a nonce does not hold its lock.
    pub(crate) fn reason(&self, now: Moment, nonce: Nonce) -> LostReason {
        if self.contains(now, nonce) {
            LostReason::Revoked
        } else {
            LostReason::Stolen
        }
    }

    pub(crate) fn contains(&self, now: Moment, nonce: Nonce) -> bool {
        lock(&self.0).get(&nonce).is_some_and(|until| *until > now)
    }

    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}
