//! API keys: what each route needs, in whose name a key writes, how long a change of the keys takes, and what
//! happens while the database is away.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::json;
use stocklock::stock::Caller;
use stocklock::store::Store;
use stocklock_core::access::{ApiKey, RateLimit, Scope, SecretHash, Token};
use stocklock_testkit::run::rng;
use tokio::time::{Instant, sleep};

use crate::faults::{in_time, until};
use crate::store_contract::fixture::open_waiting;
use crate::support::app::{TestApp, send};
use crate::support::proxy::{Mode, Proxy};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::{TestDatabase, fresh_database};

mod commands;
mod routes;

/// The promised time until each replica knows what has changed.
const KNOWN: Duration = Duration::from_secs(5);

const EVERYTHING: [Scope; 3] = [Scope::Read, Scope::Sell, Scope::Stock];

/// A database with API keys, without replicas.
struct Keys {
    database: TestDatabase,
    store: Arc<dyn Store>,
}

impl Keys {
    async fn new(backend: Backend) -> Self {
        let database = fresh_database(backend).await;
        let migrated = stocklock::store::migrate(&database.url).await;
        migrated.expect("the database can be migrated");
        let store = open_waiting(&database.url, 2, Duration::from_secs(20));
        Self { database, store }
    }

    async fn add(
        &self,
        caller: &str,
        scopes: &[Scope],
        change: impl FnOnce(&mut ApiKey),
    ) -> String {
        let mut random = rng();
        let (text, id) = Token::mint(random.u64(..), std::array::from_fn(|_| random.u64(..)));
        let mut key = ApiKey {
            id,
            name: "test".to_owned(),
            caller: Caller::parse(caller).expect("a caller"),
            secret_hash: SecretHash::of(Token::parse(&text).expect("a key").secret),
            scopes: scopes.to_vec(),
            limit: None,
            created_at: 1,
            expires_at: None,
            revoked_at: None,
        };
        change(&mut key);
        self.store.add_api_key(&key).await.expect("it is stored");
        text
    }

    async fn revoke(&self, key: &str) {
        let id = Token::parse(key).expect("a key").id;
        let revoked = self.store.revoke_api_key(id).await;
        revoked.expect("it is stored");
    }

    /// Replicas that know the keys.
    async fn serving(&self, count: u32) -> TestApp {
        self.serving_with(count, &[]).await
    }

    async fn serving_with(&self, count: u32, flags: &[&str]) -> TestApp {
        let app = TestApp::serving(&self.database.url, count, flags).await;
        for replica in 0..count as usize {
            let ready = || send(app.request(replica, Method::GET, "/readyz"));
            let is_ready = async || ready().await.status == 200;
            until("the keys are loaded", is_ready).await;
        }
        app
    }
}

fn strategies(app: &TestApp, replica: usize, key: &str) -> RequestBuilder {
    let request = app.request(replica, Method::GET, "/strategies");
    request.bearer_auth(key)
}

fn deduct(app: &TestApp, key: &str) -> RequestBuilder {
    let request = app.request(0, Method::POST, "/stock/deduct?sku=tea&reference=R");
    request.bearer_auth(key)
}

async fn create_level(app: &TestApp, key: &str) {
    let request = app.request(0, Method::PUT, "/stock/tea").bearer_auth(key);
    let set = send(request.json(&json!({"on_hand": 100}))).await;
    assert_eq!(set.status, 201, "{set:?}");
}

