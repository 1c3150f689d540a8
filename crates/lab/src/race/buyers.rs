//! The buyers of one run. They share keep-alive connections; each connection has one task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::header::HeaderValue;
use hyper::{Method, Uri};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::connection::{Connection, Message};
use super::order::{self, Failed, Settled};
use super::plan::RacePlan;
use super::progress::Track;
use super::replica_client::WAREHOUSE;
use super::tally::Tally;
use super::target::Target;
use stocklock_core::strategy::Strategy;

/// The interval at which the progress is shown.
const TICK: Duration = Duration::from_millis(100);

/// The longest time for opening all connections before the run. The others open with their first
/// order.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// What all buyers of a run share.
#[derive(Debug)]
struct Sale {
    sku: String,
    body: Bytes,
    buyers: usize,
    orders: usize,
    deadline: Instant,
    /// The first buyer who has no connection yet.
    next_buyer: AtomicUsize,
    settled: AtomicU64,
    sold: AtomicU64,
}

/// Sells `sku` under `strategy` until every order is settled, or until the plan's deadline.
/// Returns the counts and the time from the first order to the last answer.
///
/// Dropping the future stops all buyers. Orders that were sent may still be sold.
pub(super) async fn sell_out(
    plan: &RacePlan,
    targets: &[Target],
    strategy: Strategy,
    sku: &str,
    track: &Track,
) -> (Tally, Duration) {
    let connections = open_connections(plan, targets).await;
    let started = Instant::now();
    let body = json!({"sku": sku, "warehouse": WAREHOUSE, "quantity": 1});
    let sale = Arc::new(Sale {
        sku: sku.to_owned(),
        body: body.to_string().into(),
        buyers: plan.buyers,
        orders: plan.orders,
        deadline: started + plan.deadline,
        next_buyer: AtomicUsize::new(connections.len()),
        settled: AtomicU64::new(0),
        sold: AtomicU64::new(0),
    });
    let path = plan.order_path(strategy);
    let mut tasks = JoinSet::new();
    for (first_buyer, connection) in connections.into_iter().enumerate() {
        let uri = connection.target().uri(&path);
        tasks.spawn(serve(Arc::clone(&sale), connection, uri, first_buyer));
    }
    let mut tally = collect(tasks, &sale, track).await;
    let wall = started.elapsed();
    let reason = if Instant::now() < sale.deadline {
        "their replica accepts no connections".to_owned()
    } else {
        format!("the run took longer than {} s", plan.deadline.as_secs_f64())
    };
    let sent = usize::try_from(tally.orders()).unwrap_or(usize::MAX);
    let not_sent = plan.total_orders().saturating_sub(sent);
    tally.never_sent(not_sent as u64, &reason);
    (tally, wall)
}

async fn open_connections(plan: &RacePlan, targets: &[Target]) -> Vec<Connection> {
    let until = Instant::now() + OPEN_LIMIT;
    let opening = targets.iter().cycle().take(plan.connections());
    join_all(opening.map(|target| async move {
        let mut connection = Connection::new(target.clone());
        // Not an error yet: the first order tries again and reports it.
        let _ = connection.open(until).await;
        connection
    }))
    .await
}

/// Serves one buyer after the other. Ends early at the deadline, and if the replica accepts no
/// connections: each further order would take seconds to fail.
async fn serve(sale: Arc<Sale>, mut connection: Connection, uri: Uri, first_buyer: usize) -> Tally {
    let mut tally = Tally::with_capacity(sale.orders);
    let mut buyer = first_buyer;
    while buyer < sale.buyers {
        for order in 0..sale.orders {
            if Instant::now() >= sale.deadline {
                return tally;
            }
            let message = sale.message(&uri, buyer, order);
            let settled = order::place(&mut connection, message, sale.deadline, &mut tally).await;
            let sold = u64::from(matches!(settled, Settled::Sold(_)));
            sale.sold.fetch_add(sold, Ordering::Relaxed);
            sale.settled.fetch_add(1, Ordering::Relaxed);
            let unreachable = matches!(
                &settled,
                Settled::Failed(Failed {
                    unreachable: true,
                    ..
                })
            );
            tally.settle(settled);
            if unreachable {
                return tally;
            }
        }
        buyer = sale.next_buyer.fetch_add(1, Ordering::Relaxed);
    }
    tally
}

impl Sale {
    fn message(&self, uri: &Uri, buyer: usize, order: usize) -> Message {
        let key = format!("{}-{buyer}-{order}", self.sku);
        Message {
            method: Method::POST,
            uri: uri.clone(),
            body: self.body.clone(),
            key: Some(HeaderValue::try_from(key).expect("the key is ASCII")),
        }
    }
}

async fn collect(mut tasks: JoinSet<Tally>, sale: &Sale, track: &Track) -> Tally {
    let mut tally = Tally::default();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(counted) => tally.merge(counted.expect("a buyer does not panic")),
                None => return tally,
            },
            _ = tick.tick() => track.show(
                sale.settled.load(Ordering::Relaxed),
                sale.sold.load(Ordering::Relaxed),
            ),
        }
    }
}
