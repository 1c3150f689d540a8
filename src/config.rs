//! The configuration: every setting of the service is a flag and an environment variable. `--help` is
//! the reference.
//!
//! The clients (`import`, `export`) and `failures` declare their own settings. `main` reads `.env`
//! before. Neither `Debug` nor `--help` shows a secret.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, ValueEnum};

use crate::telemetry::Collector;
use stocklock_core::plan::LAST_MOMENT;
use stocklock_core::stock::Shard;
use stocklock_core::strategy::{Available, Dependency, Strategy, Tier};
use stocklock_store::OTHER_CONNECTIONS;

mod events;
mod limits;
mod servers;

pub use crate::webhooks::Network;
pub use events::{EventsConfig, Publish};
pub use limits::Limits;
pub use servers::{DatabaseConfig, ServicesConfig};

/// How the service is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Production: the configuration chooses the strategy; no lab routes.
    Serve,
    /// Laboratory: also a start page, seeded stock, and `?strategy=` on each request.
    Lab,
}

/// Who may call the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// Callers with an API key
    Keys,
    /// Everyone who can reach it
    None,
}

/// All settings of a replica.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// The strategy, the address and the name.
    #[command(flatten)]
    pub service: ServiceConfig,
    /// The SQL database.
    #[command(flatten)]
    pub database: DatabaseConfig,
    /// The other servers.
    #[command(flatten)]
    pub services: ServicesConfig,
    /// The events.
    #[command(flatten)]
    pub events: EventsConfig,
    /// The bounds.
    #[command(flatten)]
    pub limits: Limits,
    /// The log.
    #[command(flatten)]
    pub log: LogConfig,
    /// The traces.
    #[command(flatten)]
    pub traces: TraceConfig,
}

/// The strategy, the address and the name of a replica.
#[derive(Debug, Clone, Args)]
pub struct ServiceConfig {
    /// The strategy that protects each deduction; GET /strategies lists them
    #[arg(long, env, value_name = "NAME", default_value = "group-commit")]
    pub strategy: Strategy,

    /// Allow `serve` to start with a strategy that oversells
    #[arg(long, env, value_name = "BOOL", default_value_t = false, num_args = 0..=1,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allow_unsafe: bool,

    /// Who may call `serve`: callers with an API key of `stocklock keys`, or everyone. The lab needs no keys
    #[arg(long, env, value_name = "WHO", value_enum, default_value_t = Auth::Keys)]
    pub auth: Auth,

    /// The addresses.
    #[command(flatten)]
    pub addresses: Addresses,

    /// Which SKUs this deployment has, if several divide them: `2/3` is the second of three. It refuses
    /// all others
    #[arg(long, env, value_name = "K/N", default_value_t = Shard::WHOLE)]
    pub shard: Shard,

    /// Name of this replica in the X-Replica header [default: host name and process id]
    #[arg(long, env, value_name = "NAME", value_parser = replica_id)]
    pub replica_id: Option<String>,
}

impl ServiceConfig {
    /// The name of the replica: by default host name and process id, which tell replicas apart in headers,
    /// logs and traces.
    #[must_use]
    pub fn name(&self) -> String {
        let name = || {
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            let host = host.chars().filter(char::is_ascii_graphic);
            let host: String = host.take(48).collect();
            let host = if host.is_empty() { "replica" } else { &host };
            format!("{host}-{}", std::process::id())
        };
        self.replica_id.clone().unwrap_or_else(name)
    }
}

/// The addresses of a replica.
#[derive(Debug, Clone, Args)]
pub struct Addresses {
    /// Address to listen on [default: 0.0.0.0:8080; `lab`: 127.0.0.1:8080]
    #[arg(long, env, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,

    /// Another address for /metrics, /healthz and /readyz, which need no API key there [default: they are
    /// at LISTEN]
    #[arg(long, env, value_name = "ADDR:PORT")]
    pub admin_listen: Option<SocketAddr>,
}

impl Addresses {
    /// The address of `/readyz`, for a program on this machine.
    #[must_use]
    pub fn probes(&self) -> SocketAddr {
        let address = self.admin_listen.or(self.listen);
        let mut address = address.unwrap_or((Ipv4Addr::LOCALHOST, 8080).into());
        match address.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
        address
    }
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

/// The log, which goes to stderr.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogConfig {
    /// Which lines to log, by level and module: `info`, `stocklock=debug`, …
    #[arg(
        long = "log",
        env = "LOG",
        value_name = "FILTER",
        default_value = "info,zookeeper_client=warn"
    )]
    pub filter: String,

    /// Format of log lines
    #[arg(long = "log-format", env = "LOG_FORMAT", value_name = "FORMAT", value_enum,
          default_value_t = LogFormat::Text)]
    pub format: LogFormat,
}

/// The traces, which go to a collector of OpenTelemetry.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceConfig {
    /// A collector for traces, with OTLP over HTTP: `http://host[:4318]` [default: no traces]
    #[arg(long, env, value_name = "URL")]
    pub otel_exporter_otlp_endpoint: Option<Collector>,
}

/// How much time a request has after the longest wait: `group-commit` attempts none in its last moment, and
/// the commit takes time.
const AFTER_THE_WAIT: Duration = LAST_MOMENT.saturating_mul(2);