#[rstest]
#[tokio::test]
async fn key_text_of_two_callers_is_two_operations(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let keys = Keys::new(backend).await;
    let shop = keys.add("shop", &EVERYTHING, |_| {}).await;
    let rotated = keys.add("shop", &EVERYTHING, |_| {}).await;
    let kiosk = keys.add("kiosk", &EVERYTHING, |_| {}).await;
    let old = keys.add("anonymous", &EVERYTHING, |_| {}).await;
    let app = keys.serving(1).await;
    create_level(&app, &shop).await;
    let sell = async |key: &str| send(deduct(&app, key).header("Idempotency-Key", "k")).await;
    let first = sell(&shop).await;
    let sold = (first.ok()["remaining"].as_i64(), first.replayed);
    assert_eq!(sold, (Some(99), false));
    // Another key of the same caller.
    let repeated = sell(&rotated).await;
    assert_eq!((&repeated.id, repeated.replayed), (&first.id, true));
    let other = sell(&kiosk).await;
    let sold = (other.ok()["remaining"].as_i64(), other.replayed);
    assert_eq!(sold, (Some(98), false));

    // A replica without keys sold before. The caller `anonymous` continues its ledger.
    let without = TestApp::on_migrated(&keys.database.url, 1, &[]).await;
    let before = without.request(0, Method::POST, "/stock/deduct?sku=tea&reference=R");
    let before = send(before.header("Idempotency-Key", "k")).await;
    let sold = (before.ok()["remaining"].as_i64(), before.replayed);
    assert_eq!(sold, (Some(97), false));
    let again = sell(&old).await;
    assert_eq!((&again.id, again.replayed), (&before.id, true));

    // So are references, also of operations without a key.
    let keyless = send(deduct(&app, &kiosk)).await;
    for (key, ids) in [
        (&shop, vec![&first.id]),
        (&kiosk, vec![&keyless.id, &other.id]),
    ] {
        let request = app.request(0, Method::GET, "/operations?reference=R");
        let found = send(request.bearer_auth(key)).await;
        let movements = found.ok()["movements"].as_array().expect("a list").clone();
        let found: Vec<_> = movements.iter().map(|one| one["id"].as_str()).collect();
        let ids: Vec<_> = ids.into_iter().map(|id| Some(&**id)).collect();
        assert_eq!(found, ids);
    }
    for kind in ["received", "deducted"] {
        let path = format!("/stock/tea/movements?kind={kind}&limit=1");
        let newest = send(app.request(0, Method::GET, &path).bearer_auth(&shop)).await;
        let caller = newest.ok()["movements"][0]["caller"].clone();
        assert_eq!(caller, if kind == "received" { "shop" } else { "kiosk" });
    }
}

#[rstest]
#[tokio::test]
async fn change_of_keys_is_known_within_5_s_at_each_replica(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let keys = Keys::new(backend).await;
    let revoked = keys.add("shop", &[Scope::Read], |_| {}).await;
    let app = keys.serving(3).await;
    let statuses = async |key: &str| {
        let mut statuses = Vec::new();
        for replica in 0..3 {
            statuses.push(send(strategies(&app, replica, key)).await.status);
        }
        statuses
    };
    assert_eq!(statuses(&revoked).await, [200; 3]);
    let start = Instant::now();
    keys.revoke(&revoked).await;
    let created = keys.add("shop", &[Scope::Read], |_| {}).await;
    while (statuses(&revoked).await, statuses(&created).await) != (vec![401; 3], vec![200; 3]) {
        assert!(start.elapsed() < in_time(KNOWN), "{:?}", start.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
}

/// A replica does not read what it cannot use.
#[rstest]
#[tokio::test]
async fn replica_loads_only_valid_keys(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let keys = Keys::new(backend).await;
    let ends = async |end| {
        keys.add("shop", &EVERYTHING, |key| key.expires_at = end)
            .await
    };
    let valid = [ends(None).await, ends(Some(i64::MAX)).await];
    ends(Some(2)).await;
    keys.revoke(&ends(None).await).await;
    let mut valid = valid.map(|key| Token::parse(&key).expect("a key").id.to_owned());
    valid.sort_unstable();
    let loaded = keys.store.valid_api_keys().await.expect("they are read");
    let mut loaded: Vec<_> = loaded.keys.into_iter().map(|key| key.id).collect();
    loaded.sort_unstable();
    assert_eq!(loaded, valid);
    let all = keys.store.api_keys().await.expect("they are read");
    assert_eq!(all.keys.len(), 4);
}

/// Revokes a key, and waits until the replica knows it.
async fn revoke_at(app: &TestApp, keys: &Keys, key: &str, path: &str) {
    keys.revoke(key).await;
    let is_known = async || {
        let request = app.request(0, Method::GET, path).bearer_auth(key);
        send(request).await.status == 401
    };
    until("the key is refused", is_known).await;
}

/// Goal: an answer that takes long ends, and does not keep its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_answers_end_when_their_key_is_revoked() {
    let keys = Keys::new(Sqlite).await;
    let key = keys.add("shop", &[Scope::Read], |_| {}).await;
    // 16 MB, more than the buffers of a connection take.
    let levels = "INSERT INTO stock (sku, warehouse, on_hand) WITH RECURSIVE numbers (number) AS (
            SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 100000
        ) SELECT printf('%064d', number), 'main', 0 FROM numbers";
    let mut raw = Raw::connect(Sqlite, &keys.database.url).await;
    raw.run(levels).await.expect("the levels are stored");
    let app = keys.serving(1).await;
    let mut answers = Vec::new();
    for path in ["/export", "/audit"] {
        let request = app.request(0, Method::GET, path).bearer_auth(&key);
        let answer = request.send().await.expect("it answers");
        assert_eq!(answer.status(), 200, "{path}");
        answers.push(answer);
    }
    revoke_at(&app, &keys, &key, "/stock").await;
    for answer in answers {
        let path = answer.url().path().to_owned();
        assert!(answer.bytes().await.is_err(), "{path} was complete");
    }
}

