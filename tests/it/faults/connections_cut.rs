//! Connections that are cut while the database executes what came over them.

use rstest::rstest;
use serde_json::json;
use stocklock::strategy::Strategy;

use super::Proxied;
use super::buyers::{Buyers, Keys, PLENTY};
use crate::support::proxy::Mode;
use crate::support::services::Backend;

/// How often all connections are cut at once.
const CUTS: usize = 20;
/// As many as there are connections.
const BUYERS: usize = 16;
/// Sold between two cuts, so that every connection is busy again.
const SALES: usize = 50;

/// Goal: a deduction happens completely or not at all, whatever the database executes when the
/// connection closes.
///
/// Method: buyers keep every connection busy, and the proxy closes all of them at once, many times.
/// A server in the middle of a message notices only when it cannot send the answer. It may execute
/// the rest of the message first.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_during_deduction_leaves_no_half_of_it(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Strategy::SingleSql, Strategy::ForUpdate, Strategy::GroupCommit)] strategy: Strategy,
) {
    let subject = Proxied::start(backend, 1, &["--database-pool-size", "16"]).await;
    subject.app.set_level("hot", PLENTY).await;
    let order = json!({"sku": "hot"});
    let order = subject.app.deduct(0, strategy.name(), &order);
    let orders = (0..BUYERS).map(|_| super::copy(&order));
    let buyers = Buyers::start("hot", Keys::Half, orders, |_, _| ());
    for _ in 0..CUTS {
        buyers.sell(SALES).await;
        subject.proxy.set(Mode::Refuse).await;
        subject.proxy.set(Mode::Pass).await;
    }
    buyers.stop().await.assert_exact(&subject.ledger).await;
}
