//! What is shipped to run the service: `docker-compose.yml` and the files of `deploy/` are valid,
//! and agree with each other and with the service's own settings.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use stocklock::config::{Limits, Mode};
use tempfile::{NamedTempFile, TempDir};

use crate::config::{config, settings};
use crate::support::ports::free_port;
use crate::support::services::find;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const COMPOSE: &str = include_str!("../../docker-compose.yml");
const NGINX: &str = include_str!("../../deploy/nginx.conf");
const DOCKERFILE: &str = include_str!("../../deploy/Dockerfile");
const IGNORED_BY_DOCKER: &str = include_str!("../../.dockerignore");

/// What the compose file asks of its user beside the service's own settings.
const OF_COMPOSE: [&str; 3] = ["DATABASE", "DATABASE_PASSWORD", "HTTP_ADDRESS"];

fn docker_compose(variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(find("docker-compose").unwrap_or_else(|e| panic!("{e:#}")));
    command.args(["--profile", "postgres", "--profile", "prometheus"]);
    // Not the `.env` that somebody may have put beside the file.
    let empty = NamedTempFile::new().expect("a file");
    command.arg("--env-file").arg(empty.path()).arg("config");
    for name in settings().keys().map(String::as_str).chain(OF_COMPOSE) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).current_dir(ROOT);
    command.output().expect("docker-compose can be run")
}

/// The compose file as `docker-compose` understands it: anchors and variables resolved.
fn compose() -> Value {
    let output = docker_compose(&[("DATABASE_PASSWORD", "secret")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker-compose config: {stderr}");
    serde_norway::from_slice(&output.stdout).expect("it prints YAML")
}

fn services(compose: &Value) -> impl Iterator<Item = (&String, &Value)> {
    compose["services"].as_object().expect("services").iter()
}

fn replicas(compose: &Value) -> Vec<(&String, &Value)> {
    let replicas = services(compose).filter(|(name, _)| name.starts_with("replica-"));
    let replicas: Vec<_> = replicas.collect();
    assert_eq!(replicas.len(), 3);
    replicas
}

/// `replica-1:8080`, …: what the others have to call the replicas.
fn addresses(compose: &Value) -> BTreeSet<String> {
    let address = |(name, replica): &(&String, &Value)| {
        let listen = replica["environment"]["LISTEN"].as_str().expect("LISTEN");
        format!("{name}:{}", listen.rsplit(':').next().expect("a port"))
    };
    replicas(compose).iter().map(address).collect()
}

/// The defaults of the service, which the compose file leaves as they are.
fn limits() -> Limits {
    config([]).limits
}

/// The value of the only directive of that name in nginx's configuration.
fn directive(name: &str) -> &'static str {
    let code = NGINX.lines().map(str::trim);
    let values = code.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let values: Vec<_> = values.collect();
    let [value] = values[..] else {
        panic!("{name} stands there {} times", values.len());
    };
    value.strip_suffix(';').expect("a directive ends so")
}

fn seconds(text: &str) -> Duration {
    let number = text
        .strip_suffix('s')
        .and_then(|number| number.parse().ok());
    Duration::from_secs(number.unwrap_or_else(|| panic!("not in seconds: {text}")))
}

#[test]
fn the_compose_file_is_valid_and_wants_a_password() {
    let compose = compose();
    assert_eq!(services(&compose).count(), 9);
    let without = docker_compose(&[]);
    assert!(!without.status.success());
    assert!(String::from_utf8_lossy(&without.stderr).contains("DATABASE_PASSWORD"));
}

#[test]
fn every_variable_of_the_compose_file_exists() {
    let settings = settings();
    let in_head = |name| {
        COMPOSE
            .lines()
            .any(|line| line.starts_with(&format!("#   {name} ")))
    };
    // What follows `$$` is for a shell in the container.
    let used = COMPOSE.split("${").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
        &rest[..end.expect("it is closed")]
    });
    let used: BTreeSet<_> = used.collect();
    for name in &used {
        let known = settings.contains_key(*name) || (OF_COMPOSE.contains(name) && in_head(name));
        assert!(known, "{name} is no setting, and not explained at the head");
    }
    assert!(OF_COMPOSE.iter().all(|name| used.contains(name)));
}

#[test]
fn the_replicas_environment_is_a_configuration() {
    let (compose, settings) = (compose(), settings());
    for (name, replica) in replicas(&compose) {
        let environment = replica["environment"].as_object().expect("an environment");
        let flags = environment.iter().map(|(name, value)| {
            let setting = settings.get(name);
            let setting = setting.unwrap_or_else(|| panic!("{name} is no setting"));
            let value = value.as_str().expect("a text");
            format!("--{}={value}", setting.get_long().expect("a flag"))
        });
        let config = config(flags);
        assert_eq!(config.validate(Mode::Serve), Ok(()));
        assert_eq!(config.service.replica_id.as_ref(), Some(name));
        let url = "mariadb://stocklock:secret@mariadb/stocklock";
        assert_eq!(config.database.url(), url);
    }
}

#[test]
fn whoever_names_a_service_of_the_compose_file_finds_it() {
    let compose = compose();
    let addresses = addresses(&compose);

    let servers = NGINX.lines().filter_map(|line| {
        let server = line.trim().strip_prefix("server ")?.strip_suffix(';')?;
        server.split(' ').next()
    });
    assert_eq!(
        servers.map(str::to_owned).collect::<BTreeSet<_>>(),
        addresses
    );

    let prometheus: Value = serde_norway::from_str(include_str!("../../deploy/prometheus.yml"))
        .expect("prometheus.yml is YAML");
    let [job] = &prometheus["scrape_configs"].as_array().expect("jobs")[..] else {
        panic!("more than one job");
    };
    assert_eq!(job["metrics_path"], "/metrics");
    let targets = job["static_configs"][0]["targets"].as_array();
    let targets = targets.expect("targets").iter().filter_map(Value::as_str);
    assert_eq!(
        targets.map(str::to_owned).collect::<BTreeSet<_>>(),
        addresses
    );

    for (name, replica) in replicas(&compose) {
        for (variable, service) in [("REDIS_URL", "redis:"), ("ZOOKEEPER_CONNECT", "zookeeper:")] {
            let place = replica["environment"][variable].as_str().expect("a text");
            assert!(place.contains(service), "{name}: {place}");
        }
    }
}

