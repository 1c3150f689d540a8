//! The compose files of `deploy/galera` and `deploy/patroni`: they agree with the configuration files beside them, with
//! which the tests of clusters run.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rstest::rstest;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    ROOT, assert_health_checks_limits_and_restarts, assert_valid_environments, composed,
    docker_compose, mounted, program, replicas, run, services,
};

/// What creates no cluster, and what creates one.
const JOINS: bool = false;
const CREATES: bool = true;

/// A file of `deploy/`.
fn text(name: &str) -> String {
    fs::read_to_string(format!("{ROOT}/deploy/{name}")).expect(name)
}

fn yaml(name: &str) -> Value {
    serde_norway::from_str(&text(name)).expect("it is YAML")
}

fn files(cluster: &str) -> [String; 2] {
    let file = format!("deploy/{cluster}/docker-compose.yml");
    ["docker-compose.yml".to_owned(), file]
}

fn compose(cluster: &str) -> Value {
    composed(&files(cluster).each_ref().map(String::as_str))
}

fn texts(list: &Value) -> BTreeSet<String> {
    let list = list.as_array().expect("a list").iter();
    list.map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

/// The node with this name, which may be an alias of the service.
fn node<'a>(compose: &'a Value, name: &str) -> &'a Value {
    let is_it = |(service, value): &(&String, &Value)| {
        let aliases = value["networks"]["back"]["aliases"].as_array();
        *service == name || aliases.is_some_and(|them| them.contains(&json!(name)))
    };
    let mut found = services(compose).filter(is_it);
    let (_, node) = found.next().expect(name);
    assert!(found.next().is_none(), "{name} is there twice");
    node
}

/// The file of `deploy/` is at this path in the container.
fn assert_mounts(service: &Value, file: &str, path: &str) {
    let volume = format!("{ROOT}/deploy/{file}:{path}:ro");
    let volumes = texts(&service["volumes"]);
    assert!(volumes.contains(&volume), "{volume}: {volumes:?}");
}

#[rstest]
#[case::galera("galera", "mariadb")]
#[case::patroni("patroni", "postgres")]
fn compose_file_of_a_cluster_is_complete(#[case] cluster: &str, #[case] scheme: &str) {
    let (success, _, stderr) = docker_compose(&files(cluster).each_ref().map(String::as_str), &[]);
    assert!(!success && stderr.contains("DATABASE_PASSWORD"), "{stderr}");
    let file = text(&format!("{cluster}/docker-compose.yml"));
    let variables = file.split("${").skip(1);
    assert!(
        variables
            .into_iter()
            .all(|rest| rest.starts_with("DATABASE_PASSWORD:?"))
    );

    let compose = compose(cluster);
    assert_health_checks_limits_and_restarts(&compose);
    let url = format!("{scheme}://stocklock:secret@haproxy/stocklock");
    assert_valid_environments(&compose, &url);
    for (name, replica) in replicas(&compose) {
        let condition = &replica["depends_on"]["haproxy"]["condition"];
        assert_eq!(condition, "service_healthy", "{name}");
    }
    for (name, service) in services(&compose) {
        let may_be_reached = ["nginx", "prometheus"].contains(&&**name);
        assert_eq!(service["ports"].is_array(), may_be_reached, "{name}");
    }
    for file in mounted(&compose) {
        assert!(Path::new(&file).is_file(), "{file}");
    }
}

/// The container's HAProxy uses the deployed file, and finds the nodes by Docker's name server.
#[rstest]
#[case::galera("galera")]
#[case::patroni("patroni")]
fn haproxy_in_a_container_accepts_the_deployed_file(#[case] cluster: &str) {
    let compose = compose(cluster);
    let proxy = &compose["services"]["haproxy"];
    let deployed = format!("{cluster}/haproxy.cfg");
    assert_mounts(proxy, &deployed, "/etc/haproxy/haproxy.cfg");
    assert_mounts(proxy, "haproxy-docker.cfg", "/etc/haproxy/docker.cfg");

    let directory = TempDir::new().expect("a directory");
    let made = directory.path().join("made.cfg").display().to_string();
    let mut script = proxy["entrypoint"][2]
        .as_str()
        .expect("a script")
        .to_owned();
    let haproxy = program("haproxy")
        .get_program()
        .to_str()
        .expect("a path")
        .to_owned();
    for (from, to) in [
        (
            "/etc/haproxy/haproxy.cfg",
            &*format!("{ROOT}/deploy/{deployed}"),
        ),
        (
            "/etc/haproxy/docker.cfg",
            &*format!("{ROOT}/deploy/haproxy-docker.cfg"),
        ),
        ("/tmp/haproxy.cfg", &*made),
        (
            "exec haproxy -W -db ",
            &*format!("sed -i 's/ [dp][bg]-[1-3]:/ 127.0.0.1:/' {made} && exec {haproxy} -c "),
        ),
    ] {
        assert!(script.contains(from), "{script}");
        script = script.replace(from, to);
    }
    let (success, _, stderr) = run(program("sh").args(["-c", &script]));
    assert!(success && !stderr.contains("WARN"), "{stderr}");

    let made = fs::read_to_string(made).expect("it was written");
    let added = " init-addr libc,none resolvers docker resolve-prefer ipv4";
    assert_eq!(made.matches(added).count(), 1, "{made}");
    let made = made.replace(added, "");
    let deployed = text(&deployed);
    for (made, deployed) in made.lines().zip(deployed.lines()) {
        let Some(server) = deployed.trim().strip_prefix("server ") else {
            assert_eq!(made, deployed);
            continue;
        };
        let mut words = server.split([' ', ':']);
        let (name, host) = (words.next().expect("a name"), words.next().expect("a host"));
        assert_eq!(name, host);
        assert!(node(&compose, name)["volumes"].is_array());
    }
    assert_eq!(made.lines().count(), deployed.lines().count());
}

