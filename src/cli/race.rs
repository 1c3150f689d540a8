//! `stocklock race`: from flags to a plan, from a report to an exit code.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use secrecy::SecretString;
use tempfile::TempDir;

use super::duration::round_trip;
use super::{Failure, migrate, start_logging};
use crate::app::open_stores;
use crate::config::{DatabaseConfig, Limits, LogConfig, ServicesConfig};
use crate::descriptors::allow_connections;
use crate::lab::delay::DistantServices;
use crate::lab::race::{Entrants, Progress, RacePlan, Report, Target, run};
use crate::lab::replicas::Replicas;
use stocklock_core::stock::Home;
use stocklock_core::strategy::Safeguards;

/// Sells a fresh SKU out with every strategy in turn over real HTTP, and tells who oversold.
///
/// Without --target, it starts the replicas itself, on the database that `DATABASE_URL` names, or on
/// a temporary SQLite. The SKUs that it sold, `race-…`, and their ledger stay in that database.
/// Exits 1 if a strategy broke its promise, or could not prove it because orders failed; those
/// that promise nothing are expected to oversell.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RaceArgs {
    /// `all`, or names separated by commas; see GET /strategies
    #[arg(long, value_name = "NAMES", default_value = "all")]
    strategy: Entrants,

    /// Where the stock lives that is sold. In Redis, those strategies run that work there, and what
    /// Redis loses can be sold again whatever the strategy; the SQL database has the ledger
    #[arg(long, value_enum, value_name = "HOME", default_value_t = StockHome::Sql)]
    home: StockHome,

    /// A known race instead of --stock, --buyers, --orders and --connections
    #[arg(long, value_enum, conflicts_with_all = ["stock", "buyers", "orders", "connections"])]
    case: Option<Case>,

    /// Units in stock before each run
    #[arg(long, value_name = "N", default_value_t = 5000,
          value_parser = clap::value_parser!(i64).range(1..=1_000_000_000))]
    stock: i64,

    /// Buyers who order at the same time
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    buyers: u32,

    /// Orders of each buyer, one after the other, of one unit each
    #[arg(long, value_name = "N", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    orders: u32,

    /// Connections over which the buyers are spread [default: one each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: Option<u32>,

    /// Replicas to start in this process
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "target",
          value_parser = clap::value_parser!(u32).range(1..=16))]
    replicas: u32,

    /// Replicas that run already, in lab mode, on one database: `http://host:port`, repeatable.
    /// Name every replica itself and no proxy before them, or lost locks and refused writes are not
    /// all seen: they are read from each target's own /metrics, and nobody else may use it meanwhile
    #[arg(long, value_name = "URL")]
    target: Vec<Target>,

    /// `off`: the strategies with a lock write whatever the row is by then, so that a lock that was
    /// lost oversells
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = Switch::On)]
    guard: Switch,

    /// `off`: they write although they could know that their lock was lost; the guard refuses it
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t = Switch::On)]
    check: Switch,

    /// Put the services of the replicas a network away: a round trip to the database, Redis and
    /// `ZooKeeper` takes so much longer, such as `1ms` or `500us`, up to 100ms [default: 0]
    #[arg(long, value_name = "TIME", value_parser = round_trip, conflicts_with = "target")]
    rtt: Option<Duration>,

    /// Write everything that was measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where the stock is.
    #[command(flatten)]
    database: DatabaseConfig,

    /// Where the locks are.
    #[command(flatten)]
    services: ServicesConfig,

    /// Bounds of the replicas.
    #[command(flatten)]
    limits: Limits,

    /// What the replicas log.
    #[command(flatten)]
    log: LogConfig,
}

/// Whether a safeguard is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// As in production
    On,
    /// To see what it is good for
    Off,
}

/// Where a SKU can live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StockHome {
    /// In the SQL database
    Sql,
    /// In the Redis that `REDIS_URL` names
    Redis,
}

impl From<StockHome> for Home {
    fn from(home: StockHome) -> Self {
        match home {
            StockHome::Sql => Self::Sql,
            StockHome::Redis => Self::Redis,
        }
    }
}

/// Races that others know as well.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Case {
    /// 100 in stock, 10,000 buyers over 256 connections, one order each
    Seckill,
    /// 5,000 in stock, 100 buyers with 50 orders each: all can be served
    Jmeter,
}

impl RaceArgs {
    /// Where the stock of the race is, for people.
    fn place(&self) -> String {
        let database = if !self.target.is_empty() {
            "the targets' database".to_owned()
        } else if self.database.database_url.is_some() {
            format!("{} (DATABASE_URL)", self.database.place())
        } else {
            "a temporary SQLite file".to_owned()
        };
        match self.home {
            StockHome::Sql => database,
            StockHome::Redis => format!("{database}, with the stock in Redis"),
        }
    }

    /// How far away the services are to be, if at all.
    fn distance(&self) -> Option<Duration> {
        self.rtt.filter(|rtt| !rtt.is_zero())
    }

