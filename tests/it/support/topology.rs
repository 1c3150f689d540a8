//! Replicas behind nginx, started by `scripts/replicas.sh`, stopped and removed on drop.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stocklock_testkit::ports::free_ports;
use stocklock_testkit::run::unique_name;
use stocklock_testkit::secrets::leaked;
use stocklock_testkit::servers::password;

use crate::config::settings;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/replicas.sh");

/// Part of the error of `up` if another program took one of its ports first.
const PORT_TAKEN: &str = "which is in use";

/// nginx, two replicas of each deployment, and the servers that the script starts with them.
pub(crate) struct Topology {
    state: PathBuf,
    port: u16,
    variables: Vec<(&'static str, String)>,
    /// A shell that stops everything when its standard input closes, even if the tests are killed.
    cleanup: Child,
}

impl Topology {
    /// Starts two replicas of each deployment, with only the settings in `variables`. The script starts
    /// a private server for each of `DATABASE_URL`, `REDIS_URL` and `ZOOKEEPER_CONNECT` that is not
    /// set.
    pub(crate) async fn up(variables: &[(&'static str, &str)]) -> Self {
        let variables = variables.iter().map(|&(name, value)| (name, value.into()));
        let variables: Vec<_> = variables.collect();
        // Another program may take a port after the test found it free.
        for _ in 0..3 {
            // nginx, and two replicas of one or two deployments.
            let topology = Self::prepare(free_ports(5), variables.clone());
            let output = topology.run("up").await;
            if output.status.success() {
                return topology;
            }
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains(PORT_TAKEN), "replicas.sh up: {stderr}");
        }
        panic!("another program took a port three times in a row")
    }

    fn prepare(port: u16, variables: Vec<(&'static str, String)>) -> Self {
        let name = format!("stocklock-topology-{}", unique_name());
        // The script creates the directory, so that the servers' user can enter it.
        let state = std::env::temp_dir().join(name);
        let cleanup = Command::new("sh")
            .args(["-c", r#"read -r _; exec "$0" down --remove --state "$1""#])
            .arg(SCRIPT)
            .arg(&state)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C ends the tests' process group; the shell must survive it to clean up.
            .process_group(0)
            .spawn()
            .expect("sh can be run");
        Self {
            state,
            port,
            variables,
            cleanup,
        }
    }

    /// Runs a command of the script and waits for it.
    pub(crate) async fn run(&self, command: &'static str) -> Output {
        let mut script = Command::new(SCRIPT);
        script.arg(command).arg("--state").arg(&self.state);
        if command == "up" {
            script.args(["--binary", env!("CARGO_BIN_EXE_stocklock")]);
            script.args(["--port", &self.port.to_string()]);
        }
        for name in settings().keys() {
            script.env_remove(name);
        }
        script.envs(self.variables.iter().map(|(name, value)| (name, value)));
        script.stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || script.output()).await;
        let output = output.expect("no panic");
        output.expect("the script can be run")
    }

    /// The URL of a path at nginx.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills one of the processes (`SIGKILL`): `replica-1`, `nginx`, …
    pub(crate) fn kill9(&self, name: &str) {
        let id = fs::read_to_string(self.state.join(format!("{name}.pid")));
        let id = id.expect("the script stores the process id");
        let id = id.split_whitespace().next().and_then(|id| id.parse().ok());
        let id = id.and_then(Pid::from_raw).expect("a process id");
        kill_process(id, Signal::KILL).expect("it runs");
    }

    /// The URL of the MariaDB that the script has started.
    pub(crate) fn database(&self) -> String {
        let servers: Value =
            serde_json::from_str(&self.text("servers.json".as_ref())).expect("it is JSON");
        servers["mariadb"]["url"]
            .as_str()
            .expect("a URL")
            .to_owned()
    }

    /// The entries of nginx's access log: the requests that it has answered.
    pub(crate) fn access_log(&self) -> Vec<Value> {
        let log = self.text(Path::new("nginx/access.log"));
        let requests = log.lines().map(serde_json::from_str);
        requests.collect::<Result<_, _>>().expect("lines of JSON")
    }

    pub(crate) fn replica_log(&self, number: u32) -> String {
        self.text(format!("replica-{number}.log").as_ref())
    }

    fn text(&self, file: &Path) -> String {
        fs::read_to_string(self.state.join(file)).expect("a text file")
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        if !thread::panicking() {
            let logs = fs::read_dir(&self.state).into_iter().flatten().flatten();
            for log in logs.filter(|file| file.path().extension().is_some_and(|end| end == "log")) {
                let log = fs::read(log.path()).unwrap_or_default();
                let password = [password().to_owned()];
                assert_eq!(leaked(&String::from_utf8_lossy(&log), &password), None);
            }
        }
        drop(self.cleanup.stdin.take());
        match self.cleanup.wait() {
            Ok(status) if status.success() => {}
            failure => eprintln!("{} was not removed: {failure:?}", self.state.display()),
        }
    }
}
