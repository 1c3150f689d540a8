//! What the audits found: two gauges.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use stocklock_core::stock::{Audit, Sku};

/// How many SKUs with findings are remembered.
const MAX_SKUS: usize = 10_000;

/// What the last audit of each SKU found.
#[derive(Debug, Clone, Default)]
pub(super) struct AuditGauges(Arc<Mutex<Findings>>);

#[derive(Debug, Default)]
struct Findings {
    /// Whether any SKU was audited.
    any: bool,
    /// SKUs whose last audit found something: units of drift, and units oversold.
    skus: HashMap<Sku, [u64; 2]>,
}

impl AuditGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        for (number, name, help) in [
            (
                0,
                "stock_drift_units",
                "Units by which levels differ from the sums of their movements, added up without \
                 signs over the SKUs that this replica has audited. Each SKU counts as its last \
                 audit here found it, at most 10,000 SKUs with a difference. Absent before the \
                 first audit",
            ),
            (
                1,
                "stock_oversold_units",
                "Units sold that were not there, added up over the SKUs that this replica has \
                 audited. Each SKU counts as its last audit here found it, at most 10,000 SKUs \
                 with a finding. Absent before the first audit",
            ),
        ] {
            let findings = Self::clone(&gauges);
            registry.register(name, help, AuditGauge { findings, number });
        }
        gauges
    }

    pub(super) fn record(&self, sku: &Sku, audits: &[Audit]) {
        let drift = audits
            .iter()
            .map(|audit| audit.drift().unsigned_abs() + audit.held_drift().unsigned_abs());
        let oversold = audits.iter().map(|audit| audit.oversold().unsigned_abs());
        let units = [drift.sum(), oversold.sum()];
        let mut findings = self.0.lock();
        findings.any = true;
        if units == [0, 0] {
            findings.skus.remove(sku);
        } else if findings.skus.len() < MAX_SKUS || findings.skus.contains_key(sku) {
            findings.skus.insert(sku.clone(), units);
        }
    }
}

#[derive(Debug)]
struct AuditGauge {
    findings: AuditGauges,
    /// Which of the units.
    number: usize,
}

impl EncodeMetric for AuditGauge {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        let findings = self.findings.0.lock();
        if !findings.any {
            return Ok(());
        }
        let units: u64 = findings.skus.values().map(|units| units[self.number]).sum();
        ConstGauge::new(i64::try_from(units).unwrap_or(i64::MAX)).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        !self.findings.0.lock().any
    }
}
