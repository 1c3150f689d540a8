//! The races that the page of the lab starts, by their routes: `/lab/races`.

use std::collections::BTreeSet;
use std::fs;

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HOST, ORIGIN};
use rstest::rstest;
use serde_json::{Value, json};

use crate::faults::until;
use crate::support::app::{Answer, send};
use crate::support::process::Process;

/// More orders than are settled while a test looks at them.
fn long_race() -> Value {
    json!({"strategies": ["no-lock"], "stock": 1_000_000, "buyers": 20, "orders": 5_000})
}

async fn lab() -> Process {
    Process::serving(&["lab"], &[]).await
}

async fn start(lab: &Process, race: &Value) -> Answer {
    send(lab.request(Method::POST, "/lab/races").json(race)).await
}

/// Starts a race, and returns the path of it.
async fn started(lab: &Process, race: &Value) -> String {
    let answer = start(lab, race).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    format!("/lab/races/{}", answer.body["id"].as_str().expect("an id"))
}

async fn state(lab: &Process, race: &str) -> Value {
    lab.get(race).await.body["state"].clone()
}

/// The events after number `last`, to the end of the race: number, name and data.
async fn events(lab: &Process, race: &str, last: u64) -> Vec<(u64, String, Value)> {
    let request = lab.request(Method::GET, &format!("{race}/events"));
    let request = request.header("Last-Event-ID", last);
    let text = request.send().await.expect("an answer").text().await;
    let text = text.expect("all events");
    let event = |block: &str| {
        let field = |name| block.lines().find_map(|line| line.strip_prefix(name));
        let data = serde_json::from_str(field("data: ")?).expect("it is JSON");
        let number = field("id: ")?.parse().expect("a number");
        Some((number, field("event: ")?.to_owned(), data))
    };
    text.split("\n\n").filter_map(event).collect()
}

async fn waits_for_sales(lab: &Process, race: &str) {
    let mut answer = lab
        .request(Method::GET, &format!("{race}/events"))
        .send()
        .await
        .expect("an answer");
    let mut text = String::new();
    while !text.contains("event: tick") {
        let chunk = answer
            .chunk()
            .await
            .expect("a part")
            .expect("the race runs");
        text += &String::from_utf8_lossy(&chunk);
    }
}

fn children(of: &Process) -> BTreeSet<String> {
    let parent = format!("PPid:\t{}\n", of.id().as_raw_nonzero());
    let status = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("status")).ok()?;
        let is_running = !text.contains("State:\tZ");
        (is_running && text.contains(&parent))
            .then(|| entry.file_name().to_string_lossy().into_owned())
    };
    let entries = fs::read_dir("/proc")
        .expect("processes")
        .filter_map(Result::ok);
    entries.filter_map(status).collect()
}

/// Whether a replica with this process id runs. Another process can have the id only much later.
fn runs(id: &String) -> bool {
    let command = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    command.contains("--replica")
}

#[tokio::test]
async fn events_tell_the_race_and_resume_after_any() {
    let lab = lab().await;
    let race =
        json!({"strategies": ["no-lock", "single-sql"], "stock": 300, "buyers": 20, "orders": 20});
    let path = started(&lab, &race).await;
    let all = events(&lab, &path, 0).await;
    let names: Vec<_> = all
        .iter()
        .map(|(_, name, _)| name.as_str())
        .filter(|name| *name != "tick")
        .collect();
    assert_eq!(names, ["plan", "start", "row", "start", "row", "end"]);
    let numbers: Vec<_> = all.iter().map(|(number, ..)| *number).collect();
    let expected: Vec<_> = (1..=all.len() as u64).collect();
    assert_eq!(numbers, expected);
    let half = all.len() / 2;
    assert_eq!(events(&lab, &path, half as u64).await, all[half..]);
    for wrong in ["half", "-1", "9223372036854775808"] {
        let request = lab.request(Method::GET, &format!("{path}/events"));
        let refused = send(request.header("Last-Event-ID", wrong)).await;
        assert_eq!(refused.status_and_code(), (422, "invalid-request"));
    }
    assert_eq!(state(&lab, &path).await, "finished");
    assert_eq!(children(&lab), BTreeSet::new());

    let rows: Vec<_> = all
        .iter()
        .filter(|(_, name, _)| name == "row")
        .map(|(.., row)| row)
        .collect();
    for row in &rows {
        let sku = row["sku"].as_str().expect("a SKU");
        let audit = lab.get(&format!("/stock/{sku}/audit")).await;
        let level = &audit.body["warehouses"][0];
        assert_eq!(
            (&row["oversold"], &row["left"]),
            (&level["oversold"], &level["on_hand"]),
            "{row}"
        );
    }
    assert_eq!(rows[0]["verdict"], "caught", "{}", rows[0]);
    assert_eq!(
        (&rows[1]["verdict"], &rows[1]["oversold"]),
        (&json!("exact"), &json!(0))
    );
    let mut ticks = all.iter().filter(|(_, name, _)| name == "tick");
    let last = ticks
        .rfind(|(.., tick)| tick["strategy"] == "no-lock")
        .expect("a tick");
    assert_eq!(last.2["sold"], rows[0]["sold_units"]);
}

