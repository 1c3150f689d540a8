//! The file of an import: its rows as lines of JSON, each with the number that it has in the file.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use axum::body::{Body, Bytes};
use form_urlencoded::byte_serialize;
use futures_util::stream;
use indicatif::ProgressBar;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::cli::Failure;

/// The columns of a CSV file.
const COLUMNS: [&str; 6] = ["sku", "warehouse", "add", "on_hand", "from", "create"];

/// About how many bytes are sent at once.
const PART: usize = 32 * 1024;

/// Why a file could not be read to its end.
pub(super) type Unreadable = Arc<OnceLock<String>>;

/// A file of rows.
#[derive(Debug)]
pub(super) struct ImportFile {
    pub(super) path: PathBuf,
    /// In bytes.
    pub(super) size: u64,
}

impl ImportFile {
    /// A file that can be read.
    pub(super) fn at(path: PathBuf) -> Result<Self, Failure> {
        let file = File::open(&path).and_then(|file| file.metadata());
        let size = file.map_err(|error| cannot_read(&path, &error))?.len();
        let file = Self { path, size };
        if file.is_csv() {
            columns(&mut file.csv()?).map_err(|error| cannot_read(&file.path, &error))?;
        }
        Ok(file)
    }

    /// The name of the file, so that a file that was changed is not imported as another one.
    pub(super) fn default_key(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        byte_serialize(name.as_encoded_bytes()).collect()
    }

    fn is_csv(&self) -> bool {
        let extension = self.path.extension();
        extension.is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
    }

    fn open(&self) -> Result<File, Failure> {
        File::open(&self.path).map_err(|error| cannot_read(&self.path, &error))
    }

    fn csv(&self) -> Result<csv::Reader<File>, Failure> {
        let mut reader = csv::ReaderBuilder::new();
        Ok(reader.trim(csv::Trim::All).from_reader(self.open()?))
    }

    /// The rows. `bar` shows how much of the file was read. If it cannot be read to its end, the request breaks,
    /// and `unreadable` has the reason: the request does not return it.
    pub(super) fn body(&self, bar: ProgressBar, unreadable: &Unreadable) -> Result<Body, Failure> {
        let (sender, receiver) = mpsc::channel(4);
        let mut parts = Parts {
            sender,
            unreadable: Arc::clone(unreadable),
            part: Vec::with_capacity(PART),
            bar,
        };
        if self.is_csv() {
            let (reader, lines) = (self.csv()?, LineNumbers::of(self.open()?));
            spawn_blocking(move || {
                let sent = parts.send_csv(reader, lines);
                parts.end(sent);
            });
        } else {
            let file = BufReader::new(self.open()?);
            spawn_blocking(move || {
                let sent = parts.send_lines(file);
                parts.end(sent);
            });
        }
        let parts = stream::unfold(receiver, |mut receiver| async move {
            let part = receiver.recv().await?;
            Some((part, receiver))
        });
        Ok(Body::from_stream(parts))
    }
}

pub(super) fn cannot_read(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Other(format!("cannot read {}: {error}", path.display()))
}

/// The names of the columns.
fn columns(reader: &mut csv::Reader<File>) -> io::Result<Vec<&'static str>> {
    let named = reader.headers()?.iter().map(|name| {
        let known = COLUMNS.into_iter().find(|column| *column == name);
        known.ok_or_else(|| {
            let columns = COLUMNS.join(", ");
            io::Error::other(format!(
                "line 1: `{name}` is not one of the columns {columns}"
            ))
        })
    });
    named.collect()
}

/// Sends the rows to the request.
struct Parts {
    unreadable: Unreadable,
    sender: mpsc::Sender<io::Result<Bytes>>,
    part: Vec<u8>,
    bar: ProgressBar,
}

impl Parts {
    /// Returns whether the request is still being sent.
    fn push(&mut self, line: &[u8]) -> bool {
        self.part.extend_from_slice(line);
        self.part.len() < PART || self.flush()
    }

