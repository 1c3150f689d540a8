//! `stocklock race`: gives the race of the laboratory the settings of its replicas, and prints its report.

use clap::Args;

use super::inherit::Inherited;
use super::servers::{ServerArgs, race_settings};
use super::{Failure, migrate, print_output, start_logging};
use crate::config::UNCOUNTED_CONNECTIONS;
use crate::descriptors::allow_connections;
use crate::telemetry;
use stocklock_lab::{RaceArgs, RaceFailure, TempDir};

/// Sell a fresh SKU with each strategy over HTTP and show which strategies oversell.
///
/// Without --target, the race starts replicas as child processes. They use the database of
/// `DATABASE_URL`, or a temporary SQLite file. In your own database, the SKUs that were sold
/// (`race-…`) and their ledgers stay.
///
/// Exit code 1: a strategy broke its promise, or orders failed, so that the race proves nothing.
/// Unsafe strategies promise nothing, so they may oversell.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RaceCommand {
    /// The race.
    #[command(flatten)]
    race: RaceArgs,
    /// The settings of the replicas.
    #[command(flatten)]
    settings: Inherited<ServerArgs>,
}

impl From<RaceFailure> for Failure {
    fn from(failure: RaceFailure) -> Self {
        match failure {
            RaceFailure::Setting(problem) => Self::Setting(problem),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Runs the race and prints the report.
pub(super) async fn race(command: RaceCommand) -> Result<(), Failure> {
    let RaceCommand { race, settings } = command;
    let Inherited { parsed, variables } = settings;
    start_logging(&parsed.log)?;
    let pools = parsed.database.database_pool_size + parsed.services.redis_pool_size;
    allow_connections(race.connections(pools + UNCOUNTED_CONNECTIONS));
    let mut database = parsed.database.clone();
    let mut temporary = None;
    let place = if !race.starts_replicas() {
        "the targets' database".to_owned()
    } else if database.database_url.is_some() {
        format!("{} (DATABASE_URL)", database.place())
    } else {
        let directory = TempDir::with_prefix("stocklock-race-").map_err(|error| {
            Failure::Other(format!("cannot create a temporary directory: {error}"))
        })?;
        let file = directory.path().join("race.db");
        database.database_url = Some(format!("sqlite://{}", file.display()).into());
        temporary = Some(directory);
        "a temporary SQLite file".to_owned()
    };
    let settings = race_settings(&database, &parsed.services, &parsed.limits, variables);
    let migrated = async {
        let migrated = migrate(&database).await;
        migrated.map_err(|failure| RaceFailure::Other(failure.to_string()))
    };
    let finished = race.run(&place, &settings, migrated).await?;
    drop(temporary);
    // The table comes after the lines on standard error, also if both are the same file.
    telemetry::flush();
    let printed = print_output(&race.table(&finished));
    race.write(&finished)?;
    printed?;
    if finished.broken() {
        return Err(Failure::PromiseBroken);
    }
    Ok(())
}