#[tokio::test]
async fn report_has_the_figures_and_nothing_from_elsewhere() {
    let lab = lab().await;
    let race =
        json!({"strategies": ["no-lock"], "stock": 60, "buyers": 20, "orders": 3, "quantity": 2});
    let path = started(&lab, &race).await;
    let all = events(&lab, &path, 0).await;
    let row = &all
        .iter()
        .find(|(_, name, _)| name == "row")
        .expect("a row")
        .2;
    assert_eq!(
        row["sold_units"],
        2 * row["sold"].as_i64().expect("a number")
    );
    let json = lab.get(&format!("{path}/report?format=json")).await;
    assert_eq!(&json.body["runs"][0]["row"], row);
    let html = lab.get(&format!("{path}/report")).await;
    assert!(html.header("content-disposition").starts_with("attachment"));
    let html = html.text();
    assert!(html.contains(row["sku"].as_str().expect("a SKU")));
    let command = "stocklock race --strategy no-lock --stock 60 --buyers 20 --orders 3 --replicas 2 --quantity 2";
    assert!(html.contains(command));
    for elsewhere in ["src=", "href=\"http", "@import", "url(http"] {
        assert!(!html.contains(elsewhere), "{elsewhere}");
    }
}

#[tokio::test]
async fn page_races_orders_and_holds() {
    let lab = lab().await;
    let race = json!({"stock": 20, "buyers": 5, "orders": 5, "lines": 2, "holds": true});
    let path = started(&lab, &race).await;
    events(&lab, &path, 0).await;
    let report = lab.get(&format!("{path}/report?format=json")).await;
    let runs = report.body["runs"].as_array().expect("runs");
    let [run] = &runs[..] else {
        panic!("{report:?}")
    };
    let row = &run["row"];
    let expected = json!(["group-commit", "exact", 20, 40, 40]);
    let fields = ["strategy", "verdict", "sold", "sold_units", "stock"];
    assert_eq!(json!(fields.map(|field| &row[field])), expected, "{row:#}");
    let html = lab.get(&format!("{path}/report")).await;
    let html = html.text();
    for sku in row["skus"].as_array().expect("SKUs") {
        assert_eq!((&sku["ledger_sold"], &sku["left"]), (&json!(20), &json!(0)));
        assert!(html.contains(sku["sku"].as_str().expect("a SKU")));
    }
    assert!(html.contains("--orders 5 --replicas 2 --lines 2 --holds"));
}

#[tokio::test]
async fn one_race_at_a_time_which_can_be_stopped() {
    let lab = lab().await;
    let path = started(&lab, &long_race()).await;
    waits_for_sales(&lab, &path).await;
    let second = start(&lab, &long_race()).await;
    assert_eq!(second.status_and_code(), (409, "race-running"));
    assert!(path.ends_with(second.body["id"].as_str().expect("an id")));
    let report = lab.get(&format!("{path}/report")).await;
    assert_eq!(report.status_and_code(), (409, "race-running"));
    let replicas = children(&lab);
    assert_eq!(replicas.len(), 2, "{replicas:?}");

    let stop = format!("{path}/stop");
    assert_eq!(send(lab.request(Method::POST, &stop)).await.status, 204);
    let all = events(&lab, &path, 0).await;
    assert_eq!(
        all.last().expect("an end").2,
        json!({"state": "stopped", "problem": null, "result": null})
    );
    assert!(!replicas.iter().any(runs));
    let race = json!({"strategies": ["single-sql"], "stock": 5, "buyers": 2, "orders": 5});
    let next = started(&lab, &race).await;
    assert_eq!(
        events(&lab, &next, 0).await.last().expect("an end").2["state"],
        "finished"
    );
}

/// As if its page had been closed.
#[tokio::test]
async fn race_that_nobody_watches_ends_with_its_replicas() {
    let lab = lab().await;
    let race = json!({"strategies": ["single-sql"], "stock": 50, "buyers": 10, "orders": 10});
    let path = started(&lab, &race).await;
    let is_over = async || state(&lab, &path).await == "finished";
    until("the race is over", is_over).await;
    assert_eq!(children(&lab), BTreeSet::new());
}

