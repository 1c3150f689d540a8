//! Settings: the strategy, the address and the name of a replica.

use std::net::SocketAddr;

use clap::Args;

use stocklock_core::strategy::Strategy;

/// The strategy, the address and the name of a replica.
#[derive(Debug, Clone, Args)]
pub struct ServiceConfig {
    /// The strategy that protects deductions; GET /strategies lists them
    #[arg(long, env, value_name = "NAME", default_value = "single-sql")]
    pub strategy: Strategy,

    /// Allow `serve` to start with a strategy that oversells
    #[arg(long, env, value_name = "BOOL", default_value_t = false, num_args = 0..=1,
          default_missing_value = "true", action = clap::ArgAction::Set)]
    pub allow_unsafe: bool,

    /// Address to listen on [default: 0.0.0.0:8080; `lab`: 127.0.0.1:8080]
    #[arg(long, env, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,

    /// Name of this replica in the X-Replica header [default: host name and process id]
    #[arg(long, env, value_name = "NAME", value_parser = replica_id)]
    pub replica_id: Option<String>,
}

fn replica_id(text: &str) -> Result<String, String> {
    if !(1..=64).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("expected 1 to 64 visible ASCII characters".to_owned());
    }
    Ok(text.to_owned())
}
