//! The rows of an import: reads the lines of the body, and parses them.

use std::io;
use std::pin::pin;

use axum::body::Body;
use axum::http::StatusCode;
use futures_util::TryStreamExt as _;
use serde::{Deserialize, Deserializer};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::io::StreamReader;
use utoipa::ToSchema;

use super::super::adjust::check_delta;
use super::super::body::{incomplete, too_slow};
use super::super::extract::Object;
use super::super::{Api, ApiError, present, present_whole};
use stocklock_core::stock::{
    Caller, Change, Count, CountedFrom, Idempotency, IdempotencyKey, Line, Operation, Remark,
    Remarks, RequestHash, Sku, Warehouse,
};
use stocklock_core::whole::whole;

/// The maximum number of lines whose rows are made together. Their keys are read first.
const CHUNK: u64 = 500;

/// The maximum length of a line in bytes.
const MAX_LINE: u64 = 4_096;

/// The reason that the ledger has of each row.
const REASON: &str = "import";

/// A row of an import: units to add, a count, or a new level.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ImportRow {
    /// The SKU.
    #[schema(value_type = String, example = "1001")]
    sku: Sku,
    /// The warehouse; default `main`.
    #[serde(default)]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Warehouse,
    /// Units to add; negative to take units. Not 0.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(example = 24)]
    add: Option<i64>,
    /// The units that were counted, or those of a new level.
    #[serde(default, deserialize_with = "present_whole")]
    on_hand: Option<i64>,
    /// The units that the level must have before. `null`: any number of them.
    #[serde(default, deserialize_with = "from")]
    #[schema(value_type = Option<i64>)]
    from: Option<CountedFrom>,
    /// `true`: the level must not exist, and is created.
    #[serde(default, deserialize_with = "present")]
    create: Option<bool>,
}

fn from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<CountedFrom>, D::Error> {
    #[derive(Deserialize)]
    struct Whole(#[serde(deserialize_with = "whole")] i64);

    let units = Option::<Whole>::deserialize(deserializer)?;
    let from = units.map_or(CountedFrom::Any, |Whole(units)| CountedFrom::Units(units));
    Ok(Some(from))
}

/// A line of the body that is not blank.
#[derive(Debug)]
pub(super) struct Sent {
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// The row, or what is wrong with it.
    pub(super) row: Result<ImportRow, ApiError>,
}

/// The lines of a body.
pub(super) struct Lines {
    body: Box<dyn AsyncBufRead + Send + Unpin>,
    number: u64,
}

impl Lines {
    pub(super) fn of(body: Body) -> Self {
        let bytes = body.into_data_stream().map_err(io::Error::other);
        Self {
            body: Box::new(StreamReader::new(bytes)),
            number: 0,
        }
    }

    /// The rows of the next lines: at most [`CHUNK`] that have arrived when the last chunk `is_made`. So rows of a
    /// slow client do not wait for each other, and sales wait for few of them. A line whose end has not arrived is
    /// waited for. There is no row at the end of the body.
    pub(super) async fn chunk(
        &mut self,
        api: &Api,
        is_made: impl Future<Output = ()>,
    ) -> Result<Vec<Sent>, ApiError> {
        let (mut rows, mut is_made, first) = (Vec::new(), pin!(is_made), self.number);
        // Blank lines count as lines, and give no more time to the first row.
        let limit = || Instant::now() + api.crowd.wait(api.config.limits.body_timeout_ms);
        let mut deadline = limit();
        while rows.is_empty() || self.number - first < CHUNK {
            if !rows.is_empty() {
                tokio::select! {
                    biased;
                    arrived = self.body.fill_buf() => arrived.map_err(|_| incomplete())?,
                    () = &mut is_made => break,
                };
                deadline = limit();
            }
            let line = timeout_at(deadline, self.line()).await;
            let Some(line) = line.unwrap_or_else(|_elapsed| Err(too_slow()))? else {
                break;
            };
            let text = line.trim_ascii();
            if !text.is_empty() {
                rows.push(Sent {
                    number: self.number,
                    row: parsed(text),
                });
            }
        }
        Ok(rows)
    }

    /// The next line. None at the end of the body.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        let mut line = Vec::new();
        let mut start = (&mut self.body).take(MAX_LINE);
        let read = start.read_until(b'\n', &mut line).await;
        let length = read.map_err(|_| incomplete())?;
        self.number += 1;
        if length as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            let detail = format!("line {}: must have at most {MAX_LINE} bytes", self.number);
            let error = ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail);
            return Err(error);
        }
        Ok((length > 0).then_some(line))
    }

    /// Reads what is left for as long as a body may take, so that the client can read the answer.
    pub(super) async fn discard(&mut self, api: &Api) {
        let mut nowhere = tokio::io::sink();
        let rest = tokio::io::copy(&mut self.body, &mut nowhere);
        // A client that sends more sees a broken connection instead.
        let _ = timeout(api.config.limits.body_timeout_ms, rest).await;
    }
}

fn parsed(line: &[u8]) -> Result<ImportRow, ApiError> {
    let row = serde_json::from_slice(line).map(|Object(row)| row);
    row.map_err(|error| {
        if error.is_data() {
            ApiError::invalid(error.to_string())
        } else {
            ApiError::new(StatusCode::BAD_REQUEST, "not-json", error.to_string())
        }
    })
}

impl ImportRow {
    /// The operation of the row.
    pub(super) fn operation(
        self,
        caller: &Caller,
        key: IdempotencyKey,
        deadline: Instant,
    ) -> Result<Operation, ApiError> {
        let change = match (self.add, self.on_hand, self.from, self.create) {
            (Some(units), None, None, None) => {
                check_delta("add", units)?;
                Change::Adjust(units)
            }
            (None, Some(on_hand), Some(from), None) => Change::Count(Count { on_hand, from }),
            (None, Some(on_hand), None, Some(true)) => Change::Count(Count {
                on_hand,
                from: CountedFrom::Absent,
            }),
            _ => {
                let forms = "send `add`, or `on_hand` and `from`, or `on_hand` and `create: true`";
                return Err(ApiError::invalid(forms));
            }
        };
        let lines = vec![Line::new(self.sku, self.warehouse, change)];
        let reason = Remark::parse("reason", REASON).map_err(ApiError::invalid)?;
        let remarks = Remarks {
            reason: Some(reason),
            reference: None,
        };
        let idempotency = Idempotency {
            caller: caller.clone(),
            key,
            hash: RequestHash::of_operation(&lines, &remarks),
        };
        let row = Operation::of_lines(caller.clone(), lines, Some(idempotency), remarks, deadline);
        Ok(row?)
    }
}
