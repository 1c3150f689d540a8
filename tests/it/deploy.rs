//! `docker-compose.yml` and the files of `deploy/`: they are valid, and agree with each other and
//! with the settings of the service.

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

mod clusters;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const COMPOSE: &str = include_str!("../../docker-compose.yml");
const NGINX: &str = include_str!("../../deploy/nginx.conf");
const PROMETHEUS: &str = include_str!("../../deploy/prometheus.yml");
const DOCKERFILE: &str = include_str!("../../deploy/Dockerfile");
const DOCKERIGNORE: &str = include_str!("../../.dockerignore");

/// Variables of the compose file that are no settings of the service.
const ONLY_IN_COMPOSE: [&str; 4] = [
    "DATABASE",
    "DATABASE_PASSWORD",
    "HTTP_ADDRESS",
    "PROMETHEUS_KEY",
];

pub(crate) fn program(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|error| panic!("{error:#}")))
}

/// Runs a program to its end; returns its exit status, standard output and standard error.
pub(crate) fn run(command: &mut Command) -> (bool, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program can be run");
    let text = |bytes| String::from_utf8(bytes).expect("the output is text");
    (status.success(), text(stdout), text(stderr))
}

fn docker_compose(files: &[&str], variables: &[(&str, &str)]) -> (bool, String, String) {
    let mut command = program("docker-compose");
    command.args(files.iter().flat_map(|file| ["--file", file]));
    command.args(["--profile", "postgres", "--profile", "prometheus"]);
    // An `.env` beside the compose file must not change the result.
    let empty = NamedTempFile::new().expect("a file");
    command.arg("--env-file").arg(empty.path()).arg("config");
    for name in settings().keys().map(String::as_str).chain(ONLY_IN_COMPOSE) {
        command.env_remove(name);
    }
    run(command.envs(variables.iter().copied()).current_dir(ROOT))
}

/// The compose file as `docker-compose` reads it, with anchors and variables resolved.
fn compose() -> Value {
    composed(&["docker-compose.yml"])
}

fn composed(files: &[&str]) -> Value {
    let (success, stdout, stderr) = docker_compose(files, &[("DATABASE_PASSWORD", "secret")]);
    assert!(success, "docker-compose config: {stderr}");
    serde_norway::from_str(&stdout).expect("it prints YAML")
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

/// The addresses of the replicas within the compose file: `replica-1:8080`, …
fn addresses(compose: &Value) -> BTreeSet<String> {
    let address = |(name, replica): &(&String, &Value)| {
        let listen = replica["environment"]["LISTEN"].as_str().expect("LISTEN");
        format!("{name}:{}", listen.rsplit(':').next().expect("a port"))
    };
    replicas(compose).iter().map(address).collect()
}

/// The default limits, which the compose file does not change.
fn limits() -> Limits {
    config([]).limits
}

/// The value of a directive that nginx's configuration has exactly once outside of its locations.
fn directive(name: &str) -> &'static str {
    let is_outside = |line: &&str| !line.starts_with("            ");
    let code = NGINX.lines().filter(is_outside).map(str::trim);
    let values = code.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let values: Vec<_> = values.collect();
    let [value] = values[..] else {
        panic!("{name} is there {} times", values.len());
    };
    value.strip_suffix(';').expect("a directive ends so")
}

fn seconds(text: &str) -> Duration {
    let number = text.strip_suffix('s').and_then(|text| text.parse().ok());
    Duration::from_secs(number.unwrap_or_else(|| panic!("not in seconds: {text}")))
}

#[test]
fn compose_file_is_valid_and_requires_a_password() {
    assert_eq!(services(&compose()).count(), 9);
    let (success, _, stderr) = docker_compose(&["docker-compose.yml"], &[]);
    assert!(!success);
    assert!(stderr.contains("DATABASE_PASSWORD"), "{stderr}");
}

#[test]
fn every_variable_of_the_compose_file_exists() {
    let settings = settings();
    let explained = |name| {
        let head = format!("#   {name} ");
        COMPOSE.lines().any(|line| line.starts_with(&head))
    };
    // `$$` starts a variable of a shell in the container.
    let used = COMPOSE.split("${").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
        &rest[..end.expect("it is closed")]
    });
    let used: BTreeSet<_> = used.collect();
    for name in &used {
        let is_known =
            settings.contains_key(*name) || (ONLY_IN_COMPOSE.contains(name) && explained(name));
        assert!(is_known, "{name} is neither a setting nor explained on top");
    }
    assert!(ONLY_IN_COMPOSE.iter().all(|name| used.contains(name)));
}

/// The service accepts the environment of all replicas, which use this database.
fn assert_valid_environments(compose: &Value, url: &str) {
    let settings = settings();
    for (name, replica) in replicas(compose) {
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
        assert_eq!(config.database.url(), url);
    }
}

