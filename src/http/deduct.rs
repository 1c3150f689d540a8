//! `POST /stock/deduct`: takes units of a SKU.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::headers::{idempotency_key, idempotent_replayed};
use super::{
    Api, ApiError, StrictJson, StrictQuery, lab_sku, openapi, present, present_whole, remark,
};
use crate::config::Mode;
use stocklock_core::stock::{
    Caller, Deducted, Deduction, Idempotency, IdempotencyKey, OperationId, Quantity, Remark,
    Remarks, RequestHash, Sku, Warehouse,
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

/// Take units of a SKU
///
/// A retry with the same Idempotency-Key gets the answer to the first request.
#[utoipa::path(
    post,
    path = "/stock/deduct",
    tag = "stock",
    params(DeductQuery, openapi::IdempotencyKeyHeader),
    request_body(content = DeductBody, description = "Or the same fields in the query"),
    responses(
        (status = 200, description = "Taken, and committed", body = Deducted, headers(
            ("Idempotent-Replayed" = String, description = "`true` for the answer to a retry"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(super) async fn deduct(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    StrictQuery(query): StrictQuery<DeductQuery>,
    body: StrictJson<DeductBody>,
) -> Result<impl IntoResponse, ApiError> {
    let strategy = chosen_strategy(&api, query.strategy.as_deref())?;
    let safeguards = safeguards(&api, &query)?;
    let fields = fields(query, body)?;
    let deduction = order(&api, fields, &headers)?.deduction(strategy, api.deadline());
    let operation = deduction.operation;
    let deducting = api.deductor.deduct(strategy, deduction, safeguards);
    let deducted = deducting.await;
    let deducted = deducted.map_err(|error| ApiError::of_operation(operation, error))?;
    Ok((idempotent_replayed(deducted.replayed), Json(deducted)))
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

fn order(api: &Api, fields: DeductBody, headers: &HeaderMap) -> Result<Order, ApiError> {
    let sku = match (fields.sku, api.mode) {
        (Some(sku), _) => sku,
        (None, Mode::Serve) => return Err(ApiError::invalid("sku: missing")),
        (None, Mode::Lab) => lab_sku(),
    };
    Ok(Order {
        sku,
        warehouse: fields.warehouse.unwrap_or_default(),
        quantity: fields.quantity.unwrap_or(Quantity::ONE),
        reference: remark("reference", fields.reference)?,
        key: idempotency_key(headers)?,
    })
}

/// What a caller orders, with its key.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) sku: Sku,
    pub(super) warehouse: Warehouse,
    pub(super) quantity: Quantity,
    pub(super) reference: Option<Remark>,
    pub(super) key: Option<IdempotencyKey>,
}

impl Order {
    /// A new deduction.
    pub(super) fn deduction(self, strategy: Strategy, deadline: Instant) -> Deduction {
        let Self {
            sku,
            warehouse,
            quantity,
            reference,
            key,
        } = self;
        let text = reference.as_ref().map(Remark::as_str);
        let hash = || RequestHash::of_deduction(&sku, &warehouse, quantity, text);
        Deduction {
            operation: OperationId::mint(),
            idempotency: key.map(|key| Idempotency {
                caller: Caller::anonymous(),
                key,
                hash: hash(),
            }),
            sku,
            warehouse,
            quantity,
            remarks: Remarks {
                reference,
                ..Remarks::default()
            },
            strategy: strategy.name(),
            deadline,
        }
    }
}
