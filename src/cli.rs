//! The commands: `stocklock serve | lab | race | migrate | openapi`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

mod inherit;
mod race;
mod replica;

use crate::app::Replica;
use crate::config::{Config, DatabaseConfig, LogConfig, Mode};
use crate::descriptors::allow_connections;
use crate::{http, store, telemetry};

/// An inventory service that never oversells, and shows why.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Every setting is a flag and an environment variable; a .env file is read as well. Start with

  stocklock lab
  curl -X POST localhost:8080/stock/deduct";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve in production: one strategy, no lab routes
    Serve(Config),
    /// Serve the laboratory: seeded stock, a start page, and ?strategy= on each request
    Lab(LabArgs),
    /// Sell a fresh SKU with each strategy over HTTP and show which strategies oversell
    Race(race::RaceArgs),
    /// Bring the database's schema up to date, and end
    Migrate(MigrateArgs),
    /// Print the OpenAPI document
    Openapi {
        /// The lab's instead of the production service's
        #[arg(long)]
        lab: bool,
    },
}

/// Arguments of `lab`.
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    /// All settings.
    #[command(flatten)]
    config: Config,
    /// Run as this replica of a race, see `replica.rs`.
    #[arg(long, hide = true, value_name = "N")]
    replica: Option<u32>,
}

/// What `migrate` needs to know.
#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    /// Which database.
    #[command(flatten)]
    database: DatabaseConfig,
    /// What is logged.
    #[command(flatten)]
    log: LogConfig,
}

/// Wrong configuration: nothing was started.
const EXIT_CONFIGURATION: u8 = 2;

/// Parses the command line. What is wrong with a setting is said in one line that names the
/// variable.
///
/// # Errors
/// The exit code, once the message is printed.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        match setting_problem(&error) {
            Some(line) => eprintln!("stocklock: {line}"),
            None => drop(error.print()),
        }
        if error.use_stderr() {
            ExitCode::from(EXIT_CONFIGURATION)
        } else {
            ExitCode::SUCCESS
        }
    })
}

/// `VARIABLE (--flag): value: why`, for an error in a setting's value.
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
    let variable = argument.get_env()?.to_string_lossy();
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => format!("`{value}`: "),
        _ => String::new(),
    };
    let why = std::error::Error::source(error).map_or_else(
        || "not one of the values that --help lists".to_owned(),
        ToString::to_string,
    );
    Some(format!("{variable} (--{long}): {value}{why}"))
}

/// Why a command was not carried out, for people.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Wrong configuration; nothing was started.
    #[error("{0}")]
    Setting(String),
    /// The configuration is right, but something else is not.
    #[error("{0}")]
    Other(String),
    /// The command did its work, and what it found must not pass; it has said so already.
    #[error("a promise was broken, or is not proven")]
    PromiseBroken,
}

impl Failure {
    /// 2 for wrong configuration, 1 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Setting(_) => ExitCode::from(EXIT_CONFIGURATION),
            Self::Other(_) | Self::PromiseBroken => ExitCode::FAILURE,
        }
    }
}

impl Cli {
    /// Carries the command out.
    ///
    /// # Errors
    /// What keeps it from being carried out.
    pub async fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Serve(config) => serve(&config, Mode::Serve).await,
            Command::Lab(LabArgs { config, replica }) => match replica {
                Some(number) => replica::run(&config, number).await,
                None => serve(&config, Mode::Lab).await,
            },
            Command::Race(args) => race::race(args).await,
            Command::Migrate(MigrateArgs { database, log }) => {
                start_logging(&log)?;
                migrate(&database).await
            }
            Command::Openapi { lab } => {
                println!("{:#}", http::document(lab));
                Ok(())
            }
        }
    }
}

fn start_logging(log: &LogConfig) -> Result<(), Failure> {
    telemetry::init(&log.filter, log.format).map_err(Failure::Setting)
}

async fn migrate(database: &DatabaseConfig) -> Result<(), Failure> {
    let migrated = store::migrate(database.url()).await;
    migrated.map_err(|problem| Failure::Other(format!("cannot migrate the database: {problem}")))
}

async fn serve(config: &Config, mode: Mode) -> Result<(), Failure> {
    start_logging(&config.log)?;
    allow_connections(config.connections());
    let replica = Replica::build(config, mode).map_err(Failure::Setting)?;
    migrate(&config.database).await?;
    let (listener, address) = listen(config, mode).await?;
    stop_on_signal(&replica)?;
    replica.warn_of_unsafe_settings().await;
    match mode {
        Mode::Serve => tracing::warn!(
            "there are no API keys yet: let only callers that you trust reach this service"
        ),
        Mode::Lab => replica
            .seed_lab()
            .await
            .map_err(|error| Failure::Other(format!("cannot seed the lab's stock: {error}")))?,
    }
    announce(config, mode, address);
    replica.run(listener).await;
    tracing::info!("stopped");
    Ok(())
}

async fn listen(config: &Config, mode: Mode) -> Result<(TcpListener, SocketAddr), Failure> {
    let address = config.listen(mode);
    let failed = |error| Failure::Setting(format!("LISTEN: cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn announce(config: &Config, mode: Mode, address: SocketAddr) {
    let strategy = config.service.strategy.name();
    tracing::info!(%address, strategy, mode = ?mode, "listening");
    if mode == Mode::Lab {
        tracing::info!("try: curl -X POST http://{address}/stock/deduct");
    }
}

/// SIGTERM and SIGINT end the replica gracefully.
fn stop_on_signal(replica: &Replica) -> Result<(), Failure> {
    let listen = |kind| signal(kind).map_err(|error| Failure::Other(error.to_string()));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let shutdown = replica.shutdown_token();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: finishing what is under way");
        shutdown.cancel();
    });
    Ok(())
}
