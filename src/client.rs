//! One HTTP request to another process, over a connection of its own: for `stocklock ping` and for traces.

use std::fmt::Display;
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The largest answer that is read, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// Sends `request` to `address` (`host:port`), and returns the answer.
///
/// # Errors
/// Why no answer arrived within `limit`.
///
/// # Cancel safety
/// If the future is dropped, the other process may have executed the request.
pub(crate) async fn send(
    address: &str,
    request: Request<Full<Bytes>>,
    limit: Duration,
) -> Result<Response<Bytes>, String> {
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(text)?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(text)?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(text)?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_BODY).collect().await.map_err(text)?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        tokio::select! {
            // The answer first: the connection may end right after it.
            biased;
            answer = exchange => answer,
            ended = connection => Err(ended.map_or_else(text, |()| "the connection was closed".into())),
        }
    };
    let answer = timeout(limit, exchange).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
}

fn text(error: impl Display) -> String {
    error.to_string()
}
