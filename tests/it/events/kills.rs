//! The feed while replicas are killed: each version of each level once, in order, and every cursor resumes.
//!
//! `TEST_EVENTS` is the number of movements, `TEST_EVENT_KILLS` that of the kills.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Client;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::run::{number, rng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::FOUND;
use crate::support::app::try_send;
use crate::support::client::client;
use crate::support::process::Process;
use crate::support::rival::{Raw, until_found};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::fresh_database;

const REPLICAS: usize = 3;
const SKUS: usize = 50;
const LINES: usize = 200;
const PLENTY: i64 = 1_000_000_000;
/// Cursors from which a test reads again.
const RESUMED: usize = 50;

/// Sells at one replica until enough is sold. What a killed replica has sold is not counted.
async fn sell(client: Client, url: String, sold: Arc<AtomicUsize>, enough: usize) {
    while sold.load(Ordering::SeqCst) < enough {
        let mut rng = rng();
        let line = |_| json!({"sku": format!("sku-{}", rng.usize(..SKUS))});
        let lines: Vec<_> = (0..LINES).map(line).collect();
        let request = client.post(&url).json(&json!({ "lines": lines }));
        match try_send(request).await {
            Ok(answer) if answer.status == 200 => {
                let results = answer.body["results"].as_array().expect("a list");
                let made = results.iter().filter(|one| one["status"] == 200);
                sold.fetch_add(made.count(), Ordering::SeqCst);
            }
            _ => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// What a reader has got: SKUs with versions, and after how many of them it got each cursor.
#[derive(Default)]
struct Read {
    events: Vec<(String, i64)>,
    cursors: Vec<(String, usize)>,
}

fn listed(page: &Value) -> Vec<(String, i64)> {
    let name = |event: &Value| {
        let sku = event["sku"].as_str().expect("a SKU").to_owned();
        (sku, event["version"].as_i64().expect("a version"))
    };
    let events = page["events"].as_array().expect("a list");
    events.iter().map(name).collect()
}

/// Follows the feed at changing replicas, until nothing has come for so long after the end of the sales.
async fn follow(client: Client, urls: Vec<String>, ended: impl Fn() -> bool) -> Read {
    let (mut read, mut last) = (Read::default(), Instant::now());
    let mut rng = rng();
    while !ended() || last.elapsed() < FOUND / 3 {
        let after = read.cursors.last();
        let after = after.map_or(String::new(), |(cursor, _)| format!("&after={cursor}"));
        let (url, limit) = (&urls[rng.usize(..urls.len())], rng.usize(1..=1_000));
        let url = format!("{url}/events?wait_s=1&limit={limit}{after}");
        match try_send(client.get(&url)).await {
            Ok(page) if page.status == 200 => {
                let events = listed(&page.body);
                if !events.is_empty() {
                    last = Instant::now();
                }
                read.events.extend(events);
                let cursor = page.body["cursor"].as_str().expect("a cursor");
                read.cursors.push((cursor.to_owned(), read.events.len()));
            }
            Ok(page) if page.status != 503 => panic!("{page:?}"),
            _ => sleep(Duration::from_millis(20)).await,
        }
    }
    read
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_version_is_published_once_despite_kills(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let movements = number("TEST_EVENTS", 5_000);
    let kills = number("TEST_EVENT_KILLS", 3);
    let database = fresh_database(backend).await;
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(Process::lab(&database.url, &[("EVENTS", "on")]).await);
    }
    // Before a level exists, the feed has started.
    replicas[0].answers("/events").await;
    for sku in 0..SKUS {
        replicas[0].set_level(&format!("sku-{sku}"), PLENTY).await;
    }
    let (client, sold) = (client(), Arc::new(AtomicUsize::new(0)));
    let mut sellers = JoinSet::new();
    for replica in &replicas {
        let url = replica.url("/stock/deduct/batch");
        sellers.spawn(sell(client.clone(), url, Arc::clone(&sold), movements));
    }
    let urls: Vec<_> = replicas.iter().map(|replica| replica.url("")).collect();
    let has_ended = Arc::clone(&sold);
    let ended = move || has_ended.load(Ordering::SeqCst) >= movements;
    let reader = tokio::spawn(follow(client.clone(), urls, ended));
    let mut rng = rng();
    for kill in 1..=kills {
        while sold.load(Ordering::SeqCst) < movements * kill / (kills + 1) {
            sleep(Duration::from_millis(5)).await;
        }
        let replica = &mut replicas[rng.usize(..REPLICAS)];
        replica.kill9();
        replica.restart().await;
    }
    while sellers
        .join_next()
        .await
        .transpose()
        .expect("it sells")
        .is_some()
    {}
    let read = reader.await.expect("it reads");

    let mut versions: BTreeMap<&str, i64> = BTreeMap::new();
    for (sku, version) in &read.events {
        let last = versions.entry(sku).or_default();
        assert_eq!(*version, *last + 1, "{sku}");
        *last = *version;
    }
    let levels = replicas[0].get("/stock?limit=1000").await;
    let levels = levels.ok()["levels"].as_array().expect("a list").clone();
    // The lab has created one before.
    assert_eq!(levels.len(), SKUS + 1);
    for level in levels.iter().filter(|level| level["sku"] != "1001") {
        let sku = level["sku"].as_str().expect("a SKU");
        assert_eq!(level["version"], versions[sku], "{sku}");
    }
    assert!(read.events.len() >= movements);
    let mut raw = Raw::connect(backend, &database.url).await;
    until_found(
        &mut raw,
        "SELECT 'ok' FROM feed_state WHERE seq = (SELECT count(*) FROM feed)
            AND seq = (SELECT max(seq) FROM feed) AND 1 = (SELECT min(seq) FROM feed)",
    )
    .await;
    for _ in 0..RESUMED {
        let (cursor, position) = &read.cursors[rng.usize(..read.cursors.len())];
        let path = format!("/events?limit=100&after={cursor}");
        let resumed = listed(replicas[rng.usize(..REPLICAS)].get(&path).await.ok());
        let end = read.events.len().min(position + 100);
        assert_eq!(resumed, read.events[*position..end], "{cursor}");
    }
    println!(
        "figure: {} events, {} rows of the feed read in {} pages, {kills} kills",
        read.events.len(),
        read.cursors.last().expect("a cursor").0,
        read.cursors.len()
    );
}
