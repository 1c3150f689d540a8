//! `GET /operations`: what an operation did, found by its id, its key or its reference.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::operation_id;
use super::holds::HoldState;
use super::keys::Granted;
use super::paging::{PageSize, bad_cursor};
use super::{Api, ApiError, NoFields, StrictQuery, openapi, remark};
use stocklock_core::stock::{
    Caller, IdempotencyKey, Movement, MovementKind, OperationFilter, Remark,
};

/// A look-up cannot decide more, because a request may still run.
const ADVICE: &str =
    "repeat the request with the same Idempotency-Key: the answer says what became of it";

/// What operations did.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OperationBody {
    /// `committed`: the ledger has the operation. `unknown`: it does not have it, but a request may still
    /// make it.
    status: &'static str,
    /// What to do about an `unknown` operation; `null` if it is `committed`.
    advice: Option<&'static str>,
    /// What was committed, newest operation first, with all lines of each.
    movements: Vec<Movement>,
    /// The `cursor` parameter for the next page; `null` on the last page.
    next_cursor: Option<String>,
    /// What has become of it, if it is one operation, and a hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<HoldState>,
}

impl OperationBody {
    /// Looks the operations up. `reference`: what the operation with a key must have too.
    async fn find(
        api: &Api,
        of: &OperationFilter,
        reference: Option<&Remark>,
        size: PageSize,
    ) -> Result<Json<Self>, ApiError> {
        let mut movements = api.store.operations(of).await?;
        let is_other = |it: &Movement| it.reference.as_ref() != reference;
        if reference.is_some() && movements.iter().any(is_other) {
            // The key belongs to another operation.
            movements.clear();
        }
        let extra = movements.get(size.rows() as usize).map(|one| one.operation);
        let next_cursor = size.cut(&mut movements, |last| last.operation.to_string());
        if let Some(last) = extra
            && movements.last().is_some_and(|one| one.operation == last)
        {
            // No page ends between the lines of an operation.
            movements.retain(|one| one.operation != last);
            movements.extend(api.store.operation(last).await?);
        }
        let shard = api.shard();
        if !matches!(of, OperationFilter::Reference { .. })
            && !movements.iter().any(|one| shard.has(&one.sku))
        {
            api.check_shard(movements.iter().map(|one| &one.sku))?;
        }
        // What became of the others, their shards know.
        movements.retain(|one| shard.has(&one.sku));
        movements.sort_by_key(|one| (Reverse(one.operation), one.line));
        let line = movements.iter().find(|one| one.kind == MovementKind::Held);
        let hold = match line {
            Some(line) if movements.iter().all(|one| one.operation == line.operation) => {
                Some(HoldState::of(api, line.operation, &movements).await?)
            }
            _ => None,
        };
        let (status, advice) = if movements.is_empty() {
            ("unknown", Some(ADVICE))
        } else {
            ("committed", None)
        };
        Ok(Json(Self {
            status,
            advice,
            movements,
            next_cursor,
            hold,
        }))
    }
}

/// Get what an operation did
///
/// `unknown` says nothing about a request that still runs: to learn what became of it, repeat it with the same
/// key.
#[utoipa::path(
    get, path = "/operations/{id}", tag = "operations", params(openapi::OperationPath),
    responses(
        (status = 200, description = "What is known", body = OperationBody),
        openapi::ReadErrors,
    )
)]
pub(super) async fn operation(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    _: StrictQuery<NoFields>,
) -> Result<Json<OperationBody>, ApiError> {
    let id = operation_id(&id)?;
    let of = OperationFilter::Id(id);
    OperationBody::find(&api, &of, None, PageSize::default()).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OperationQuery {
    /// The Idempotency-Key of the request. This or a reference is needed.
    key: Option<String>,
    /// The reference of the requests.
    reference: Option<String>,
    /// Maximum number of movements on the page, 1 to 1000; default 100. The last operation has all of its
    /// lines nevertheless.
    #[param(value_type = Option<u32>)]
    limit: Option<PageSize>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl OperationQuery {
    /// The operations, and the reference that one with a key must have too.
    fn filter(
        self,
        caller: Caller,
        size: PageSize,
    ) -> Result<(OperationFilter, Option<Remark>), ApiError> {
        let cursor = self.cursor.as_deref().map(operation_id).transpose();
        let before = cursor.map_err(|_| bad_cursor())?;
        let reference = remark("reference", self.reference)?;
        let key = self.key.as_deref().map(IdempotencyKey::parse).transpose();
        match (key.map_err(ApiError::invalid)?, reference) {
            (Some(key), reference) => Ok((OperationFilter::Key(caller, key), reference)),
            (None, Some(reference)) => {
                let limit = size.rows_to_read();
                let filter = OperationFilter::Reference {
                    caller,
                    reference,
                    before,
                    limit,
                };
                Ok((filter, None))
            }
            (None, None) => Err(ApiError::invalid(
                "send the key or the reference of an operation",
            )),
        }
    }
}

/// Find operations by their Idempotency-Key or their reference
///
/// With both, the operation with the key if it has the reference. `unknown` says nothing about a request that
/// still runs: to learn what became of it, repeat it with the same key.
#[utoipa::path(
    get, path = "/operations", tag = "operations", params(OperationQuery),
    responses(
        (status = 200, description = "What is known", body = OperationBody),
        openapi::ReadErrors,
    )
)]
pub(super) async fn operations(
    State(api): State<Arc<Api>>,
    Granted(grant): Granted,
    StrictQuery(query): StrictQuery<OperationQuery>,
) -> Result<Json<OperationBody>, ApiError> {
    let size = query.limit.unwrap_or_default();
    let (of, reference) = query.filter(grant.caller, size)?;
    OperationBody::find(&api, &of, reference.as_ref(), size).await
}
