//! A [tower](https://docs.rs/tower) layer that holds a lock while a route of a web service handles a
//! request.
//!
//! ```
//! use std::time::Duration;
//! use axum::{Router, extract::Request, routing::post};
//! use stocklock_locks::{LockManager, tower::LockLayer};
//!
//! fn routes(locks: LockManager) -> Router {
//!     let by_account = LockLayer::new(move |request: &Request| {
//!         let account = request.headers().get("account").and_then(|name| name.to_str().ok());
//!         let account = account.unwrap_or_default();
//!         let lock = locks.lock(&format!("account:{account}"));
//!         Some(lock.wait(Duration::from_secs(2)).lease(Duration::from_secs(10)).max_renewals(2))
//!     });
//!     Router::new().route("/transfers", post(async || "done").layer(by_account))
//! }
//! ```

use std::fmt::{self, Debug, Formatter};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, StatusCode, header};
use tower_layer::Layer;
use tower_service::Service;

use crate::api::builder::LockBuilder;
use crate::shared::error::LockError;

/// Makes the answer to a request whose lock was not acquired, or was lost.
type Refuse<B> = Arc<dyn Fn(LockError) -> Response<B> + Send + Sync>;

/// Holds a lock while the inner service handles a request.
///
/// - **Release.** The lock is released in the background when the future of the response ends: with a
///   response, by a panic, or because the client has left and the server drops the future. A response
///   body that is streamed is sent after the release.
/// - **Loss.** If the lock is lost, the future of the inner service is dropped at its current await
///   point, and the request is answered with an error. What it did until then is not undone, and a task
///   that it has spawned continues.
/// - **Token.** The request has an `Arc<LockGuard>` among its extensions. Pass its
///   [token](crate::LockGuard::token) to every write. A task that keeps the guard keeps the lock.
/// - **Writes.** A client that leaves frees the lock while a statement of the dropped handler may still be
///   executing. So run the write in its own task that keeps the `Arc<LockGuard>`, or let the write check
///   the token.
/// - **Limits.** Set [`max_renewals`](LockBuilder::max_renewals) or
///   [`max_hold`](LockBuilder::max_hold), so that a handler that hangs does not keep the lock. The lock is
///   held while the handler reads the body of the request.
pub struct LockLayer<K, B> {
    lock_of: K,
    refuse: Refuse<B>,
}

impl<K, B> LockLayer<K, B> {
    /// Creates a layer. `lock_of` chooses the lock of a request with its wait limit, lease and further
    /// limits, or `None` to handle the request without a lock.
    ///
    /// The name must be the one that the handler works on. The path of the request is still encoded: if
    /// the name comes from it, decode it, or `/accounts/42` and `/accounts/%34%32` take two locks.
    ///
    /// An error is answered without a body, unless [`on_error`](Self::on_error) is called:
    ///
    /// | error | status |
    /// |---|---|
    /// | the wait limit has passed, the server is unavailable, the manager was shut down | 503 with `Retry-After: 1` |
    /// | the lock was lost while the request was handled; its outcome is unknown | 504 |
    /// | the name of the lock, which comes from the request, is empty or too long | 400 |
    /// | any other | 500 |
    #[must_use]
    pub fn new<A>(lock_of: K) -> Self
    where
        K: Fn(&Request<A>) -> Option<LockBuilder>,
        B: Default,
    {
        Self {
            lock_of,
            refuse: Arc::new(|error| refusal(&error)),
        }
    }

    /// Sets how an error is answered. [`LockError::Lost`] means that the request was handled in part;
    /// all other errors, that it was not handled.
    #[must_use]
    pub fn on_error<F>(mut self, answer: F) -> Self
    where
        F: Fn(LockError) -> Response<B> + Send + Sync + 'static,
    {
        self.refuse = Arc::new(answer);
        self
    }
}

impl<K: Clone, B> Clone for LockLayer<K, B> {
    fn clone(&self) -> Self {
        Self {
            lock_of: self.lock_of.clone(),
            refuse: Arc::clone(&self.refuse),
        }
    }
}

impl<K, B> Debug for LockLayer<K, B> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LockLayer").finish_non_exhaustive()
    }
}

impl<S, K: Clone, B> Layer<S> for LockLayer<K, B> {
    type Service = LockService<S, K, B>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = self.clone();
        LockService { inner, layer }
    }
}

/// The service of a [`LockLayer`].
#[derive(Debug)]
pub struct LockService<S, K, B> {
    inner: S,
    layer: LockLayer<K, B>,
}

impl<S: Clone, K: Clone, B> Clone for LockService<S, K, B> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S, K, A, B> Service<Request<A>> for LockService<S, K, B>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    K: Fn(&Request<A>) -> Option<LockBuilder>,
    A: Send + 'static,
    B: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The service that is ready handles the request. Its clone may not be ready.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let Some(lock) = (self.layer.lock_of)(&request) else {
            return inner.call(request).boxed();
        };
        let refuse = Arc::clone(&self.layer.refuse);
        let handled = async move {
            let handled = handle(lock, request, inner).await;
            handled.unwrap_or_else(|error| Ok(refuse(error)))
        };
        handled.boxed()
    }
}

async fn handle<S, A>(
    lock: LockBuilder,
    mut request: Request<A>,
    mut inner: S,
) -> Result<Result<S::Response, S::Error>, LockError>
where
    S: Service<Request<A>>,
{
    // Dropped after the future of the inner service, also if the client leaves.
    let guard = lock.acquire().await?.quiet();
    request.extensions_mut().insert(Arc::new(guard.reenter()?));
    tokio::select! {
        biased;
        reason = guard.lost() => Err(LockError::Lost { reason }),
        // A handler that blocks its thread may return after the loss.
        answer = inner.call(request) => guard.check().map(|()| answer),
    }
}

fn refusal<B: Default>(error: &LockError) -> Response<B> {
    let mut answer = Response::new(B::default());
    *answer.status_mut() = match error {
        LockError::WaitLimit { .. } | LockError::Unavailable(_) | LockError::Shutdown => {
            let soon = HeaderValue::from_static("1");
            answer.headers_mut().insert(header::RETRY_AFTER, soon);
            StatusCode::SERVICE_UNAVAILABLE
        }
        LockError::Lost { .. } => StatusCode::GATEWAY_TIMEOUT,
        LockError::InvalidName { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    answer
}
