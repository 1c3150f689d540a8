//! `POST /import`: rows that add units, count them or create levels, in one request of any length.
//!
//! Row n has the key `K:n`, if K is the key of the request. So an import that was cut off is continued by sending
//! the same file again. Rows are made in chunks. The keys of a chunk are read first: if one is recorded with other
//! content, the file has changed, and nothing of the chunk is made. Memory depends on the size of a chunk only.
//! A row that may be made later ends the import, so that the rows of a level are made in their order.
//!
//! The answer has the rows that fail, and follows the last row: nginx sends no more of a request after it has
//! received the head of the answer. With `rows=all`, the answer has every row, and begins at once.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use super::error::{Field, Fields};
use super::extract::check_content_type;
use super::fields::MAX_IMPORT_KEY;
use super::headers::idempotency_key;
use super::keys::{Granted, admit_more};
use super::{Api, ApiError, NDJSON, StrictQuery, openapi};
use stocklock_core::access::Scope;
use stocklock_core::level_service::Levels;
use stocklock_core::stock::{Caller, IdempotencyKey, Operation, StockError};

mod make;
mod rows;

use make::{dry_run, make};
pub(super) use rows::ImportRow;
use rows::{Lines, Sent};

/// After so many failures, an import ends that answers only these.
const MAX_FAILURES: u64 = 1_000;

/// The code of a row that an earlier request has made.
const REPLAYED: &str = "replayed";

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportQuery {
    /// `all`: the answer has every row, and begins at once. Default: only rows that fail, at most 1,000.
    #[param(value_type = Option<String>)]
    rows: Option<Rows>,
    /// Only check what would become of the rows, up to 100,000 levels. Default: `false`.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rows {
    All,
}

/// A line of the answer: a row, or the end.
#[derive(ToSchema)]
#[schema(as = ImportLine)]
#[expect(dead_code, reason = "only describes")]
pub(super) struct ImportLine {
    /// The number of the row: that of its line, from 1.
    row: Option<u64>,
    /// The status of the same change in a request of its own.
    status: Option<u16>,
    /// `adjusted`, `counted` or `created`; `replayed`, if an earlier request has made the row; or the code of the
    /// error.
    #[schema(example = "adjusted")]
    code: Option<String>,
    /// The version of the level after the row (200).
    version: Option<i64>,
    /// What happened, and what to do (errors).
    detail: Option<String>,
    /// Units on hand (`precondition-failed`).
    on_hand: Option<i64>,
    /// In the last line: whether all rows were read. If not, `code` says why.
    done: Option<bool>,
    /// In the last line: the number of rows that were made or failed.
    rows: Option<u64>,
    /// In the last line: the number of these rows that an earlier request has made.
    replayed: Option<u64>,
    /// In the last line: the number of rows that failed.
    failed: Option<u64>,
    /// In the last line: after how many seconds to send the file again.
    retry_after: Option<u32>,
}

/// Import rows that add units, count them or create levels
///
/// Send one row a line. Row n has the key `K:n`, if K is the Idempotency-Key. If the import does not end, send the
/// same file again with the same key: what is made is not made twice. If a row is answered 503, 504 or
/// `request-in-flight`, the import ends there. If the file was changed, the import ends with `file-changed` before
/// the chunk of at most 500 rows that differs.
#[utoipa::path(
    post, path = "/import", tag = "bulk", params(ImportQuery, openapi::RequiredKeyHeader),
    request_body(content = ImportRow, content_type = "application/x-ndjson"),
    responses(
        (status = 200, description = "A line for each row that fails, and one at the end. Its `code` may be that of an error, or `file-changed` (409), `too-many-failures` (422), `too-many-rows` (422)", body = ImportLine,
            content_type = "application/x-ndjson"),
        openapi::ReadErrors, openapi::WriteErrors,
    )
)]
pub(super) async fn import(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    StrictQuery(query): StrictQuery<ImportQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let answers_all = query.rows == Some(Rows::All);
    let mut import = Import::new(api, (headers, grant.caller), &query, body)?;
    let content_type = [(header::CONTENT_TYPE, NDJSON)];
    if answers_all {
        let parts = stream::unfold(import, |mut import| async move {
            let part = import.next().await?;
            Some((Ok::<_, Infallible>(part), import))
        });
        // The server's limits for idle connections do not apply to it.
        let close = [(header::CONNECTION, "close")];
        return Ok((content_type, close, Body::from_stream(parts)).into_response());
    }
    let mut answer = String::new();
    while let Some(part) = import.next().await {
        answer += &part;
    }
    Ok((content_type, answer).into_response())
}

