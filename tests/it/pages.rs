//! Pages of levels and of the ledger: following the cursor to the end yields every item exactly
//! once. Names may be in any script.

use reqwest::{Method, Url};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::app::{Answer, TestApp, send};
use crate::support::rival::Raw;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};

/// The pages from this path on, which has a query.
pub(crate) async fn each_page(app: &TestApp, path: &str) -> Vec<Answer> {
    let mut pages = vec![app.get(path).await];
    while let Some(cursor) = pages[pages.len() - 1].ok()["next_cursor"].as_str() {
        let next = app.request(0, Method::GET, path);
        let next = next.query(&[("cursor", cursor)]);
        pages.push(send(next).await);
    }
    pages
}

/// The items of all pages under `path`, with at most `limit` items per page.
async fn all_pages(app: &TestApp, path: &str, field: &str, limit: usize) -> Vec<Value> {
    let pages = each_page(app, &format!("{path}limit={limit}")).await;
    let items = |page: &Answer| page.body[field].as_array().expect("its items").clone();
    let pages: Vec<_> = pages.iter().map(items).collect();
    let mut but_the_last = pages[1..].iter().zip(&pages);
    let are_full = but_the_last.all(|(_, page)| page.len() == limit);
    assert!(are_full, "only the last page may be short");
    pages.concat()
}

fn texts<'a>(items: &'a [Value], field: &str) -> Vec<&'a str> {
    let texts = items.iter().map(|item| item[field].as_str());
    texts.map(|text| text.expect("a text")).collect()
}

#[rstest]
#[tokio::test]
async fn pages_yield_each_level_once_in_order(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_flags(backend, 1, &[]).await;
    let mut names = Vec::new();
    for sku in ["a", "B", "b", "b.1", "ä", "上海", "0", "a-1", "𠮷", "हिन्दी"] {
        for warehouse in ["main", "Main", "上海仓"] {
            let mut url = Url::parse(&app.base(0)).expect("a URL");
            let mut path = url.path_segments_mut().expect("a path");
            path.extend(["stock", sku]);
            drop(path);
            let body = json!({"on_hand": 1, "warehouse": warehouse});
            assert_eq!(send(app.client.put(url).json(&body)).await.status, 201);
            names.push((sku, warehouse));
        }
    }
    // By code point, independent of the database's locale.
    names.sort_unstable();
    for limit in [1, 2, 5, 30, 1000] {
        let levels = all_pages(&app, "/stock?", "levels", limit).await;
        let skus = texts(&levels, "sku");
        let found: Vec<_> = skus.into_iter().zip(texts(&levels, "warehouse")).collect();
        assert_eq!(found, names, "{limit}");
    }
}

#[rstest]
#[tokio::test]
async fn movements_can_be_filtered(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 1, "a", 100).await;
    call!(app, PUT "/stock/a", {"on_hand": 50, "warehouse": "north"} => 201);
    for (warehouse, delta, reference) in [
        ("main", 1, "PO-1"),
        ("north", 1, "PO-1"),
        ("main", -1, "po-1"),
    ] {
        call!(app, POST "/stock/a/adjust", {
            "delta": delta, "reason": "delivery", "warehouse": warehouse, "reference": reference,
        } => 200);
    }
    let sold = call!(app, POST "/stock/deduct?strategy=optimistic", {
        "sku": "a", "warehouse": "north", "quantity": 7,
    } => 200);

    for (query, count) in [
        ("", 6),
        ("warehouse=north", 3),
        ("kind=received", 4),
        ("kind=adjusted", 1),
        ("kind=deducted", 1),
        ("reference=PO-1", 2),
        ("reference=PO-1%20", 0),
        ("reference=PO-1&warehouse=main", 1),
        ("reference=PO-1&warehouse=main&kind=deducted", 0),
        ("warehouse=nowhere", 0),
    ] {
        let path = format!("/stock/a/movements?{query}&");
        for limit in [1, 100] {
            let movements = all_pages(&app, &path, "movements", limit).await;
            assert_eq!(movements.len(), count, "{query}: {movements:?}");
        }
    }
    let mut page = app.get_json("/stock/a/movements?kind=deducted").await;
    let movement = &mut page["movements"][0];
    let created_at = movement["created_at"].take();
    let created_at = created_at.as_str().expect("a time");
    let is_time = created_at.starts_with("20") && created_at.ends_with('Z');
    assert!(is_time, "{created_at}");
    let expected = json!({
        "id": sold.ok()["id"], "line": 0, "sku": "a", "warehouse": "north", "kind": "deducted", "delta": -7,
        "held_delta": 0,
        "available_after": 44, "level_version": 3, "read_version": 2, "strategy": "optimistic",
        "caller": "anonymous", "idempotency_key": null, "reason": null,
        "reference": null, "reverses": null, "returned": null, "created_at": null,
    });
    assert_eq!(*movement, expected);
}

/// The next release may record kinds of movements that this one does not know.
#[rstest]
#[tokio::test]
async fn unknown_kind_of_movement_is_served(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_stock(backend, 1, "a", 10).await;
    let taken = json!({"delta": -4, "reason": "return", "reference": "R-1"});
    let first = call!(app, POST "/stock/a/adjust", key "k", (taken) => 200);
    let mut raw = Raw::connect(backend, &app.database_url).await;
    let rename = "UPDATE movement SET kind = 'unknown' WHERE delta = -4";
    raw.run(rename).await.expect("the ledger can be changed");

    call!(app, GET "/stock/a/movements" => 200, {"/movements/0/kind": "unknown"});
    let replay = call!(app, POST "/stock/a/adjust", key "k", (taken) => 200 replayed);
    assert_eq!(replay.body, first.body);
    let audit = app.audit("a").await;
    assert_eq!([&audit["received"], &audit["drift"]], [6, 0]);
}

#[rstest]
#[tokio::test]
async fn names_may_be_in_any_script(#[values(Sqlite, Mysql, Postgres)] backend: Backend) {
    let app = TestApp::with_flags(backend, 1, &[]).await;
    // 茶 and 上海仓, percent-encoded, in the path and in the query.
    let (sku, query) = (
        "%E8%8C%B6",
        "sku=%E8%8C%B6&warehouse=%E4%B8%8A%E6%B5%B7%E4%BB%93",
    );
    call!(app, PUT "/stock/{sku}", {"on_hand": 9, "warehouse": "上海仓", "reason": "盘点 ✓"} => 201);
    call!(app, POST "/stock/deduct?strategy=single-sql", {"sku": "茶", "warehouse": "上海仓"}
        => 200, {"sku": "茶", "warehouse": "上海仓", "remaining": 8});
    call!(app, POST "/stock/deduct?{query}" => 200, {"sku": "茶", "warehouse": "上海仓", "remaining": 7});
    let adjustment =
        json!({"delta": -7, "warehouse": "上海仓", "reason": "盘点", "reference": "单 1"});
    call!(app, POST "/stock/{sku}/adjust", (adjustment) => 200);
    call!(app, GET "/stock/{sku}/movements?reference=%E5%8D%95+1"
        => 200, {"/movements/0/reason": "盘点", "/movements/0/available_after": 0});
}
