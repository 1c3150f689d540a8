//! Reads `.env` and the command line, and runs the command.

use std::fs;
use std::io::{self, ErrorKind, Read};
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
    read_variables().map_err(|problem| Failure::Setting(format!(".env: {problem}")))?;
    cli::parse()?.run()
}

/// Sets the variables of `.env`, if there is one. Those of the environment stay as they are.
fn read_variables() -> Result<(), String> {
    let text = match fs::read(".env") {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.map_err(|error| error.to_string())?,
    };
    let mut lines = Lines {
        rest: &text,
        count: 0,
    };
    dotenvy::from_read(&mut lines).map_err(|error| match error {
        // The message must not contain the text, which may be a password.
        dotenvy::Error::LineParse(text, _) => format!(
            "line {} is not NAME=value; put a value with blanks or quotes in single quotes",
            (lines.count + 1).saturating_sub(text.lines().count())
        ),
        error => error.to_string(),
    })
}

/// A text that is read line by line, so that the number of the last line is known.
struct Lines<'a> {
    rest: &'a [u8],
    /// The number of lines that were read.
    count: usize,
}

impl Read for Lines<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let line = self.rest.split_inclusive(|byte| *byte == b'\n').next();
        let line = line.unwrap_or_default();
        let (read, _) = line.split_at(line.len().min(buffer.len()));
        buffer[..read.len()].copy_from_slice(read);
        self.rest = &self.rest[read.len()..];
        self.count += usize::from(!read.is_empty() && read.len() == line.len());
        Ok(read.len())
    }
}
