//! `POST /stock/deduct`: takes units of a SKU, or those of every line of an order.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::headers::{idempotency_key, idempotent_replayed};
use super::keys::Granted;
use super::order_lines::{OrderLine, order_lines};
use super::{
    Api, ApiError, StrictJson, StrictQuery, lab_sku, openapi, present, present_objects,
    present_whole, remark,
};
use crate::access::Grant;
use crate::config::Mode;
use stocklock_core::level_service::Ordered;
use stocklock_core::stock::{
    Caller, Change, Deducted, Idempotency, IdempotencyKey, Operation, Quantity, Remark, Remarks,
    RequestHash, Sku, Warehouse,
};
use stocklock_core::strategy::{Safeguards, Strategy, UnknownStrategy};

/// The units to take.
#[derive(Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeductBody {
    /// The SKU.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, example = "1001")]
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
    /// or nothing is. Several lines need an Idempotency-Key.
    #[serde(default, deserialize_with = "present_objects")]
    lines: Option<Vec<OrderLine>>,
    /// An external reference, such as an order number.
    #[serde(default, deserialize_with = "present")]
    #[schema(example = "order-4711")]
    reference: Option<String>,
}

/// The same fields in the query, and in the lab the protection.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeductQuery {
    /// The SKU, if there is no body.
    #[param(value_type = Option<String>)]
    sku: Option<Sku>,
    /// The warehouse, if there is no body.
    #[param(value_type = Option<String>)]
    warehouse: Option<Warehouse>,
    /// Number of units, if there is no body.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
    /// An external reference, such as an order number, if there is no body.
    reference: Option<String>,
    /// The strategy for this deduction, with or without a body. Lab only.
    strategy: Option<String>,
    /// `on` (default) or `off`. With `off`, a lock strategy writes unconditionally, so a lost lock
    /// oversells. Lab only.
    #[param(value_type = Option<String>)]
    guard: Option<Switch>,
    /// `on` (default) or `off`. With `off`, a lock strategy does not check that it still holds its
    /// lock; the guard refuses the write instead. Lab only.
    #[param(value_type = Option<String>)]
    check: Option<Switch>,
}

/// The state of a safeguard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Switch {
    On,
    Off,
}

/// What was taken.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = DeductAnswers)]
pub(super) enum Taken {
    /// Of one SKU.
    One(Deducted),
    /// By line.
    Lines(Ordered),
}

impl Taken {
    /// Whether this answers a retry of an earlier request.
    pub(super) fn replayed(&self) -> bool {
        match self {
            Self::One(deducted) => deducted.replayed,
            Self::Lines(ordered) => ordered.replayed,
        }
    }
}

