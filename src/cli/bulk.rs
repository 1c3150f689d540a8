//! `stocklock import` and `stocklock export`: many levels over HTTP.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use clap::Args;
use form_urlencoded::byte_serialize;
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::{Failure, print_output};

mod client;
mod file;

use crate::client::Answer;
use client::{Problem, Server, is_temporary, lines};
use file::{ImportFile, Unreadable, cannot_read};

/// How often a request is sent that makes no progress.
const ATTEMPTS: u32 = 5;

/// For how long an export may bring no level.
const EXPORT_SILENCE: Duration = Duration::from_mins(1);

/// For how long an import may take no byte: what the service makes now may have been sent long ago, because
/// connections have large buffers. nginx waits as long.
const IMPORT_SILENCE: Duration = Duration::from_hours(1);

/// Import a file of rows: units to add, counts, new levels
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The file: one JSON object a line with some of the fields sku, warehouse, add, `on_hand`, from, create;
    /// or CSV with such columns, if its name ends in .csv
    file: PathBuf,

    /// The name of this import, of visible ASCII characters. The same file with the same name is made once,
    /// however often it is sent [default: the name of the file]
    #[arg(long)]
    key: Option<String>,

    /// Only check what would become of the rows
    #[arg(long)]
    dry_run: bool,

    /// The service.
    #[command(flatten)]
    server: Server,
}

/// Print all levels, one line of JSON for each
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The service.
    #[command(flatten)]
    server: Server,
}

/// The last line of the answer to an import, or a row that fails.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    row: u64,
    status: u16,
    code: String,
    detail: String,
    done: Option<bool>,
    rows: u64,
    replayed: u64,
    failed: u64,
    retry_after: u64,
}

impl Line {
    /// Whether the file should be sent again.
    fn is_temporary(&self) -> bool {
        is_temporary(self.status) || self.retry_after > 0
    }
}

/// Sends the file until every row has a definite answer.
pub(super) async fn import(args: ImportArgs) -> Result<(), Failure> {
    let file = ImportFile::at(args.file)?;
    let key = args.key.unwrap_or_else(|| file.default_key());
    let path = format!("/import?dry_run={}", args.dry_run);
    let (mut most_rows, mut most_bytes, mut attempt) = (0, 0, 0);
    loop {
        let bar = bar(Some(file.size), "{bytes}/{total_bytes} [{bar:40}] {eta}");
        let unreadable = Unreadable::default();
        let body = file.body(bar.clone(), &unreadable)?;
        let lines = watched(&bar, IMPORT_SILENCE, async {
            let answer = args
                .server
                .send(Method::POST, &path, Some(&key), body)
                .await?;
            received(answer).await
        });
        let lines = lines.await;
        // An answer counts rows, because the service may have read more of the file than it made.
        let end = lines.as_ref().ok().and_then(|lines| lines.last());
        let (reached, furthest) = match end {
            Some(end) => (end.rows, &mut most_rows),
            None => (bar.position(), &mut most_bytes),
        };
        attempt = if reached > *furthest { 1 } else { attempt + 1 };
        *furthest = reached.max(*furthest);
        bar.finish_and_clear();
        if let Some(error) = unreadable.get() {
            return Err(cannot_read(&file.path, error));
        }
        let (problem, retry_after) = match lines {
            Ok(lines) if attempt == ATTEMPTS || !lines.iter().any(Line::is_temporary) => {
                return report(&lines);
            }
            Err(problem) if attempt == ATTEMPTS || !problem.is_temporary => {
                return Err(problem.into());
            }
            Ok(lines) => {
                let seconds = lines.iter().map(|line| line.retry_after).max();
                let problem = "the service could not make all rows".to_owned();
                (problem, seconds.unwrap_or_default())
            }
            Err(problem) => (problem.text, problem.retry_after),
        };
        eprintln!("{problem}: sending the file again");
        sleep(Duration::from_secs(retry_after.max(attempt.into()))).await;
    }
}

