//! Reads `.env` and the command line, and runs the command.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use stocklock::cli::{self, Failure};
use stocklock::telemetry;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let _log = telemetry::flush_at_end();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::OutputClosed) {
                telemetry::print_line(&format!("stocklock: {failure}"));
            }
            failure.exit_code()
        }
    }
}

fn run() -> Result<(), Failure> {
    // Before any thread starts, because it sets environment variables. Only in this directory: a
    // file in a parent directory may name another project's database.
    if let Err(error) = dotenvy::from_path(".env")
        && !error.not_found()
    {
        return Err(Failure::Setting(format!(".env: {error}")));
    }
    cli::parse()?.run()
}