/// An import in progress.
struct Import {
    api: Arc<Api>,
    headers: HeaderMap,
    caller: Caller,
    key: IdempotencyKey,
    answers_all: bool,
    /// The levels as a dry run leaves them.
    preview: Option<Levels>,
    lines: Lines,
    /// The next chunk, if it was read while the last one was made.
    next_chunk: Option<Result<Vec<Row>, ApiError>>,
    rows: u64,
    replayed: u64,
    failed: u64,
    has_ended: bool,
    _slot: OwnedSemaphorePermit,
}

/// A row of the body.
struct Row {
    /// From 1.
    number: u64,
    /// What to make, or the answer.
    todo: Result<Operation, Answer>,
}

/// The code of a row that is made and the version of its level, if that is known; or why it fails.
type Answer = Result<(&'static str, Option<i64>), ApiError>;

/// The number of a row, and its answer.
type Answered = (u64, Answer);

/// A row that is made, in the answer.
#[derive(Serialize)]
struct Made {
    row: u64,
    status: u16,
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
}

/// The last line of the answer.
#[derive(Serialize)]
struct End<'a> {
    done: bool,
    rows: u64,
    replayed: u64,
    failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u32>,
    /// Why it is not done.
    #[serde(flatten)]
    why: Option<Fields<'a>>,
}

impl Import {
    fn new(
        api: Arc<Api>,
        (headers, caller): (HeaderMap, Caller),
        query: &ImportQuery,
        body: Body,
    ) -> Result<Self, ApiError> {
        let key = idempotency_key(&headers)?.ok_or(StockError::KeyRequired)?;
        if key.as_str().len() > MAX_IMPORT_KEY {
            let detail = format!(
                "the Idempotency-Key of an import must have at most {MAX_IMPORT_KEY} characters"
            );
            return Err(ApiError::unprocessable("invalid-idempotency-key", detail));
        }
        check_content_type(&headers, NDJSON)?;
        Ok(Self {
            _slot: api.begin_bulk()?,
            api,
            headers,
            caller,
            key,
            answers_all: query.rows == Some(Rows::All),
            preview: query.dry_run.then(Levels::default),
            lines: Lines::of(body),
            next_chunk: None,
            rows: 0,
            replayed: 0,
            failed: 0,
            has_ended: false,
        })
    }

    /// Makes the next chunk, and returns its part of the answer. `None` after the last part.
    ///
    /// Cancel safe: rows that have started are made, and no others are.
    async fn next(&mut self) -> Option<String> {
        if self.has_ended {
            self.lines.discard(&self.api).await;
            return None;
        }
        let mut part = String::new();
        let why = match self.make_next(&mut part).await {
            Ok(true) => return Some(part),
            Ok(false) => None,
            Err(why) => Some(why),
        };
        self.has_ended = true;
        let end = End {
            done: why.is_none(),
            rows: self.rows,
            replayed: self.replayed,
            failed: self.failed,
            retry_after: why.as_ref().and_then(|why| why.retry_after),
            why: why.as_ref().map(ApiError::line),
        };
        push_line(&mut part, &end);
        Some(part)
    }

