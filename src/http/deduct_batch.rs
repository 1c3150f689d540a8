//! `POST /stock/deduct/batch`: many independent deductions in one request.
//!
//! A body that is not valid is refused as a whole, and nothing is deducted. Otherwise each line is a
//! deduction or an order like that of `POST /stock/deduct`, and is answered by itself.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::deduct::{How, Order, Taken, chosen_strategy};
use super::error::Fields;
use super::fields::MAX_BATCH_LINES;
use super::headers::IDEMPOTENCY_KEY;
use super::keys::Granted;
use super::order_lines::{OrderLine, order_lines};
use super::respond::LineErrors;
use super::{
    Api, ApiError, BatchJson, StrictQuery, objects, openapi, present, present_objects,
    present_whole, remark,
};
use crate::access::Grant;
use stocklock_core::stock::{IdempotencyKey, Quantity, Sku, StockError, Warehouse};
use stocklock_core::strategy::Safeguards;

/// How many lines of a request are in progress at the same time. They fill a batch of `group-commit`,
/// and leave slots of `MAX_IN_FLIGHT` for other requests.
const IN_PROGRESS: usize = 256;

/// Independent deductions.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchBody {
    /// The deductions and orders, which have 1 to 1,000 lines in all.
    #[serde(deserialize_with = "objects")]
    lines: Vec<BatchLine>,
}

/// The units that a line takes.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchLine {
    /// The SKU.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "1001")]
    sku: Option<Sku>,
    /// The warehouse; default `main`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// Number of units; default 1.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
    /// The lines of an order, 1 to 100, instead of `sku`, `warehouse` and `quantity`. All of them are taken,
    /// or nothing is. Several lines need a key.
    #[serde(default, deserialize_with = "present_objects")]
    lines: Option<Vec<OrderLine>>,
    /// An external reference, such as an order number.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "order-4711")]
    reference: Option<String>,
    /// The line's Idempotency-Key. Send a key with each line, so that the line can be retried, alone
    /// or in another batch.
    #[serde(default, deserialize_with = "present")]
    key: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BatchQuery {
    /// The strategy for these deductions. Lab only.
    strategy: Option<String>,
}

/// One answer for each line, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchAnswer<'a> {
    #[schema(value_type = Vec<LineAnswer>)]
    results: Vec<LineResult<'a>>,
}

/// The answer to a line.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only describes LineResult")]
struct LineAnswer {
    /// The status of the same deduction in a request of its own.
    status: u16,
    /// `deducted`; `replayed`, if this is the answer to an earlier line or request with this key; or
    /// the code of the error.
    #[schema(example = "deducted")]
    code: String,
    /// The id of the operation in the ledger. Of the errors only `outcome-unknown` has it.
    id: Option<String>,
    /// The SKU (200).
    sku: Option<String>,
    /// The warehouse (200).
    warehouse: Option<String>,
    /// Units taken (200).
    quantity: Option<i64>,
    /// Units available after the deduction (200).
    remaining: Option<i64>,
    /// The strategy that protected it (200).
    strategy: Option<String>,
    /// What happened, and what to do (errors).
    detail: Option<String>,
    /// Units requested (`insufficient-stock`).
    requested: Option<i64>,
    /// Units available (`insufficient-stock`).
    available: Option<i64>,
    /// The lines of an order: those that were taken (200), or those that refuse it.
    lines: Option<Vec<LineOfOrder>>,
}

/// A line of an order, in the answer.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only describes")]
struct LineOfOrder {
    /// Its number in the order, from 0.
    line: i64,
    /// The place of the line in the order that was sent, if a line of it names several warehouses (200).
    request_line: Option<usize>,
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// Units taken (200).
    quantity: Option<i64>,
    /// Units available after the line (200).
    remaining: Option<i64>,
    /// Units requested (`insufficient-stock`).
    requested: Option<i64>,
    /// Units available for the line (`insufficient-stock`).
    available: Option<i64>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum LineResult<'a> {
    Deducted {
        status: u16,
        code: &'static str,
        #[serde(flatten)]
        taken: &'a Taken,
    },
    Refused(Fields<'a>),
}

impl<'a> From<&'a Result<Taken, ApiError>> for LineResult<'a> {
    fn from(result: &'a Result<Taken, ApiError>) -> Self {
        match result {
            Ok(taken) => Self::Deducted {
                status: StatusCode::OK.as_u16(),
                code: if taken.replayed() {
                    "replayed"
                } else {
                    "deducted"
                },
                taken,
            },
            Err(error) => Self::Refused(error.line()),
        }
    }
}

