//! The service's contract in memory, for the race's own tests: exact or lossy by strategy, and
//! with faults on demand. No protection is at work here, and no database.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::Target;

/// How the fake behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// As it should.
    Sound,
    /// Five in seven deductions end otherwise than they should: 503 thrice, 504, a broken answer.
    Faulty,
    /// The same, and idempotency keys are not looked at.
    Forgetful,
    /// Every deduction ends with 500.
    Defective,
    /// A lock is lost on every seventh deduction, whose write is refused unless the guard is off;
    /// and of old both have happened before.
    Leaky,
    /// As it should, but its counters cannot be read.
    Garbled,
    /// As it should, but its counters are less with every reading.
    Restarting,
    /// Lists strategies that it does not have, and that will not be there a moment later.
    Unconfigured,
    /// The ledger has all of a run only when it is audited for the fourth time.
    Behind,
    /// Two movements never arrive in the ledger's database.
    Jammed,
    /// Not in lab mode.
    Production,
}

#[derive(Default)]
struct Stock {
    home: String,
    on_hand: i64,
    version: i64,
    received: i64,
    keys: HashMap<String, i64>,
    ledger: Vec<Value>,
}

type Shelf = Mutex<HashMap<String, Stock>>;

struct Fake {
    behaviour: Behaviour,
    deductions: AtomicUsize,
    /// Locks lost, writes refused, and how often they were read.
    locks_lost: AtomicUsize,
    writes_refused: AtomicUsize,
    readings: AtomicUsize,
    audits: AtomicUsize,
    shelf: Arc<Shelf>,
}

/// Starts so many replicas with one shelf; they end with the test's runtime.
pub(super) async fn start(behaviour: Behaviour, replicas: usize) -> Vec<Target> {
    let shelf = Arc::new(Shelf::default());
    let mut targets = Vec::new();
    for _ in 0..replicas {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        targets.push(url.parse().unwrap());
        let fake = Arc::new(Fake {
            behaviour,
            deductions: AtomicUsize::new(0),
            locks_lost: AtomicUsize::new(100),
            writes_refused: AtomicUsize::new(100),
            readings: AtomicUsize::new(0),
            audits: AtomicUsize::new(0),
            shelf: Arc::clone(&shelf),
        });
        let router = Router::new()
            .route("/strategies", get(strategies))
            .route("/metrics", get(metrics))
            .route("/stock/deduct", post(deduct))
            .route("/stock/{sku}", put(stock_up))
            .route("/stock/{sku}/audit", get(audit))
            .route("/stock/{sku}/movements", get(movements))
            .with_state(fake);
        tokio::spawn(async { axum::serve(listener, router).await });
    }
    targets
}

fn problem(status: u16, code: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap();
    let body = json!({"code": code, "detail": format!("the fake says {code}")});
    (status, [("retry-after", "0")], Json(body)).into_response()
}

/// The same without a hint that it will pass.
fn lasting_problem(status: u16, code: &str) -> Response {
    let mut response = problem(status, code);
    response.headers_mut().remove("retry-after");
    response
}

async fn strategies() -> Json<Value> {
    Json(json!({"strategies": [
        {"name": "no-lock", "available": true, "reason": null},
        {"name": "single-sql", "available": true, "reason": null},
        {"name": "redis-lock", "available": false, "reason": "it needs Redis: set REDIS_URL"},
        {"name": "zookeeper-lock", "available": true, "reason": null},
        {"name": "redis-lua", "available": true, "reason": null},
    ]}))
}

async fn metrics(State(fake): State<Arc<Fake>>) -> String {
    let reading = fake.readings.fetch_add(1, Ordering::Relaxed);
    let of = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    match fake.behaviour {
        Behaviour::Garbled => "stock_locks_lost_total many\n# EOF\n".to_owned(),
        Behaviour::Restarting => counters(100 - reading, 100),
        _ => counters(of(&fake.locks_lost), of(&fake.writes_refused)),
    }
}

