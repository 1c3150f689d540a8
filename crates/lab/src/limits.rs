//! The largest values of a race that the page starts.

use std::fmt::Display;

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::LabError;
use crate::race::{ONLY_GROUP_COMMIT, RacePlan};
use stocklock_core::strategy::Strategy;

/// The largest values of a race that the page starts.
pub const LIMITS: Limits = Limits {
    stock: 1_000_000,
    buyers: 1_000,
    orders: 100_000,
    quantity: 100,
    lines: 10,
    replicas: 4,
    rtt_ms: 100,
};

/// The largest values of a race.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub struct Limits {
    /// Units in stock.
    stock: i64,
    /// Buyers.
    pub buyers: usize,
    /// Orders of all buyers.
    orders: usize,
    /// Units of each order.
    quantity: i64,
    /// Lines of each order.
    lines: usize,
    /// Replicas.
    replicas: u32,
    /// Milliseconds of the round trip that is added.
    rtt_ms: u32,
}

impl Limits {
    /// Refuses a plan with larger values.
    pub(crate) fn check(&self, plan: &RacePlan) -> Result<(), LabError> {
        in_range("stock", plan.stock, 1, self.stock)?;
        in_range("buyers", plan.buyers, 1, self.buyers)?;
        in_range("orders", plan.orders, 1, self.orders)?;
        in_range("quantity", plan.quantity, 1, self.quantity)?;
        in_range("lines", plan.lines, 1, self.lines)?;
        in_range("replicas", plan.replicas, 1, self.replicas)?;
        in_range(
            "rtt_ms",
            plan.rtt.as_secs_f64() * 1_000.0,
            0.0,
            self.rtt_ms.into(),
        )?;
        if plan.is_only_for_group_commit() && plan.names_another_than(Strategy::GroupCommit) {
            return Err(LabError::refused(format!(
                "strategies: {ONLY_GROUP_COMMIT}"
            )));
        }
        let (orders, most) = (plan.buyers * plan.orders, self.orders);
        if orders > most {
            let detail = format!("orders: {orders} in total, and this lab makes at most {most}");
            return Err(LabError::refused(detail));
        }
        Ok(())
    }
}

fn in_range<T: PartialOrd + Display + Copy>(
    field: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), LabError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(LabError::invalid(format!(
        "{field}: must be between {least} and {most}"
    )))
}