/// Take units in up to 1,000 independent deductions and orders
///
/// Each element is made or refused by itself, and has its own key: the header Idempotency-Key is refused.
/// If the body is invalid, nothing is deducted. Lines that have not started after half of the time of the
/// request are answered `overloaded`. Retry lines with status 503 or 504, or code `request-in-flight`,
/// with the same keys.
#[utoipa::path(
    post,
    path = "/stock/deduct/batch",
    tag = "stock",
    params(BatchQuery),
    request_body(content = BatchBody),
    responses(
        (status = 200, description = "Each line has its answer", body = BatchAnswer<'_>),
        openapi::ReadErrors, openapi::WriteErrors,
    )
)]
pub(super) async fn deduct_batch(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    headers: HeaderMap,
    StrictQuery(query): StrictQuery<BatchQuery>,
    BatchJson(body): BatchJson<BatchBody>,
) -> Result<Response, ApiError> {
    let strategy = chosen_strategy(&api, query.strategy.as_deref())?;
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err(invalid_key("send a key with each line, not in the header"));
    }
    let orders = orders(body.parse()?, &grant)?;
    let how = How {
        strategy,
        safeguards: Safeguards::default(),
        deadline: api.deadline(),
    };
    let line = |order| deduct_line(Arc::clone(&api), order, how);
    let results = stream::iter(orders.into_iter().map(line));
    let results: Vec<_> = results.buffered(IN_PROGRESS).collect().await;
    Ok(answer(&results))
}

/// The orders of the lines, if all are valid.
fn orders(body: BatchBody, grant: &Grant) -> Result<Vec<Order>, ApiError> {
    let sent = |line: &BatchLine| line.lines.as_ref().map_or(1, Vec::len);
    let count = body.lines.iter().map(sent).sum();
    if !(1..=MAX_BATCH_LINES).contains(&count) {
        let detail =
            format!("lines: must have 1 to {MAX_BATCH_LINES} elements, those of orders included");
        return Err(ApiError::invalid(detail));
    }
    grant.charge_lines(count);
    let lines = body.lines.into_iter().enumerate();
    let order = |(number, line): (usize, BatchLine)| {
        let key = line.key.as_deref().map(IdempotencyKey::parse).transpose();
        let (sku, warehouse, quantity) = (line.sku, line.warehouse, line.quantity);
        let (lines, by_line) = order_lines((sku, warehouse, quantity), line.lines, None)
            .map_err(|error| ApiError::invalid(format!("lines[{number}]: {}", error.detail)))?;
        Ok(Order {
            caller: grant.caller.clone(),
            lines,
            by_line,
            reference: remark(&format!("lines[{number}].reference"), line.reference)?,
            key: key.map_err(|error| invalid_key(format!("lines[{number}].key: {error}")))?,
        })
    };
    lines.map(order).collect()
}

fn invalid_key(detail: impl Into<String>) -> ApiError {
    ApiError::unprocessable("invalid-idempotency-key", detail)
}

async fn deduct_line(api: Arc<Api>, order: Order, how: How) -> Result<Taken, ApiError> {
    // Most deductions that start later could not end before the deadline, if the others took that long.
    if how.deadline - Instant::now() < api.config.limits.request_deadline_ms / 2 {
        let what = "the lines before this one took too long, and it was not started";
        return Err(StockError::Overloaded { what }.into());
    }
    order.take(&api, how).await
}

/// The answer, with the first error of each code for the log.
fn answer(results: &[Result<Taken, ApiError>]) -> Response {
    let mut codes = HashSet::new();
    let errors = results.iter().filter_map(|result| result.as_ref().err());
    let errors = errors.filter(|error| error.status.is_server_error() && codes.insert(error.code));
    let errors = LineErrors(errors.cloned().collect());
    let results = results.iter().map(LineResult::from).collect();
    (Extension(errors), Json(BatchAnswer { results })).into_response()
}
