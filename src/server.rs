//! The accept loop: HTTP/1.1 with a bound on connections and on every wait, and a graceful drain.
//!
//! It replaces `axum::serve`, because axum 0.8 has no timeout for a request's header.

use std::convert::Infallible;
use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

mod timed_io;

use crate::config::Limits;
use crate::crowd::Crowd;
use timed_io::{Phase, TimedIo};

/// The pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The maximum size of a connection's buffer, and so of a request's header. All connections may have one at
/// the same time.
const MAX_BUFFER: usize = 16 * 1024;

/// Serves until `shutdown` is cancelled, then finishes the requests in progress.
///
/// After `shutdown`, idle connections close at once and the others after their answer. The caller
/// must bound that time.
pub(crate) async fn serve<S>(
    listener: TcpListener,
    http: S,
    limits: &Limits,
    crowd: Crowd,
    shutdown: CancellationToken,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let server = Server {
        http,
        limits: Arc::new(limits.clone()),
        crowd,
        shutdown: shutdown.clone(),
        make_room: watch::Sender::new(()),
    };
    let slots = Arc::new(Semaphore::new(limits.max_connections as usize));
    let accepting = async {
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await;
            let slot = slot.expect("the semaphore stays open");
            let serving = server.clone().serve_connection(accept(&listener).await);
            server.crowd.connections.spawn(async move {
                serving.await;
                drop(slot);
            });
            if server.crowd.is_crowded() {
                server.make_room.send_replace(());
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = accepting => {}
    }
    drop(listener);
    server.crowd.connections.close();
    server.crowd.connections.wait().await;
}

/// The connection ends with the answer.
fn close() -> HeaderValue {
    HeaderValue::from_static("close")
}

/// Accepts the next connection. An error concerns one connection, or is a temporary shortage.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error)
                if matches!(
                    error.kind(),
                    ConnectionRefused | ConnectionAborted | ConnectionReset
                ) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What all connections share.
#[derive(Clone)]
struct Server<S> {
    http: S,
    limits: Arc<Limits>,
    crowd: Crowd,
    shutdown: CancellationToken,
    /// Tells all connections that the server is crowded. Idle ones close, and [`TimedIo`] sets a shorter
    /// limit for silent clients. Each first checks that it is still crowded, so about as many close as
    /// necessary.
    make_room: watch::Sender<()>,
}

impl<S> Server<S> {
    async fn serve_connection(self, stream: TcpStream)
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
    {
        // Answers are small and written at once: waiting to fill a packet would only delay them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let phase = Arc::new(Phase::default());
        let limits = Arc::clone(&self.limits);
        let io = TimedIo::new(stream, Arc::clone(&phase), limits, self.crowd.clone());
        let mut make_room = self.make_room.subscribe();
        let (phase, server) = (&phase, &self);
        let service = service_fn(|request: Request<Incoming>| {
            phase.start_serving();
            async move {
                let http = server.http.clone();
                let Ok(mut response) = http.oneshot(request.map(Body::new)).await;
                // Such an answer may begin before the end of the request. The connection is never idle.
                let closes = response.headers().get(CONNECTION) == Some(&close());
                if !closes {
                    phase.become_idle();
                }
                if server.crowd.is_crowded() {
                    response.headers_mut().insert(CONNECTION, close());
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .max_buf_size(MAX_BUFFER)
            .serve_connection(TokioIo::new(io), service);
        let mut connection = pin!(connection);
        let ended = loop {
            tokio::select! {
                // The connection first: a request that has already arrived is served.
                biased;
                ended = connection.as_mut() => break ended,
                () = self.shutdown.cancelled() => {}
                // If it is not idle, the next poll of the connection sets a shorter limit.
                _ = make_room.changed() => if !(phase.is_idle() && self.crowd.is_crowded()) {
                    continue;
                }
            }
            connection.as_mut().graceful_shutdown();
            break connection.await;
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}
