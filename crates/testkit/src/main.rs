//! `testkit up`: starts private servers, prints where they are, and ends them with itself. `testkit run`
//! runs a command with the servers that tests share.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stocklock_testkit::servers::{
    Cluster, GaleraCluster, NODES, PatroniCluster, PrivateServer, Program, Replication, Settings,
    deploy, share,
};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Private servers for tests and benchmarks.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(Up),
    Run(Run),
}

/// Start private servers and keep them running.
///
/// Each server listens on loopback, on a free port below 32768. MariaDB and PostgreSQL require the
/// password in their URL. The data is in a temporary directory below TMPDIR. When all servers answer, `up` prints where they are. When its standard input
/// closes, or on SIGINT or SIGTERM, it stops the servers, removes their directories and ends with exit
/// code 0. If `up` is killed, the same happens.
///
/// `galera` and `patroni` are clusters of three MariaDB or PostgreSQL servers behind HAProxy, which has the `url`, with
/// the files of `deploy/galera` and `deploy/patroni`.
///
/// Servers that are not installed are an error: `make services` installs them.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  testkit up                                 all servers with the settings of the tests
  testkit up --only mariadb,redis            two servers

The output is JSON, one line, with the requested servers only (ZooKeeper has `connect` instead of `url`):
  {\"mariadb\":{\"url\":\"mysql://root:…@127.0.0.1:21234/stocklock\",\"port\":21234,\"pid\":4242,
    \"version\":\"10.11.19-MariaDB\",\"directory\":\"/tmp/stocklock-mariadb-…\"},\"postgres\":{…},…}")]
struct Up {
    /// Start these servers only, separated by commas.
    #[arg(
        long,
        value_name = "SERVERS",
        value_delimiter = ',',
        default_value = "mariadb,postgres,redis,zookeeper",
        value_parser = Server::parse
    )]
    only: Vec<Server>,

    /// Run MariaDB and Redis with `mariadb.cnf` and `redis.conf` of this directory, and all servers
    /// with their default sizes. Without it they have the small settings of the tests.
    #[arg(long, value_name = "DIRECTORY")]
    config_dir: Option<PathBuf>,
}

/// A server, or a cluster.
#[derive(Debug, Clone, Copy)]
enum Server {
    One(Program),
    Galera,
    Patroni,
}

impl Server {
    fn parse(name: &str) -> Result<Self, String> {
        match name {
            "galera" => Ok(Self::Galera),
            "patroni" => Ok(Self::Patroni),
            name => Program::from_str(name, false).map(Self::One),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::One(program) => program.name(),
            Self::Galera => "galera",
            Self::Patroni => "patroni",
        }
    }
}

/// Run a command with the servers that tests share.
///
/// Starts each server whose variable (`TEST_MYSQL_URL` and so on) is unset, and sets the variables for the
/// command. The servers end with `run`, which ends with the exit code of the command. SIGTERM goes to the
/// command; SIGINT does not, because a terminal sends it to both.
#[derive(clap::Args)]
struct Run {
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Arguments::parse().command {
        Command::Up(arguments) => up(arguments).await.map(|()| ExitCode::SUCCESS),
        Command::Run(arguments) => run(&arguments.command).await,
    };
    ended.unwrap_or_else(|error| {
        eprintln!("testkit: {error:#}");
        ExitCode::FAILURE
    })
}

