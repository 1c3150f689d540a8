//! One deployment becomes two, as `docs/operations.md` describes it: nginx stops, the replicas end, the database is
//! copied, and each part starts with its shard, while buyers repeat their requests.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use reqwest::Client;
use rstest::rstest;
use serde_json::{Value, json};
use stocklock_testkit::eventually;
use stocklock_testkit::ports::free_port;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{X_SKU, address, configuration, nginx, publishing, shard};
use crate::faults::{KEY, SOON};
use crate::support::app::{Answer, TestApp, send, try_send};
use crate::support::client::client;
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Postgres, Sqlite};
use crate::support::services::{fresh_database, with_path};

const SKUS: usize = 12;
const STOCK: i64 = 1_000_000;
/// How many sales each phase has at least.
const SALES: usize = 300;

/// Makes the database of `copy` a copy of this one, which has no connections.
async fn copy(backend: Backend, original: &str, copy: &str) {
    if backend == Sqlite {
        let file = copy.strip_prefix("sqlite://").expect("a file");
        fs::remove_file(file).expect("the empty file");
        let mut original = Raw::connect(backend, original).await;
        let copied = original.run(format!("VACUUM INTO '{file}'").leak()).await;
        copied.expect("the database can be copied");
        return;
    }
    let name = |url: &str| url.rsplit('/').next().expect("a database").to_owned();
    let (from, to) = (name(original), name(copy));
    let mut server = Raw::connect(backend, &with_path(original, "postgres")).await;
    for statement in [
        format!("DROP DATABASE {to}"),
        format!("CREATE DATABASE {to} TEMPLATE {from}"),
    ] {
        server
            .run(statement.leak())
            .await
            .expect("the database can be copied");
    }
}

/// Sells through nginx until told to stop, each order with one key until it is answered. Returns the keys with
/// their SKUs and operations.
struct Shop {
    url: String,
    stop: AtomicBool,
    sold: AtomicUsize,
}

impl Shop {
    async fn buyer(self: Arc<Self>, number: usize) -> Vec<(String, String, String)> {
        let (client, mut sales) = (client(), Vec::new());
        while !self.stop.load(Relaxed) {
            let sku = format!("s{}", (number + sales.len()) % SKUS);
            let key = format!("buyer-{number}-{}", sales.len());
            let answer = self.order(&client, &sku, &key).await;
            sales.push((key, sku, answer.id));
            self.sold.fetch_add(1, Relaxed);
        }
        sales
    }