/// Take units of a SKU, or an order of several lines
///
/// A retry with the same Idempotency-Key gets the answer to the first request. An order is taken with all of
/// its lines, or not at all; the answer has each line. It locks its rows, whatever the strategy is.
#[utoipa::path(
    post,
    path = "/stock/deduct",
    tag = "stock",
    params(DeductQuery, openapi::IdempotencyKeyHeader),
    request_body(content = DeductBody, description = "Or sku, warehouse, quantity and reference in the query"),
    responses(
        (status = 200, description = "Taken, and committed", body = Taken, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(super) async fn deduct(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    headers: HeaderMap,
    StrictQuery(query): StrictQuery<DeductQuery>,
    body: StrictJson<DeductBody>,
) -> Result<impl IntoResponse, ApiError> {
    let how = How {
        strategy: chosen_strategy(&api, query.strategy.as_deref())?,
        safeguards: safeguards(&api, &query)?,
        deadline: api.deadline(),
    };
    let fields = fields(query, body)?;
    let taken = order(&api, fields, (&headers, grant))?
        .take(&api, how)
        .await?;
    Ok((idempotent_replayed(taken.replayed()), Json(taken)))
}

/// The strategy in the query, which only the lab accepts, or the configured one.
pub(super) fn chosen_strategy(api: &Api, name: Option<&str>) -> Result<Strategy, ApiError> {
    let Some(name) = name else {
        return Ok(api.config.service.strategy);
    };
    if api.mode == Mode::Serve {
        return Err(ApiError::unprocessable(
            "strategy-fixed",
            "the service's configuration chooses the strategy; ?strategy= is for the lab",
        ));
    }
    let unknown =
        |error: UnknownStrategy| ApiError::unprocessable("unknown-strategy", error.to_string());
    name.parse().map_err(unknown)
}

/// The safeguards, which only the lab turns off.
fn safeguards(api: &Api, query: &DeductQuery) -> Result<Safeguards, ApiError> {
    if api.mode == Mode::Serve && (query.guard.is_some() || query.check.is_some()) {
        return Err(ApiError::unprocessable(
            "safeguards-fixed",
            "guard and check are always on in production; ?guard= and ?check= are for the lab",
        ));
    }
    Ok(Safeguards {
        guard: query.guard != Some(Switch::Off),
        check: query.check != Some(Switch::Off),
    })
}

/// The fields of the body or of the query, but not of both.
fn fields(query: DeductQuery, body: StrictJson<DeductBody>) -> Result<DeductBody, ApiError> {
    let in_query = DeductBody {
        sku: query.sku,
        warehouse: query.warehouse,
        quantity: query.quantity,
        lines: None,
        reference: query.reference,
    };
    if body.is_empty() {
        return Ok(in_query);
    }
    if in_query != DeductBody::default() {
        return Err(ApiError::invalid(
            "send sku, warehouse, quantity and reference either in the body or in the query, not in \
             both",
        ));
    }
    body.parse()
}

fn order(
    api: &Api,
    fields: DeductBody,
    (headers, grant): (&HeaderMap, Grant),
) -> Result<Order, ApiError> {
    let default_sku = match api.mode {
        Mode::Serve => None,
        Mode::Lab => Some(lab_sku()),
    };
    let (sku, warehouse, quantity) = (fields.sku, fields.warehouse, fields.quantity);
    let (lines, by_line) = order_lines((sku, warehouse, quantity), fields.lines, default_sku)?;
    grant.charge_lines(lines.len());
    Ok(Order {
        caller: grant.caller,
        lines,
        by_line,
        reference: remark("reference", fields.reference)?,
        key: idempotency_key(headers)?,
    })
}

/// What a caller orders, with its key.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) caller: Caller,
    /// At least one.
    pub(super) lines: Vec<OrderLine>,
    /// Whether it is answered by line.
    pub(super) by_line: bool,
    pub(super) reference: Option<Remark>,
    pub(super) key: Option<IdempotencyKey>,
}

/// How a deduction is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) strategy: Strategy,
    pub(super) safeguards: Safeguards,
    pub(super) deadline: Instant,
}

impl Order {
    /// Takes the units of all lines, or nothing. One line is protected by the strategy.
    pub(super) async fn take(self, api: &Api, how: How) -> Result<Taken, ApiError> {
        let by_line = self.by_line;
        let order = self.operation(how)?;
        let operation = order.id;
        let refused = |error| ApiError::of_operation(operation, error);
        if !order.is_single() {
            // Boxed, because a deduction of one line would reserve its space too.
            let ordering = Box::pin(api.levels.order(order));
            return ordering.await.map(Taken::Lines).map_err(refused);
        }
        let deducting = api.deductor.deduct(how.strategy, order, how.safeguards);
        let deducted = deducting.await.map_err(refused)?;
        Ok(if by_line {
            Taken::Lines(deducted.into())
        } else {
            Taken::One(deducted)
        })
    }

    fn operation(self, how: How) -> Result<Operation, ApiError> {
        let lines = self.lines.into_iter();
        let lines: Vec<_> = lines.map(|line| line.line(Change::Deduct)).collect();
        let remarks = Remarks {
            reference: self.reference,
            ..Remarks::default()
        };
        let idempotency = self.key.map(|key| Idempotency {
            caller: self.caller.clone(),
            key,
            hash: RequestHash::of_operation(&lines, &remarks),
        });
        let mut order =
            Operation::of_lines(self.caller, lines, idempotency, remarks, how.deadline)?;
        // The strategy protects a single line.
        let protected_by = if order.is_single() {
            how.strategy
        } else {
            Strategy::GroupCommit
        };
        order.strategy = Some(protected_by.name());
        Ok(order)
    }
}
