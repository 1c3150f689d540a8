//! `testkit up` and `testkit run`: what they print or set, and that they leave nothing behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stocklock_testkit::eventually;
use stocklock_testkit::servers::connect_to_redis;
use tokio::net::TcpStream;

/// Upper bound for what takes milliseconds.
const SOON: Duration = Duration::from_secs(20);

/// Starts `testkit up` with more arguments, and returns it with its output.
fn up(arguments: &[&str]) -> (Child, Value) {
    let mut up = Command::new(env!("CARGO_BIN_EXE_testkit"))
        .arg("up")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = up.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    (up, serde_json::from_str(&line).unwrap())
}

/// The ports of the servers of the output.
fn ports(output: &Value) -> Vec<u16> {
    let servers = output.as_object().unwrap().values();
    let ports = servers.map(|server| server["port"].as_u64().unwrap());
    ports.map(|port| port.try_into().unwrap()).collect()
}

/// Waits until nothing of the servers is left.
async fn nothing_is_left(output: &Value) {
    let servers = output.as_object().unwrap().values();
    let directories: Vec<_> = servers
        .map(|server| server["directory"].as_str().unwrap())
        .collect();
    eventually("the directories are removed", SOON, async || {
        directories
            .iter()
            .all(|directory| !Path::new(directory).exists())
    })
    .await;
    for port in ports(output) {
        TcpStream::connect(("127.0.0.1", port)).await.unwrap_err();
    }
}

#[tokio::test]
async fn every_server_runs_until_standard_input_closes() {
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
    let (mut up, output) = up(&["--config-dir", deploy]);
    let names: Vec<_> = output.as_object().unwrap().keys().collect();
    assert_eq!(names, ["mariadb", "postgres", "redis", "zookeeper"]);
    for port in ports(&output) {
        assert!(port < 32_768);
        TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    }
    for server in output.as_object().unwrap().values() {
        assert!(server["pid"].as_u64().is_some());
        assert!(server["version"].as_str().unwrap().contains('.'));
    }
    // The deployed Redis refuses to evict keys.
    let url = output["redis"]["url"].as_str().unwrap();
    let mut connection = connect_to_redis(url).await.unwrap();
    let mut policy = redis::cmd("CONFIG");
    policy.arg("GET").arg("maxmemory-policy");
    let policy: (String, String) = policy.query_async(&mut connection).await.unwrap();
    assert_eq!(policy.1, "noeviction");

    drop(up.stdin.take());
    assert!(up.wait().unwrap().success());
    nothing_is_left(&output).await;
}

/// Clients reach a cluster at its proxy.
#[tokio::test]
async fn cluster_runs_until_standard_input_closes() {
    for name in ["patroni", "galera"] {
        let (mut up, output) = up(&["--only", name]);
        let cluster = &output[name];
        let url: url::Url = cluster["url"].as_str().unwrap().parse().unwrap();
        let address = ("127.0.0.1", url.port().unwrap());
        assert!(address.1 < 32_768);
        TcpStream::connect(address).await.unwrap();
        assert_eq!(cluster["nodes"].as_array().unwrap().len(), 3);
        drop(up.stdin.take());
        assert!(up.wait().unwrap().success());
        for directory in cluster["directories"].as_array().unwrap() {
            assert!(!Path::new(directory.as_str().unwrap()).exists());
        }
        TcpStream::connect(address).await.unwrap_err();
    }
}

#[tokio::test]
async fn up_that_is_ended_leaves_no_orphan() {
    for signal in [Signal::TERM, Signal::KILL] {
        let (mut up, output) = up(&["--only", "redis,postgres"]);
        assert_eq!(ports(&output).len(), 2);
        kill_process(Pid::from_child(&up), signal).unwrap();
        assert_eq!(up.wait().unwrap().success(), signal == Signal::TERM);
        nothing_is_left(&output).await;
    }
}

#[tokio::test]
async fn run_ends_with_its_command_and_what_it_started() {
    let script =
        "trap 'kill $!; exit 3' TERM; echo $TEST_REDIS_URL $TEST_REDLOCK_URLS; sleep 60 & wait";
    let mut run = Command::new(env!("CARGO_BIN_EXE_testkit"))
        .args(["run", "--", "sh", "-c", script])
        .env_remove("TEST_REDIS_URL")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = run.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let (started, masters) = line.split_once(' ').unwrap();
    assert_eq!(masters.split(',').count(), 5, "{masters}");
    connect_to_redis(started).await.unwrap();
    kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(3));
    let has_ended = async || connect_to_redis(started).await.is_err();
    eventually("the server ends", SOON, has_ended).await;
}