#[test]
fn galera_nodes_use_the_deployed_files() {
    let (compose, settings) = (compose("galera"), text("galera/galera.cnf"));
    let members = settings.lines().find_map(|line| {
        let hosts = line.strip_prefix("wsrep_cluster_address = gcomm://")?;
        Some(hosts.split(',').collect::<Vec<_>>())
    });
    let members = members.expect("the members");
    assert_eq!(members, ["db-1", "db-2", "db-3"]);
    for (number, name) in members.iter().enumerate() {
        let node = node(&compose, name);
        assert_mounts(node, "mariadb.cnf", "/etc/mysql/conf.d/stocklock.cnf");
        assert_mounts(node, "galera/galera.cnf", "/etc/mysql/conf.d/galera.cnf");
        assert_mounts(node, "galera/start.sh", "/start.sh");
        // The nodes after it stop before it.
        let mut start = vec!["bash", "/start.sh"];
        start.extend(&members[number..]);
        assert_eq!(node["entrypoint"], json!(start));
        let volumes = texts(&node["volumes"]);
        let others_data = volumes.iter().filter(|volume| volume.contains(":/nodes/"));
        assert_eq!(
            others_data.count(),
            if number == 0 { 2 } else { 0 },
            "{name}"
        );
        assert_eq!(node["image"], compose["services"]["mariadb"]["image"]);
    }
    // No setting of the one file undoes one of the other.
    let files = ["mariadb.cnf", "galera/galera.cnf"];
    for (first, second) in [(files[0], files[1]), (files[1], files[0])] {
        let directory = TempDir::new().expect("a directory");
        let both = directory.path().join("my.cnf");
        let include = format!("!include {ROOT}/deploy/{first}\n!include {ROOT}/deploy/{second}\n");
        fs::write(&both, include).expect("a file can be written");
        let file = format!("--defaults-file={}", both.display());
        let (success, stdout, stderr) =
            run(program("mariadbd").args([&file, "--verbose", "--help"]));
        assert!(success, "{stderr}");
        for (name, value) in [
            ("innodb-flush-log-at-trx-commit ", "1"),
            ("binlog-format ", "ROW"),
            ("innodb-autoinc-lock-mode ", "2"),
            ("wsrep-on ", "TRUE"),
        ] {
            let line = stdout.lines().find_map(|line| line.strip_prefix(name));
            assert_eq!(line.map(str::trim), Some(value), "{name}");
        }
    }
}

