//! nginx in front of HTTP servers.

use anyhow::Result;

use crate::installed::server_command;
use crate::ports::free_port;
use crate::supervisor::{Supervisor, create_directory, write_file};

/// A private nginx. Dropping this ends it.
#[derive(Debug)]
pub struct Nginx {
    address: String,
    _supervisor: Supervisor,
}

impl Nginx {
    /// Starts one with the defaults of nginx and one worker. It sends each request to the next of the servers at
    /// `upstreams` (`host:port`). `/nginx_status` has the counters of nginx (`stub_status`).
    pub async fn before(upstreams: &[String]) -> Result<Self> {
        let port = free_port();
        let servers = upstreams.join("; server ");
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"))
            .concat();
        let settings = format!(
            "pid nginx.pid;\nworker_processes 1;\nerror_log stderr;\nevents {{}}\n\
             http {{\naccess_log off;\n{paths}upstream servers {{ server {servers}; }}\n\
             server {{\nlisten 127.0.0.1:{port};\nlocation / {{ proxy_pass http://servers; }}\n\
             location = /nginx_status {{ stub_status; }}\n}}\n}}\n"
        );
        Self::start(port, &settings).await
    }

    /// Starts one with these settings, which listens at `port` of loopback.
    pub async fn start(port: u16, settings: &str) -> Result<Self> {
        let directory = create_directory("nginx")?;
        let mut command = server_command("nginx")?;
        command
            .arg("-p")
            .arg(directory.path())
            .args(["-e", "stderr", "-g", "daemon off;"]);
        let file = write_file(directory.path(), "nginx.conf", settings)?;
        command.arg("-c").arg(file);
        // Ends the worker, too.
        let supervisor = Supervisor::new(directory, "TERM", Some(&command))?;
        supervisor.start()?;
        supervisor.listens_at(port).await?;
        Ok(Self {
            address: format!("127.0.0.1:{port}"),
            _supervisor: supervisor,
        })
    }

    /// The address at which it listens, `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }
}
