//! How far the SQL ledger is behind the journals in Redis.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

/// A gauge that is absent while nobody knows: a figure that was true once would be taken for one
/// that is.
#[derive(Debug, Default)]
pub(super) struct JournalWaiting(Mutex<Option<u64>>);

impl JournalWaiting {
    pub(super) fn set(&self, movements: Option<u64>) {
        // Nothing panics while it is held.
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
            "Movements in the journals in Redis that the SQL ledger does not have yet, the same at \
             all replicas: use max, not sum; absent while Redis does not answer.",
            None,
            gauge.metric_type(),
        )?)
    }
}
