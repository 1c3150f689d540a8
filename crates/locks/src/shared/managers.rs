//! The managers that use one back end, or one of its clones.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use crate::shared::lock::lock;

/// The registered managers. One that is dropped without a shutdown no longer counts.
#[derive(Debug, Default)]
pub(crate) struct Managers(Mutex<Vec<Weak<Notify>>>);

impl Managers {
    /// Registers a manager, and calls `open` before another manager can detach.
    pub(crate) fn attach(&self, nudge: &Nudge, open: impl FnOnce()) {
        let mut managers = self.live();
        managers.push(Arc::downgrade(&nudge.0));
        open();
    }

    /// Removes a manager. If it was the last one, calls `close` before another one can attach.
    pub(crate) fn detach<T>(&self, nudge: &Nudge, close: impl FnOnce() -> T) -> Option<T> {
        let mut managers = self.live();
        managers.retain(|manager| !std::ptr::eq(manager.as_ptr(), Arc::as_ptr(&nudge.0)));
        managers.is_empty().then(close)
    }

    pub(crate) fn nudge_all(&self) {
        for manager in self.live().iter().filter_map(Weak::upgrade) {
            Nudge(manager).renew_now();
        }
    }

    fn live(&self) -> MutexGuard<'_, Vec<Weak<Notify>>> {
        let mut managers = lock(&self.0);
        managers.retain(|manager| manager.strong_count() > 0);
        managers
    }
}

/// Makes a manager renew all of its locks now. It is cheap and never blocks.
#[derive(Debug, Clone)]
pub struct Nudge(pub(crate) Arc<Notify>);

impl Nudge {
    /// Starts the renewals.
    pub fn renew_now(&self) {
        self.0.notify_one();
    }
}
