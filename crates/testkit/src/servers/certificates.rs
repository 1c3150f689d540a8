//! Certificates for private servers.
//!
//! OpenSSL's program makes them; Debian's PostgreSQL depends on it.

use anyhow::Result;
use tempfile::TempDir;

use super::Program;
use super::installed::server_command;
use super::supervisor::{create_directory, run};
use crate::run::unique_name;

/// A new certificate authority, and a certificate that it has issued for `localhost`. Another name,
/// such as 127.0.0.1, is not covered. Dropping this removes the files.
#[derive(Debug)]
pub struct Certificates(TempDir);

impl Certificates {
    /// Makes them.
    ///
    /// # Panics
    /// If OpenSSL's program fails.
    pub fn create() -> Self {
        Self::make().unwrap_or_else(|error| panic!("no certificates: {error:#}"))
    }

    fn make() -> Result<Self> {
        let directory = create_directory("certificates")?;
        let make = |name: &str, subject: &str, options: &str| {
            let mut command = server_command("openssl")?;
            let key = "req -x509 -days 2 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1";
            command.args(key.split(' ')).args(["-subj", subject]);
            command.args([
                "-keyout",
                &format!("{name}.key"),
                "-out",
                &format!("{name}.pem"),
            ]);
            command.args(options.split_whitespace());
            run(&mut command, directory.path())
        };
        make("ca", &format!("/CN={}", unique_name()), "")?;
        let options = "-CA ca.pem -CAkey ca.key -addext subjectAltName=DNS:localhost \
                       -addext basicConstraints=critical,CA:FALSE";
        make("server", "/CN=localhost", options)?;
        Ok(Self(directory))
    }

    /// The path of the certificate of the authority (`ca.pem`), or of the server (`server.pem`,
    /// `server.key`).
    pub fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Arguments that let a server offer TLS; Redis at `tls_port`, besides its other port.
    ///
    /// # Panics
    /// For ZooKeeper.
    pub fn arguments(&self, program: Program, tls_port: u16) -> Vec<String> {
        let [ca, certificate, key] = ["ca.pem", "server.pem", "server.key"].map(|it| self.file(it));
        let arguments = match program {
            Program::MariaDb => format!("--ssl-ca={ca} --ssl-cert={certificate} --ssl-key={key}"),
            Program::Postgres => {
                format!("-c ssl=on -c ssl_cert_file={certificate} -c ssl_key_file={key}")
            }
            Program::Redis => format!(
                "--tls-port {tls_port} --tls-auth-clients no --tls-ca-cert-file {ca} \
                 --tls-cert-file {certificate} --tls-key-file {key}"
            ),
            Program::ZooKeeper => panic!("the service has no TLS to ZooKeeper"),
        };
        arguments.split(' ').map(str::to_owned).collect()
    }
}
