//! The settings of commands that start replicas.

use std::ffi::OsString;

use clap::Args;
use secrecy::SecretString;

use crate::config::{DatabaseConfig, Limits, LogConfig, ServicesConfig};
use crate::telemetry::print_line;
use stocklock_lab::RaceSettings;
use stocklock_lab::delay::ServerUrls;

/// The servers of a replica, its limits, and the log.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// The database.
    #[command(flatten)]
    pub(super) database: DatabaseConfig,
    /// The servers beside the database.
    #[command(flatten)]
    pub(super) services: ServicesConfig,
    /// The limits.
    #[command(flatten)]
    pub(super) limits: Limits,
    /// The log.
    #[command(flatten)]
    pub(super) log: LogConfig,
}

/// What the laboratory starts the replicas of a race with.
pub(super) fn race_settings(
    database: &DatabaseConfig,
    services: &ServicesConfig,
    limits: &Limits,
    variables: Vec<(OsString, SecretString)>,
) -> RaceSettings {
    RaceSettings {
        variables,
        servers: ServerUrls {
            database: database.url().into(),
            redis: services.redis_url.clone(),
            redlock: services.redlock_urls.clone(),
            zookeeper: services.zookeeper_connect.clone(),
        },
        drain_limit: limits.drain_limit_ms,
        log: print_line,
    }
}
