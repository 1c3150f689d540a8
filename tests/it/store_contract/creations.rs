//! SKUs that are created in parallel do not wait for each other.
//!
//! `TEST_CREATIONS` is the number of SKUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stocklock::ports::AttemptOutcome;
use stocklock_testkit::run::number;
use tokio::task::JoinSet;

use super::fixture::{creation, open};
use crate::support::deadlocks::DeadlockCounter;
use crate::support::services::Backend::Mysql;

const DEFAULT_CREATIONS: u32 = 200;
const CLIENTS: u32 = 32;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skus_are_created_in_parallel_without_deadlocks() {
    let creations = number("TEST_CREATIONS", DEFAULT_CREATIONS);
    let mut shop = DeadlockCounter::start(Mysql, 0).await;
    let store = open(&shop.app.database_url, CLIENTS);
    let next = Arc::new(AtomicU32::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (store, next) = (Arc::clone(&store), Arc::clone(&next));
        clients.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= creations {
                    break;
                }
                let change = creation(&format!("sku-{number:07}"), "main");
                let created = store.write(&change).await.expect("no error");
                let is_new = matches!(&created, AttemptOutcome::Changed(one) if one.created);
                assert!(is_new, "{created:?}");
            }
        });
    }
    clients.join_all().await;

    println!("figure: {creations} SKUs, {CLIENTS} clients");
    shop.is_zero().await;
    let last = format!("sku-{:07}", creations - 1);
    assert_eq!(shop.app.audit(&last).await["on_hand"], 1);
}