/// The maximum number of masters in `REDLOCK_URLS`.
pub(crate) const MASTERS_MAX: u32 = 9;

/// The maximum number of connections at `ADMIN_LISTEN`.
pub(crate) const ADMIN_CONNECTIONS: u32 = 64;

/// Connections of a replica that no setting counts: those at `ADMIN_LISTEN`, those to the database, six for
/// locks in it, two for locks in Redis, two for counters in Redis, one for `ZooKeeper`, one for each master of
/// `RedLock`.
pub(crate) const UNCOUNTED_CONNECTIONS: u32 =
    ADMIN_CONNECTIONS + OTHER_CONNECTIONS + 11 + MASTERS_MAX;

impl Config {
    /// The configured servers, which decide the strategies that can be used.
    #[must_use]
    pub fn available(&self) -> Available {
        let servers = [
            (Dependency::Redis, self.services.redis_url.is_some()),
            (
                Dependency::RedisMasters,
                self.services.redlock_urls.is_some(),
            ),
            (
                Dependency::Zookeeper,
                self.services.zookeeper_connect.is_some(),
            ),
        ];
        let configured = servers.into_iter().filter(|(_, configured)| *configured);
        Available::new(configured.map(|(dependency, _)| dependency))
    }

    /// The maximum number of open connections: from clients and to servers.
    #[must_use]
    pub fn connections(&self) -> u64 {
        u64::from(self.limits.max_connections)
            + u64::from(self.database.database_pool_size)
            + u64::from(self.services.redis_pool_size)
            + u64::from(UNCOUNTED_CONNECTIONS)
    }

    /// The address to listen on. By default, only this machine can reach the lab.
    #[must_use]
    pub fn listen(&self, mode: Mode) -> SocketAddr {
        let listen = self.service.addresses.listen;
        listen.unwrap_or_else(|| match mode {
            Mode::Serve => (Ipv4Addr::UNSPECIFIED, 8080).into(),
            Mode::Lab => (Ipv4Addr::LOCALHOST, 8080).into(),
        })
    }

    /// Checks the settings that depend on each other.
    ///
    /// # Errors
    /// One line that names the variable to change.
    pub fn validate(&self, mode: Mode) -> Result<(), String> {
        if self.services.lock_redis_url.is_some() && self.services.redis_url.is_none() {
            let problem = "LOCK_REDIS_URL: it is only for locks that are not in the Redis of \
                           REDIS_URL; set REDIS_URL instead";
            return Err(problem.to_owned());
        }
        if self.services.zookeeper_auth.is_some() && self.services.zookeeper_connect.is_none() {
            let problem = "ZOOKEEPER_AUTH: it needs ZOOKEEPER_CONNECT, which is not set";
            return Err(problem.to_owned());
        }
        if mode == Mode::Lab && self.service.shard.is_part() {
            let problem =
                "SHARD: the lab has all SKUs; only `stocklock serve` can have a part of them";
            return Err(problem.to_owned());
        }
        let strategy = self.service.strategy;
        if mode == Mode::Serve && strategy.tier() == Tier::Unsafe && !self.service.allow_unsafe {
            return Err(format!(
                "STRATEGY: {strategy} oversells; choose another one such as {}, or set \
                 ALLOW_UNSAFE=true",
                Strategy::GroupCommit
            ));
        }
        if self.limits.wait_limit_ms + AFTER_THE_WAIT > self.limits.request_deadline_ms {
            return Err(format!(
                "WAIT_LIMIT_MS: must be at least {} less than REQUEST_DEADLINE_MS, so that a request that \
                 has waited can still be made",
                AFTER_THE_WAIT.as_millis()
            ));
        }
        Ok(())
    }
}

/// `command`, whose subcommands ignore an empty variable: `REDIS_URL: ${REDIS_URL:-}` in a compose file means
/// that there is no Redis.
pub(crate) fn ignore_empty_variables(command: Command) -> Command {
    command.mut_subcommands(|command| {
        command.mut_args(|argument| {
            let is_empty = argument.get_env().is_some_and(is_empty_variable);
            if is_empty {
                argument.env(None::<&'static str>)
            } else {
                argument
            }
        })
    })
}

#[expect(clippy::disallowed_methods, reason = "this is the configuration")]
fn is_empty_variable(name: &OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}

/// The first setting of `command` whose value begins or ends with white space, for example the newline of a
/// file. Numbers are refused anyway, but another text would mean something else: a different SQLite file.
pub(crate) fn padded_setting<'a>(command: &'a Command, values: &ArgMatches) -> Option<&'a Arg> {
    let is_padded = |value: &OsStr| value.to_str().is_some_and(|text| text.trim() != text);
    let mut settings = command.get_arguments();
    settings.find(|setting| {
        let values = || values.get_raw(setting.get_id().as_str()).into_iter();
        setting.get_env().is_some() && values().flatten().any(is_padded)
    })
}

fn replica_id(text: &str) -> Result<String, String> {
    if !(1..=64).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("expected 1 to 64 visible ASCII characters".to_owned());
    }
    Ok(text.to_owned())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(ms @ 1..=3_600_000) => Ok(Duration::from_millis(ms)),
        _ => Err("expected whole milliseconds from 1 to 3600000".to_owned()),
    }
}
