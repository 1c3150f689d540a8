//! Pages of levels and of the ledger: walked to their end, everything is met exactly once; names
//! are in any script.

use reqwest::{Method, Url};
use serde_json::{Value, json};

use crate::support::app::TestApp;
use crate::support::services::Backend;

/// Everything that the pages under `path` have in `field`, at most `limit` on each.
async fn walk(app: &TestApp, path: &str, field: &str, limit: usize) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut url = Url::parse(&app.base(0)).and_then(|base| base.join(path));
        let url = url.as_mut().expect("a URL");
        url.query_pairs_mut()
            .append_pair("limit", &limit.to_string());
        if let Some(cursor) = &cursor {
            url.query_pairs_mut().append_pair("cursor", cursor);
        }
        let response = app.client.get(url.clone()).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), 200, "{url}");
        let page: Value = response.json().await.expect("a page");
        let items = page[field].as_array().expect("its items");
        all.extend(items.iter().cloned());
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            return all;
        }
        assert_eq!(items.len(), limit, "a page that is not the last is full");
    }
}

fn texts<'a>(items: &'a [Value], field: &str) -> Vec<&'a str> {
    let texts = items.iter().map(|item| item[field].as_str());
    texts.map(|text| text.expect("a text")).collect()
}

#[rstest::rstest]
#[tokio::test]
async fn all_levels_are_met_once_and_in_order(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 1, &[]).await;
    let mut names = Vec::new();
    for sku in ["a", "B", "b", "b.1", "ä", "上海", "0", "a-1", "𠮷"] {
        for warehouse in ["main", "Main", "上海仓"] {
            let mut url = Url::parse(&app.base(0)).expect("a URL");
            url.path_segments_mut()
                .expect("a base")
                .extend(["stock", sku]);
            let body = json!({"on_hand": 1, "warehouse": warehouse});
            let response = app.client.put(url).json(&body).send().await;
            assert_eq!(response.expect("an answer").status(), 201);
            names.push((sku, warehouse));
        }
    }
    // By code point, whatever the database's locale.
    names.sort_unstable();
    for limit in [1, 2, 5, 27, 1000] {
        let levels = walk(&app, "/stock", "levels", limit).await;
        let skus = texts(&levels, "sku");
        let met: Vec<_> = skus.into_iter().zip(texts(&levels, "warehouse")).collect();
        assert_eq!(met, names, "{limit}");
    }
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn all_movements_are_met_once_newest_first(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::start(backend).await;
    app.set_level("a", 100).await;
    app.set_level("b", 100).await;
    let mut made = Vec::new();
    for replica in 0..11 {
        for sku in ["a", "b"] {
            let response = app
                .deduct(replica, "single-sql", &json!({"sku": sku}))
                .send()
                .await;
            let sold: Value = response.expect("an answer").json().await.expect("JSON");
            if sku == "a" {
                made.insert(0, sold["id"].as_str().expect("an id").to_owned());
            }
        }
    }
    for limit in [1, 5, 6, 12, 1000] {
        let movements = walk(&app, "/stock/a/movements", "movements", limit).await;
        assert_eq!(texts(&movements, "id")[..11], made, "{limit}");
        assert_eq!(
            (movements.len(), &movements[11]["kind"]),
            (12, &json!("received"))
        );
    }
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn movements_can_be_filtered(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 1, &[]).await;
    app.set_level("a", 100).await;
    let north = json!({"on_hand": 50, "warehouse": "north"});
    let response = app
        .request(0, Method::PUT, "/stock/a")
        .json(&north)
        .send()
        .await;
    assert_eq!(response.expect("an answer").status(), 201);
    for (warehouse, delta, reference) in [
        ("main", 1, "PO-1"),
        ("north", 1, "PO-1"),
        ("main", -1, "po-1"),
    ] {
        let body = json!({
            "delta": delta, "reason": "delivery", "warehouse": warehouse, "reference": reference,
        });
        let response = app
            .request(0, Method::POST, "/stock/a/adjust")
            .json(&body)
            .send()
            .await;
        assert_eq!(response.expect("an answer").status(), 200);
    }
    let body = json!({"sku": "a", "warehouse": "north", "quantity": 7});
    let response = app.deduct(0, "optimistic", &body).send().await;
    let sold: Value = response.expect("an answer").json().await.expect("JSON");

    for (query, count) in [
        ("", 6),
        ("warehouse=north", 3),
        ("kind=received", 4),
        ("kind=adjusted", 1),
        ("kind=deducted", 1),
        ("reference=PO-1", 2),
        ("reference=PO-1&warehouse=main", 1),
        ("reference=PO-1&warehouse=main&kind=deducted", 0),
        ("warehouse=nowhere", 0),
    ] {
        let path = format!("/stock/a/movements?{query}");
        for limit in [1, 100] {
            let movements = walk(&app, &path, "movements", limit).await;
            assert_eq!(movements.len(), count, "{query}: {movements:?}");
        }
    }
    let mut page = app.get_json("/stock/a/movements?kind=deducted").await;
    let movement = &mut page["movements"][0];
    let created_at = movement["created_at"].take();
    let created_at = created_at.as_str().expect("a time");
    assert!(
        created_at.starts_with("20") && created_at.ends_with('Z'),
        "{created_at}"
    );
    let expected = json!({
        "id": sold["id"], "warehouse": "north", "kind": "deducted", "delta": -7,
        "available_after": 44, "read_version": 2, "strategy": "optimistic",
        "durability": "committed", "reason": null, "reference": null, "created_at": null,
    });
    assert_eq!(*movement, expected);
    app.stop().await;
}

#[rstest::rstest]
#[tokio::test]
async fn names_in_any_script_are_sold_from(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let app = TestApp::with_flags(backend, 1, &[]).await;
    // 茶 and 上海仓, percent-encoded, in the path and in the query.
    let level = json!({"on_hand": 9, "warehouse": "上海仓", "reason": "盘点 ✓"});
    let path = "/stock/%E8%8C%B6";
    let response = app.request(0, Method::PUT, path).json(&level).send().await;
    assert_eq!(response.expect("an answer").status(), 201);
    let by_body = app.deduct(
        0,
        "single-sql",
        &json!({"sku": "茶", "warehouse": "上海仓"}),
    );
    let query = "sku=%E8%8C%B6&warehouse=%E4%B8%8A%E6%B5%B7%E4%BB%93";
    let by_query = app.request(0, Method::POST, &format!("/stock/deduct?{query}"));
    for (request, remaining) in [(by_body, 8), (by_query, 7)] {
        let response = request.send().await.expect("an answer");
        let sold: Value = response.json().await.expect("JSON");
        assert_eq!(
            (&sold["sku"], &sold["warehouse"]),
            (&json!("茶"), &json!("上海仓"))
        );
        assert_eq!(sold["remaining"], remaining);
    }
    let adjusted =
        json!({"delta": -7, "warehouse": "上海仓", "reason": "盘点", "reference": "单 1"});
    let request = app.request(0, Method::POST, &format!("{path}/adjust"));
    let response = request.json(&adjusted).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    let page = app
        .get_json(&format!("{path}/movements?reference=%E5%8D%95+1"))
        .await;
    assert_eq!(page["movements"][0]["reason"], "盘点");
    assert_eq!(page["movements"][0]["available_after"], 0);
    app.stop().await;
}