/// The script of the container, with other programs and directories.
#[rstest]
#[case::first_start("", false, "db-1 db-2", CREATES)]
#[case::others_have_data("", true, "db-1 db-2", JOINS)]
#[case::another_node("", false, "db-2", JOINS)]
#[case::image_was_interrupted("none", false, "db-1 db-2", JOINS)]
#[case::restart("58060c65-ec4f 0", true, "db-1 db-2", JOINS)]
#[case::restart_alone("58060c65-ec4f 0", false, "db-1 db-2", JOINS)]
#[case::last_node("58060c65-ec4f 1", true, "db-1 db-2", CREATES)]
#[case::another_last_node("58060c65-ec4f 1", false, "db-2", CREATES)]
#[case::incomplete_copy("00000000-0000 1", true, "db-1 db-2", JOINS)]
fn galera_node_creates_no_second_cluster(
    #[case] state: &str,
    #[case] others_have_data: bool,
    #[case] nodes: &str,
    #[case] expected: bool,
) {
    let directory = TempDir::new().expect("a directory");
    let home = directory.path();
    let path = |name: &str| home.join(name);
    let create = |name: &str| fs::create_dir_all(path(name)).expect("a directory can be created");
    let write =
        |name: &str, text: &str| fs::write(path(name), text).expect("a file can be written");
    create("data");
    create("initdb.d");
    create("bin");
    if !state.is_empty() {
        create("data/mysql");
    }
    if let Some((uuid, is_last)) = state.split_once(' ') {
        let state =
            format!("version: 2.1\nuuid:    {uuid}\nseqno:   -1\nsafe_to_bootstrap: {is_last}\n");
        write("data/grastate.dat", &state);
    }
    if nodes.starts_with("db-1") {
        create(if others_have_data {
            "nodes/db-2/stocklock"
        } else {
            "nodes/db-2/mysql"
        });
    }
    for (name, script) in [
        ("bin/docker-entrypoint.sh", "echo \"$@\""),
        (
            "bin/gosu",
            "echo 'WSREP: Recovered position: 58060c65-ec4f:7' >&2",
        ),
        ("bin/mariadb", "exit 1"),
    ] {
        write(name, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    let mut script = text("galera/start.sh");
    for (from, to) in [
        ("/var/lib/mysql", "data"),
        ("/nodes", "nodes"),
        ("/docker-entrypoint-initdb.d", "initdb.d"),
    ] {
        assert!(script.contains(from), "{from}");
        script = script.replace(from, &path(to).display().to_string());
    }
    write("start.sh", &script);
    let mut bash = program("bash");
    bash.arg(path("start.sh")).args(nodes.split(' '));
    bash.env("PATH", format!("{}:/usr/bin:/bin", path("bin").display()));
    let (success, stdout, stderr) = run(&mut bash);
    assert!(success, "{stdout}{stderr}");
    let server = stdout.lines().last().expect("the command of the server");
    let name = nodes.split(' ').next().expect("a name");
    let start = format!("mariadbd --wsrep-node-name={name} --wsrep-node-address={name}");
    assert!(server.starts_with(&start), "{stdout}");
    assert_eq!(server.contains("--wsrep-new-cluster"), expected, "{stdout}");
    let knows_its_changes = server.contains("--wsrep-start-position=58060c65-ec4f:7");
    assert_eq!(knows_its_changes, state.starts_with("5806"), "{stdout}");
    // Without this user, HAProxy finds no node.
    let creates_user = path("initdb.d/haproxy.sql").exists();
    assert_eq!(creates_user, expected && state.is_empty());
}

#[test]
fn patroni_nodes_use_the_deployed_files() {
    let (compose, deployed) = (compose("patroni"), yaml("patroni/patroni.yml"));
    let dcs = &deployed["bootstrap"]["dcs"];
    assert_eq!(dcs["synchronous_mode"], true);
    assert_eq!(dcs["synchronous_mode_strict"], true);
    assert_eq!(dcs["postgresql"]["parameters"]["synchronous_commit"], "on");
    // What is added in a container changes nothing else.
    let added = json!({
        "bootstrap": {"post_bootstrap":
            "psql --no-psqlrc --set=ON_ERROR_STOP=1 --file=/etc/stocklock/database.sql"},
        "postgresql": {"basebackup": [{"checkpoint": "fast"}]},
    });
    assert_eq!(yaml("patroni/container.yml"), added);
    for name in ["pg-1", "pg-2", "pg-3"] {
        let node = node(&compose, name);
        assert_mounts(node, "patroni/patroni.yml", "/etc/stocklock/1-patroni.yml");
        assert_mounts(
            node,
            "patroni/container.yml",
            "/etc/stocklock/2-container.yml",
        );
        assert_mounts(node, "patroni/database.sql", "/etc/stocklock/database.sql");
        let environment = json!({
            "DATABASE_PASSWORD": "secret",
            "PATRONI_NAME": name,
            "PATRONI_RESTAPI_CONNECT_ADDRESS": format!("{name}:8008"),
            "PATRONI_POSTGRESQL_CONNECT_ADDRESS": format!("{name}:5432"),
            "PATRONI_SUPERUSER_PASSWORD": "secret",
            "PATRONI_REPLICATION_PASSWORD": "secret",
        });
        assert_eq!(node["environment"], environment);
        let data = deployed["postgresql"]["data_dir"].as_str().expect("a path");
        let volume = format!("{name}:{}:rw", data.replace("/stocklock", ""));
        assert!(texts(&node["volumes"]).contains(&volume), "{name}");
        assert_eq!(node["build"]["context"], format!("{ROOT}/deploy/patroni"));
    }
    let image = text("patroni/Dockerfile");
    let programs = deployed["postgresql"]["bin_dir"].as_str().expect("a path");
    assert!(image.contains(&format!("PATH={programs}:")));
    assert!(image.contains("\nUSER postgres\n"));

    let members = deployed["etcd"]["hosts"]
        .as_array()
        .expect("members")
        .iter();
    let members: Vec<_> = members
        .filter_map(|it| it.as_str()?.strip_suffix(":2379"))
        .collect();
    let peers = members
        .iter()
        .map(|name| format!("{name}=http://{name}:2380"));
    let peers = peers.collect::<Vec<_>>().join(",");
    assert_eq!(members.len(), 3);
    for name in members {
        let environment = &node(&compose, name)["environment"];
        assert_eq!(environment["ETCD_NAME"], name);
        assert_eq!(environment["ETCD_ENABLE_V2"], "true");
        assert_eq!(environment["ETCD_INITIAL_CLUSTER"], *peers);
        assert_eq!(
            environment["ETCD_ADVERTISE_CLIENT_URLS"],
            format!("http://{name}:2379")
        );
        assert_eq!(
            environment["ETCD_INITIAL_ADVERTISE_PEER_URLS"],
            format!("http://{name}:2380")
        );
    }
}
