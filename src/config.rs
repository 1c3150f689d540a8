//! Configuration: every setting is a flag and an environment variable, and `--help` is the
//! reference.
//!
//! The only place that knows of environment variables. `.env` is read by `main`. Secrets are held
//! so that neither `Debug` nor `--help` shows them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{Args, ValueEnum};
use secrecy::{ExposeSecret, SecretString};

use stocklock_core::strategy::{Available, Dependency, Strategy, Tier};

/// Whether this is a shop's service or an engineer's laboratory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// For production: one strategy, chosen by configuration; no lab routes.
    Serve,
    /// The same service plus a start page, seeded stock, and `?strategy=` on each request.
    Lab,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// All settings of a replica.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// What it serves, and where.
    #[command(flatten)]
    pub service: ServiceConfig,
    /// Where the stock is.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// The services beside the database.
    #[command(flatten)]
    pub services: ServicesConfig,
    /// Its bounds.
    #[command(flatten)]
    pub limits: Limits,
    /// What it logs.
    #[command(flatten)]
    pub log: LogConfig,
}

/// What a replica serves, and where.
#[derive(Debug, Clone, Args)]
pub struct ServiceConfig {
    /// What protects a deduction; see GET /strategies
    #[arg(long, env, value_name = "NAME", default_value = "single-sql")]
    pub strategy: Strategy,

    /// Let `serve` start with a strategy that oversells
    #[arg(long, env, value_name = "BOOL", default_value_t = false, num_args = 0..=1,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allow_unsafe: bool,

    /// Address to listen on [default: 0.0.0.0:8080; in the lab 127.0.0.1:8080]
    #[arg(long, env, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,

    /// Name of this replica in X-Replica [default: the host's name and the process id]
    #[arg(long, env, value_name = "NAME", value_parser = replica_id)]
    pub replica_id: Option<String>,
}

/// Where the stock is kept.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct DatabaseConfig {
    /// Where the stock is kept: `sqlite://FILE`, `mysql://…`, `mariadb://…` or `postgres://…`
    /// [default: `sqlite://stocklock.db`; for a race, a temporary SQLite file]
    #[arg(long, env, hide_env_values = true, value_name = "URL", value_parser = secret)]
    pub database_url: Option<SecretString>,

    /// The most database connections of a replica, beside the one that readiness is asked on
    #[arg(long, env, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_pool_size: u32,
}

impl DatabaseConfig {
    /// Which database, for people: the URL without user, password and parameters.
    #[must_use]
    pub fn place(&self) -> String {
        let url = self.url().split('?').next().unwrap_or_default();
        match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
            _ => url.to_owned(),
        }
    }

    /// The database's URL, password and all.
    #[must_use]
    pub fn url(&self) -> &str {
        self.database_url
            .as_ref()
            .map_or("sqlite://stocklock.db", |url| url.expose_secret())
    }
}

/// The services beside the database, for the strategies that need them.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Services")]
pub struct ServicesConfig {
    /// The Redis of redis-lock, and of stock whose home is Redis:
    /// `redis://[[user]:password@]host[:port][/database]`
    #[arg(long, env, hide_env_values = true, value_name = "URL", value_parser = secret)]
    pub redis_url: Option<SecretString>,

    /// The most Redis connections of redis-watch, each of which one deduction uses at a time
    #[arg(long, env, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub redis_pool_size: u32,

    /// The most movements that may wait in one of the 64 journals in Redis for the SQL ledger;
    /// changes beyond that are answered 503
    #[arg(long, env, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub journal_limit: u32,

    /// The ensemble of zookeeper-lock: `host:port[,host:port…][/chroot]`
    #[arg(long, env, value_name = "HOSTS")]
    pub zookeeper_connect: Option<String>,

    /// How long a lock outlives a holder that vanished, in ms; while the holder lives, it is
    /// renewed at every third of this. `ZooKeeper` may give its sessions another time-out
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = lease)]
    pub lock_lease_ms: Duration,
}

impl ServicesConfig {
    /// The servers that it names.
    #[must_use]
    pub fn available(&self) -> Available {
        let redis = self.redis_url.as_ref().map(|_| Dependency::Redis);
        let zookeeper = self
            .zookeeper_connect
            .as_ref()
            .map(|_| Dependency::Zookeeper);
        Available::new(redis.into_iter().chain(zookeeper))
    }
}

/// What is logged, to stderr.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogConfig {
    /// Which lines to print, by level and module: `info`, `stocklock=debug`, …
    #[arg(
        long = "log",
        env = "LOG",
        value_name = "FILTER",
        default_value = "info,zookeeper_client=warn"
    )]
    pub filter: String,

    /// How they look
    #[arg(long = "log-format", env = "LOG_FORMAT", value_name = "FORMAT", value_enum,
          default_value_t = LogFormat::Text)]
    pub format: LogFormat,
}

