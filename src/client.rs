//! HTTP requests to other processes, each over a connection of its own: no pool, no redirects, no proxies.

use std::fmt::Display;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::handshake;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use tower::BoxError;

/// The largest answer that [`send`] reads, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// An answer, whose body can be read as long as this is kept.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    _connection: AbortOnDropHandle<()>,
}

/// Sends `request` on a new connection, and waits for the head of the answer.
///
/// # Errors
/// Those of the connection.
///
/// # Cancel safety
/// If the future is dropped, the other process may have executed the request.
pub(crate) async fn exchange<B>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<B>,
) -> hyper::Result<Answer>
where
    B: HttpBody<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = AbortOnDropHandle::new(tokio::spawn(async move {
        // The request returns the same error.
        let _ = connection.await;
    }));
    Ok(Answer {
        response: sender.send_request(request).await?,
        _connection: connection,
    })
}

/// TLS that trusts the certificates of this machine, which are read at the first use.
pub(crate) static TLS: LazyLock<TlsConnector> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions();
    let config = config.expect("the provider has the versions");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth()).into()
});

/// Sends `request` to `address` (`host:port`), and returns the whole answer.
///
/// # Errors
/// Why no answer arrived within `limit`.
///
/// # Cancel safety
/// As [`exchange`].
pub(crate) async fn send(
    address: &str,
    request: Request<Full<Bytes>>,
    limit: Duration,
) -> Result<Response<Bytes>, String> {
    let exchange = async {
        let stream = TcpStream::connect(address).await.map_err(text)?;
        let answer = exchange(stream, request).await.map_err(text)?;
        let (head, body) = answer.response.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(text)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    let answer = timeout(limit, exchange).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
}

fn text(error: impl Display) -> String {
    error.to_string()
}
