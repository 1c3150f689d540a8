//! The accept loop: HTTP/1.1 with a bound on connections and on every wait, and a graceful drain.
//!
//! Ours rather than `axum::serve`, which at 0.8 waits for a request's header for ever.

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

mod room;
mod timed_io;

use room::Room;
use timed_io::{Phase, TimedIo};

/// The bounds of a server's connections.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// The most connections at once; further ones wait in the kernel's queue. Above nine tenths of
    /// them, none is kept alive for a client that has nothing to ask.
    pub max_connections: usize,
    /// Longest silence before a new connection's first byte.
    pub first_byte: Duration,
    /// Longest time from a request's first byte to the end of its header; also the longest that a
    /// client may leave an answer unread.
    pub header: Duration,
    /// Longest silence between two requests.
    pub idle: Duration,
}

/// How long to wait when the system has no file descriptor left for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` is cancelled, then lets requests under way finish.
///
/// Idle connections are closed at once, the others as soon as their request is answered; for how
/// long is the caller's to bound.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    shutdown: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    let connections = TaskTracker::new();
    let room = Room::new(connections.clone(), limits.max_connections);
    let accepting = async {
        loop {
            let slot = Arc::clone(&slots)
                .acquire_owned()
                .await
                .expect("the semaphore stays open");
            let stream = accept(&listener).await;
            let serving = serve_connection(
                stream,
                router.clone(),
                limits,
                room.clone(),
                shutdown.clone(),
            );
            connections.spawn(async move {
                serving.await;
                drop(slot);
            });
            room.make();
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

/// The next connection. Errors here are the connection's own, or a shortage that passes.
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
    limits: ServerLimits,
    room: Room,
    shutdown: CancellationToken,
) {
    // Answers are small and complete: waiting to fill a packet would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let phase = Arc::new(Phase::default());
    let io = TokioIo::new(TimedIo::new(stream, Arc::clone(&phase), limits));
    let mut calls = room.calls();
    let service = service_fn(|request: Request<Incoming>| {
        phase.serving();
        let answer = router.clone().oneshot(request.map(Body::new));
        let (phase, room) = (&phase, &room);
        async move {
            let Ok(mut response) = answer.await;
            phase.idle();
            room.mark(&mut response);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(http1::Builder::new().serve_connection(io, service));
    let ended = loop {
        tokio::select! {
            // First, for a request that has come by now is served.
            biased;
            ended = connection.as_mut() => break ended,
            () = shutdown.cancelled() => {}
            _ = calls.changed() => if !(phase.is_idle() && room.is_short()) {
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
