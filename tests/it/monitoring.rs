//! `deploy/alerts.yml` and `deploy/grafana/stocklock.json`: their expressions are valid, and ask for metrics
//! that a replica has.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::deploy::{program, run};
use crate::faults::KEY;
use crate::support::app::{TestApp, send};
use crate::support::lock_services::LockServices;
use crate::support::services::Backend::Postgres;

const ALERTS: &str = include_str!("../../deploy/alerts.yml");
const DASHBOARD: &str = include_str!("../../deploy/grafana/stocklock.json");

fn promtool(arguments: &[&str]) {
    let mut promtool = program("promtool");
    promtool
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    let (success, stdout, stderr) = run(&mut promtool);
    assert!(success, "{stdout}{stderr}");
}

/// The expressions of the dashboard, with values for its variables.
fn dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let identities: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(
        identities.len(),
        panels.len(),
        "a panel's id is there twice"
    );
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let expression = |target: &Value| target["expr"].as_str().expect("an expression").to_owned();
    let variables = [
        ("$__rate_interval", "1m"),
        ("$__range", "1h"),
        ("$instance", ".*"),
    ];
    let filled = targets.flatten().map(expression).map(|text| {
        variables
            .iter()
            .fold(text, |text, (name, value)| text.replace(name, value))
    });
    let filled: Vec<_> = filled.collect();
    assert!(filled.iter().all(|text| !text.contains('$')), "{filled:?}");
    filled
}

fn alerts() -> Vec<String> {
    let alerts: Value = serde_norway::from_str(ALERTS).expect("it is YAML");
    let rules = alerts["groups"][0]["rules"].as_array().expect("rules");
    let expression = |rule: &Value| rule["expr"].as_str().expect("an expression").to_owned();
    rules.iter().map(expression).collect()
}

#[test]
fn alerts_fire_as_their_tests_say() {
    promtool(&["test", "rules", "tests/alerts.yml"]);
}

#[test]
fn expressions_of_the_dashboard_are_valid() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("rules.yml");
    let rules = dashboard()
        .into_iter()
        .map(|text| json!({"record": "panel", "expr": text}));
    let rules: Vec<_> = rules.collect();
    // YAML contains JSON.
    let group = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(&file, group.to_string()).expect("a file can be written");
    promtool(&[
        "check",
        "rules",
        "--lint=none",
        file.to_str().expect("a text"),
    ]);
}

/// Every metric, and every label of it, which alerts and dashboard name; also its value, where they name one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_has_every_metric_of_alerts_and_dashboard() {
    let services = LockServices::fresh().await;
    let app = TestApp::with_flags(Postgres, 1, &services.flags()).await;
    app.set_level("tea", 9).await;
    for strategy in ["group-commit", "sql-lock", "redis-lua"] {
        send(app.deduct(0, strategy, &json!({"sku": "tea"})))
            .await
            .ok();
    }
    let hold = json!({"lines": [{"sku": "tea"}]});
    let hold = app.request(0, Method::POST, "/holds").json(&hold);
    assert_eq!(send(hold.header(KEY, "cart-1")).await.status, 201);
    app.get_json("/stock/tea?cached=true").await;
    app.get_json("/stock/tea/audit").await;
    let metrics = app.get("/metrics").await.text().to_owned();

    let selector = Regex::new(r"([a-z_]+)\{([^}]*)\}").expect("a pattern");
    let condition = Regex::new(r#"([a-z]+="[a-z0-9]+")|([a-z]+=)~""#).expect("a pattern");
    let grouping = Regex::new(r"by \(([a-z, ]+)\)").expect("a pattern");
    for expression in [alerts(), dashboard()].concat() {
        let grouped: Vec<_> = grouping
            .captures_iter(&expression)
            .flat_map(|found| found.extract::<1>().1[0].split(", "))
            .map(|label| format!("{label}="))
            .collect();
        let mut selectors = 0;
        for (_, [name, matchers]) in selector.captures_iter(&expression).map(|one| one.extract()) {
            selectors += 1;
            // Prometheus makes it.
            if name == "up" {
                continue;
            }
            let samples = metrics.lines().filter(|line| {
                let labels = line.strip_prefix(name);
                labels.is_some_and(|labels| labels.starts_with([' ', '{']))
            });
            let samples: Vec<_> = samples.collect();
            assert!(!samples.is_empty(), "no {name} for {expression}");
            let matched = condition
                .captures_iter(matchers)
                .map(|one| one.extract::<1>().1[0]);
            let labels = matched.chain(grouped.iter().map(String::as_str));
            // Prometheus adds these two.
            for label in
                labels.filter(|one| !one.starts_with("job=") && !one.starts_with("instance="))
            {
                let has = samples.iter().any(|line| line.contains(label));
                assert!(has, "no {label} for {expression}");
            }
        }
        assert!(selectors > 0, "{expression}");
    }
}
