//! SKUs that are created in parallel do not wait for each other.
//!
//! `TEST_CREATIONS` is the number of SKUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stocklock::ports::AttemptOutcome;
use stocklock_testkit::run::number;
use tokio::task::JoinSet;

use super::fixture::{Fixture, Raw, creation, open};
use crate::support::services::Backend::Mysql;
use crate::support::services::{PrivateServer, Program, Settings};

const DEFAULT_CREATIONS: u32 = 200;
const CLIENTS: u32 = 32;

/// The server has no other clients, because it counts deadlocks for all together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skus_are_created_in_parallel_without_deadlocks() {
    let creations = number("TEST_CREATIONS", DEFAULT_CREATIONS);
    let server = PrivateServer::launch(Program::MariaDb, &Settings::Test, &[]).await;
    let server = server.expect("MariaDB starts");
    let fixture = Fixture::at(Mysql, server.url().to_owned()).await;
    let store = open(server.url(), CLIENTS);
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

    let mut raw = Raw::connect(Mysql, server.url()).await;
    let deadlocks = "SELECT variable_value FROM information_schema.global_status
        WHERE variable_name = 'Innodb_deadlocks'";
    let deadlocks = raw.text(deadlocks).await;
    println!("figure: {creations} SKUs, {CLIENTS} clients: {deadlocks:?} deadlocks");
    assert_eq!(deadlocks.as_deref(), Some("0"));
    let last = format!("sku-{:07}", creations - 1);
    assert_eq!(fixture.level(&last).await.on_hand, 1);
}
