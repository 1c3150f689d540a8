//! The buyers of one run. They share keep-alive connections; each connection has one task.

use std::mem::take;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use hyper::Method;
use hyper::header::HeaderValue;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connection::Connection;
use super::event::Observer;
use super::live::Live;
use super::order;
use super::plan::{DEADLINE, RacePlan};
use super::sale::Sale;
use super::tally::Tally;
use super::target::Target;
use stocklock_core::strategy::Strategy;

/// The longest time for opening all connections before the run. The others open with their first
/// order.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// Sells `skus` under `strategy` until every order is settled, or until the plan's deadline.
/// Returns the answers and the time from the first order to the last answer.
///
/// Dropping the future stops all buyers. Orders that were sent may still be sold.
pub(super) async fn sell_out(
    plan: &RacePlan,
    targets: &[Target],
    strategy: Strategy,
    skus: &[String],
    observer: Observer<'_>,
) -> (Tally, Duration) {
    let until = Instant::now() + OPEN_LIMIT;
    let opening = targets.iter().cycle().take(plan.connections());
    let connections = join_all(opening.map(|target| Connection::open(target.clone(), until))).await;
    let started = Instant::now();
    let sale = Arc::new(Sale {
        plan: plan.clone(),
        skus: skus.to_vec(),
        path: plan.purchase_path(strategy),
        deadline: started + DEADLINE,
        next_buyer: AtomicUsize::new(connections.len()),
        tally: Mutex::default(),
        targets: targets.len(),
    });
    let mut tasks = JoinSet::new();
    for (first_buyer, connection) in connections.into_iter().enumerate() {
        tasks.spawn(serve(Arc::clone(&sale), connection, first_buyer));
    }
    let live = Live {
        sale: &sale,
        strategy,
        targets,
        started,
        observer,
        shown: Mutex::default(),
    };
    let buying = async {
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a buyer does not panic");
        }
    };
    tokio::select! {
        () = buying => live.tick(),
        never = live.run() => match never {},
    }
    let wall = started.elapsed();
    let mut tally = take(&mut *sale.tally());
    let reason = if Instant::now() < sale.deadline {
        "their replica accepts no connections".to_owned()
    } else {
        format!("the run took longer than {} s", DEADLINE.as_secs())
    };
    tally.fail_rest(plan.total_orders(), &reason);
    (tally, wall)
}

/// Serves one buyer after the other. Ends early at the deadline, and if the replica accepts no
/// connections: each further order would take seconds to fail.
async fn serve(sale: Arc<Sale>, mut connection: Connection, first_buyer: usize) {
    let position = first_buyer % sale.targets;
    let mut buyer = first_buyer;
    while buyer < sale.plan.buyers {
        let target = &connection.target;
        let mut request = target.request(Method::POST, &sale.path, sale.body(buyer));
        for order in 0..sale.plan.orders {
            if Instant::now() >= sale.deadline {
                return;
            }
            let key = format!("{}-{buyer}-{order}", sale.skus[0]);
            let key = HeaderValue::try_from(key).expect("the key is ASCII");
            request.headers_mut().insert("idempotency-key", key);
            let reachable = order::place(&mut connection, &request, &sale, position).await;
            if !reachable {
                return;
            }
        }
        buyer = sale.next_buyer.fetch_add(1, Ordering::Relaxed);
    }
}
