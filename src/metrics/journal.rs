//! How many movements in the Redis journals are not yet in the SQL ledger.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

/// A gauge that is absent while its value is unknown, because an old value would look current.
#[derive(Debug, Default)]
pub(super) struct JournalWaiting(Mutex<Option<u64>>);

impl JournalWaiting {
    pub(super) fn set(&self, movements: Option<u64>) {
        // No code panics while it holds this mutex.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = movements;
    }
}

impl Collector for JournalWaiting {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let movements = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(movements) = movements else {
            return Ok(());
        };
        let gauge = ConstGauge::new(i64::try_from(movements).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(
            "journal_waiting_movements",
            "Movements in the Redis journals that are not yet in the SQL ledger. All replicas \
             report the same value: use max, not sum. Absent while Redis does not answer.",
            None,
            gauge.metric_type(),
        )?)
    }
}
