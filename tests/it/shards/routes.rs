//! Every route, straight to the wrong deployment. Its database is a copy, so the level is there, and could be sold.

use std::collections::BTreeMap;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use stocklock::strategy::Strategy;
use stocklock_testkit::eventually;

use super::{X_SKU, publishing, replica};
use crate::bulk::import;
use crate::faults::{KEY, SOON};
use crate::support::app::{Answer, TestApp, send};
use crate::support::services::Backend::Sqlite;
use crate::support::services::{TestDatabase, fresh_database};

/// A SKU of the first of two shards, and one of the second.
const OWN: &str = "ab";
const FOREIGN: &str = "a";

/// A database with both levels, a hold and a sale of each SKU, and a hold and a sale of both.
struct Copied {
    database: TestDatabase,
    /// By `hold-` or `sale-` and the SKU, or `both`.
    operations: BTreeMap<String, String>,
}

async fn made(request: RequestBuilder, key: &str, body: &Value) -> Answer {
    let answer = send(request.header(KEY, key).json(body)).await;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
    answer
}

impl Copied {
    async fn new() -> Self {
        let database = fresh_database(Sqlite).await;
        let whole = publishing(&database.url, "1/1").await;
        let mut operations = BTreeMap::new();
        for sku in [OWN, FOREIGN] {
            whole.set_level(sku, 100).await;
        }
        for (name, skus) in [
            (OWN, &[OWN][..]),
            (FOREIGN, &[FOREIGN]),
            ("both", &[OWN, FOREIGN]),
        ] {
            let lines: Vec<_> = skus.iter().map(|sku| json!({ "sku": sku })).collect();
            let body = json!({ "lines": lines, "reference": "before" });
            for (what, path) in [("hold", "/holds"), ("sale", "/stock/deduct")] {
                let request = whole.request(0, Method::POST, path);
                let name = format!("{what}-{name}");
                let answer = made(request, &name, &body).await;
                operations.insert(name, answer.id);
            }
        }
        whole.stop().await;
        Self {
            database,
            operations,
        }
    }

    fn id(&self, name: &str) -> &str {
        &self.operations[name]
    }
}

/// Method, path, body. `OWN` is sent in the header if a route of operations needs one.
fn changes(copied: &Copied) -> Vec<(Method, String, Value)> {
    let line = json!({ "sku": FOREIGN });
    let both = json!([{ "sku": OWN }, line]);
    let of = |name: &str, what: &str| format!("/operations/{}/{what}", copied.id(name));
    let post = |path: &str, body: Value| (Method::POST, path.to_owned(), body);
    vec![
        post("/stock/deduct", line.clone()),
        post("/stock/deduct", json!({ "lines": [line] })),
        post("/stock/deduct", json!({ "lines": both })),
        (
            Method::PUT,
            format!("/stock/{FOREIGN}"),
            json!({"on_hand": 5}),
        ),
        post(
            &format!("/stock/{FOREIGN}/adjust"),
            json!({"delta": 1, "reason": "r"}),
        ),
        post(
            "/adjustments",
            json!({"reason": "r", "lines": [{"sku": OWN, "delta": -1}, {"sku": FOREIGN, "delta": 1}]}),
        ),
        post("/holds", json!({ "lines": [line] })),
        post("/holds", json!({ "lines": both })),
        post(
            "/holds",
            json!({"lines": [{"sku": OWN}], "replaces": copied.id("hold-a")}),
        ),
        post(
            "/levels/query",
            json!({"levels": [{"sku": OWN}, {"sku": FOREIGN}]}),
        ),
        post(&of("hold-a", "confirm"), json!({})),
        post(&of("hold-a", "release"), json!({})),
        post(&of("hold-a", "extend"), json!({"expires_in_s": 9_000})),
        post(&of("hold-both", "confirm"), json!({})),
        post(&of("hold-both", "release"), json!({"lines": [{"line": 1}]})),
        post(&of("hold-both", "extend"), json!({"expires_in_s": null})),
        post(
            &of("sale-a", "reverse"),
            json!({"reason": "r", "restock": true}),
        ),
        post(
            &of("sale-both", "reverse"),
            json!({"reason": "r", "restock": true, "lines": [{"line": 1}]}),
        ),
    ]
}

fn assert_wrong_shard(answer: &Answer, what: &str) {
    assert_eq!(
        answer.status_and_code(),
        (421, "wrong-shard"),
        "{what}: {answer:?}"
    );
}

