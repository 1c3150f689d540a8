//! Connections that are cut while the database is amid what came over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use stocklock::strategy::Strategy;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Proxied, SOON, send};
use crate::support::proxy::Mode;
use crate::support::services::Backend;

/// How often all connections are cut at once.
const CUTS: u32 = 60;
/// As many as there are connections.
const BUYERS: usize = 16;
/// Sold between two cuts, so that all are at work again.
const SALES: u32 = 50;
const STOCK: i64 = 1_000_000;

/// Goal: whatever the database is at when its client vanishes, a deduction happens as a whole or
/// not at all.
///
/// Method: buyers keep every connection busy, and the proxy closes all of them at once, again and
/// again. A server that is amid a message learns of it from an answer that it cannot deliver, and
/// may go on with what is left of the message all the same.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deduction_whose_connection_is_cut_amid_it_leaves_no_half(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(Strategy::SingleSql, Strategy::ForUpdate)] strategy: Strategy,
) {
    let subject = Arc::new(Proxied::start(backend, 1, &["--database-pool-size", "16"]).await);
    subject.app.set_level("hot", STOCK).await;
    let over = Arc::new(AtomicBool::new(false));
    let sold = Arc::new(AtomicU32::new(0));
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let (subject, over, sold) = (Arc::clone(&subject), Arc::clone(&over), Arc::clone(&sold));
        buyers.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let order = subject
                    .app
                    .deduct(0, strategy.name(), &json!({"sku": "hot"}));
                let answer = send(order).await.expect("the replica answers");
                sold.fetch_add(u32::from(answer.status == 200), Ordering::SeqCst);
            }
        });
    }
    for _ in 0..CUTS {
        let (before, started) = (sold.load(Ordering::SeqCst), Instant::now());
        while sold.load(Ordering::SeqCst) < before + SALES {
            assert!(started.elapsed() < SOON, "they do not sell again");
            sleep(Duration::from_millis(1)).await;
        }
        subject.proxy.set(Mode::Refuse).await;
        subject.proxy.set(Mode::Pass).await;
    }
    over.store(true, Ordering::SeqCst);
    buyers.join_all().await;

    let audit = subject.ledger.audit("hot").await;
    assert!(audit.consistent(), "{audit:?}");
    assert!(audit.sold >= i64::from(sold.load(Ordering::SeqCst)));
    Arc::into_inner(subject)
        .expect("the buyers are gone")
        .app
        .stop()
        .await;
}
