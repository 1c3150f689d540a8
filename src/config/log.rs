//! Settings: the log.

use clap::{Args, ValueEnum};

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

/// The log, which goes to stderr.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogConfig {
    /// Which lines to log, by level and module: `info`, `stocklock=debug`, …
    #[arg(
        long = "log",
        env = "LOG",
        value_name = "FILTER",
        default_value = "info,zookeeper_client=warn"
    )]
    pub filter: String,

    /// Format of log lines
    #[arg(long = "log-format", env = "LOG_FORMAT", value_name = "FORMAT", value_enum,
          default_value_t = LogFormat::Text)]
    pub format: LogFormat,
}