/// The levels, movements and holds of the foreign SKU, as the whole database has them.
async fn foreign_state(whole: &TestApp) -> Vec<Value> {
    let mut state = Vec::new();
    for path in ["", "/movements", "/audit"] {
        state.push(whole.get_json(&format!("/stock/{FOREIGN}{path}")).await);
    }
    state.push(whole.get_json(&format!("/holds?sku={FOREIGN}")).await);
    state
}

#[tokio::test]
async fn wrong_route_changes_nothing() {
    let copied = Copied::new().await;
    let url = &copied.database.url;
    let whole = replica(url, "1/1", &[]).await;
    let before = foreign_state(&whole).await;
    let app = replica(url, "1/2", &[]).await;
    for (number, (method, path, body)) in changes(&copied).into_iter().enumerate() {
        let request = app.request(0, method.clone(), &path).json(&body);
        let keyed = if method == Method::PUT {
            request
        } else {
            request.header(KEY, format!("k{number}"))
        };
        let what = format!("{method} {path} {body}");
        let answer = send(keyed.try_clone().expect("no stream").header(X_SKU, OWN)).await;
        assert_wrong_shard(&answer, &what);
        assert!(answer.detail.contains("a (shard 2)"), "{answer:?}");
        assert!(!answer.detail.contains("ab (shard"), "{answer:?}");
        // With the right header at the wrong deployment, too.
        assert_wrong_shard(&send(keyed.header(X_SKU, FOREIGN)).await, &what);
    }
    // Of a batch and of an import, only the lines that are foreign.
    let batch = json!({"lines": [{"sku": FOREIGN, "key": "b1"}, {"sku": OWN, "key": "b2"}]});
    let batch = send(
        app.request(0, Method::POST, "/stock/deduct/batch")
            .json(&batch),
    )
    .await;
    let codes = batch.rows("results", &["status", "code"]);
    assert_eq!(
        codes,
        [json!([421, "wrong-shard"]), json!([200, "deducted"])]
    );
    let rows = format!("{{\"sku\":\"{FOREIGN}\",\"add\":5}}\n{{\"sku\":\"{OWN}\",\"add\":5}}\n");
    for (dry_run, code) in [("true", "adjusted"), ("false", "adjusted")] {
        let query = format!("?rows=all&dry_run={dry_run}");
        let answers = import(&app, "import", &query, &rows).await;
        let codes: Vec<_> = answers.iter().map(|line| line["code"].clone()).collect();
        assert_eq!(codes[..2], [json!("wrong-shard"), json!(code)]);
    }
    assert_eq!(foreign_state(&whole).await, before);
    app.assert_consistent(OWN).await;
}

#[tokio::test]
async fn reads_show_only_skus_of_the_shard() {
    let copied = Copied::new().await;
    let app = publishing(&copied.database.url, "1/2").await;
    for path in ["", "?cached=true", "/movements", "/audit"] {
        app.get(&format!("/stock/{OWN}{path}")).await.ok();
        let wrong = app.get(&format!("/stock/{FOREIGN}{path}")).await;
        assert_wrong_shard(&wrong, path);
        let header = app.request(0, Method::GET, &format!("/stock/{OWN}{path}"));
        assert_wrong_shard(&send(header.header(X_SKU, FOREIGN)).await, path);
    }
    for path in ["/holds?sku=a", "/events?sku=a"] {
        assert_wrong_shard(&app.get(path).await, path);
    }
    let list = app.get("/stock?limit=1").await;
    assert_eq!(list.rows("levels", &["sku"]), [json!([OWN])]);
    let holds = app.get("/holds").await;
    assert_eq!(holds.rows("holds", &["sku"]), [json!([OWN]), json!([OWN])]);
    let has_events = async || {
        let events = app.get("/events").await;
        events.status == 200 && !events.rows("events", &["sku"]).is_empty()
    };
    eventually("the feed has events", SOON, has_events).await;
    let events = app.get("/events").await.rows("events", &["sku"]);
    assert!(events.iter().all(|sku| *sku == json!([OWN])), "{events:?}");
    for path in ["/export", "/audit"] {
        let answer = app.get(path).await;
        let skus: Vec<_> = match answer.body["sku"].as_str() {
            Some(sku) => vec![sku.to_owned()],
            None => panic!("{path}: {answer:?}"),
        };
        assert_eq!(skus, [OWN], "{path}");
    }

    // An operation needs the header, and shows the lines of this shard.
    let get = async |path: &str, sku: &str| {
        let request = app.request(0, Method::GET, path);
        send(request.header(X_SKU, sku)).await
    };
    let of = |name: &str| format!("/operations/{}", copied.id(name));
    let by_key = |name: &str| format!("/operations?key={name}");
    for path in [
        of("sale-ab"),
        by_key("sale-ab"),
        "/operations?reference=before".to_owned(),
    ] {
        assert_wrong_shard(&app.get(&path).await, &path);
        assert_wrong_shard(&get(&path, FOREIGN).await, &path);
        let found = get(&path, OWN).await;
        let skus = found.rows("movements", &["sku"]);
        assert!(
            !skus.is_empty() && skus.iter().all(|sku| *sku == json!([OWN])),
            "{found:?}"
        );
    }
    for path in [of("sale-a"), by_key("hold-a")] {
        assert_wrong_shard(&get(&path, OWN).await, &path);
    }
    let both = get(&of("hold-both"), OWN).await;
    assert_eq!(
        both.body["hold"]["lines"].as_array().map(Vec::len),
        Some(1),
        "{both:?}"
    );
}