/// Ctrl-C and SIGKILL: no replica outlives the lab.
#[rstest]
#[tokio::test]
async fn lab_that_ends_leaves_no_replica(#[values(false, true)] killed: bool) {
    let mut lab = lab().await;
    let path = started(&lab, &long_race()).await;
    waits_for_sales(&lab, &path).await;
    let replicas = children(&lab);
    assert_eq!(replicas.len(), 2, "{replicas:?}");
    if killed {
        lab.kill9();
    } else {
        lab.terminate();
        let ended = lab.ended().await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    let is_gone = async || !replicas.iter().any(runs);
    until("the replicas are gone", is_gone).await;
}

#[tokio::test]
async fn race_without_its_server_says_what_to_set() {
    let lab = lab().await;
    for (race, detail) in [
        (json!({"strategies": ["redis-lock"]}), "REDIS_URL"),
        (json!({"strategies": ["redlock"]}), "REDLOCK_URLS"),
        (
            json!({"strategies": ["zookeeper-lock"]}),
            "ZOOKEEPER_CONNECT",
        ),
        (json!({"strategies": ["redis-lua"]}), "REDIS_URL"),
    ] {
        let answer = start(&lab, &race).await;
        assert_eq!(answer.status, 503, "{race}");
        assert!(answer.detail.contains(detail), "{answer:?}");
    }
    let list = lab.get("/lab/races").await;
    assert_eq!(list.body["races"], json!([]));
}

#[tokio::test]
async fn values_beyond_the_limits_are_refused() {
    let lab = lab().await;
    for (field, value) in [
        ("stock", json!(0)),
        ("stock", json!(1_000_001)),
        ("buyers", json!(1_001)),
        ("orders", json!(100_001)),
        ("orders", json!(0)),
        ("orders", json!(1.5)),
        ("quantity", json!(101)),
        ("lines", json!(0)),
        ("lines", json!(11)),
        ("holds", json!("yes")),
        ("replicas", json!(5)),
        ("rtt_ms", json!(101)),
        ("rtt_ms", json!(-1)),
        ("strategies", json!("none")),
        ("strategies", json!([])),
        ("strategies", json!(["nonsense"])),
        ("strategies", json!(["no-lock", "no-lock"])),
        ("guard", json!(null)),
        ("colour", json!("red")),
    ] {
        let mut race = json!({"strategies": ["no-lock"]});
        race[field] = value;
        let answer = start(&lab, &race).await;
        assert_eq!(answer.status_and_code(), (422, "invalid-request"), "{race}");
        assert!(answer.detail.contains(field), "{answer:?}");
    }
    // Each value is valid, but this lab cannot run the race.
    for (field, value) in [
        ("orders", json!(1_001)),
        // Only group-commit makes them.
        ("lines", json!(2)),
        ("holds", json!(true)),
        // On SQLite without servers, there is nothing to move away.
        ("rtt_ms", json!(1.0)),
    ] {
        let mut race = json!({"strategies": ["no-lock"], "buyers": 100.0});
        race[field] = value;
        let answer = start(&lab, &race).await;
        assert_eq!(answer.status_and_code(), (409, "race-refused"), "{race}");
        assert!(answer.detail.contains(field), "{answer:?}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_start_nothing() {
    let lab = lab().await;
    let race = json!({"strategies": ["no-lock"], "stock": 1, "buyers": 1, "orders": 1}).to_string();
    let request = || lab.request(Method::POST, "/lab/races").body(race.clone());
    let as_json = || request().header(CONTENT_TYPE, "application/json");
    for (request, expected) in [
        (
            as_json().header(ORIGIN, "https://evil.example"),
            (403, "foreign-origin"),
        ),
        (
            as_json().header(HOST, "evil.example"),
            (403, "foreign-host"),
        ),
        // A form of another site can send only this without asking first.
        (
            request().header(CONTENT_TYPE, "text/plain"),
            (415, "unsupported-media-type"),
        ),
    ] {
        assert_eq!(send(request).await.status_and_code(), expected);
    }
    let preflight = lab.request(Method::OPTIONS, "/lab/races");
    let preflight = send(preflight.header(ORIGIN, "https://evil.example")).await;
    assert_eq!(preflight.header("access-control-allow-origin"), "");
    assert_eq!(lab.get("/lab/races").await.body["races"], json!([]));
    let own = as_json().header(ORIGIN, lab.url("").trim_end_matches('/'));
    assert_eq!(send(own).await.status, 201);
}
