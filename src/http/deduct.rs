//! `POST /stock/deduct`: takes units of a SKU.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;
use super::extract::{StrictJson, StrictQuery, present};
use super::idempotency::{idempotency, with_replayed};
use super::{Api, Lab, openapi};
use stocklock_core::stock::{
    Deducted, Deduction, OperationId, Quantity, Remarks, RequestHash, Sku, Warehouse,
};
use stocklock_core::strategy::{Homes, Safeguards, Strategy, UnknownStrategy};

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
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
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

/// A deduction that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeductAnswer {
    /// The id of the operation in the ledger.
    id: String,
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// Units taken.
    quantity: i64,
    /// Units available after the deduction.
    remaining: i64,
    /// The strategy that protected it.
    strategy: String,
    /// How durable it was when it was answered: `committed` or `redis`.
    durability: String,
}

impl From<Deducted> for DeductAnswer {
    fn from(deducted: Deducted) -> Self {
        Self {
            id: deducted.operation.to_string(),
            sku: deducted.sku.into(),
            warehouse: deducted.warehouse.into(),
            quantity: deducted.quantity,
            remaining: deducted.remaining,
            strategy: deducted.strategy.into_owned(),
            durability: deducted.durability.as_str().to_owned(),
        }
    }
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
        (status = 200, description = "Taken, and committed", body = DeductAnswer, headers(
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
) -> Result<Response, ApiError> {
    let strategy = strategy(&api, query.strategy.as_deref())?;
    let safeguards = safeguards(&api, &query)?;
    let fields = fields(query, body)?;
    let deduction = deduction(&api, strategy, fields, &headers)?;
    let deducting = api.deductor.deduct(strategy, deduction, safeguards);
    let deducted = deducting.await?;
    let replayed = deducted.replayed;
    Ok(with_replayed(Json(DeductAnswer::from(deducted)), replayed))
}

/// The configured strategy, or in the lab the one in the query.
fn strategy(api: &Api, name: Option<&str>) -> Result<Strategy, ApiError> {
    let Some(name) = name else {
        return Ok(api.strategy);
    };
    if api.lab.is_none() {
        return Err(unprocessable(
            "strategy-fixed",
            "the service's configuration chooses the strategy; ?strategy= is for the lab",
        ));
    }
    name.parse()
        .map_err(|error: UnknownStrategy| unprocessable("unknown-strategy", error.to_string()))
}

/// The safeguards of a lock strategy: all, except those that the lab turns off.
fn safeguards(api: &Api, query: &DeductQuery) -> Result<Safeguards, ApiError> {
    if api.lab.is_none() && (query.guard.is_some() || query.check.is_some()) {
        return Err(unprocessable(
            "safeguards-fixed",
            "guard and check are always on in production; ?guard= and ?check= are for the lab",
        ));
    }
    Ok(Safeguards {
        guard: query.guard != Some(Switch::Off),
        check: query.check != Some(Switch::Off),
    })
}

fn unprocessable(code: &'static str, detail: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail)
}

/// The fields of the body or of the query, but not of both.
fn fields(query: DeductQuery, body: StrictJson<DeductBody>) -> Result<DeductBody, ApiError> {
    let in_query = DeductBody {
        sku: query.sku,
        warehouse: query.warehouse,
        quantity: query.quantity,
    };
    if body.is_empty() {
        return Ok(in_query);
    }
    if in_query != DeductBody::default() {
        return Err(ApiError::invalid(
            "send sku, warehouse and quantity either in the body or in the query, not in both",
        ));
    }
    body.parse()
}

fn deduction(
    api: &Api,
    strategy: Strategy,
    fields: DeductBody,
    headers: &HeaderMap,
) -> Result<Deduction, ApiError> {
    let default_sku = |lab: &Lab| match strategy.card().homes {
        Homes::Redis => lab.default_redis_sku.clone(),
        Homes::Sql | Homes::Either => lab.default_sku.clone(),
    };
    let sku = fields.sku.or_else(|| api.lab.as_ref().map(default_sku));
    let sku = sku.ok_or_else(|| ApiError::invalid("sku: missing"))?;
    let warehouse = fields.warehouse.unwrap_or_default();
    let quantity = fields.quantity.unwrap_or(Quantity::ONE);
    let hash = RequestHash::of_deduction(&sku, &warehouse, quantity);
    Ok(Deduction {
        operation: OperationId::mint(),
        idempotency: idempotency(headers, hash)?,
        sku,
        warehouse,
        quantity,
        remarks: Remarks::default(),
        strategy: strategy.name(),
    })
}