    /// Makes the next chunk. Returns whether there may be another one.
    async fn make_next(&mut self, part: &mut String) -> Result<bool, ApiError> {
        let chunk = match self.next_chunk.take() {
            Some(chunk) => chunk?,
            None => self.read(future::ready(())).await?,
        };
        if chunk.is_empty() {
            return Ok(false);
        }
        // What an earlier request has made is free: an import over its limit comes further each time.
        let made = |row: &&Row| matches!(row.todo, Err(Ok(_)));
        let todo = chunk.len() - chunk.iter().filter(made).count();
        admit_more(&self.api, &self.headers, Scope::Stock, todo).await?;
        let answers = if let Some(levels) = &mut self.preview {
            dry_run(&self.api, levels, chunk).await?
        } else if self.answers_all {
            // Without the next chunk: the client may wait for these answers before it sends more.
            make(&self.api, chunk).await
        } else {
            // The next chunk is read while this one is made.
            let (api, is_made) = (Arc::clone(&self.api), CancellationToken::new());
            let making = async {
                let answers = make(&api, chunk).await;
                is_made.cancel();
                answers
            };
            let (answers, next) = tokio::join!(making, self.read(is_made.cancelled()));
            self.next_chunk = Some(next);
            answers
        };
        self.rows += answers.len() as u64;
        let mut left = None;
        for (row, answer) in answers {
            self.replayed += u64::from(matches!(answer, Ok((REPLAYED, _))));
            match answer {
                Ok((code, version)) if self.answers_all => {
                    let status = StatusCode::OK.as_u16();
                    push_line(
                        part,
                        &Made {
                            row,
                            status,
                            code,
                            version,
                        },
                    );
                }
                Ok(_) => {}
                Err(error) => {
                    self.failed += 1;
                    let mut line = error.line();
                    line.insert("row", Field::Number(row.cast_signed()));
                    push_line(part, &line);
                    if error.is_temporary() {
                        left = left.or(Some(error));
                    }
                }
            }
        }
        if let Some(error) = left {
            return Err(error);
        }
        if self.failed > MAX_FAILURES && !self.answers_all {
            let detail = "more than 1,000 rows have failed; the rows after these were not made";
            return Err(ApiError::unprocessable("too-many-failures", detail));
        }
        Ok(true)
    }

    /// Reads the next chunk and its keys.
    async fn read(&mut self, is_made: impl Future<Output = ()>) -> Result<Vec<Row>, ApiError> {
        let api = &self.api;
        let sent = self.lines.chunk(api, is_made).await?;
        let key = |sent: &Sent| {
            let key = IdempotencyKey::parse(&format!("{}:{}", self.key.as_str(), sent.number));
            key.expect("the key of the import is short")
        };
        let keys: Vec<_> = sent.iter().map(key).collect();
        let found = api.store.with_keys(&self.caller, &keys).await?.into_iter();
        let recorded: HashMap<_, _> = found
            .filter_map(|movement| Some((movement.idempotency_key.clone()?, movement)))
            .collect();
        let row = |(Sent { number, row }, key): (Sent, IdempotencyKey)| {
            let recorded = recorded.get(key.as_str());
            let row = row.and_then(|row| row.operation(&self.caller, key, api.deadline()));
            let Some(movement) = recorded else {
                // A dry run makes no change that would be refused.
                let own = |row: Operation| {
                    api.check_shard(row.lines.iter().map(|line| &line.sku))?;
                    Ok(row)
                };
                let todo = row.and_then(own).map_err(Err);
                return Ok(Row { number, todo });
            };
            let is_same =
                |row: Operation| row.idempotency.map(|key| key.hash) == movement.request_hash;
            if !row.is_ok_and(is_same) {
                return Err(file_changed(number));
            }
            let todo = Err(Ok((REPLAYED, Some(movement.level_version))));
            Ok(Row { number, todo })
        };
        sent.into_iter().zip(keys).map(row).collect()
    }
}

fn push_line(part: &mut String, line: &impl Serialize) {
    *part += &serde_json::to_string(line).expect("texts and numbers are JSON");
    part.push('\n');
}

fn file_changed(row: u64) -> ApiError {
    let detail = format!(
        "row {row} is not the one that was sent with this key before; send the file as it was, or with another key"
    );
    ApiError::new(StatusCode::CONFLICT, "file-changed", detail)
}
