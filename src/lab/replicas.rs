//! Several replicas in one process, each on a port, a pool and a mutex of its own: for the race
//! and for the tests. They share nothing but the database, as replicas on several machines do.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::loopback;
use super::race::Target;
use crate::app::Replica;
use crate::config::{
    Config, DatabaseConfig, Limits, LogConfig, LogFormat, Mode, ServiceConfig, ServicesConfig,
};
use stocklock_core::strategy::Strategy;

/// Running replicas in lab mode; dropping them ends them abruptly.
#[derive(Debug)]
pub struct Replicas {
    targets: Vec<Target>,
    running: JoinSet<()>,
    shutdowns: Vec<CancellationToken>,
}

impl Replicas {
    /// Starts `count` replicas on loopback, on a database whose schema is up to date, and on the
    /// services beside it.
    ///
    /// # Errors
    /// One line that names the setting to change.
    pub async fn start(
        database: &DatabaseConfig,
        services: &ServicesConfig,
        limits: &Limits,
        count: u32,
    ) -> Result<Self, String> {
        let mut replicas = Self {
            targets: Vec::new(),
            running: JoinSet::new(),
            shutdowns: Vec::new(),
        };
        for number in 1..=count {
            let config = config(database, services, limits, number);
            let replica = Replica::build(&config, Mode::Lab)?;
            if number == 1 {
                replica.warn_of_unsafe_settings().await;
            }
            let (listener, address) = loopback::listen().await?;
            let target = format!("http://{address}").parse();
            replicas
                .targets
                .push(target.map_err(|error| format!("{error}"))?);
            replicas.shutdowns.push(replica.shutdown_token());
            replicas.running.spawn(replica.run(listener));
        }
        Ok(replicas)
    }

    /// Where they are reached.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Stops them gracefully.
    pub async fn stop(mut self) {
        self.shutdowns.iter().for_each(CancellationToken::cancel);
        while self.running.join_next().await.is_some() {}
    }
}

fn config(
    database: &DatabaseConfig,
    services: &ServicesConfig,
    limits: &Limits,
    number: u32,
) -> Config {
    Config {
        service: ServiceConfig {
            strategy: Strategy::SingleSql,
            allow_unsafe: false,
            listen: None,
            replica_id: Some(format!("replica-{number}")),
        },
        database: database.clone(),
        services: services.clone(),
        limits: limits.clone(),
        log: LogConfig {
            filter: "info".to_owned(),
            format: LogFormat::Text,
        },
    }
}
