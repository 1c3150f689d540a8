//! PgBouncer, a connection pooler before a PostgreSQL server.

use anyhow::Result;
use url::Url;

use super::installed::server_command;
use super::supervisor::{Supervisor, create_directory, write_file};
use crate::ports::free_port;

/// A private PgBouncer with the defaults of its package. Dropping this ends it.
#[derive(Debug)]
pub struct PgBouncer {
    url: String,
    _supervisor: Supervisor,
}

impl PgBouncer {
    /// Starts one before the server of a PostgreSQL URL. `pool_mode` is `session`, `transaction` or
    /// `statement`.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn before(url: &str, pool_mode: &str) -> Self {
        let started = Self::start(url, pool_mode).await;
        started.unwrap_or_else(|error| panic!("no private PgBouncer: {error:#}"))
    }

    /// The URL of the same database through PgBouncer.
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn start(url: &str, pool_mode: &str) -> Result<Self> {
        let mut url = Url::parse(url)?;
        let server = format!(
            "host={} port={} user={} password={}",
            url.host_str().unwrap_or("127.0.0.1"),
            url.port().unwrap_or(5432),
            url.username(),
            url.password().unwrap_or_default(),
        );
        let port = free_port();
        let settings = format!(
            "[databases]\n* = {server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = {pool_mode}\n"
        );
        let directory = create_directory("pgbouncer")?;
        let mut command = server_command("pgbouncer")?;
        command.arg(write_file(directory.path(), "pgbouncer.ini", &settings)?);
        let supervisor = Supervisor::new(directory, "KILL", Some(&command))?;
        supervisor.start()?;
        supervisor.listens_at(port).await?;
        url.set_ip_host([127, 0, 0, 1].into())
            .and_then(|()| url.set_port(Some(port)))
            .expect("the URL has a host");
        Ok(Self {
            url: url.into(),
            _supervisor: supervisor,
        })
    }
}
