//! The settings of commands that start replicas.

use clap::Args;

use crate::config::{DatabaseConfig, Limits, LogConfig, ServicesConfig};

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
