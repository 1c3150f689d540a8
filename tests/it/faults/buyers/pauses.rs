//! For how long no sale was acknowledged.

use std::time::Duration;

use tokio::time::Instant;

/// When sales were acknowledged.
pub(super) struct Sales {
    last: Instant,
    pub(super) longest: Pause,
}

/// A time without a sale.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) length: Duration,
    pub(crate) end: Instant,
}

impl Sales {
    pub(super) fn from_now() -> Self {
        let (end, length) = (Instant::now(), Duration::ZERO);
        Self {
            last: end,
            longest: Pause { length, end },
        }
    }

    pub(super) fn one_more(&mut self) {
        let end = Instant::now();
        let length = end - self.last;
        self.last = end;
        if length > self.longest.length {
            self.longest = Pause { length, end };
        }
    }
}
