//! Stock that lives in Redis, beyond the contract of all stores: how a level gets there, how its
//! movements get into the ledger, what the server refuses, and what clients see of it.
//!
//! This file holds what the tests share: commands to a Redis, requests to a replica, and deductions
//! on a fixture.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use stocklock::ports::{AttemptOutcome, DeductionStore as _, RedisMethod};
use stocklock::store::{JournalConsumer, StoreRouter};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::faults::{SOON, send, until};
use crate::store_contract::fixture::{Attempt, Fixture, assert_deducted, deduction};
use crate::support::app::TestApp;
use crate::support::process::Process;
use crate::support::services::{Backend, connect_to_redis};

mod audited;
mod batches;
mod both_homes;
mod both_methods;
mod bound;
mod cluster;
mod cluster_locks;
mod cluster_losses;
mod cluster_open_slot;
mod consumer;
mod consumer_stop;
mod copied;
mod dedup;
mod distant_ledger;
mod exactly_once;
mod failed_over;
mod first_requests;
mod full_speed;
mod hot_shard;
mod http_refusals;
mod journal_limit;
mod killed;
mod late_messages;
mod leases;
mod loading;
mod lost_answers;
mod lost_keys;
mod memory;
mod mixed_releases;
mod old_layout;
mod pair;
mod race_failover;
mod readiness;
mod reads;
mod refused_entries;
mod repair;
mod replaced;
mod requests;
mod rolled_back;
mod rules;
mod sentinel;
mod set_aside;
mod shared_journal;
mod silent_sentinel;
mod store_refusals;
mod two_consumers;
mod unresponsive;
mod watch;

/// Runs one command on the Redis at `url`, without the service.
pub(crate) async fn try_command<T: FromRedisValue>(url: &str, words: &[&str]) -> RedisResult<T> {
    let mut connection = connect_to_redis(url).await?;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query_async(&mut connection).await
}

/// The same for a command that must succeed.
pub(crate) async fn command<T: FromRedisValue>(url: &str, words: &[&str]) -> T {
    let answer = try_command(url, words).await;
    answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Runs a command that is written as one line. `_` stands for a space within a word, or for an
/// empty word.
async fn try_line(url: &str, line: &str) -> RedisResult<()> {
    let words: Vec<_> = line.split(' ').map(|word| word.replace('_', " ")).collect();
    let words: Vec<_> = words.iter().map(|word| word.trim()).collect();
    try_command(url, &words).await
}

/// The same for a command that must succeed.
async fn line(url: &str, line: &str) {
    let done = try_line(url, line).await;
    done.unwrap_or_else(|error| panic!("{line}: {error}"));
}

/// The keys of all journals.
async fn journals(url: &str) -> Vec<String> {
    command(url, &["KEYS", "journal:*}"]).await
}

/// How many entries each journal has that has any.
async fn journal_lengths(url: &str) -> Vec<i64> {
    let mut lengths = Vec::new();
    for journal in journals(url).await {
        lengths.push(command(url, &["XLEN", &journal]).await);
    }
    lengths.retain(|&length| length > 0);
    lengths
}

/// A replica that takes requests.
pub(crate) trait Replica {
    fn call(&self, method: Method, path: &str) -> RequestBuilder;
}

impl Replica for TestApp {
    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(0, method, path)
    }
}

impl Replica for Process {
    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path)
    }
}

/// Creates a SKU whose stock lives in Redis.
pub(crate) async fn create(replica: &impl Replica, sku: &str, on_hand: i64) {
    let put = replica.call(Method::PUT, &format!("/stock/{sku}"));
    let put = put.json(&json!({"on_hand": on_hand, "home": "redis"}));
    assert_eq!(send(put).await.status, 201);
}

/// A deduction of one unit.
pub(crate) fn order(replica: &impl Replica, strategy: &str, sku: &str) -> RequestBuilder {
    let path = format!("/stock/deduct?strategy={strategy}");
    replica
        .call(Method::POST, &path)
        .json(&json!({ "sku": sku }))
}

/// A gauge without labels, if it is there.
async fn gauge(replica: &impl Replica, name: &str) -> Option<f64> {
    let metrics = replica.call(Method::GET, "/metrics").send().await;
    let metrics = metrics.expect("the replica answers").text().await;
    let metrics = metrics.expect("a text");
    let of_gauge = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    metrics.lines().find_map(of_gauge)
}

