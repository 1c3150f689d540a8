//! `GET /stock/{sku}/audit` and `GET /audit`: compare levels with the ledger.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{TryStreamExt as _, stream};
use serde::Serialize;
use utoipa::ToSchema;

use super::keys::check_again;
use super::levels::known_sku;
use super::{Api, ApiError, NDJSON, NoFields, StrictQuery, openapi};
use stocklock_core::access::Scope;
use stocklock_core::ports::StoreError;
use stocklock_core::stock::{Audit, Sku, StockError};
use stocklock_store::AllAudits;

/// The level and the ledger of one warehouse.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct WarehouseAudit {
    /// The warehouse.
    warehouse: String,
    /// The sum of all movements that are not sales. Returned units count if they are on hand again.
    received: i64,
    /// Units sold, according to the ledger, including units that came back later.
    sold: i64,
    /// Units on hand, according to the level.
    on_hand: i64,
    /// Units held, according to the level.
    held: i64,
    /// `on_hand` minus the sum of all movements; not 0 if the level missed a sale.
    drift: i64,
    /// `held` minus the sum of all movements of held units.
    held_drift: i64,
    /// Units sold beyond the received units and the backorder limit.
    oversold: i64,
    /// Whether level and ledger agree, and nothing was oversold.
    consistent: bool,
}

impl From<Audit> for WarehouseAudit {
    fn from(audit: Audit) -> Self {
        Self {
            drift: audit.drift(),
            held_drift: audit.held_drift(),
            oversold: audit.oversold(),
            consistent: audit.consistent(),
            received: audit.received,
            sold: audit.sold,
            on_hand: audit.on_hand,
            held: audit.held,
            warehouse: audit.warehouse.into(),
        }
    }
}

/// The audit of a SKU.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SkuAudit {
    /// The SKU.
    sku: String,
    /// In warehouse order.
    warehouses: Vec<WarehouseAudit>,
    /// Why this SKU could not be audited, if it could not. Only in the audit of all SKUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl SkuAudit {
    fn new(sku: Sku, audits: Result<Vec<Audit>, StoreError>) -> Self {
        let (audits, error) = match audits {
            Ok(audits) => (audits, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self {
            sku: sku.into(),
            warehouses: audits.into_iter().map(WarehouseAudit::from).collect(),
            error,
        }
    }
}

/// Compare the level with the ledger
#[utoipa::path(
    get, path = "/stock/{sku}/audit", tag = "stock", params(openapi::SkuPath),
    responses(
        (status = 200, description = "The audit", body = SkuAudit),
        openapi::ReadErrors, (status = 404, response = openapi::NotFound),
    )
)]
pub(super) async fn audit(
    State(api): State<Arc<Api>>,
    Path(sku): Path<String>,
    _: StrictQuery<NoFields>,
) -> Result<Json<SkuAudit>, ApiError> {
    let sku = known_sku(&api, sku)?;
    let audits = api.store.audit(&sku).await?;
    if audits.is_empty() {
        return Err(StockError::UnknownSku.into());
    }
    api.metrics.audited(&sku, &audits);
    Ok(Json(SkuAudit::new(sku, Ok(audits))))
}

/// Compare all levels with the ledger
///
/// One line of JSON for each SKU, in the order of their names. Each line is of one snapshot. The line of
/// a SKU that cannot be audited says why. If the database fails while the answer is sent, or the key is
/// revoked, the connection is closed before its end.
#[utoipa::path(
    get, path = "/audit", tag = "stock",
    responses(
        (status = 200, description = "A line for each SKU", body = SkuAudit,
            content_type = "application/x-ndjson"),
        openapi::ReadErrors,
    )
)]
pub(super) async fn audit_all(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    _: StrictQuery<NoFields>,
) -> Result<Response, ApiError> {
    let mut audits = AllAudits::of(&api.store);
    // The first line decides between 200 and an error.
    let first = next_line(&api, &headers, &mut audits).await?;
    let begin = (api, headers, audits, first);
    let lines = stream::try_unfold(begin, |(api, headers, mut audits, line)| async move {
        let Some(line) = line else { return Ok(None) };
        let next = next_line(&api, &headers, &mut audits).await?;
        Ok::<_, ApiError>(Some((line, (api, headers, audits, next))))
    });
    let lines = Body::from_stream(lines.map_err(ApiError::into_cause));
    Ok(([(header::CONTENT_TYPE, NDJSON)], lines).into_response())
}

async fn next_line(
    api: &Api,
    headers: &HeaderMap,
    audits: &mut AllAudits,
) -> Result<Option<String>, ApiError> {
    let (sku, audits) = loop {
        check_again(api, headers, Scope::Read)?;
        match audits.next().await? {
            Some((sku, audits)) if api.shard().has(&sku) => break (sku, audits),
            Some(_) => {}
            None => return Ok(None),
        }
    };
    if let Ok(audits) = &audits {
        api.metrics.audited(&sku, audits);
    }
    Ok(Some(line(sku, audits)))
}

/// The audits of a SKU, or why there are none, as one line of JSON.
pub(crate) fn line(sku: Sku, audits: Result<Vec<Audit>, StoreError>) -> String {
    let line = serde_json::to_string(&SkuAudit::new(sku, audits));
    line.expect("texts and numbers make JSON") + "\n"
}
