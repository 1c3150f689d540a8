//! The API key of a request: each route is registered with what it needs, and checked before its handler runs.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout_at};
use tower_http::validate_request::{ValidateRequest, ValidateRequestHeaderLayer};
use utoipa::OpenApi as _;
use utoipa::openapi::security::SecurityRequirement;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use super::openapi::{API_KEY, Document};
use super::{Api, ApiError};
use crate::access::{Access, Denied, Grant};
use stocklock_core::access::Scope;
use stocklock_core::stock::StockError;

/// The routes with their documentation. A route cannot be added without what it needs.
pub(super) struct Routes {
    router: OpenApiRouter<Arc<Api>>,
    access: Arc<Access>,
}

impl Routes {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self {
            router: OpenApiRouter::with_openapi(Document::openapi()),
            access,
        }
    }

    /// Adds routes that everyone may call.
    pub(super) fn open(self, routes: UtoipaMethodRouter<Arc<Api>>) -> Self {
        Self {
            router: self.router.routes(routes),
            ..self
        }
    }

    /// Adds routes that need a key with this scope, unless the service needs no keys.
    pub(super) fn needs(self, scope: Scope, routes: UtoipaMethodRouter<Arc<Api>>) -> Self {
        let Access::Keys(_) = &*self.access else {
            return self.open(routes);
        };
        let (schemas, mut paths, methods) = routes;
        for item in paths.paths.values_mut() {
            let operations = [
                &mut item.get,
                &mut item.put,
                &mut item.post,
                &mut item.patch,
                &mut item.delete,
            ];
            for operation in operations.into_iter().flatten() {
                operation.security =
                    Some(vec![SecurityRequirement::new(API_KEY, [scope.as_str()])]);
            }
        }
        let guard = Guard {
            access: Arc::clone(&self.access),
            scope,
        };
        let methods = methods.route_layer(ValidateRequestHeaderLayer::custom(guard));
        self.open((schemas, paths, methods))
    }

    pub(super) fn into_router(self) -> OpenApiRouter<Arc<Api>> {
        self.router
    }
}

/// Lets requests through whose key has the scope.
#[derive(Debug, Clone)]
struct Guard {
    access: Arc<Access>,
    scope: Scope,
}

impl ValidateRequest<Body> for Guard {
    type ResponseBody = Body;

    fn validate(&mut self, request: &mut Request) -> Result<(), Response> {
        let Access::Keys(keys) = &*self.access else {
            return Ok(());
        };
        let granted = keys.admit(bearer(request.headers()), self.scope);
        let grant = granted.map_err(|denied| ApiError::from(denied).into_response())?;
        request.extensions_mut().insert(grant);
        Ok(())
    }
}

/// For how long a request that takes long waits for its limit.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Admits more lines of a request that takes long: waits while its key is at its limit, and refuses them if that
/// takes too long, at shutdown, or if the key is no longer valid. Cancel safe.
pub(super) async fn admit_more(
    api: &Api,
    headers: &HeaderMap,
    scope: Scope,
    lines: usize,
) -> Result<(), ApiError> {
    let end = Instant::now() + LONGEST_WAIT;
    loop {
        if api.shutdown.is_cancelled() {
            let what = "this replica shuts down: send the file again with the same key";
            return Err(StockError::Overloaded { what }.into());
        }
        if lines == 0 {
            return check_again(api, headers, scope);
        }
        let Access::Keys(keys) = &*api.access else {
            return Ok(());
        };
        let denied = match keys.admit(bearer(headers), scope) {
            Ok(grant) => {
                grant.charge_lines(lines);
                return Ok(());
            }
            Err(denied) => denied,
        };
        let Denied::TooMany(seconds) = denied else {
            return Err(denied.into());
        };
        let next = Instant::now() + Duration::from_secs(seconds.into());
        if next > end {
            return Err(denied.into());
        }
        // Ends early at shutdown, which is checked above.
        let _ = timeout_at(next, api.shutdown.cancelled()).await;
    }
}

/// Refuses to go on with a request that takes long, if its key is no longer valid. It costs its limit nothing.
pub(super) fn check_again(api: &Api, headers: &HeaderMap, scope: Scope) -> Result<(), ApiError> {
    if let Access::Keys(keys) = &*api.access {
        keys.check(bearer(headers), scope)?;
    }
    Ok(())
}

const SCHEME: &str = "Bearer ";

/// The key in `Authorization: Bearer …`, which may be sent once.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (sent.next(), sent.next()) else {
        return None;
    };
    let (scheme, key) = value.to_str().ok()?.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| key.trim())
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::NotLoaded => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "the API keys are not loaded yet, because the database does not answer",
            )
            .retry_after(1),
            Denied::NoKey => Self::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "send an API key as Authorization: Bearer slk_…",
            ),
            Denied::InvalidKey => Self::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "the API key is not valid, or not any more",
            ),
            Denied::Needs(scope) => Self::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                format!("the API key does not have the scope `{scope}`"),
            )
            .with_field("needs", scope.as_str()),
            Denied::TooMany(seconds) => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "too-many-requests",
                "the API key has reached its limit; nothing was changed",
            )
            .retry_after(seconds),
        }
    }
}

/// What the key of the request allows.
#[derive(Debug)]
pub(super) struct Granted(pub(super) Grant);

impl FromRequestParts<Arc<Api>> for Granted {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        match &*api.access {
            Access::Open => Ok(Self(Grant::anonymous())),
            Access::Keys(_) => {
                let grant = parts.extensions.get().cloned();
                let grant =
                    grant.ok_or_else(|| ApiError::internal("the route checks no key".into()));
                grant.map(Self)
            }
        }
    }
}
