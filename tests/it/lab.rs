//! The races that the page of the lab starts, by their routes: `/lab/races`.

use std::collections::BTreeSet;
use std::fs;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
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

/// What the events of this name say.
fn named<'a>(events: &'a [(u64, String, Value)], name: &str) -> Vec<&'a Value> {
    let named = events.iter().filter(|event| event.1 == name);
    named.map(|event| &event.2).collect()
}

async fn waits_for_sales(lab: &Process, race: &str) {
    let request = lab.request(Method::GET, &format!("{race}/events"));
    let mut answer = request.send().await.expect("an answer");
    let mut text = String::new();
    while !text.contains("event: tick") {
        let chunk = answer.chunk().await.expect("a part");
        text += &String::from_utf8_lossy(&chunk.expect("the race runs"));
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
    let names = all.iter().map(|(_, name, _)| name.as_str());
    let names: Vec<_> = names.filter(|name| *name != "tick").collect();
    assert_eq!(names, ["plan", "start", "row", "start", "row", "end"]);
    let numbers: Vec<_> = all.iter().map(|(number, ..)| *number).collect();
    let expected: Vec<_> = (1..=all.len() as u64).collect();
    assert_eq!(numbers, expected);
    let half = all.len() / 2;
    assert_eq!(events(&lab, &path, half as u64).await, all[half..]);
    for wrong in ["half", "-1", "9223372036854775808"] {
        let request = lab.request(Method::GET, &format!("{path}/events"));
        let refused = send(request.header("Last-Event-ID", wrong)).await;
        refused.assert_is(422, "invalid-request");
    }
    assert_eq!(state(&lab, &path).await, "finished");
    assert_eq!(children(&lab), BTreeSet::new());

    let rows = named(&all, "row");
    for row in &rows {
        let sku = row["sku"].as_str().expect("a SKU");
        let audit = lab.get(&format!("/stock/{sku}/audit")).await;
        let level = &audit.body["warehouses"][0];
        assert_eq!(row["oversold"], level["oversold"], "{row}");
        assert_eq!(row["left"], level["on_hand"], "{row}");
    }
    assert_eq!(rows[0]["verdict"], "caught", "{}", rows[0]);
    assert_eq!(rows[1]["verdict"], "exact", "{}", rows[1]);
    assert_eq!(rows[1]["oversold"], 0, "{}", rows[1]);
    let mut ticks = named(&all, "tick").into_iter();
    let last = ticks.rfind(|tick| tick["strategy"] == "no-lock");
    assert_eq!(last.expect("a tick")["sold"], rows[0]["sold_units"]);
}

#[tokio::test]
async fn report_has_the_figures_and_nothing_from_elsewhere() {
    let lab = lab().await;
    let race =
        json!({"strategies": ["no-lock"], "stock": 60, "buyers": 20, "orders": 3, "quantity": 2});
    let path = started(&lab, &race).await;
    let all = events(&lab, &path, 0).await;
    let row = named(&all, "row")[0];
    let sold = row["sold"].as_i64().expect("a number");
    assert_eq!(row["sold_units"], 2 * sold);
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
    second.assert_is(409, "race-running");
    assert!(path.ends_with(second.body["id"].as_str().expect("an id")));
    let report = lab.get(&format!("{path}/report")).await;
    report.assert_is(409, "race-running");
    let replicas = children(&lab);
    assert_eq!(replicas.len(), 2, "{replicas:?}");

    let stop = format!("{path}/stop");
    assert_eq!(send(lab.request(Method::POST, &stop)).await.status, 204);
    let all = events(&lab, &path, 0).await;
    let stopped = json!({"state": "stopped", "problem": null, "result": null});
    assert_eq!(named(&all, "end"), [&stopped]);
    assert!(!replicas.iter().any(runs));
    let race = json!({"strategies": ["single-sql"], "stock": 5, "buyers": 2, "orders": 5});
    let next = started(&lab, &race).await;
    let all = events(&lab, &next, 0).await;
    assert_eq!(named(&all, "end")[0]["state"], "finished");
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
    for (strategy, detail) in [
        ("redis-lock", "REDIS_URL"),
        ("redlock", "REDLOCK_URLS"),
        ("zookeeper-lock", "ZOOKEEPER_CONNECT"),
        ("redis-lua", "REDIS_URL"),
    ] {
        let answer = start(&lab, &json!({"strategies": [strategy]})).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.detail.contains(detail), "{answer:?}");
    }
    let list = lab.get("/lab/races").await;
    assert_eq!(list.body["races"], json!([]));
}

#[tokio::test]
async fn values_beyond_the_limits_are_refused() {
    let lab = lab().await;
    let refused = async |mut race: Value, fields: &str, status, code| {
        for line in fields.split(';').map(str::trim) {
            let (field, value) = line.split_once(' ').expect("field and value");
            race[field] = serde_json::from_str(value).expect("it is JSON");
            let answer = start(&lab, &race).await;
            answer.assert_is(status, code);
            assert!(answer.detail.contains(field), "{line}: {answer:?}");
            race.as_object_mut().expect("an object").remove(field);
        }
    };
    let wrong = r#"stock 0; stock 1000001; buyers 1001; orders 0; orders 100001; orders 1.5; quantity 101; lines 0;
        lines 11; holds "yes"; replicas 5; rtt_ms 101; rtt_ms -1; guard null; colour "red""#;
    refused(
        json!({"strategies": ["no-lock"]}),
        wrong,
        422,
        "invalid-request",
    )
    .await;
    let wrong = r#"strategies "none"; strategies []; strategies ["nonsense"]; strategies ["no-lock", "no-lock"]"#;
    refused(json!({}), wrong, 422, "invalid-request").await;
    // Each value is valid, but this lab cannot run the race: only group-commit makes orders of several lines and
    // holds, and on SQLite without servers, there is nothing to move away.
    let race = json!({"strategies": ["no-lock"], "buyers": 100.0});
    let wrong = "orders 1001; lines 2; holds true; rtt_ms 1.0";
    refused(race, wrong, 409, "race-refused").await;
    // A form of another site can send only this without asking first.
    let form = lab.request(Method::POST, "/lab/races");
    let form = send(form.header(CONTENT_TYPE, "text/plain")).await;
    form.assert_is(415, "unsupported-media-type");
}
