//! Settings: the bounds of a replica.

use std::time::Duration;

use clap::Args;

use super::milliseconds;

/// The bounds of a replica. Every wait and every queue has one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Maximum wait for a row, a lock or a free database connection, in ms
    #[arg(long, env, value_name = "MS", default_value = "2000", value_parser = milliseconds)]
    pub wait_limit_ms: Duration,

    /// Maximum number of attempts at one deduction when other writers win
    #[arg(long, env, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_attempts: u32,

    /// Maximum time until the answer to a write, in ms; then 504
    #[arg(long, env, value_name = "MS", default_value = "5000", value_parser = milliseconds)]
    pub request_deadline_ms: Duration,

    /// Maximum number of writes in progress, half of them for one SKU; more are answered 503
    #[arg(long, env, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_in_flight: u32,

    /// Maximum size of a request body, in bytes
    #[arg(long, env, value_name = "BYTES", default_value_t = 64 * 1024,
          value_parser = clap::value_parser!(u32).range(256..=1_048_576))]
    pub max_body_bytes: u32,

    /// Maximum size of the body of a batch, in bytes
    #[arg(long, env, value_name = "BYTES", default_value_t = 1_048_576,
          value_parser = clap::value_parser!(u32).range(256..=16_777_216))]
    pub max_batch_body_bytes: u32,

    /// Maximum number of client connections; more wait to be accepted
    #[arg(long, env, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_connections: u32,

    /// Maximum time until the first byte on a new connection, in ms
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub first_byte_timeout_ms: Duration,

    /// Maximum time to receive a request's header, or for the client to read an answer, in ms
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub header_timeout_ms: Duration,

    /// Maximum time to receive a request's body, in ms; then 408
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub body_timeout_ms: Duration,

    /// Maximum age of a level in an answer to GET /stock/{sku}?cached=true, in ms
    #[arg(long, env, value_name = "MS", default_value = "1000", value_parser = milliseconds)]
    pub cached_level_max_age_ms: Duration,

    /// Time in ms after which an idle keep-alive connection is closed; must be longer than the
    /// keep-alive timeout of the proxy in front
    #[arg(long, env, value_name = "MS", default_value = "75000", value_parser = milliseconds)]
    pub idle_timeout_ms: Duration,

    /// Maximum time to finish requests after SIGTERM, in ms
    #[arg(long, env, value_name = "MS", default_value = "10000", value_parser = milliseconds)]
    pub drain_limit_ms: Duration,
}

impl Limits {
    /// How long to retry a write with an unknown outcome: the caller's deadline, less the time for
    /// a last attempt and the answer.
    #[must_use]
    pub fn unknown_outcome_limit(&self) -> Duration {
        self.request_deadline_ms
            .mul_f64(0.8)
            .max(self.wait_limit_ms)
    }
}
