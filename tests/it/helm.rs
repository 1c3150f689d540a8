//! The chart in `deploy/helm`: `tests/helm/render.py` lints, renders and validates it; here its resources are
//! compared with the service. It is not installed on a cluster.

use std::time::Duration;

use serde_json::{Value, json};
use stocklock::config::Mode;

use crate::config::{config, settings};
use crate::schemathesis::run_python;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Renders the chart. Fails with what Helm or the schemas of Kubernetes have found.
async fn render(values: Value) -> Result<Vec<Value>, String> {
    let output = run_python("python", Duration::from_mins(2), |run| {
        run.args(["-B", "tests/helm/render.py", "deploy/helm"])
            .arg(values.to_string())
            .current_dir(ROOT)
    })
    .await;
    match serde_json::from_slice(&output.stdout) {
        Ok(resources) if output.status.success() => Ok(resources),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn one<'a>(resources: &'a [Value], kind: &str) -> &'a Value {
    let mut found = resources.iter().filter(|resource| resource["kind"] == kind);
    let (Some(one), None) = (found.next(), found.next()) else {
        panic!("not exactly one {kind} in {resources:?}");
    };
    one
}

#[tokio::test]
async fn chart_agrees_with_the_settings_and_the_drain() {
    let url = "postgres://stocklock:secret@database/stocklock";
    let values = json!({
        "drainSeconds": 25,
        "settings": {"STRATEGY": "single-sql", "MAX_BATCH_BODY_BYTES": 2_097_152, "LOG_FORMAT": "json"},
        "secret": {"settings": {"DATABASE_URL": url}},
    });
    let resources = render(values).await.expect("valid resources");

    let pod = &one(&resources, "Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let image = concat!("stocklock:", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], image);
    let environment = container["env"].as_array().expect("an environment");
    let settings = settings();
    let flags = environment.iter().map(|variable| {
        let name = variable["name"].as_str().expect("a name");
        let setting = settings
            .get(name)
            .unwrap_or_else(|| panic!("{name} is no setting"));
        // REPLICA_ID is the name of the pod.
        let value = variable["value"].as_str().unwrap_or("pod-1");
        format!("--{}={value}", setting.get_long().expect("a flag"))
    });
    let config = config(flags);
    assert_eq!(config.validate(Mode::Serve), Ok(()));
    assert_eq!(config.limits.max_batch_body_bytes, 2_097_152);
    let grace = pod["terminationGracePeriodSeconds"]
        .as_u64()
        .expect("a number");
    let pause = &container["lifecycle"]["preStop"]["exec"]["command"][1];
    let pause: u64 = pause
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("seconds");
    let drain = config.limits.drain_limit_ms.as_secs();
    assert_eq!(drain, 25);
    assert!(grace > pause + drain, "{grace} s");

    let ports = container["ports"].as_array().expect("ports");
    let port = |name: &str| {
        ports
            .iter()
            .find(|port| port["name"] == name)
            .expect("a port")
    };
    let admin = config.service.addresses.admin_listen.expect("an address");
    assert_eq!(port("admin")["containerPort"], admin.port());
    assert_eq!(
        port("http")["containerPort"],
        config.listen(Mode::Serve).port()
    );
    let target = &one(&resources, "Service")["spec"]["ports"][0]["targetPort"];
    assert_eq!(target, "http");

    // The password is in the Secret only.
    let secret = one(&resources, "Secret");
    assert_eq!(secret["stringData"]["DATABASE_URL"], url);
    let has_password = |resource: &&Value| resource.to_string().contains("secret@");
    assert_eq!(resources.iter().filter(has_password).count(), 1);
    // A rollback brings back the Secret of its release.
    let hooks = &secret["metadata"]["annotations"]["helm.sh/hook"];
    assert_eq!(hooks, "pre-install,pre-upgrade,pre-rollback");
    let reference = json!([{"secretRef": {"name": secret["metadata"]["name"]}}]);
    let migration = &one(&resources, "Job")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(migration["args"], json!(["migrate"]));
    let sources = [&migration["envFrom"], &container["envFrom"]];
    assert_eq!(sources, [&reference; 2]);
}

#[tokio::test]
async fn chart_has_a_monitor_and_takes_an_existing_secret() {
    let values = json!({"secret": {"existing": "database"}, "serviceMonitor": {"enabled": true}});
    let resources = render(values).await.expect("valid resources");
    assert!(
        resources
            .iter()
            .all(|resource| resource["kind"] != "Secret")
    );
    let monitor = &one(&resources, "ServiceMonitor")["spec"];
    let labels = monitor["selector"]["matchLabels"]
        .as_object()
        .expect("labels");
    let services = resources
        .iter()
        .filter(|resource| resource["kind"] == "Service");
    let selected = services.filter(|service| {
        let has = |(name, value): (&String, &Value)| service["metadata"]["labels"][name] == *value;
        labels.iter().all(has)
    });
    let selected: Vec<_> = selected.collect();
    assert_eq!(selected.len(), 1, "not one Service in {resources:?}");
    assert_eq!(
        selected[0]["spec"]["ports"][0]["name"],
        monitor["endpoints"][0]["port"]
    );
}

#[tokio::test]
async fn chart_without_a_database_says_what_to_set() {
    let problem = render(json!({})).await.expect_err("no database");
    assert!(problem.contains("set secret.existing"), "{problem}");
}