#[tokio::test]
async fn no_strategy_sells_a_sku_of_another_shard() {
    let copied = Copied::new().await;
    let url = &copied.database.url;
    let whole = replica(url, "1/1", &[]).await;
    let before = foreign_state(&whole).await;
    for strategy in Strategy::ALL {
        // Servers that it must not ask.
        let flags = [
            "--allow-unsafe",
            "--redis-url=redis://127.0.0.1:1",
            "--redlock-urls=redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3",
            "--zookeeper-connect=127.0.0.1:1",
            "--strategy",
            strategy.name(),
        ];
        let app = replica(url, "1/2", &flags).await;
        for key in [None, Some(format!("key-{}", strategy.name()))] {
            let request = app.request(0, Method::POST, "/stock/deduct");
            let request = key
                .iter()
                .fold(request, |request, key| request.header(KEY, key));
            let answer = send(request.json(&json!({ "sku": FOREIGN }))).await;
            assert_wrong_shard(&answer, strategy.name());
        }
        app.stop().await;
    }
    assert_eq!(foreign_state(&whole).await, before);
}

/// An order of SKUs that are of several shards by now has no other place to be repeated at.
#[tokio::test]
async fn order_from_before_the_move_gets_its_first_answer() {
    let copied = Copied::new().await;
    let body = json!({"lines": [{"sku": OWN}, {"sku": FOREIGN}], "reference": "before"});
    for shard in ["1/2", "2/2"] {
        let app = replica(&copied.database.url, shard, &[]).await;
        let order = || app.request(0, Method::POST, "/stock/deduct").json(&body);
        let again = send(order().header(KEY, "sale-both")).await;
        assert_eq!(
            (again.status, &*again.id, again.replayed),
            (200, copied.id("sale-both"), true)
        );
        assert_wrong_shard(&send(order().header(KEY, "new")).await, shard);
        app.stop().await;
    }
}

/// More due holds of the other shard than are read at once, and all of them end before the one of this shard.
#[tokio::test]
async fn holds_of_another_shard_do_not_expire_here() {
    let database = fresh_database(Sqlite).await;
    let whole = replica(&database.url, "1/1", &[]).await;
    for sku in [OWN, FOREIGN] {
        whole.set_level(sku, 1_000).await;
    }
    let hold = async |sku: &str, lines: usize, key: &str| {
        let lines = vec![json!({ "sku": sku }); lines];
        let body = json!({"lines": lines, "expires_in_s": 1});
        made(whole.request(0, Method::POST, "/holds"), key, &body).await;
    };
    for number in 0..6 {
        hold(FOREIGN, 100, &format!("k{number}")).await;
    }
    hold(OWN, 1, "own").await;
    whole.stop().await;
    let app = replica(&database.url, "1/2", &[]).await;
    let units = async |app: &TestApp, sku: &str| app.levels(sku).await[0][1].clone();
    eventually("the hold expires", SOON, async || {
        units(&app, OWN).await == 0
    })
    .await;
    app.stop().await;
    // Its own task in the background has a pause before the first round.
    let whole = replica(&database.url, "1/1", &[]).await;
    assert_eq!(units(&whole, FOREIGN).await, 600);
    whole.stop().await;
}