    fn flush(&mut self) -> bool {
        let part = std::mem::take(&mut self.part);
        self.sender.blocking_send(Ok(part.into())).is_ok()
    }

    fn end(mut self, sent: io::Result<()>) {
        self.flush();
        if let Err(error) = sent {
            let _ = self.unreadable.set(error.to_string());
            // The request may have ended.
            let _ = self.sender.blocking_send(Err(error));
        }
    }

    fn send_lines(&mut self, mut file: BufReader<File>) -> io::Result<()> {
        let mut line = Vec::new();
        while file.read_until(b'\n', &mut line)? > 0 {
            self.bar.inc(line.len() as u64);
            if !self.push(&line) {
                return Ok(());
            }
            line.clear();
        }
        Ok(())
    }

    /// Sends blank lines for the head and for lines that belong to the row before, so that each row has the
    /// number that it has in the file.
    fn send_csv(
        &mut self,
        mut reader: csv::Reader<File>,
        mut lines: LineNumbers,
    ) -> io::Result<()> {
        let columns = columns(&mut reader)?;
        lines.of_record(reader.position().byte())?;
        let (mut record, mut sent) = (csv::StringRecord::new(), 0);
        loop {
            let read = reader.read_record(&mut record);
            let end = reader.position().byte();
            self.bar.set_position(end);
            let number = lines.of_record(end)?;
            if !read.map_err(|error| malformed(number, &error))? {
                return Ok(());
            }
            let blank = usize::try_from(number.saturating_sub(sent + 1)).unwrap_or_default();
            let cells = columns.iter().zip(&record);
            let cells = cells.filter(|(_, cell)| !cell.is_empty());
            let row: Map<_, _> = cells
                .map(|(name, cell)| ((*name).to_owned(), value(name, cell)))
                .collect();
            let line = format!("{}{}\n", "\n".repeat(blank), Value::Object(row));
            if !self.push(line.as_bytes()) {
                return Ok(());
            }
            sent = number;
        }
    }
}

fn malformed(line: u64, error: &csv::Error) -> io::Error {
    let reason = match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("{len} cells, but there are {expected_len} columns"),
        csv::ErrorKind::Utf8 { err, .. } => err.to_string(),
        _ => error.to_string(),
    };
    io::Error::other(format!("line {line}: {reason}"))
}

/// Counts the lines of a CSV file. Its reader knows only where records end, and counts blank lines and the second
/// byte of CRLF as part of the next record.
struct LineNumbers {
    file: BufReader<File>,
    /// How many bytes were read.
    byte: u64,
    /// The last of them.
    last: u8,
    /// The number of the line of the next one.
    line: u64,
}

impl LineNumbers {
    fn of(file: File) -> Self {
        Self {
            file: BufReader::new(file),
            byte: 0,
            last: 0,
            line: 1,
        }
    }

    /// The number of the line at which the next record begins, which ends before the byte `end`.
    fn of_record(&mut self, end: u64) -> io::Result<u64> {
        let mut start = None;
        let length = end.saturating_sub(self.byte);
        for byte in self.file.by_ref().take(length).bytes() {
            let byte = byte?;
            match (byte, self.last) {
                (b'\n', b'\r') => {}
                (b'\n' | b'\r', _) => self.line += 1,
                _ => start = start.or(Some(self.line)),
            }
            self.last = byte;
        }
        self.byte = end;
        Ok(start.unwrap_or(self.line))
    }
}

/// What a cell means. The service refuses what is none of it.
fn value(column: &str, cell: &str) -> Value {
    let number = cell.parse::<i64>();
    match (column, cell, number) {
        ("sku" | "warehouse", _, _) => cell.into(),
        (_, _, Ok(number)) => number.into(),
        (_, "null", _) => Value::Null,
        (_, "true", _) => true.into(),
        _ => cell.into(),
    }
}
