//! Replicas behind nginx as `scripts/replicas.sh` starts them, stopped and removed in the end.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stocklock_testkit::ports::{is_free, random_port};
use stocklock_testkit::run::unique_name;

use crate::config::settings;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/replicas.sh");

/// What `up` says, with exit code 1, when another program was faster to take a port.
const PORT_TAKEN: &str = "which is in use";

/// nginx, two replicas, and the servers that the script starts for them.
pub(crate) struct Topology {
    state: PathBuf,
    port: u16,
    variables: Vec<(&'static str, String)>,
    /// A shell that tears all of it down when its standard input closes, whatever ends the tests.
    end: Child,
}

impl Topology {
    /// Starts two replicas of the tested program. The settings in `variables` are all that they
    /// get: with `DATABASE_URL`, `REDIS_URL` or `ZOOKEEPER_CONNECT` among them, that server is used
    /// instead of a private one.
    pub(crate) async fn up(variables: &[(&'static str, &str)]) -> Self {
        let variables = variables.iter().map(|&(name, value)| (name, value.into()));
        let variables: Vec<_> = variables.collect();
        // Between our looking at a port and a server's binding it another program may take it.
        for _ in 0..3 {
            let topology = Self::prepare(free_ports(), variables.clone());
            let output = topology.run("up").await;
            if output.status.success() {
                return topology;
            }
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains(PORT_TAKEN), "replicas.sh up: {stderr}");
        }
        panic!("three times in a row a port was taken by another program")
    }

    fn prepare(port: u16, variables: Vec<(&'static str, String)>) -> Self {
        let name = format!("stocklock-topology-{}", unique_name());
        // The script makes it, so that the servers' user can pass.
        let state = std::env::temp_dir().join(name);
        let end = Command::new("sh")
            .args(["-c", r#"read -r _; exec "$0" down --remove --state "$1""#])
            .arg(SCRIPT)
            .arg(&state)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C reaches the whole group of the tests; the shell must survive it to clean up.
            .process_group(0)
            .spawn()
            .expect("sh can be run");
        Self {
            state,
            port,
            variables,
            end,
        }
    }

    /// Runs a command of the script to its end.
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
        let output = output.expect("the script is waited for");
        output.expect("the script can be run")
    }

    /// nginx's URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    /// Where nginx listens.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends one of its processes at once (`SIGKILL`): `replica-1`, `nginx`, …
    pub(crate) fn kill9(&self, name: &str) {
        let id = fs::read_to_string(self.state.join(format!("{name}.pid")));
        let id = id.expect("the script keeps the process id");
        let id = id.split_whitespace().next().and_then(|id| id.parse().ok());
        let id = id.and_then(Pid::from_raw).expect("a process id");
        kill_process(id, Signal::KILL).expect("it runs");
    }

    /// The requests that nginx has answered so far, from its access log.
    pub(crate) fn access_log(&self) -> Vec<Value> {
        let log = self.text(Path::new("nginx/access.log"));
        let requests = log.lines().map(serde_json::from_str);
        requests.collect::<Result<_, _>>().expect("lines of JSON")
    }

    /// What a replica has logged.
    pub(crate) fn replica_log(&self, number: u32) -> String {
        self.text(format!("replica-{number}.log").as_ref())
    }

    fn text(&self, file: &Path) -> String {
        fs::read_to_string(self.state.join(file)).expect("a text")
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        drop(self.end.stdin.take());
        // Waited for, so that nothing of it is left once this returns.
        match self.end.wait() {
            Ok(status) if status.success() => {}
            failure => eprintln!("{} stays behind: {failure:?}", self.state.display()),
        }
    }
}

/// A port for nginx, so that the next two are free too, which the replicas take. It is below the ports
/// of testkit's servers.
fn free_ports() -> u16 {
    random_port(10_000..19_900, |port| (port..port + 3).all(is_free))
}