/// The lines of an answer.
async fn received(mut answer: Answer) -> Result<Vec<Line>, Problem> {
    let (mut unread, mut read) = (lines(&mut answer), Vec::new());
    while let Some(line) = unread.next_line().await.map_err(Problem::cut)? {
        read.push(serde_json::from_str(&line).map_err(Problem::cut)?);
    }
    match read.last() {
        Some(Line { done: Some(_), .. }) => Ok(read),
        _ => Err(Problem::cut("the answer has no last line")),
    }
}

/// Shows the rows that have failed, and how the import has ended.
fn report(lines: &[Line]) -> Result<(), Failure> {
    let (end, failed) = lines.split_last().expect("there is a last line");
    for line in failed {
        eprintln!("line {}: {}: {}", line.row, line.code, line.detail);
    }
    print_output(&format!(
        "rows: {}, made before: {}, failed: {}\n",
        end.rows, end.replayed, end.failed
    ))?;
    if end.done != Some(true) {
        return Err(Failure::Other(format!("{}: {}", end.code, end.detail)));
    }
    if end.failed > 0 {
        return Err(Failure::Other(format!("rows that failed: {}", end.failed)));
    }
    Ok(())
}

/// Prints all levels. If the connection breaks, it continues after the last one that was printed.
pub(super) async fn export(args: ExportArgs) -> Result<(), Failure> {
    let bar = if io::stdout().is_terminal() {
        ProgressBar::hidden()
    } else {
        bar(None, "{pos} levels, {per_sec}")
    };
    let (mut after, mut attempt) = (String::new(), 1);
    loop {
        let before = bar.position();
        let printing = print_levels(&args.server, &mut after, &bar);
        let printed = watched(&bar, EXPORT_SILENCE, printing).await;
        match printed {
            Ok(()) => {
                bar.finish_and_clear();
                return Ok(());
            }
            Err(Stop::Failure(failure)) => return Err(failure),
            Err(Stop::Problem(problem)) if attempt == ATTEMPTS || !problem.is_temporary => {
                return Err(problem.into());
            }
            Err(Stop::Problem(problem)) => eprintln!("{}: continuing", problem.text),
        }
        attempt = if bar.position() > before {
            1
        } else {
            attempt + 1
        };
        sleep(Duration::from_secs(attempt.into())).await;
    }
}

/// Why an export stops.
enum Stop {
    Problem(Problem),
    Failure(Failure),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

/// Prints the levels after one, which moves on.
async fn print_levels(server: &Server, after: &mut String, bar: &ProgressBar) -> Result<(), Stop> {
    let path = format!("/export{after}");
    let mut answer = server.send(Method::GET, &path, None, Body::empty()).await?;
    let mut lines = lines(&mut answer);
    while let Some(mut line) = lines.next_line().await.map_err(Problem::cut)? {
        let level: LevelName = serde_json::from_str(&line).map_err(Problem::cut)?;
        line.push('\n');
        print_output(&line).map_err(Stop::Failure)?;
        let name = format!("{}/{}", level.sku, level.warehouse);
        *after = format!(
            "?after={}",
            byte_serialize(name.as_bytes()).collect::<String>()
        );
        bar.inc(1);
    }
    Ok(())
}

/// The name of a level.
#[derive(Deserialize)]
struct LevelName {
    sku: String,
    warehouse: String,
}

/// A progress bar on standard error, if that is a terminal.
fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a valid template");
    length
        .map_or_else(ProgressBar::no_length, ProgressBar::new)
        .with_style(style)
}

/// Waits for `work` as long as the bar moves at least once in this time.
async fn watched<T, E: From<Problem>>(
    bar: &ProgressBar,
    silence: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut work = pin!(work);
    loop {
        let before = bar.position();
        match timeout(silence, &mut work).await {
            Ok(done) => return done,
            Err(elapsed) if bar.position() == before => return Err(Problem::cut(elapsed).into()),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file was sent, and the service makes its rows.
    #[tokio::test(start_paused = true)]
    async fn import_waits_for_rows_that_are_being_made() {
        let bar = ProgressBar::hidden();
        for (silence, is_made) in [(IMPORT_SILENCE, true), (EXPORT_SILENCE, false)] {
            let making = async {
                sleep(Duration::from_mins(50)).await;
                Ok::<_, Problem>(())
            };
            assert_eq!(watched(&bar, silence, making).await.is_ok(), is_made);
        }
    }
}