async fn run(command: &[OsString]) -> Result<ExitCode> {
    let (mut interrupt, mut terminate) = signals()?;
    let variables = tokio::select! {
        variables = Box::pin(share()) => variables?,
        _ = interrupt.recv() => return Ok(ExitCode::FAILURE),
        _ = terminate.recv() => return Ok(ExitCode::FAILURE),
    };
    let mut child = std::process::Command::new(&command[0]);
    let child = child.args(&command[1..]).envs(variables).spawn();
    let mut child = child.with_context(|| format!("cannot run {}", command[0].display()))?;
    let id = Pid::from_child(&child);
    let forward = || {
        // Fails if the command has just ended.
        let _ = kill_process(id, Signal::TERM);
    };
    let mut ends = tokio::task::spawn_blocking(move || child.wait());
    let status = loop {
        tokio::select! {
            status = &mut ends => break status??,
            // A terminal sends SIGINT to the command, too; a second one would end it at once.
            _ = interrupt.recv() => {}
            _ = terminate.recv() => forward(),
        }
    };
    let killed = status.signal().map(|signal| 128 + signal);
    let code = status
        .code()
        .or(killed)
        .and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

async fn up(arguments: Up) -> Result<()> {
    let end = end()?;
    tokio::pin!(end);
    let servers = tokio::select! {
        servers = start(arguments.only, arguments.config_dir) => servers?,
        () = &mut end => return Ok(()),
    };
    let objects = servers.iter();
    let objects = objects.map(|(server, _, object)| (server.name(), object));
    println!("{}", json!(objects.collect::<BTreeMap<_, _>>()));
    end.await;
    Ok(())
}

/// What ends when it is dropped.
type Handle = Box<dyn Any + Send>;

/// Starts the servers, all at once.
async fn start(
    servers: Vec<Server>,
    config_dir: Option<PathBuf>,
) -> Result<Vec<(Server, Handle, Value)>> {
    let mut starting = JoinSet::new();
    for server in servers {
        let config_dir = config_dir.clone();
        starting.spawn(async move {
            let started = match server {
                Server::One(program) => start_one(program, config_dir).await,
                Server::Galera => {
                    let files = config_dir.unwrap_or_else(deploy);
                    let launched = GaleraCluster::launch(&files).await;
                    launched.map(started_cluster)
                }
                Server::Patroni => {
                    let files = config_dir.unwrap_or_else(deploy);
                    let launched = PatroniCluster::launch(&files, Replication::Synchronous).await;
                    launched.map(started_cluster)
                }
            };
            let (handle, object) = started.with_context(|| server.name())?;
            anyhow::Ok((server, handle, object))
        });
    }
    let mut started = Vec::new();
    while let Some(server) = starting.join_next().await {
        started.push(server??);
    }
    Ok(started)
}

async fn start_one(program: Program, config_dir: Option<PathBuf>) -> Result<(Handle, Value)> {
    let settings = config_dir.map_or(Settings::Test, Settings::Deployed);
    let server = PrivateServer::launch(program, &settings, &[]).await?;
    let key = if program == Program::ZooKeeper {
        "connect"
    } else {
        "url"
    };
    let object = json!({
        key: server.url(),
        "port": server.port(),
        "pid": server.process().as_raw_nonzero(),
        "version": server.version().await?,
        "directory": server.directory(),
    });
    Ok((Box::new(server), object))
}

fn started_cluster<C: Cluster + Send + 'static>(cluster: C) -> (Handle, Value) {
    let urls: Vec<_> = (0..NODES).map(|node| cluster.url_of(node)).collect();
    let supervisors = (0..NODES).map(|node| cluster.supervisor(node));
    let directories: Vec<_> = supervisors.map(|one| one.directory().to_owned()).collect();
    let object = json!({ "url": cluster.url(), "nodes": urls, "directories": directories });
    (Box::new(cluster), object)
}

/// SIGINT and SIGTERM, which no longer end this process.
fn signals() -> Result<(unix::Signal, unix::Signal)> {
    let terminate = signal(SignalKind::terminate())?;
    Ok((signal(SignalKind::interrupt())?, terminate))
}

/// Returns when standard input closes, or at SIGINT or SIGTERM.
fn end() -> Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = signals()?;
    let (closed, is_closed) = oneshot::channel::<()>();
    // A thread, because Tokio would wait for the end of standard input before the program ends.
    std::thread::spawn(move || {
        // An error counts as the end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(closed);
    });
    Ok(async move {
        tokio::select! {
            _ = is_closed => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