/// Goal: who follows the events gets none after the key is revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_get_no_event_after_their_key_is_revoked() {
    let keys = Keys::new(Sqlite).await;
    let shop = keys.add("shop", &EVERYTHING, |_| {}).await;
    let follower = keys.add("follower", &[Scope::Events], |_| {}).await;
    let app = keys.serving_with(1, &["--events=on"]).await;
    let follow = |path: &str| app.request(0, Method::GET, path).bearer_auth(&follower);
    let has_started = async || send(follow("/events")).await.status == 200;
    until("the feed starts", has_started).await;
    create_level(&app, &shop).await;
    let first = send(follow("/events?wait_s=30")).await;
    let waiting = format!("/events?wait_s=30&after={}", first.ok()["cursor"]);
    let waiting = send(follow(&waiting.replace('"', "")));
    let stream = follow("/events").header("accept", "text/event-stream");
    let mut stream = stream.send().await.expect("it answers");
    let seen = stream.chunk().await.expect("it goes on");
    assert!(seen.is_some(), "the stream has ended");
    let selling = async {
        revoke_at(&app, &keys, &follower, "/events").await;
        send(deduct(&app, &shop)).await.ok();
    };
    let (waited, ()) = tokio::join!(waiting, selling);
    assert_eq!(waited.status_and_code(), (401, "unauthorized"));
    let rest = stream.text().await.expect("it ends");
    assert!(!rest.contains("stock.deducted"), "{rest}");
}

#[tokio::test]
async fn key_with_a_limit_is_refused_until_its_tokens_are_back() {
    let keys = Keys::new(Sqlite).await;
    let limit = RateLimit { rate: 1, burst: 4 };
    let limited = keys
        .add("shop", &EVERYTHING, |key| key.limit = Some(limit))
        .await;
    let other = keys.add("shop", &EVERYTHING, |_| {}).await;
    let app = keys.serving(1).await;
    create_level(&app, &other).await;
    // Each line takes a token, also of a request that has none left for all of its lines.
    let lines: Vec<_> = (0..60).map(|_| json!({"sku": "tea"})).collect();
    let batch = app.request(0, Method::POST, "/stock/deduct/batch");
    let batch = batch.bearer_auth(&limited).json(&json!({ "lines": lines }));
    send(batch).await.ok();
    let refused = send(deduct(&app, &limited)).await;
    assert_eq!(refused.status_and_code(), (429, "too-many-requests"));
    let seconds: u32 = refused.header("retry-after").parse().expect("seconds");
    assert!((20..=57).contains(&seconds), "{seconds}");
    assert_eq!(send(deduct(&app, &other)).await.ok()["remaining"], 39);
}

#[rstest]
#[tokio::test]
async fn replica_without_database_keeps_the_keys_it_knows(
    #[values(Mysql, Postgres)] backend: Backend,
) {
    let keys = Keys::new(backend).await;
    let key = keys.add("shop", &[Scope::Read], |_| {}).await;
    let unknown = key.replace("slk_", "slk_0")[..key.len()].to_owned();
    let (proxy, url) = Proxy::before(&keys.database.url).await;
    proxy.set(Mode::Refuse).await;
    let app = TestApp::serving(&url, 1, &["--wait-limit-ms=1000"]).await;
    let ready = async || app.get("/readyz").await.status;
    // It knows no key yet, so it cannot say that this one is wrong.
    let unknown_yet = send(strategies(&app, 0, &key)).await;
    unknown_yet.assert_refused_for_now("unavailable");
    assert_eq!(ready().await, 503);
    proxy.set(Mode::Pass).await;
    until("the keys are loaded", async || ready().await == 200).await;
    send(strategies(&app, 0, &key)).await.ok();
    proxy.set(Mode::Refuse).await;
    until("the database is away", async || ready().await == 503).await;
    send(strategies(&app, 0, &key)).await.ok();
    let refused = send(strategies(&app, 0, &unknown)).await;
    assert_eq!(refused.status_and_code(), (401, "unauthorized"));
}
