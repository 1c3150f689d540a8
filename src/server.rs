//! The accept loop: HTTP/1.1 with a bound on connections and on every wait, and a graceful drain.
//!
//! It replaces `axum::serve`, because axum 0.8 has no timeout for a request's header.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

mod idle_shedder;
mod timed_io;

use crate::config::Limits;
use idle_shedder::IdleShedder;
use timed_io::{Phase, TimedIo};

/// The pause after a failed accept, for example when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` is cancelled, then finishes the requests in progress.
///
/// After `shutdown`, idle connections close at once and the others after their answer. The caller
/// must bound that time.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: &Limits,
    shutdown: CancellationToken,
) {
    let limits = Arc::new(limits.clone());
    let slots = Arc::new(Semaphore::new(limits.max_connections as usize));
    let connections = TaskTracker::new();
    let shedder = IdleShedder::new(connections.clone(), limits.max_connections as usize);
    let accepting = async {
        loop {
            let slot = Arc::clone(&slots).acquire_owned().await;
            let slot = slot.expect("the semaphore stays open");
            let stream = accept(&listener).await;
            let (router, shutdown) = (router.clone(), shutdown.clone());
            let limits = Arc::clone(&limits);
            let serving = serve_connection(stream, router, limits, shedder.clone(), shutdown);
            connections.spawn(async move {
                serving.await;
                drop(slot);
            });
            shedder.shed_idle();
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = accepting => {}
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Accepts the next connection. An error concerns one connection, or is a temporary shortage.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    limits: Arc<Limits>,
    shedder: IdleShedder,
    shutdown: CancellationToken,
) {
    // Answers are small and written at once: waiting to fill a packet would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let phase = Arc::new(Phase::default());
    let io = TokioIo::new(TimedIo::new(stream, Arc::clone(&phase), limits));
    let mut shed_idle = shedder.subscribe();
    let service = service_fn(|request: Request<Incoming>| {
        phase.start_serving();
        let answer = router.clone().oneshot(request.map(Body::new));
        let (phase, shedder) = (&phase, &shedder);
        async move {
            let Ok(mut response) = answer.await;
            phase.become_idle();
            shedder.close_if_crowded(&mut response);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(http1::Builder::new().serve_connection(io, service));
    let ended = loop {
        tokio::select! {
            // The connection first: a request that has already arrived is served.
            biased;
            ended = connection.as_mut() => break ended,
            () = shutdown.cancelled() => {}
            _ = shed_idle.changed() => if !(phase.is_idle() && shedder.is_crowded()) {
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
