//! `testkit up`: starts private servers, prints where they are, and ends them with itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use stocklock_testkit::servers::{PrivateServer, Program, Settings};
use tokio::signal::unix::{SignalKind, signal};
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
}

/// Start private servers and keep them running.
///
/// Each server listens on loopback, on a free port below 32768. MariaDB and PostgreSQL require the
/// password in their URL. The data is in a temporary directory below TMPDIR. When all servers answer, `up` prints where they are. When its standard input
/// closes, or on SIGINT or SIGTERM, it stops the servers, removes their directories and ends with exit
/// code 0. If `up` is killed, the same happens.
///
/// Servers that are not installed are an error: `make services` installs them.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  testkit up                                 all servers with the settings of the tests
  testkit up --json --only mariadb,redis     two servers, for a program that reads the output

JSON output, one line, with the requested servers only (ZooKeeper has `connect` instead of `url`):
  {\"mariadb\":{\"url\":\"mysql://root:…@127.0.0.1:21234/stocklock\",\"port\":21234,\"pid\":4242,
    \"version\":\"10.11.19-MariaDB\",\"directory\":\"/tmp/stocklock-mariadb-…\"},\"postgres\":{…},…}")]
struct Up {
    /// Print one JSON object instead of a line for each server.
    #[arg(long)]
    json: bool,

    /// Start these servers only, separated by commas.
    #[arg(
        long,
        value_name = "SERVERS",
        value_delimiter = ',',
        default_value = "mariadb,postgres,redis,zookeeper"
    )]
    only: Vec<Program>,

    /// Run MariaDB and Redis with `mariadb.cnf` and `redis.conf` of this directory, and all servers
    /// with their default sizes. Without it they have the small settings of the tests.
    #[arg(long, value_name = "DIRECTORY")]
    config_dir: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command::Up(arguments) = Arguments::parse().command;
    match up(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testkit: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn up(arguments: Up) -> Result<()> {
    let end = end()?;
    tokio::pin!(end);
    let servers = tokio::select! {
        servers = start(arguments.only, arguments.config_dir) => servers?,
        () = &mut end => return Ok(()),
    };
    if arguments.json {
        let objects = servers
            .iter()
            .map(|(program, _, object)| (program.name(), object));
        println!(
            "{}",
            serde_json::to_string(&objects.collect::<BTreeMap<_, _>>())?
        );
    } else {
        for (program, _, object) in &servers {
            println!("{} {object}", program.name());
        }
    }
    end.await;
    Ok(())
}

/// Starts the servers, all at once. Each ends when its handle is dropped.
async fn start(
    programs: Vec<Program>,
    config_dir: Option<PathBuf>,
) -> Result<Vec<(Program, PrivateServer, Value)>> {
    let settings = config_dir.map_or(Settings::Test, Settings::Deployed);
    let mut starting = JoinSet::new();
    for program in programs {
        let settings = settings.clone();
        starting.spawn(async move {
            let started = PrivateServer::launch(program, &settings, &[]).await;
            let server = started.with_context(|| program.name())?;
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
            anyhow::Ok((program, server, object))
        });
    }
    let mut started = Vec::new();
    while let Some(server) = starting.join_next().await {
        started.push(server??);
    }
    Ok(started)
}

/// Returns when standard input closes, or at SIGINT or SIGTERM.
fn end() -> Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
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
