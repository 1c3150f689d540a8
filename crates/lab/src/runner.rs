//! Runs a race on new replicas: child processes of this program, which are stopped afterwards.
//!
//! The command `race` and the page of the lab use it.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::delay::{DelayedServers, ServerUrls};
use crate::processes::ReplicaProcesses;
use crate::race::{Observer, RacePlan, Report, Target, run};

/// Time that a replica gets to exit, in addition to its drain limit.
const EXIT_MARGIN: Duration = Duration::from_secs(5);

/// The exit code of a replica with a wrong setting.
const WRONG_SETTING: i32 = 2;

/// A race could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RaceFailure {
    /// A setting is wrong.
    #[error("{0}")]
    Setting(String),
    /// Something else is wrong.
    #[error("{0}")]
    Other(String),
    /// The caller has stopped it.
    #[error("stopped")]
    Stopped,
}

/// What the service gives the replicas of a race.
#[derive(Debug, Clone)]
pub struct RaceSettings {
    /// Environment variables that give a replica the settings of this process.
    pub variables: Vec<(OsString, SecretString)>,
    /// The servers, which replace those of the variables.
    pub servers: ServerUrls,
    /// How long a replica finishes its requests.
    pub drain_limit: Duration,
    /// Writes a line to standard error. It must not wait.
    pub log: fn(&str),
}

/// Starts what delays the servers, if the plan adds a round trip.
pub(crate) async fn delay(
    plan: &RacePlan,
    servers: &ServerUrls,
) -> Result<Option<DelayedServers>, RaceFailure> {
    if plan.rtt.is_zero() {
        return Ok(None);
    }
    let delayed = DelayedServers::start(plan.rtt, servers.clone()).await;
    delayed.map(Some).map_err(RaceFailure::Setting)
}

/// Starts the replicas, races on them, and stops them, also if `stop` is cancelled. The database has
/// been migrated.
///
/// # Cancel safety
/// Dropping the future kills the replicas.
pub(crate) async fn race_on_new_replicas(
    plan: &RacePlan,
    settings: &RaceSettings,
    delayed: Option<&DelayedServers>,
    observer: Observer<'_>,
    stop: &CancellationToken,
) -> Result<Report, RaceFailure> {
    let servers = delayed.map_or(&settings.servers, |delayed| &delayed.urls);
    let program = env::current_exe()
        .map_err(|error| RaceFailure::Other(format!("cannot find this program's file: {error}")))?;
    let command = |number: u32| {
        let mut command = Command::new(&program);
        command.args(["lab", "--replica", &number.to_string()]);
        for (name, value) in &settings.variables {
            command.env(name, value.expose_secret());
        }
        command
            .env("STRATEGY", "single-sql")
            // Its locks are in the Redis that the race delays. Empty, because `.env` may name another.
            .env("LOCK_REDIS_URL", "")
            .env("ALLOW_UNSAFE", "false")
            .env("LISTEN", "127.0.0.1:0")
            .env("REPLICA_ID", format!("replica-{number}"))
            .env("DATABASE_URL", servers.database.expose_secret());
        if let Some(redis) = &servers.redis {
            command.env("REDIS_URL", redis.expose_secret());
        }
        if let Some(masters) = &servers.redlock {
            command.env("REDLOCK_URLS", masters.expose_secret());
        }
        if let Some(zookeeper) = &servers.zookeeper {
            command.env("ZOOKEEPER_CONNECT", zookeeper);
        }
        command
    };
    let starting = ReplicaProcesses::start(plan.replicas, command, settings.log);
    let replicas = tokio::select! {
        replicas = starting => replicas,
        () = stop.cancelled() => return Err(RaceFailure::Stopped),
    };
    let replicas = replicas.map_err(|error| match error.exit_code {
        Some(WRONG_SETTING) => RaceFailure::Setting(error.to_string()),
        _ => RaceFailure::Other(error.to_string()),
    })?;
    let report = race_on(plan, replicas.targets(), observer, stop).await;
    for problem in replicas.stop(settings.drain_limit + EXIT_MARGIN).await {
        tracing::warn!("{problem}");
    }
    let mut report = report?;
    report.distance = delayed.map(|delayed| delayed.distance.clone());
    Ok(report)
}

/// Races on running replicas until `stop` is cancelled.
pub(crate) async fn race_on(
    plan: &RacePlan,
    targets: &[Target],
    observer: Observer<'_>,
    stop: &CancellationToken,
) -> Result<Report, RaceFailure> {
    tokio::select! {
        report = run(plan, targets, observer) => {
            report.map_err(|error| RaceFailure::Other(error.to_string()))
        }
        () = stop.cancelled() => Err(RaceFailure::Stopped),
    }
}
