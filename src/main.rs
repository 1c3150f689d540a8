//! Reads `.env` and the command line, and runs the command.

use std::process::ExitCode;

use mimalloc::MiMalloc;
use stocklock::cli::{self, Cli, Failure};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Before any thread starts, because it sets environment variables. Only in this directory: a
    // file in a parent directory may name another project's database.
    match dotenvy::from_path(".env") {
        Err(error) if !error.not_found() => {
            return fail(&Failure::Setting(format!(".env: {error}")));
        }
        _ => {}
    }
    match cli::parse() {
        Ok(command) => run(command),
        Err(exit_code) => exit_code,
    }
}

fn run(command: Cli) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            return fail(&Failure::Other(format!(
                "cannot start the runtime: {error}"
            )));
        }
    };
    match runtime.block_on(command.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    eprintln!("stocklock: {failure}");
    failure.exit_code()
}
