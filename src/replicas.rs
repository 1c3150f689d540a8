//! Replicas in lab mode inside this process, for tests that do not need separate processes.
//!
//! Each replica has its own port, connection pool and local mutexes. They share only the database
//! and the servers beside it, like replicas on different machines.

use std::net::Ipv4Addr;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::app::Replica;
use crate::config::{
    Config, DatabaseConfig, Limits, LogConfig, LogFormat, Mode, ServiceConfig, ServicesConfig,
};
use stocklock_core::strategy::Strategy;
use stocklock_lab::race::Target;

/// Running replicas. Dropping this value aborts them.
#[derive(Debug)]
pub struct Replicas {
    targets: Vec<Target>,
    running: JoinSet<()>,
    shutdowns: Vec<CancellationToken>,
}

impl Replicas {
    /// Starts `count` replicas on a free port of loopback each. The database must be migrated.
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
            let config = Config {
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
            };
            let replica = Replica::build(&config, Mode::Lab)?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.map_err(|error| error.to_string())?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            let target = format!("http://{address}").parse();
            replicas
                .targets
                .push(target.expect("an address of loopback"));
            replicas.shutdowns.push(replica.shutdown_token());
            replicas.running.spawn(replica.run(listener));
        }
        Ok(replicas)
    }

    /// The URLs of the replicas.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Stops the replicas gracefully.
    pub async fn stop(mut self) {
        self.shutdowns.iter().for_each(CancellationToken::cancel);
        while self.running.join_next().await.is_some() {}
    }
}
