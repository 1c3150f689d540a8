//! The commands: `stocklock serve | lab | race | failures | migrate | audit | keys | ping | import | export |
//! openapi`.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches as _, Parser, Subcommand};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

mod audit;
mod bulk;
mod inherit;
mod keys;
mod ping;
mod race;
mod replica;
mod serve;
mod servers;

use self::inherit::Inherited;
use crate::config::{self, Addresses, Config, DatabaseConfig, LogConfig, LogFormat};
use crate::telemetry::Traces;
use crate::{http, store, telemetry};
use stocklock_failures::FailuresArgs;

/// An inventory service that never oversells, and shows why.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Every setting is a flag and an environment variable, which may be in a .env file. Start with

  stocklock lab
  curl -X POST localhost:8080/stock/deduct";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve in production: configured strategies, no lab routes
    Serve(Config),
    /// Serve the laboratory: seeded stock, a start page, and ?strategy= on each request
    Lab {
        /// All settings.
        #[command(flatten)]
        config: Inherited<Config>,
        /// Run as this replica of a race, see `replica.rs`.
        #[arg(long, hide = true, value_name = "N")]
        replica: Option<u32>,
    },
    /// Sell a fresh SKU with each strategy over HTTP, and show which strategies oversell
    Race(race::RaceCommand),
    /// Watch classic ways to get stock wrong, step by step on real servers, beside the right way
    Failures(FailuresArgs),
    /// Update the schema of the database, and exit
    Migrate {
        /// The database.
        #[command(flatten)]
        database: DatabaseConfig,
        /// The log.
        #[command(flatten)]
        log: LogConfig,
    },
    /// Compare levels with the ledger, and print one line of JSON for each SKU
    Audit(audit::AuditArgs),
    /// Create, list and revoke API keys
    Keys(keys::KeysArgs),
    /// Send a file of rows to the service: units to add, counts, new levels
    Import(bulk::ImportArgs),
    /// Print all levels of the service, one line of JSON for each
    Export(bulk::ExportArgs),
    /// Check that the replica on this machine is ready: exit code 1 if it is not
    Ping(Addresses),
    /// Print the OpenAPI document
    Openapi {
        /// Print the document of the lab instead of the production service
        #[arg(long)]
        lab: bool,
    },
}

/// The exit code for a wrong configuration.
const EXIT_CONFIGURATION: u8 = 2;

/// The exit code if a SKU could not be audited.
const EXIT_NOT_AUDITED: u8 = 3;

/// The exit code if the reader of standard output has gone: the one that shells show for `SIGPIPE`.
const EXIT_OUTPUT_CLOSED: u8 = 141;

/// How long the end of the process waits for calls that cannot be cancelled.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(500);

/// Parses the command line. Exits after `--help` and if the command line itself is wrong.
///
/// # Errors
/// One line that names the variable of a setting with a wrong value.
pub fn parse() -> Result<Cli, Failure> {
    let values = config::ignore_empty_variables(Cli::command()).try_get_matches();
    let values = values.map_err(|error| match setting_problem(&error) {
        Some(line) => Failure::Setting(line),
        None => error.exit(),
    })?;
    if let Some(line) = padding_problem(&values) {
        return Err(Failure::Setting(line));
    }
    Ok(Cli::from_arg_matches(&values).unwrap_or_else(|error| error.exit()))
}

/// `VARIABLE (--flag): reason`, if a value begins or ends with white space.
fn padding_problem(values: &ArgMatches) -> Option<String> {
    let (name, values) = values.subcommand()?;
    let command = Cli::command();
    let setting = config::padded_setting(command.find_subcommand(name)?, values)?;
    let name = name_of(setting)?;
    Some(format!(
        "{name}: begins or ends with a blank or a newline: remove it"
    ))
}

/// `VARIABLE (--flag)`
fn name_of(setting: &Arg) -> Option<String> {
    let variable = setting.get_env()?.to_string_lossy();
    Some(format!("{variable} (--{})", setting.get_long()?))
}