#[test]
fn every_service_is_watched_bounded_and_restarted() {
    let compose = compose();
    for (name, service) in services(&compose) {
        assert!(service["healthcheck"]["test"].is_array(), "{name}");
        let limits = &service["deploy"]["resources"]["limits"];
        assert!(
            !limits["memory"].is_null() && !limits["cpus"].is_null(),
            "{name}"
        );
        assert_eq!(service["restart"], "unless-stopped", "{name}");
    }
    for (name, replica) in replicas(&compose) {
        let grace = seconds(replica["stop_grace_period"].as_str().expect("a time"));
        assert!(
            grace > limits().drain_limit_ms,
            "{name} is killed amid its drain"
        );
    }
}

#[test]
fn every_file_that_is_mounted_is_there() {
    let compose = compose();
    let volumes = services(&compose).filter_map(|(_, service)| service["volumes"].as_array());
    let sources = volumes
        .flatten()
        .filter_map(|volume| volume.as_str()?.split(':').next());
    let files: Vec<_> = sources.filter(|source| source.starts_with('/')).collect();
    assert_eq!(files.len(), 4);
    for file in files {
        assert!(Path::new(file).is_file(), "{file}");
    }
}

#[test]
fn nginx_takes_its_configuration() {
    let directory = TempDir::new().expect("a directory");
    let mut configuration =
        NGINX.replace("listen 8080", &format!("listen 127.0.0.1:{}", free_port()));
    for number in 1..=3 {
        configuration = configuration.replace(&format!("replica-{number}:"), "127.0.0.1:");
    }
    let file = directory.path().join("nginx.conf");
    fs::write(&file, configuration).expect("a file can be written");
    let mut command = Command::new(find("nginx").unwrap_or_else(|e| panic!("{e:#}")));
    command
        .args(["-t", "-e", "stderr", "-p"])
        .arg(directory.path());
    let output = command
        .arg("-c")
        .arg(file)
        .output()
        .expect("nginx can be run");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !stderr.contains("[warn]"),
        "{stderr}"
    );
}

#[test]
fn nginx_is_in_step_with_the_replicas_limits() {
    let limits = limits();
    // Twice: once for clients, once for replicas, which is the first.
    let upstream = NGINX
        .split("upstream replicas")
        .nth(1)
        .expect("an upstream");
    let kept = upstream.split("keepalive_timeout ").nth(1).expect("a time");
    let kept = seconds(kept.split(';').next().expect("a value"));
    assert!(kept < limits.idle_timeout_ms, "a replica closes first");
    let patience = seconds(directive("proxy_read_timeout"));
    assert!(patience > limits.request_deadline_ms, "nginx answers first");
    let body = directive("client_max_body_size")
        .strip_suffix('k')
        .expect("KiB");
    assert_eq!(
        body.parse::<u32>().map(|kib| kib * 1024),
        Ok(limits.max_body_bytes)
    );
    assert_eq!(directive("proxy_next_upstream"), "off");
}

#[test]
fn mariadb_knows_the_settings_that_durability_needs() {
    let file = format!("--defaults-file={ROOT}/deploy/mariadb.cnf");
    let mut command = Command::new(find("mariadbd").unwrap_or_else(|e| panic!("{e:#}")));
    let output = command.args([&file, "--verbose", "--help"]).output();
    let output = output.expect("mariadbd can be run");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    for (name, value) in [
        ("innodb-flush-log-at-trx-commit", "1"),
        ("sync-binlog", "1"),
        ("innodb-lock-wait-timeout", "3"),
        ("innodb-rollback-on-timeout", "TRUE"),
        ("innodb-snapshot-isolation", "TRUE"),
        ("idle-write-transaction-timeout", "10"),
    ] {
        let line = stdout.lines().find_map(|line| line.strip_prefix(name));
        assert_eq!(line.map(str::trim), Some(value), "{name}");
    }
}

#[test]
fn the_image_has_all_that_is_built_and_is_not_root() {
    let rust = concat!("FROM rust:", env!("CARGO_PKG_RUST_VERSION"));
    assert!(
        DOCKERFILE.contains(rust),
        "the compiler is not that of Cargo.toml"
    );
    let last = DOCKERFILE.rsplit("\nFROM ").next().expect("a stage");
    let user = last.lines().find_map(|line| line.strip_prefix("USER "));
    let user = user.and_then(|user| user.split(':').next()?.parse().ok());
    assert!(user.is_some_and(|user: u32| user > 0), "{user:?}");

    let copied = DOCKERFILE
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "));
    let copied = copied.filter(|line| !line.starts_with("--from"));
    let sources: BTreeSet<_> = copied
        .flat_map(|line| line.rsplit_once(' ').expect("a target").0.split(' '))
        .collect();
    for source in &sources {
        assert!(Path::new(ROOT).join(source).exists(), "{source}");
    }
    let sent = IGNORED_BY_DOCKER
        .lines()
        .filter_map(|line| line.strip_prefix('!'));
    assert_eq!(sent.collect::<BTreeSet<_>>(), sources);
}
