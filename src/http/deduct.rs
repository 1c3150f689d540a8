//! `POST /stock/deduct`: takes stock.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::ApiError;
use super::extract::{self, present};
use super::idempotency::{idempotency, mark_replayed};
use super::{Api, Lab, openapi};
use stocklock_core::deduct::DeductOrder;
use stocklock_core::stock::{Deducted, Quantity, RequestHash, Sku, Warehouse};
use stocklock_core::strategy::{Homes, Safeguards, Strategy};

/// What is to be taken.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeductBody {
    /// What to take.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, example = "1001")]
    sku: Option<Sku>,
    /// From where; `main` unless named.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// How many units; 1 unless named.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
}

/// The same in the query, and in the lab the strategy.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeductQuery {
    /// What to take, where there is no body.
    #[serde(default, deserialize_with = "present")]
    #[param(value_type = Option<String>)]
    sku: Option<Sku>,
    /// From where, where there is no body.
    #[serde(default, deserialize_with = "present")]
    #[param(value_type = Option<String>)]
    warehouse: Option<Warehouse>,
    /// How many units, where there is no body.
    #[serde(default, deserialize_with = "present")]
    #[param(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
    /// The strategy to protect it with, body or not.
    #[serde(default, deserialize_with = "present")]
    strategy: Option<String>,
    /// In the lab, `off` makes a lock strategy write whatever the row is by now: a lost lock then
    /// oversells. `on` unless named.
    #[serde(default, deserialize_with = "present")]
    #[param(value_type = Option<String>)]
    guard: Option<Switch>,
    /// In the lab, `off` makes a lock strategy write although it could know that its lock is lost;
    /// the guard refuses that write. `on` unless named.
    #[serde(default, deserialize_with = "present")]
    #[param(value_type = Option<String>)]
    check: Option<Switch>,
}

/// What may be turned off in the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Switch {
    On,
    Off,
}

/// What was taken.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeductAnswer {
    /// The operation that took it; the ledger has it under this id.
    id: String,
    /// What was taken.
    sku: String,
    /// From where.
    warehouse: String,
    /// How many units.
    quantity: i64,
    /// Units available right after it.
    remaining: i64,
    /// What protected it.
    strategy: String,
    /// How durable it was when it was answered: `committed` or `redis`.
    durability: String,
}

/// Take stock
///
/// With an Idempotency-Key, a repeat of the request answers what the first one did.
#[utoipa::path(
    post,
    path = "/stock/deduct",
    tag = "stock",
    params(DeductQuery, openapi::IdempotencyKeyHeader),
    request_body(content = DeductBody, description = "Or the same fields in the query"),
    responses(
        (status = 200, description = "Taken, and committed", body = DeductAnswer, headers(
            ("Idempotent-Replayed" = String, description = "`true` where this was answered before"))),
        openapi::ReadErrors, openapi::WriteErrors,
        (status = 404, response = openapi::NotFound),
        (status = 409, response = openapi::Conflict),
    )
)]
pub(super) async fn deduct(
    State(api): State<Arc<Api>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (Parts { headers, uri, .. }, body) = request.into_parts();
    let query: DeductQuery = extract::query(uri.query())?;
    let body = extract::body(body, api.body).await?;
    let strategy = strategy(&api, query.strategy.as_deref())?;
    let safeguards = safeguards(&api, &query)?;
    let fields = fields(query, || extract::json(&headers, &body), body.is_empty())?;
    let mut order = order(&api, strategy, fields)?;
    let hash = RequestHash::of_deduction(&order.sku, &order.warehouse, order.quantity);
    order.idempotency = idempotency(&headers, hash)?;
    order.safeguards = safeguards;
    let deducted = api.deductor.deduct(strategy, order).await?;
    Ok(answer(deducted))
}

/// The strategy asked for, where one may be.
fn strategy(api: &Api, asked: Option<&str>) -> Result<Strategy, ApiError> {
    let Some(name) = asked else {
        return Ok(api.strategy);
    };
    if api.lab.is_none() {
        return Err(ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "strategy-fixed",
            "the strategy is chosen by the service's configuration; ?strategy= is for the lab",
        ));
    }
    name.parse()
        .map_err(|error: stocklock_core::strategy::UnknownStrategy| {
            ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "unknown-strategy",
                error.to_string(),
            )
        })
}

/// What protects a lock strategy from a lost lock: everything, unless the lab turns it off.
fn safeguards(api: &Api, query: &DeductQuery) -> Result<Safeguards, ApiError> {
    if api.lab.is_none() && (query.guard.is_some() || query.check.is_some()) {
        return Err(ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "safeguards-fixed",
            "guard and check are always on here; ?guard= and ?check= are for the lab",
        ));
    }
    Ok(Safeguards {
        guard: query.guard != Some(Switch::Off),
        check: query.check != Some(Switch::Off),
    })
}

/// The deduction's fields from the body or from the query, never from both.
fn fields(
    query: DeductQuery,
    body: impl FnOnce() -> Result<DeductBody, ApiError>,
    body_is_empty: bool,
) -> Result<DeductBody, ApiError> {
    let DeductQuery {
        sku,
        warehouse,
        quantity,
        ..
    } = query;
    let in_query = sku.is_some() || warehouse.is_some() || quantity.is_some();
    match (in_query, body_is_empty) {
        (true, false) => Err(ApiError::invalid(
            "send sku, warehouse and quantity either in the body or in the query, not in both",
        )),
        (false, false) => body(),
        (_, true) => Ok(DeductBody {
            sku,
            warehouse,
            quantity,
        }),
    }
}

fn order(api: &Api, strategy: Strategy, fields: DeductBody) -> Result<DeductOrder, ApiError> {
    let default_sku = |lab: &Lab| {
        if strategy.card().homes == Homes::Redis {
            lab.default_redis_sku.clone()
        } else {
            lab.default_sku.clone()
        }
    };
    let sku = fields
        .sku
        .or_else(|| api.lab.as_ref().map(default_sku))
        .ok_or_else(|| ApiError::invalid("sku: missing; say what to take"))?;
    Ok(DeductOrder {
        sku,
        warehouse: fields.warehouse.unwrap_or_default(),
        quantity: fields.quantity.unwrap_or(Quantity::ONE),
        idempotency: None,
        safeguards: Safeguards::default(),
    })
}

fn answer(deducted: Deducted) -> Response {
    let body = DeductAnswer {
        id: deducted.operation.to_string(),
        sku: deducted.sku.into(),
        warehouse: deducted.warehouse.into(),
        quantity: deducted.quantity,
        remaining: deducted.remaining,
        strategy: deducted.strategy.into_owned(),
        durability: deducted.durability.as_str().to_owned(),
    };
    let mut response = Json(body).into_response();
    mark_replayed(&mut response, deducted.replayed);
    response
}
