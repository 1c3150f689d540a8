//! The future of the loss of a lock.

use std::fmt::{self, Debug, Formatter};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, pending};

use crate::shared::error::LostReason;

/// A future that completes with the reason when a lock is no longer held. Created by
/// [`LockGuard::lost`](crate::LockGuard::lost).
///
/// It may be cloned, dropped, and first polled after the loss.
#[derive(Clone)]
#[must_use = "futures do nothing unless polled"]
pub struct Lost(Shared<BoxFuture<'static, LostReason>>);

impl Lost {
    pub(crate) fn new(lost: impl Future<Output = LostReason> + Send + 'static) -> Self {
        Self(lost.boxed().shared())
    }

    pub(crate) fn never() -> Self {
        Self::new(pending())
    }
}

impl Future for Lost {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LostReason> {
        self.0.poll_unpin(context)
    }
}

impl Debug for Lost {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Lost").field(&self.0.peek()).finish()
    }
}