/// The audit of a SKU's only warehouse; `None` if the database does not answer (503).
async fn try_audit(replica: &impl Replica, sku: &str) -> Option<Value> {
    let get = replica.call(Method::GET, &format!("/stock/{sku}/audit"));
    let answer = get.send().await.expect("the replica answers");
    let status = answer.status();
    let audit: Value = answer.json().await.expect("the body is JSON");
    match status.as_u16() {
        200 => Some(audit["warehouses"][0].clone()),
        status => {
            assert_eq!(status, 503, "{audit}");
            None
        }
    }
}

async fn audit(replica: &impl Replica, sku: &str) -> Value {
    let audit = try_audit(replica, sku).await;
    audit.expect("the database answers")
}

/// The audit once no movement is pending.
async fn applied_audit(replica: &impl Replica, sku: &str) -> Value {
    let started = Instant::now();
    loop {
        let audit = audit(replica, sku).await;
        if audit["pending"] == 0 {
            return audit;
        }
        assert!(started.elapsed() < SOON, "{audit}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// The same, if the database was started just now.
async fn applied_audit_after_outage(replica: &impl Replica, sku: &str) -> Value {
    let mut applied = Value::Null;
    until("no movement is pending", async || {
        let audit = try_audit(replica, sku).await;
        applied = audit.unwrap_or_default();
        applied["pending"] == 0
    })
    .await;
    applied
}

/// Asserts what an audit must say of a SKU that sold `sold` units and lost none.
#[track_caller]
fn assert_sold(audit: &Value, sold: i64) {
    let found = (&audit["sold"], &audit["consistent"]);
    assert_eq!(found, (&json!(sold), &json!(true)), "{audit}");
}

/// A store on a database and an own Redis.
async fn fixture(backend: Backend) -> Fixture {
    Fixture::in_redis(backend, |options| options).await
}

/// A store on SQLite whose journals take at most `limit` movements each.
async fn fixture_with_journal_limit(limit: u32) -> Fixture {
    Fixture::in_redis(Backend::Sqlite, |mut options| {
        options.journal_limit = limit;
        options
    })
    .await
}

/// Runs one command on the fixture's Redis, without the store.
async fn run<T: FromRedisValue>(fixture: &Fixture, words: &[&str]) -> T {
    command(fixture.redis_url().expect("stock lives in Redis"), words).await
}

/// Lets Redis lose everything.
async fn flush(fixture: &Fixture) {
    run::<()>(fixture, &["FLUSHDB"]).await;
}

/// Lets Redis lose one level, as an eviction does.
async fn lose_level(fixture: &Fixture, sku: &str) {
    let key = fixture.key(&format!("stock:*:{sku}:main")).await;
    run::<()>(fixture, &["DEL", &key]).await;
}

/// Tries to deduct one unit.
async fn deduct(fixture: &Fixture, sku: &str, how: RedisMethod) -> Attempt {
    let deduction = deduction(sku, 1);
    fixture.store.deduct_in_redis(&deduction, how).await
}

/// Applies the journals, then asserts that the SKU has sold `sold` units, has `on_hand` left, and has
/// lost nothing.
async fn assert_exact(fixture: &Fixture, sku: &str, sold: i64, on_hand: i64) {
    let audit = fixture.audit(sku).await;
    let found = (audit.sold, audit.on_hand, audit.pending);
    assert_eq!(found, (sold, on_hand, 0), "{audit:?}");
    assert!(audit.consistent(), "{audit:?}");
}

/// Deducts one unit, again after each conflict.
async fn deduct_until_decided(
    store: Arc<StoreRouter>,
    sku: String,
    how: RedisMethod,
) -> AttemptOutcome {
    loop {
        let attempt = store.deduct_in_redis(&deduction(&sku, 1), how).await;
        match attempt.expect("no error") {
            AttemptOutcome::Conflict => {}
            decided => return decided,
        }
    }
}

/// Sells `units` units, one at a time.
async fn sell(fixture: &Fixture, sku: &str, units: i64) {
    for _ in 0..units {
        assert_deducted(&deduct(fixture, sku, RedisMethod::Script).await);
    }
}

/// Runs a consumer until `stop` is cancelled. Returns how many entries it applied although SQL had them.
async fn consume(consumer: JournalConsumer, stop: CancellationToken) -> u64 {
    let repeated = AtomicU64::new(0);
    let count = |again| _ = repeated.fetch_add(again, Ordering::SeqCst);
    consumer.run(stop, |report| count(report.repeated)).await;
    repeated.into_inner()
}