/// The bounds of a replica; nothing in it grows or waits without one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Longest wait for a row, a lock, or a free database connection, in ms
    #[arg(long, env, value_name = "MS", default_value = "2000", value_parser = milliseconds)]
    pub wait_limit_ms: Duration,

    /// Most attempts at one deduction when others are faster
    #[arg(long, env, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_attempts: u32,

    /// Longest that a caller waits for the answer to a write, in ms; then 504
    #[arg(long, env, value_name = "MS", default_value = "5000", value_parser = milliseconds)]
    pub request_deadline_ms: Duration,

    /// Most deductions under way at once; more are answered 503
    #[arg(long, env, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_in_flight: u32,

    /// Largest request body, in bytes
    #[arg(long, env, value_name = "BYTES", default_value_t = 16 * 1024,
          value_parser = clap::value_parser!(u32).range(256..=1_048_576))]
    pub max_body_bytes: u32,

    /// Most client connections; further ones wait to be accepted
    #[arg(long, env, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_connections: u32,

    /// Longest silence of a new connection before its first byte, in ms
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub first_byte_timeout_ms: Duration,

    /// Longest time for a request's header to arrive, and for an answer to be taken, in ms
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub header_timeout_ms: Duration,

    /// Longest time for a request's body to arrive, in ms; then 408
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub body_timeout_ms: Duration,

    /// Longest silence of a kept-alive connection between requests, in ms; must be longer than
    /// what the proxy in front keeps its connections for
    #[arg(long, env, value_name = "MS", default_value = "75000", value_parser = milliseconds)]
    pub idle_timeout_ms: Duration,

    /// Longest time to finish what is under way when asked to stop, in ms
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub drain_limit_ms: Duration,
}

impl Limits {
    /// How long to go on finding out what became of a commit in doubt: as long as the caller
    /// waits, less the time for a last attempt and the answer.
    #[must_use]
    pub fn doubt_limit(&self) -> Duration {
        self.request_deadline_ms
            .mul_f64(0.8)
            .max(self.wait_limit_ms)
    }
}

impl Config {
    /// The most connections that the replica may have open, clients' and database's together.
    #[must_use]
    pub fn connections(&self) -> u64 {
        // One more is for readiness, two for the locks in Redis, two for the stock there, and one
        // for ZooKeeper.
        u64::from(self.limits.max_connections)
            + u64::from(self.database.database_pool_size)
            + u64::from(self.services.redis_pool_size)
            + 6
    }

    /// The address to listen on: the lab keeps to this machine unless told otherwise.
    #[must_use]
    pub fn listen(&self, mode: Mode) -> SocketAddr {
        self.service.listen.unwrap_or_else(|| match mode {
            Mode::Serve => (Ipv4Addr::UNSPECIFIED, 8080).into(),
            Mode::Lab => (Ipv4Addr::LOCALHOST, 8080).into(),
        })
    }

    /// Checks what no single setting shows.
    ///
    /// # Errors
    /// One line that names the variable to change.
    pub fn validate(&self, mode: Mode) -> Result<(), String> {
        let Self {
            service, limits, ..
        } = self;
        let strategy = service.strategy;
        if let Some(reason) = self.services.available().why_not(strategy) {
            return Err(format!("STRATEGY: {strategy} is not available: {reason}"));
        }
        if mode == Mode::Serve && strategy.tier() == Tier::Unsafe && !service.allow_unsafe {
            return Err(format!(
                "STRATEGY: {strategy} oversells; choose a safe one such as single-sql, or set \
                 ALLOW_UNSAFE=true if that is what you want"
            ));
        }
        if limits.wait_limit_ms >= limits.request_deadline_ms {
            return Err("WAIT_LIMIT_MS: must be less than REQUEST_DEADLINE_MS".to_owned());
        }
        Ok(())
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "clap wants a Result of a value parser"
)]
fn secret(text: &str) -> Result<SecretString, String> {
    Ok(SecretString::from(text))
}

fn lease(text: &str) -> Result<Duration, String> {
    match milliseconds(text)? {
        lease if lease < Duration::from_millis(100) => Err("at least 100".to_owned()),
        lease => Ok(lease),
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(ms @ 1..=3_600_000) => Ok(Duration::from_millis(ms)),
        _ => Err("expected whole milliseconds from 1 to 3600000".to_owned()),
    }
}

fn replica_id(text: &str) -> Result<String, String> {
    if !(1..=64).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("expected 1 to 64 visible ASCII characters".to_owned());
    }
    Ok(text.to_owned())
}
