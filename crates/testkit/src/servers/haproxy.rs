//! HAProxy in front of the nodes of a database.

use std::path::Path;

use anyhow::Result;

use super::installed::server_command;
use super::supervisor::{Supervisor, create_directory, write_deployed};

/// A private HAProxy. Dropping this ends it.
#[derive(Debug)]
pub(super) struct HaProxy {
    port: u16,
    supervisor: Supervisor,
}

impl HaProxy {
    /// Starts it at this port with a configuration file of `deploy/` and what is different here.
    pub(super) async fn start(
        port: u16,
        deployed: &Path,
        replacements: &[(String, String)],
    ) -> Result<Self> {
        let directory = create_directory("haproxy")?;
        let mut command = server_command("haproxy")?;
        // Not in the background.
        command.arg("-db").arg("-f");
        command.arg(write_deployed(directory.path(), deployed, replacements)?);
        let supervisor = Supervisor::new(directory, "KILL", Some(&command))?;
        supervisor.start()?;
        supervisor.listens_at(port).await?;
        Ok(Self { port, supervisor })
    }

    /// The port at which it listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The directory that contains its log.
    pub(super) fn directory(&self) -> &Path {
        self.supervisor.directory()
    }
}