    /// One order. nginx is away for a while.
    async fn order(&self, client: &Client, sku: &str, key: &str) -> Answer {
        let begin = Instant::now();
        loop {
            let request = client.post(format!("{}/stock/deduct", self.url));
            let request = request.header(KEY, key).header(X_SKU, sku);
            let answer = try_send(request.json(&json!({ "sku": sku }))).await;
            match &answer {
                Ok(answer) if answer.status == 200 => return answer.clone(),
                Ok(answer) => assert!(answer.asks_for_retry(), "{answer:?}"),
                Err(_) => {}
            }
            assert!(begin.elapsed() < 2 * SOON, "still {answer:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn sells(&self) {
        let enough = self.sold.load(Relaxed) + SALES;
        let is_enough = async || self.sold.load(Relaxed) >= enough;
        eventually("the buyers get units", 2 * SOON, is_enough).await;
    }
}

/// The versions of all events of a SKU. A page may have none of them although more follow.
async fn versions(app: &TestApp, sku: &str) -> Vec<Value> {
    let (mut found, mut after) = (Vec::new(), Value::Null);
    loop {
        let cursor = after.as_str().map(|cursor| format!("&after={cursor}"));
        let path = format!("/events?limit=1000&sku={sku}{}", cursor.unwrap_or_default());
        let page = app.get(&path).await;
        let rows = page.rows("events", &["version"]);
        found.extend(rows.into_iter().map(|row| row[0].clone()));
        if page.body["cursor"] == after {
            return found;
        }
        after = page.body["cursor"].clone();
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deployment_is_divided_under_buyers(#[values(Sqlite, Postgres)] backend: Backend) {
    let databases = [fresh_database(backend).await, fresh_database(backend).await];
    let urls = [&*databases[0].url, &*databases[1].url];
    let whole = publishing(urls[0], "1/1").await;
    let skus: Vec<_> = (0..SKUS).map(|number| format!("s{number}")).collect();
    for sku in &skus {
        whole.set_level(sku, STOCK).await;
    }
    let is_own = |part: usize, sku: &str| shard(["1/2", "2/2"][part]).owns(sku.as_bytes());
    let first = skus
        .iter()
        .find(|sku| is_own(0, sku))
        .expect("one of the first");
    let second = skus
        .iter()
        .find(|sku| is_own(1, sku))
        .expect("one of the second");
    let port = free_port();
    let proxy = nginx(port, &configuration(port, &[address(&whole)])).await;
    let shop = Arc::new(Shop {
        url: format!("http://127.0.0.1:{port}"),
        stop: AtomicBool::new(false),
        sold: AtomicUsize::new(0),
    });
    let mut buyers = JoinSet::new();
    for number in 0..16 {
        buyers.spawn(Arc::clone(&shop).buyer(number));
    }
    let client = client();
    let post = async |path: &str, key: &str, sku: &str, body: &Value| {
        let request = client.post(format!("{}{path}", shop.url));
        let request = request.header(KEY, key).header(X_SKU, sku);
        send(request.json(body)).await
    };
    let both = json!([{"sku": first}, {"sku": second}]);
    let held = post(
        "/holds",
        "hold",
        first,
        &json!({"lines": both, "expires_in_s": null}),
    )
    .await;
    assert_eq!(held.status, 201, "{held:?}");
    let order = json!({ "lines": both });
    let ordered = post("/stock/deduct", "order", first, &order).await;
    assert_eq!(ordered.status, 200, "{ordered:?}");
    shop.sells().await;

    // The move.
    let begin = Instant::now();
    drop(proxy);
    whole.stop().await;
    copy(backend, urls[0], urls[1]).await;
    let apps = [
        publishing(urls[0], "1/2").await,
        publishing(urls[1], "2/2").await,
    ];
    let _proxy = nginx(port, &configuration(port, &apps.each_ref().map(address))).await;
    println!("figure: {backend:?}: no sales for {:?}", begin.elapsed());
    shop.sells().await;

    // Each line of the hold ends in its own part. The order has its answer in both.
    for (line, sku) in [(0, first), (1, second)] {
        let again = post("/stock/deduct", "order", sku, &order).await;
        assert_eq!(
            (again.status, &again.id, again.replayed),
            (200, &ordered.id, true)
        );
        let confirm = format!("/operations/{}/confirm", held.id);
        let all = post(&confirm, "all", sku, &json!({})).await;
        assert_eq!(all.status_and_code(), (421, "wrong-shard"), "{all:?}");
        let confirmed = post(&confirm, sku, sku, &json!({"lines": [{ "line": line }]})).await;
        assert_eq!(confirmed.status, 200, "{confirmed:?}");
    }
    shop.stop.store(true, Relaxed);
    let sales: Vec<_> = buyers.join_all().await.into_iter().flatten().collect();
    let mut expected: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, sku, _) in &sales {
        *expected.entry(sku).or_default() += 1;
    }
    // A key from before the move gets the first answer after it.
    for (key, sku, operation) in sales.iter().step_by(7) {
        let again = shop.order(&client, sku, key).await;
        assert_eq!((&again.id, again.replayed), (operation, true), "{key}");
    }
    for sku in &skus {
        let of_both = usize::from([first, second].contains(&sku));
        let own = usize::from(!is_own(0, sku));
        let (own, other) = (&apps[own], &apps[1 - own]);
        let audit = own.assert_consistent(sku).await;
        let sold = expected[&**sku] + 2 * of_both;
        assert_eq!(
            (&audit["sold"], &audit["held"]),
            (&json!(sold), &json!(0)),
            "{sku}"
        );
        assert_eq!(
            audit["on_hand"],
            STOCK - i64::try_from(sold).expect("a number")
        );
        assert_eq!(other.get(&format!("/stock/{sku}")).await.status, 421);
        // The level, its sales, and the hold that was confirmed: each once, and in the part that has the SKU.
        let changes: Vec<_> = (1..=1 + sold + of_both).map(Value::from).collect();
        let are_published = async || versions(own, sku).await == changes;
        eventually("all changes are published", SOON, are_published).await;
    }
    let feed = async |app: &TestApp| app.get("/events?limit=1000").await.rows("events", &["sku"]);
    for (part, app) in apps.iter().enumerate() {
        let foreign = |sku: &Value| !is_own(part, sku[0].as_str().expect("a SKU"));
        assert!(!feed(app).await.iter().any(foreign), "{part}");
    }
}