#[test]
fn environment_of_each_replica_is_a_valid_configuration() {
    assert_valid_environments(&compose(), "mariadb://stocklock:secret@mariadb/stocklock");
}

/// Each deployment has its own part and its own database, and nginx knows the names of all replicas.
#[test]
fn sharded_compose_file_has_two_complete_deployments() {
    let compose = composed(&["docker-compose.yml", "deploy/sharded/docker-compose.yml"]);
    let mut parts = BTreeSet::new();
    let mut names = BTreeSet::new();
    let first = &compose["services"]["replica-1"];
    let replicas = services(&compose).filter(|(name, _)| name.starts_with("replica-"));
    for (name, replica) in replicas {
        let environment = replica["environment"].as_object().expect("variables");
        let value = |name: &str| environment[name].as_str().expect("a text").to_owned();
        assert_eq!(value("REPLICA_ID"), *name);
        let host = value("DATABASE_URL").replace("mariadb://stocklock:secret@", "");
        parts.insert((value("SHARD"), host.replace("/stocklock", "")));
        let alias = &replica["networks"]["front"]["aliases"][0];
        names.insert(format!("{}:8080", alias.as_str().expect("a name")));
        // In all else it is like the first one.
        for same in [
            "image",
            "build",
            "healthcheck",
            "deploy",
            "restart",
            "stop_grace_period",
            "ulimits",
        ] {
            assert_eq!(replica[same], first[same], "{name}: {same}");
        }
        let variables = |replica: &Value| {
            let all = replica["environment"].as_object().expect("variables");
            all.keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(variables(replica), variables(first), "{name}");
    }
    let expected = [("1/2", "mariadb"), ("2/2", "mariadb-2")];
    let expected = expected.map(|(shard, host)| (shard.to_owned(), host.to_owned()));
    assert_eq!(parts, BTreeSet::from(expected));

    let script = format!("{ROOT}/deploy/sharded/nginx.sh");
    let (success, text, stderr) = run(program("sh").args([&script, "2", "3"]));
    assert!(success, "{stderr}");
    let servers = text.lines().filter_map(|line| {
        let server = line.trim().strip_prefix("server ")?.strip_suffix(';')?;
        server.split(' ').next().map(str::to_owned)
    });
    assert_eq!(servers.collect::<BTreeSet<_>>(), names);
    let entry = compose["services"]["nginx"]["entrypoint"].to_string();
    assert!(
        entry.contains("sharded.sh 2 3 /etc/nginx/nginx.conf"),
        "{entry}"
    );
    for volume in [
        "nginx.conf:/etc/nginx/nginx.conf:ro",
        "sharded/nginx.sh:/etc/nginx/sharded.sh:ro",
    ] {
        let volumes = compose["services"]["nginx"]["volumes"].to_string();
        assert!(
            volumes.contains(&format!("{ROOT}/deploy/{volume}")),
            "{volumes}"
        );
    }
}

#[test]
fn addresses_in_nginx_prometheus_and_replicas_exist() {
    let compose = compose();
    let addresses = addresses(&compose);

    let servers = NGINX.lines().filter_map(|line| {
        let server = line.trim().strip_prefix("server ")?.strip_suffix(';')?;
        server.split(' ').next().map(str::to_owned)
    });
    assert_eq!(servers.collect::<BTreeSet<_>>(), addresses);

    let prometheus: Value = serde_norway::from_str(PROMETHEUS).expect("it is YAML");
    let [job] = &prometheus["scrape_configs"].as_array().expect("jobs")[..] else {
        panic!("not exactly one job");
    };
    assert_eq!(job["metrics_path"], "/metrics");
    let targets = job["static_configs"][0]["targets"].as_array();
    let targets = targets.expect("targets").iter().filter_map(Value::as_str);
    let targets: BTreeSet<_> = targets.map(str::to_owned).collect();
    assert_eq!(targets, addresses);

    for (name, replica) in replicas(&compose) {
        for (variable, service) in [("REDIS_URL", "redis:"), ("ZOOKEEPER_CONNECT", "zookeeper:")] {
            let address = replica["environment"][variable].as_str().expect("a text");
            assert!(address.contains(service), "{name}: {address}");
        }
    }
}

fn assert_health_checks_limits_and_restarts(compose: &Value) {
    for (name, service) in services(compose) {
        assert!(service["healthcheck"]["test"].is_array(), "{name}");
        let limits = &service["deploy"]["resources"]["limits"];
        assert!(!limits["memory"].is_null(), "{name}");
        assert!(!limits["cpus"].is_null(), "{name}");
        assert_eq!(service["restart"], "unless-stopped", "{name}");
    }
    let drain = limits().drain_limit_ms;
    for (name, replica) in replicas(compose) {
        let grace = seconds(replica["stop_grace_period"].as_str().expect("a time"));
        assert!(grace > drain, "{name} would be killed during its drain");
    }
}

#[test]
fn every_service_has_health_check_limits_and_restart() {
    assert_health_checks_limits_and_restarts(&compose());
}

/// The files that containers mount.
fn mounted(compose: &Value) -> BTreeSet<String> {
    let volumes = services(compose).filter_map(|(_, service)| service["volumes"].as_array());
    let volumes = volumes.flatten().filter_map(Value::as_str);
    // An operator creates the key of Prometheus.
    let volumes = volumes.filter(|volume| !volume.contains(":/etc/prometheus/key"));
    let sources = volumes.filter_map(|volume| volume.split(':').next());
    let sources = sources.filter(|source| source.starts_with('/'));
    sources.map(str::to_owned).collect()
}

#[test]
fn every_mounted_file_exists() {
    let files = mounted(&compose());
    assert_eq!(files.len(), 5);
    for file in files {
        assert!(Path::new(&file).is_file(), "{file}");
    }
}

#[test]
fn nginx_accepts_its_configuration() {
    let directory = TempDir::new().expect("a directory");
    let listen = format!("listen 127.0.0.1:{}", free_port());
    let mut configuration = NGINX.replace("listen 8080", &listen);
    for number in 1..=3 {
        configuration = configuration.replace(&format!("replica-{number}:"), "127.0.0.1:");
    }
    let file = directory.path().join("nginx.conf");
    fs::write(&file, configuration).expect("a file can be written");
    let mut nginx = program("nginx");
    nginx.args(["-t", "-e", "stderr", "-p"]);
    let (success, _, stderr) = run(nginx.arg(directory.path()).arg("-c").arg(file));
    assert!(success && !stderr.contains("[warn]"), "{stderr}");
}

#[test]
fn nginx_agrees_with_the_limits_of_the_replicas() {
    let limits = limits();
    // `keepalive_timeout` is there twice; the one for replicas is in the upstream.
    let upstream = NGINX.split("upstream replicas").nth(1).expect("upstream");
    let idle = upstream.split("keepalive_timeout ").nth(1).expect("a time");
    let idle = seconds(idle.split(';').next().expect("a value"));
    assert!(idle < limits.idle_timeout_ms, "a replica closes first");
    let timeout = NGINX.split("proxy_read_timeout ").nth(1).expect("a time");
    let timeout = seconds(timeout.split(';').next().expect("a value"));
    assert!(timeout > limits.request_deadline_ms, "nginx answers first");
    let bodies = NGINX.split("client_max_body_size ").skip(1).map(|after| {
        let kib = after.split(['k', ';']).next().expect("KiB");
        kib.parse::<u32>().expect("a number") * 1024
    });
    let bodies: Vec<_> = bodies.collect();
    // Imports have no limit.
    let limits_of_replicas = [limits.max_body_bytes, limits.max_batch_body_bytes, 0];
    assert_eq!(bodies, limits_of_replicas);
    // nginx has 128 MiB, and keeps the bodies of batches in memory.
    let batches = NGINX.split("limit_conn batches ").nth(1).expect("a limit");
    let batches = batches.split(';').next().and_then(|text| text.parse().ok());
    let batches: u32 = batches.expect("a number");
    assert!(batches * limits.max_batch_body_bytes <= 64 * 1024 * 1024);
    assert_eq!(directive("proxy_next_upstream"), "off");
}

#[test]
fn mariadb_configuration_makes_commits_durable() {
    let file = format!("--defaults-file={ROOT}/deploy/mariadb.cnf");
    let mut mariadbd = program("mariadbd");
    let (success, stdout, stderr) = run(mariadbd.args([&file, "--verbose", "--help"]));
    assert!(success, "{stderr}");
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
fn image_copies_existing_files_and_does_not_run_as_root() {
    let rust = concat!("FROM rust:", env!("CARGO_PKG_RUST_VERSION"));
    assert!(DOCKERFILE.contains(rust), "not the Rust of Cargo.toml");
    let last = DOCKERFILE.rsplit("\nFROM ").next().expect("a stage");
    let user = last.lines().find_map(|line| line.strip_prefix("USER "));
    let user = user.and_then(|user| user.split(':').next()?.parse().ok());
    assert!(user.is_some_and(|user: u32| user > 0), "{user:?}");

    let lines = DOCKERFILE.lines();
    let copied = lines.filter_map(|line| line.strip_prefix("COPY "));
    let copied = copied.filter(|line| !line.starts_with("--from"));
    let sources: BTreeSet<_> = copied
        .flat_map(|line| line.rsplit_once(' ').expect("a target").0.split(' '))
        .collect();
    for source in &sources {
        assert!(Path::new(ROOT).join(source).exists(), "{source}");
    }
    let lines = DOCKERIGNORE.lines();
    let sent = lines.filter_map(|line| line.strip_prefix('!'));
    assert_eq!(sent.collect::<BTreeSet<_>>(), sources);
}
