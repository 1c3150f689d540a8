//! The log: to stderr, filtered by level and module.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;

/// Starts logging. Call it once.
///
/// # Errors
/// One line that says what is wrong with the filter.
pub fn init(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter).map_err(|error| format!("LOG: {error}"))?;
    let logging = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => logging.try_init(),
        LogFormat::Json => logging.json().try_init(),
    }
    .map_err(|error| error.to_string())
}