    fn plan(&self) -> RacePlan {
        let mut plan = match self.case {
            Some(Case::Seckill) => RacePlan::seckill(),
            Some(Case::Jmeter) => RacePlan::jmeter(),
            None => RacePlan::new(self.stock, self.buyers as usize, self.orders as usize),
        };
        if let Some(connections) = self.connections {
            plan.connections = connections as usize;
        }
        plan.strategies = self.strategy.clone();
        plan.home = self.home.into();
        plan.safeguards = Safeguards {
            guard: self.guard == Switch::On,
            check: self.check == Switch::On,
        };
        plan
    }
}

/// Runs the race and prints what came of it.
pub(super) async fn race(args: RaceArgs) -> Result<(), Failure> {
    start_logging(&args.log)?;
    // Both ends of each buyer's connection are in this process, and so are the replicas' own: their
    // pools, one for readiness, four to Redis, and one to ZooKeeper.
    let pools = args.database.database_pool_size + args.services.redis_pool_size + 6;
    // A connection through a delaying proxy is two, with both ends of the first in this process.
    let ends = if args.distance().is_some() { 3 } else { 1 };
    let pools = args.replicas * pools * ends;
    allow_connections(2 * args.plan().connections as u64 + u64::from(pools));
    let report = run_plan(&args).await?;
    print!("{}", report.table());
    if let Some(file) = &args.json {
        write_json(&report, &args.place(), file)?;
    }
    if report.broken() {
        Err(Failure::PromiseBroken)
    } else {
        Ok(())
    }
}

async fn run_plan(args: &RaceArgs) -> Result<Report, Failure> {
    if !args.target.is_empty() {
        return race_on(args, &args.target).await;
    }
    if args.home == StockHome::Redis && args.services.redis_url.is_none() {
        let problem = "--home redis: the stock shall live in Redis: set REDIS_URL".to_owned();
        return Err(Failure::Setting(problem));
    }
    let (database, temporary) = database(&args.database)?;
    let distant = at_a_distance(args, &database).await?;
    // The schema is nobody's race: it is brought up to date without the delay.
    migrate(&database).await?;
    let report = race_near_or_far(args, &database, distant).await;
    if temporary.is_some() {
        erase_redis(&database, args).await;
    }
    report
}

async fn race_near_or_far(
    args: &RaceArgs,
    database: &DatabaseConfig,
    distant: Option<DistantServices>,
) -> Result<Report, Failure> {
    let Some(distant) = distant else {
        eprintln!("racing on {}", args.place());
        return race_on_replicas(args, database, &args.services).await;
    };
    eprintln!("racing on {}; {}", args.place(), distant.distance);
    let report = race_on_replicas(args, &distant.database, &distant.services).await;
    report.map(|report| Report {
        distance: Some(distant.distance),
        ..report
    })
}

/// The database and the services at the distance that was asked for, if any was.
async fn at_a_distance(
    args: &RaceArgs,
    database: &DatabaseConfig,
) -> Result<Option<DistantServices>, Failure> {
    let Some(rtt) = args.distance() else {
        return Ok(None);
    };
    let distant = DistantServices::start(rtt, database, &args.services).await;
    distant.map(Some).map_err(Failure::Setting)
}

/// Starts replicas, and stops them when they have raced.
async fn race_on_replicas(
    args: &RaceArgs,
    database: &DatabaseConfig,
    services: &ServicesConfig,
) -> Result<Report, Failure> {
    let replicas = Replicas::start(database, services, &args.limits, args.replicas)
        .await
        .map_err(Failure::Setting)?;
    let report = race_on(args, replicas.targets()).await;
    replicas.stop().await;
    report
}

/// What lives in Redis belongs to a ledger that is about to go. Where it cannot be removed, the race
/// was run all the same.
async fn erase_redis(database: &DatabaseConfig, args: &RaceArgs) {
    let erased = async {
        let stores = open_stores(database, &args.services, &args.limits)?;
        let erased = stores.erase_redis().await;
        stores.store.close().await;
        erased.map_err(|error| error.to_string())
    };
    if let Err(problem) = erased.await {
        tracing::warn!("the race's stock stays behind in Redis: {problem}");
    }
}

async fn race_on(args: &RaceArgs, targets: &[Target]) -> Result<Report, Failure> {
    let plan = args.plan();
    tokio::select! {
        report = run(&plan, targets, Progress::for_stderr()) => {
            report.map_err(|error| Failure::Other(error.to_string()))
        }
        _ = tokio::signal::ctrl_c() => Err(Failure::Other("stopped".to_owned())),
    }
}

/// The configured database, or a temporary one that is gone when the guard is dropped.
fn database(configured: &DatabaseConfig) -> Result<(DatabaseConfig, Option<TempDir>), Failure> {
    if configured.database_url.is_some() {
        return Ok((configured.clone(), None));
    }
    let directory = TempDir::with_prefix("stocklock-race-")
        .map_err(|error| Failure::Other(format!("no temporary directory: {error}")))?;
    let url = format!("sqlite://{}", directory.path().join("race.db").display());
    let database_url = Some(SecretString::from(url));
    Ok((
        DatabaseConfig {
            database_url,
            ..configured.clone()
        },
        Some(directory),
    ))
}

fn write_json(report: &Report, place: &str, file: &Path) -> Result<(), Failure> {
    let mut measured = report.json();
    measured["place"] = place.into();
    std::fs::write(file, format!("{measured:#}\n")).map_err(|error| {
        Failure::Other(format!("--json: cannot write {}: {error}", file.display()))
    })
}
