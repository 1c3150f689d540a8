//! `stocklock race`: starts replicas, runs the race on them, prints the report.

mod args;

use std::env;
use std::path::Path;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::process::Command;

pub(super) use self::args::RaceArgs;
use self::args::StockHome;
use super::{EXIT_CONFIGURATION, Failure, migrate, start_logging};
use crate::app::open_stores;
use crate::config::{DatabaseConfig, UNCOUNTED_CONNECTIONS};
use crate::descriptors::allow_connections;
use stocklock_lab::TempDir;
use stocklock_lab::delay::{DelayedServers, ServerUrls};
use stocklock_lab::processes::ReplicaProcesses;
use stocklock_lab::race::{Progress, Report, Target, run};

/// Time that a replica gets to exit, in addition to its drain limit.
const EXIT_MARGIN: Duration = Duration::from_secs(5);

/// Runs the race and prints the report.
pub(super) async fn race(args: RaceArgs) -> Result<(), Failure> {
    start_logging(&args.settings.parsed.log)?;
    allow_connections(connections(&args));
    let report = if args.target.is_empty() {
        race_on_new_replicas(&args).await?
    } else {
        race_on(&args, &args.target).await?
    };
    print!("{}", report.table());
    if let Some(file) = &args.json {
        write_json(&report, &args.place(), file)?;
    }
    if report.broken() {
        return Err(Failure::PromiseBroken);
    }
    Ok(())
}

/// The number of connections of this process: one per buyer, and two for each connection of a
/// replica through a delaying proxy.
fn connections(args: &RaceArgs) -> u64 {
    let settings = &args.settings.parsed;
    let pools = settings.database.database_pool_size + settings.services.redis_pool_size;
    let pools = pools + UNCOUNTED_CONNECTIONS;
    let delayed = args.rtt().map_or(0, |_| 2 * args.replicas * pools);
    args.plan().connections as u64 + u64::from(delayed)
}

async fn race_on_new_replicas(args: &RaceArgs) -> Result<Report, Failure> {
    let settings = &args.settings.parsed;
    if args.home == StockHome::Redis && settings.services.redis_url.is_none() {
        let problem = "REDIS_URL is not set; --home redis needs it";
        return Err(Failure::Setting(problem.to_owned()));
    }
    let mut database = settings.database.clone();
    let temporary = match database.database_url {
        Some(_) => None,
        None => Some(TempDir::with_prefix("stocklock-race-").map_err(|error| {
            Failure::Other(format!("cannot create a temporary directory: {error}"))
        })?),
    };
    if let Some(directory) = &temporary {
        let url = format!("sqlite://{}", directory.path().join("race.db").display());
        database.database_url = Some(url.into());
    }
    let servers = ServerUrls {
        database: database.url().into(),
        redis: settings.services.redis_url.clone(),
        zookeeper: settings.services.zookeeper_connect.clone(),
    };
    let report = match args.rtt() {
        None => {
            migrate(&database).await?;
            eprintln!("racing on {}", args.place());
            race_with_servers(args, &servers).await
        }
        Some(rtt) => {
            let delayed = DelayedServers::start(rtt, servers).await;
            let DelayedServers { urls, distance, .. } = &delayed.map_err(Failure::Setting)?;
            migrate(&database).await?;
            eprintln!("racing on {}; {distance}", args.place());
            let mut report = race_with_servers(args, urls).await;
            if let Ok(report) = &mut report {
                report.distance = Some(distance.clone());
            }
            report
        }
    };
    if temporary.is_some() {
        erase_redis(args, &database).await;
    }
    report
}

/// Starts replicas that use these servers, runs the race, and stops the replicas.
async fn race_with_servers(args: &RaceArgs, servers: &ServerUrls) -> Result<Report, Failure> {
    let program = env::current_exe()
        .map_err(|error| Failure::Other(format!("cannot find this program's file: {error}")))?;
    let command = |number: u32| {
        let mut command = Command::new(&program);
        command.args(["lab", "--replica", &number.to_string()]);
        for (name, value) in &args.settings.variables {
            command.env(name, value.expose_secret());
        }
        command
            .env("STRATEGY", "single-sql")
            .env_remove("STRATEGY_REDIS")
            .env("ALLOW_UNSAFE", "false")
            .env("LISTEN", "127.0.0.1:0")
            .env("REPLICA_ID", format!("replica-{number}"))
            .env("DATABASE_URL", servers.database.expose_secret());
        // Its locks are in the Redis that the race delays.
        command.env_remove("LOCK_REDIS_URL");
        if let Some(redis) = &servers.redis {
            command.env("REDIS_URL", redis.expose_secret());
        }
        if let Some(zookeeper) = &servers.zookeeper {
            command.env("ZOOKEEPER_CONNECT", zookeeper);
        }
        command
    };
    let replicas = ReplicaProcesses::start(args.replicas, command).await;
    let replicas = replicas.map_err(|error| match error.exit_code {
        Some(code) if code == i32::from(EXIT_CONFIGURATION) => Failure::Setting(error.to_string()),
        _ => Failure::Other(error.to_string()),
    })?;
    let report = race_on(args, replicas.targets()).await;
    let limit = args.settings.parsed.limits.drain_limit_ms + EXIT_MARGIN;
    for problem in replicas.stop(limit).await {
        tracing::warn!("{problem}");
    }
    report
}

async fn race_on(args: &RaceArgs, targets: &[Target]) -> Result<Report, Failure> {
    let plan = args.plan();
    tokio::select! {
        report = run(&plan, targets, Progress::Shown) => {
            report.map_err(|error| Failure::Other(error.to_string()))
        }
        _ = tokio::signal::ctrl_c() => Err(Failure::Other("stopped".to_owned())),
    }
}

/// Deletes the race's stock from Redis, because its ledger was temporary. A failure is only a
/// warning: the race itself is complete.
async fn erase_redis(args: &RaceArgs, database: &DatabaseConfig) {
    let settings = &args.settings.parsed;
    let erased = async {
        let stores = open_stores(database, &settings.services, &settings.limits)?;
        let erased = stores.erase_redis().await;
        stores.store.close().await;
        erased.map_err(|error| error.to_string())
    };
    if let Err(problem) = erased.await {
        tracing::warn!("cannot delete the race's stock from Redis: {problem}");
    }
}

fn write_json(report: &Report, place: &str, file: &Path) -> Result<(), Failure> {
    let mut json = report.json();
    json["place"] = place.into();
    std::fs::write(file, format!("{json:#}\n")).map_err(|error| {
        Failure::Other(format!("--json: cannot write {}: {error}", file.display()))
    })
}