fn counters(lost: usize, refused: usize) -> String {
    let labels = |reason| format!(r#"{{strategy="zookeeper-lock",reason="{reason}"}}"#);
    format!(
        "# TYPE stock_locks_lost counter\nstock_locks_lost_total{} {lost}\n\
         # TYPE stock_writes_refused counter\nstock_writes_refused_total{} {refused}\n# EOF\n",
        labels("session-expired"),
        labels("fence"),
    )
}

async fn stock_up(
    State(fake): State<Arc<Fake>>,
    Path(sku): Path<String>,
    Json(body): Json<Value>,
) -> StatusCode {
    let on_hand = body["on_hand"].as_i64().unwrap();
    let stock = Stock {
        home: body["home"].as_str().unwrap().to_owned(),
        on_hand,
        received: on_hand,
        ledger: vec![json!({
            "id": "received", "kind": "received", "delta": on_hand,
            "available_after": on_hand, "read_version": null, "strategy": null,
        })],
        ..Stock::default()
    };
    fake.shelf.lock().unwrap().insert(sku, stock);
    StatusCode::CREATED
}

async fn deduct(
    State(fake): State<Arc<Fake>>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    if fake.behaviour == Behaviour::Production {
        return problem(422, "invalid");
    }
    let sku = body["sku"].as_str().unwrap();
    match fake.shelf.lock().unwrap().get(sku) {
        None => return problem(404, "unknown-sku"),
        Some(stock) if only_at(&query["strategy"]).is_some_and(|home| home != stock.home) => {
            return problem(409, "wrong-home");
        }
        Some(_) => {}
    }
    match fake.behaviour {
        Behaviour::Defective => return problem(500, "internal"),
        Behaviour::Unconfigured => return lasting_problem(503, "strategy-unavailable"),
        _ => {}
    }
    let key = headers["idempotency-key"].to_str().unwrap();
    let lossy = query["strategy"] == "no-lock";
    let turn = fake.deductions.fetch_add(1, Ordering::Relaxed) % 7;
    let faulty = matches!(fake.behaviour, Behaviour::Faulty | Behaviour::Forgetful);
    if (fake.behaviour, turn) == (Behaviour::Leaky, 0) {
        fake.lose_a_lock(query.get("guard").is_some_and(|guard| guard == "off"));
    }
    match (faulty, turn) {
        (true, 1) => problem(503, "contended"),
        (true, 2) => problem(503, "overloaded"),
        (true, 3) => {
            fake.sell(sku, key, lossy).await;
            problem(504, "outcome-unknown")
        }
        (true, 5) => problem(503, "strategy-unavailable"),
        (true, 4) => {
            fake.sell(sku, key, lossy).await;
            let broken = Err::<Bytes, _>(io::Error::other("cut"));
            Body::from_stream(stream::iter([broken])).into_response()
        }
        _ => fake.sell(sku, key, lossy).await,
    }
}

/// The only home that the strategy works on.
fn only_at(strategy: &str) -> Option<&'static str> {
    match strategy {
        "single-sql" => Some("sql"),
        "redis-lua" => Some("redis"),
        _ => None,
    }
}

impl Fake {
    /// What is still on its way to the ledger, fewer with every audit.
    fn pending(&self) -> usize {
        let audits = self.audits.fetch_add(1, Ordering::Relaxed);
        match self.behaviour {
            Behaviour::Behind => 3_usize.saturating_sub(audits),
            Behaviour::Jammed => 2,
            _ => 0,
        }
    }

    fn lose_a_lock(&self, guard_is_off: bool) {
        self.locks_lost.fetch_add(1, Ordering::Relaxed);
        if !guard_is_off {
            self.writes_refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn sell(&self, sku: &str, key: &str, lossy: bool) -> Response {
        if self.behaviour != Behaviour::Forgetful
            && let Some(remaining) = self.shelf.lock().unwrap()[sku].keys.get(key)
        {
            let body = Json(json!({"remaining": remaining}));
            return ([("idempotent-replayed", "true")], body).into_response();
        }
        let (read, version) = self.read(sku);
        if !lossy {
            return self.write(sku, key, None);
        }
        // Long enough for another buyer to read the same.
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.write(sku, key, Some((read, version)))
    }

    fn read(&self, sku: &str) -> (i64, i64) {
        let stocks = self.shelf.lock().unwrap();
        (stocks[sku].on_hand, stocks[sku].version)
    }

    /// Checks and writes in one step; from what was read earlier, if anything was.
    fn write(&self, sku: &str, key: &str, earlier: Option<(i64, i64)>) -> Response {
        let mut stocks = self.shelf.lock().unwrap();
        let stock = stocks.get_mut(sku).unwrap();
        let (read, version) = earlier.unwrap_or((stock.on_hand, stock.version));
        if read < 1 {
            return problem(409, "insufficient-stock");
        }
        stock.on_hand = read - 1;
        stock.version += 1;
        stock.keys.insert(key.to_owned(), read - 1);
        let id = format!("operation-{:08}", stock.ledger.len());
        stock.ledger.push(json!({
            "id": id, "kind": "deducted", "delta": -1, "available_after": read - 1,
            "read_version": earlier.map(|_| version), "strategy": "fake",
        }));
        Json(json!({"id": id, "remaining": read - 1})).into_response()
    }
}

async fn audit(State(fake): State<Arc<Fake>>, Path(sku): Path<String>) -> Response {
    let shelf = fake.shelf.lock().unwrap();
    let Some(stock) = shelf.get(&sku) else {
        return problem(404, "unknown-sku");
    };
    let sold = i64::try_from(stock.ledger.len() - 1).unwrap();
    let pending = fake.pending();
    let drift = stock.on_hand - (stock.received - sold);
    let oversold = (sold - stock.received).max(0);
    Json(json!({"sku": sku, "warehouses": [{
        "warehouse": "main", "received": stock.received, "sold": sold,
        "on_hand": stock.on_hand, "held": 0, "drift": drift, "oversold": oversold,
        "pending": pending, "consistent": drift == 0 && oversold == 0 && pending == 0,
    }]}))
    .into_response()
}

/// Pages of ten, whatever is asked for, so that the cursor is needed.
async fn movements(
    State(fake): State<Arc<Fake>>,
    Path(sku): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Json<Value> {
    let start = query
        .get("cursor")
        .map_or(0, |cursor| cursor["at ".len()..].parse().unwrap());
    let shelf = fake.shelf.lock().unwrap();
    let ledger = &shelf[&sku].ledger;
    let page: Vec<&Value> = ledger.iter().rev().skip(start).take(10).collect();
    let next = start + page.len();
    let next_cursor = (next < ledger.len()).then(|| format!("at {next}"));
    Json(json!({"movements": page, "next_cursor": next_cursor}))
}
