//! How long sales take, and what 99 of 100 need.

use std::pin::pin;
use std::time::Duration;

use serde_json::json;

use super::app::send;
use super::client::client;
use super::process::Process;

/// The 99th percentile: of up to a hundred times, the longest.
pub(crate) fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[((times.len() - 1) * 99).div_ceil(100)]
}

/// Sells units of a SKU, one after the other, until `work` ends. Returns how long each sale took.
pub(crate) async fn sales_during<T>(
    replica: &Process,
    (sku, strategy): (&str, &str),
    work: impl Future<Output = T>,
) -> (Vec<Duration>, T) {
    let client = client();
    let mut work = pin!(work);
    let mut sales = Vec::new();
    loop {
        let order = client.post(replica.url(&format!("/stock/deduct?strategy={strategy}")));
        let sale = send(order.json(&json!({ "sku": sku })));
        tokio::select! {
            done = &mut work => return (sales, done),
            sale = sale => {
                sale.ok();
                sales.push(sale.after);
            }
        }
    }
}
