//! The periods that jobs have started, for the back ends without a server.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::shared::clock::Moment;
use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;

#[derive(Debug, Default)]
pub(crate) struct PeriodTable(Mutex<HashMap<String, (Nonce, Moment)>>);

impl PeriodTable {
    /// Starts a period. Returns the rest of one that another nonce has started.
    pub(crate) fn begin(
        &self,
        now: Moment,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Option<Duration> {
        let mut periods = lock(&self.0);
        periods.retain(|_, (_, end)| *end > now);
        let (starter, end) = periods
            .entry(name.to_owned())
            .or_insert((nonce, now + period));
        (*starter != nonce).then(|| end.since(now))
    }

    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}
