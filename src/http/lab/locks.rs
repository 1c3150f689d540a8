//! `/lab/locks`: who has the locks around the deductions of a level, and who waits for them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::http::{Api, ApiError, StrictQuery, openapi};
use stocklock_core::deduct::lock_name;
use stocklock_core::stock::{Sku, Warehouse};
use stocklock_core::strategy::{Strategy, UnknownStrategy};
use stocklock_locks::{Claimant, LockError, LockView, Nonce, Token};

/// A holder of a lock, or a client that waits for it.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ClaimantBody {
    /// Identifies the acquisition.
    nonce: String,
    /// The fencing token of a holder; `null` if the strategy has none.
    token: Option<i64>,
    /// The replica with `sql-lock`, the session on ZooKeeper, otherwise `null`.
    owner: Option<String>,
    /// For how long it has had the lock, or has waited, by the server's clock. On ZooKeeper since its
    /// arrival in the queue. `null` if the server does not know it.
    age_ms: Option<u64>,
    /// How long the lock lives without a renewal. `null` on ZooKeeper, where the session decides.
    expires_in_ms: Option<u64>,
}

/// The lock of one strategy.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct LockBody {
    /// The strategy that takes this lock.
    strategy: &'static str,
    /// The holder: none, or one.
    holders: Vec<ClaimantBody>,
    /// The clients in the queue of the server; only ZooKeeper has one.
    waiters: Vec<ClaimantBody>,
    /// Deductions of this replica that wait for the lock.
    local_waiters: usize,
    /// Why the server did not answer, if it did not.
    error: Option<String>,
}

/// The locks of a level.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct LocksBody {
    /// The SKU.
    sku: String,
    /// The warehouse.
    warehouse: String,
    /// The name that its locks have on every server.
    name: String,
    /// One for each strategy with a lock that this replica can use.
    locks: Vec<LockBody>,
}

/// The level whose locks are meant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct LevelQuery {
    /// The SKU.
    #[param(value_type = String)]
    sku: Sku,
    /// The warehouse; default `main`.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    warehouse: Warehouse,
}

/// The holder that loses its lock.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http) struct RevokeQuery {
    /// The SKU.
    #[param(value_type = String)]
    sku: Sku,
    /// The warehouse; default `main`.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    warehouse: Warehouse,
    /// The strategy whose lock is taken away.
    strategy: String,
    /// The `nonce` of the holder.
    holder: String,
}

/// What became of a holder.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct RevokedBody {
    /// Whether the lock was taken away. `false`: this nonce does not hold it.
    revoked: bool,
}

impl From<Claimant> for ClaimantBody {
    fn from(claimant: Claimant) -> Self {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            nonce: claimant.nonce.to_string(),
            token: claimant.token.map(Token::get),
            owner: claimant.owner,
            age_ms: claimant.age.map(milliseconds),
            expires_in_ms: claimant.expires_in.map(milliseconds),
        }
    }
}

impl LockBody {
    fn new(strategy: Strategy, view: Result<LockView, LockError>) -> Self {
        let error = view.as_ref().err().map(LockError::to_string);
        let view = view.unwrap_or_default();
        let bodies = |list: Vec<Claimant>| list.into_iter().map(ClaimantBody::from).collect();
        Self {
            strategy: strategy.name(),
            holders: bodies(view.holders),
            waiters: bodies(view.waiters),
            local_waiters: view.local_waiters,
            error,
        }
    }
}

/// Show who has the locks of a level, and who waits for them
#[utoipa::path(get, path = "/lab/locks", tag = "lab", params(LevelQuery),
    responses(
        (status = 200, description = "The locks of each strategy", body = LocksBody),
        openapi::ReadErrors,
    ))]
pub(in crate::http) async fn locks(
    State(api): State<Arc<Api>>,
    StrictQuery(level): StrictQuery<LevelQuery>,
) -> Json<LocksBody> {
    let name = lock_name(&level.sku, &level.warehouse);
    let views = api.locks.admins.inspect(&name).await;
    let locks = views.into_iter();
    Json(LocksBody {
        locks: locks
            .map(|(strategy, view)| LockBody::new(strategy, view))
            .collect(),
        name,
        sku: level.sku.into(),
        warehouse: level.warehouse.into(),
    })
}

/// Take the lock of a level away from its holder
///
/// The next one that waits acquires it. The old holder learns of it at its next renewal, or when it releases
/// the lock. Its write is refused if the next holder has written, unless the safeguards are off. A repeated
/// request has the same answer.
#[utoipa::path(delete, path = "/lab/locks", tag = "lab", params(RevokeQuery),
    responses(
        (status = 200, description = "What became of the holder", body = RevokedBody),
        (status = 404, response = openapi::NotInLab),
        openapi::ReadErrors,
    ))]
pub(in crate::http) async fn revoke(
    State(api): State<Arc<Api>>,
    StrictQuery(query): StrictQuery<RevokeQuery>,
) -> Result<Json<RevokedBody>, ApiError> {
    let unknown = |e: UnknownStrategy| ApiError::unprocessable("unknown-strategy", e.to_string());
    let strategy: Strategy = query.strategy.parse().map_err(unknown)?;
    let holder = Nonce::parse(&query.holder);
    let invalid = || ApiError::invalid("holder: expected the 32 digits of a nonce");
    let name = lock_name(&query.sku, &query.warehouse);
    let revoked = api
        .locks
        .admins
        .revoke(strategy, &name, holder.ok_or_else(invalid)?);
    let no_locks = || {
        let detail = format!("this replica has no locks of `{}`", strategy.name());
        ApiError::new(StatusCode::NOT_FOUND, "no-locks", detail)
    };
    let unavailable = |error: LockError| {
        let detail = error.to_string();
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "strategy-unavailable",
            detail,
        )
    };
    let revoked = revoked.await.ok_or_else(no_locks)?.map_err(unavailable)?;
    Ok(Json(RevokedBody { revoked }))
}