/// `VARIABLE (--flag): value: reason`, if the error is in the value of a setting; without a value that may have a
/// password.
fn setting_problem(error: &clap::Error) -> Option<String> {
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let long = flag.strip_prefix("--")?.split([' ', '=']).next()?;
    let command = Cli::command();
    let argument = command
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .find(|argument| argument.get_long() == Some(long))?;
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => format!("`{}`: ", value.escape_debug()),
        _ => String::new(),
    };
    let reason = std::error::Error::source(error).map_or_else(
        || "not one of the values in --help".to_owned(),
        ToString::to_string,
    );
    if value.contains('@') {
        let name = name_of(argument).unwrap_or_else(|| format!("--{long}"));
        return Some(format!("{name}: {reason}"));
    }
    Some(format!("{}: {value}{reason}", name_of(argument)?))
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration is wrong; nothing was started.
    #[error("{0}")]
    Setting(String),
    /// Something other than the configuration is wrong.
    #[error("{0}")]
    Other(String),
    /// The audit ran and found this; the report is already printed.
    #[error("{0} levels differ from their ledgers, or more was sold than was there")]
    Drift(usize),
    /// Something could not be audited.
    #[error("cannot audit: {0}")]
    NotAudited(String),
    /// The race ran, but a strategy broke its promise; the report is already printed.
    #[error("a promise was broken, or is not proven")]
    PromiseBroken,
    /// The reader of standard output has gone, as after `| head`. No message is printed.
    #[error("standard output is closed")]
    OutputClosed,
}

impl From<stocklock_failures::Failure> for Failure {
    fn from(failure: stocklock_failures::Failure) -> Self {
        Self::Other(failure.to_string())
    }
}

impl Failure {
    /// 2 for wrong configuration, 3 for an audit that could not be made, 141 if the reader of the output
    /// has gone, 1 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Setting(_) => ExitCode::from(EXIT_CONFIGURATION),
            Self::NotAudited(_) => ExitCode::from(EXIT_NOT_AUDITED),
            Self::OutputClosed => ExitCode::from(EXIT_OUTPUT_CLOSED),
            Self::Other(_) | Self::Drift(_) | Self::PromiseBroken => ExitCode::FAILURE,
        }
    }
}

impl Cli {
    /// Runs the command, in a runtime of its own. That is not left to the caller, because then the
    /// caller's crate would compile the futures of all commands again.
    ///
    /// # Errors
    /// The reason why it failed.
    pub fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Runtime::new()
            .map_err(|error| Failure::Other(format!("cannot start the runtime: {error}")))?;
        let result = runtime.block_on(self.execute());
        // The look-up of a host name cannot be cancelled, and may take much longer.
        runtime.shutdown_timeout(SHUTDOWN_LIMIT);
        result
    }

    async fn execute(self) -> Result<(), Failure> {
        match self.command {
            Command::Serve(config) => serve::serve(&config).await,
            Command::Lab { config, replica } => match replica {
                Some(number) => replica::run(&config.parsed, number).await,
                None => serve::lab(config).await,
            },
            Command::Race(args) => Box::pin(race::race(args)).await,
            Command::Failures(args) => Box::pin(args.run(print_output)).await,
            Command::Migrate { database, log } => {
                start_logging(&log)?;
                migrate(&database).await
            }
            Command::Audit(args) => audit::audit(args).await,
            Command::Keys(args) => keys::keys(args).await,
            Command::Import(args) => Box::pin(bulk::import(args)).await,
            Command::Export(args) => Box::pin(bulk::export(args)).await,
            Command::Ping(addresses) => ping::ping(&addresses).await,
            Command::Openapi { lab } => print_output(&format!("{:#}\n", http::document(lab))),
        }
    }
}

/// Logs to stderr, filtered by level and module.
fn start_logging(log: &LogConfig) -> Result<(), Failure> {
    start_telemetry(log, None)
}

/// The same, and collects traces.
fn start_telemetry(log: &LogConfig, traces: Option<Traces>) -> Result<(), Failure> {
    let filter: Targets = log
        .filter
        .parse()
        .map_err(|error| Failure::Setting(format!("LOG: {error}")))?;
    let logging = tracing_subscriber::fmt::layer()
        .with_writer(telemetry::writer)
        .with_ansi(io::stderr().is_terminal());
    let logging = match log.format {
        LogFormat::Text => logging.boxed(),
        LogFormat::Json => logging.json().boxed(),
    };
    tracing_subscriber::registry()
        .with(logging.with_filter(filter))
        .with(store::commit_warnings())
        .with(traces.map(Traces::layer))
        .try_init()
        .map_err(|error| Failure::Setting(error.to_string()))?;
    telemetry::log_panics();
    Ok(())
}

/// Prints to standard output.
fn print_output(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    let printed = output.write_all(text.as_bytes());
    let printed = printed.and_then(|()| output.flush());
    printed.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Other(format!("cannot write to standard output: {error}")),
    })
}

async fn migrate(database: &DatabaseConfig) -> Result<(), Failure> {
    let migrated = store::migrate(database.url()).await;
    migrated.map_err(|problem| Failure::Other(format!("cannot use the database: {problem}")))
}
