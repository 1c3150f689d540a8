//! Settings: the SQL database.

use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use super::secret;

/// The SQL database of stock and ledger.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Database")]
pub struct DatabaseConfig {
    /// The database of stock and ledger: `sqlite://FILE`, `mysql://…`, `mariadb://…` or
    /// `postgres://…` [default: `sqlite://stocklock.db`; `race`: a temporary SQLite file]
    #[arg(long, env, hide_env_values = true, value_name = "URL", value_parser = secret)]
    pub database_url: Option<SecretString>,

    /// Maximum number of database connections, besides one for readiness
    #[arg(long, env, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub database_pool_size: u32,
}

impl DatabaseConfig {
    /// The URL without user, password and parameters, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        let url = self.url().split('?').next().unwrap_or_default();
        match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
            _ => url.to_owned(),
        }
    }

    /// The URL with the password.
    #[must_use]
    pub fn url(&self) -> &str {
        self.database_url
            .as_ref()
            .map_or("sqlite://stocklock.db", |url| url.expose_secret())
    }
}
