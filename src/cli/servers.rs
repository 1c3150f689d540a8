//! The settings of commands that work on the servers directly.

use clap::Args;

use super::{Failure, start_logging};
use crate::app::open_stores;
use crate::config::{DatabaseConfig, Limits, LogConfig, ServicesConfig};
use stocklock_store::Stores;

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

impl ServerArgs {
    /// Starts the log, and opens the stores without connecting to a server.
    pub(super) fn open(&self) -> Result<Stores, Failure> {
        start_logging(&self.log)?;
        let stores = open_stores(&self.database, &self.services, &self.limits);
        stores.map_err(Failure::Setting)
    }

    /// The same, if there is a Redis. `why`: what the command needs it for.
    pub(super) fn open_with_redis(&self, why: &str) -> Result<Stores, Failure> {
        let stores = self.open()?;
        if stores.have_redis() {
            return Ok(stores);
        }
        Err(Failure::Setting(format!("REDIS_URL is not set; {why}")))
    }
}
