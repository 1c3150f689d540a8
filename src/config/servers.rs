//! Settings: the SQL database, the servers besides it, and the locks on them.

use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use super::milliseconds;

/// The SQL database of stock and ledger.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct DatabaseConfig {
    /// The database of stock and ledger: `sqlite://FILE`, `mysql://…`, `mariadb://…` or
    /// `postgres://…`; several hosts of one database, of which one accepts writes: `postgres://a,b/…`
    /// [default: `sqlite://stocklock.db`; `race`: a temporary SQLite file]
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    pub database_url: Option<SecretString>,

    /// Maximum number of database connections for writes; one SKU uses at most half of them. Reads
    /// have four, audits and ledger pages two, readiness one. `SQLite`: connections for reads
    #[arg(long, env, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_pool_size: u32,
}

impl DatabaseConfig {
    /// The URL without user, password and parameters, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        let url = self.url().split('?').next().unwrap_or_default();
        match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
            _ => url.to_owned(),
        }
    }

    /// The URL with the password.
    #[must_use]
    pub fn url(&self) -> &str {
        self.database_url
            .as_ref()
            .map_or("sqlite://stocklock.db", |url| url.expose_secret())
    }
}

/// The servers that some strategies need besides the database.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Services")]
pub struct ServicesConfig {
    /// The Redis for the counters of redis-lua and redis-watch, and for redis-lock:
    /// `redis://[[user]:password@]host[:port][/database]`, with TLS `rediss://…`; with Sentinel
    /// `redis+sentinel://[[user]:password@]host[:port],…/master[/database]`; a Redis Cluster (not
    /// for redis-watch) `redis+cluster://[[user]:password@]host[:port],…`
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    pub redis_url: Option<SecretString>,

    /// Another Redis for redis-lock, so that locks and counters do not depend on the same server
    /// [default: `REDIS_URL`]
    #[arg(long, env, hide_env_values = true, value_name = "URL")]
    pub lock_redis_url: Option<SecretString>,

    /// Lets waiters for redis-lock ask again after this time in ms, instead of being woken over pub/sub: to
    /// compare both, or if the user of Redis has no right to channels
    #[arg(long, env, value_name = "MS", value_parser = poll)]
    pub lock_poll_ms: Option<Duration>,

    /// The Redis masters of redlock, an odd number of 3 to 9: `redis://…,redis://…,redis://…`. They are
    /// independent and have no replicas. All replicas need the same value, and the same `LOCK_LEASE_MS`:
    /// a restarted master gives no lock for that long
    #[arg(long, env, hide_env_values = true, value_name = "URLS")]
    pub redlock_urls: Option<SecretString>,

    /// Maximum number of Redis connections for redis-watch; each deduction uses one while it asks the
    /// counter
    #[arg(long, env, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub redis_pool_size: u32,

    /// The `ZooKeeper` ensemble for zookeeper-lock: `host:port[,host:port…][/chroot]`
    #[arg(long, env, value_name = "HOSTS")]
    pub zookeeper_connect: Option<String>,

    /// Credentials for `ZooKeeper`, `user:password`. Only clients with the same ones can use the nodes of
    /// locks that are created with them, so set the same value on all replicas
    #[arg(long, env, hide_env_values = true, value_name = "USER:PASSWORD")]
    pub zookeeper_auth: Option<SecretString>,

    /// Time in ms after which the lock of a crashed holder expires; a live holder renews it after
    /// each third of this time. `ZooKeeper` may grant its sessions another timeout
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = lease)]
    pub lock_lease_ms: Duration,
}

fn poll(text: &str) -> Result<Duration, String> {
    match milliseconds(text)? {
        interval if interval > Duration::from_secs(1) => Err("at most 1000".to_owned()),
        interval => Ok(interval),
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    match milliseconds(text)? {
        lease if lease < Duration::from_millis(100) => Err("at least 100".to_owned()),
        lease => Ok(lease),
    }
}
