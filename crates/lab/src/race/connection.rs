//! One keep-alive HTTP/1.1 connection to one replica, opened again after it breaks.
//!
//! It is not a pool, because a race measures a known number of connections. It never repeats a
//! request: only the caller knows whether a repetition is safe.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::target::Target;

/// The largest answer that is read. A page of a thousand movements takes less than half of it.
const MAX_BODY: usize = 2 << 20;

/// A complete answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// From sending the request to the last byte of the answer, without connecting.
    pub(super) elapsed: Duration,
}

/// The fields of an RFC 9457 body that a race reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Problem {
    pub(super) code: String,
    pub(super) detail: String,
}

impl Answer {
    /// The problem that the answer describes. Empty if the service did not write the answer.
    pub(super) fn problem(&self) -> Problem {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// No complete answer arrived.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("cannot connect: {0}")]
    Connect(#[source] std::io::Error),
    #[error("the connection broke: {0}")]
    Http(#[from] hyper::Error),
    #[error("the answer broke off: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no answer in time")]
    TimedOut,
}

/// A connection to one replica.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) target: Target,
    open: Option<Open>,
}

/// Sends requests, and the task that reads and writes the socket. Dropping it closes the socket.
type Open = (SendRequest<Full<Bytes>>, AbortOnDropHandle<()>);

impl Connection {
    /// Creates a connection that is not open yet.
    pub(super) fn new(target: Target) -> Self {
        Self { target, open: None }
    }

    /// Opens a connection, so that the first exchange is not slower than the others. If this fails,
    /// the first exchange tries again and returns the error.
    pub(super) async fn open(target: Target, until: Instant) -> Self {
        let mut connection = Self::new(target);
        if let Ok(Ok(open)) = timeout_at(until, connection.ready()).await {
            connection.open = Some(open);
        }
        connection
    }

    /// Sends `request` once and reads the answer, until `until` at the latest.
    ///
    /// Not cancel safe: after a timeout or a drop the service may have executed the request. The
    /// connection is then closed, because a late answer may still arrive.
    pub(super) async fn exchange(
        &mut self,
        request: &Request<Full<Bytes>>,
        until: Instant,
    ) -> Result<Answer, ExchangeError> {
        let exchange = async {
            let (mut sender, driver) = self.ready().await?;
            let sent = Instant::now();
            let (head, body) = sender.send_request(request.clone()).await?.into_parts();
            let body = Limited::new(body, MAX_BODY).collect().await;
            let answer = Answer {
                status: head.status,
                headers: head.headers,
                body: body.map_err(ExchangeError::Body)?.to_bytes(),
                elapsed: sent.elapsed(),
            };
            self.open = Some((sender, driver));
            Ok(answer)
        };
        let answer = timeout_at(until, exchange).await;
        answer.unwrap_or(Err(ExchangeError::TimedOut))
    }

    /// Takes the open connection, or opens one.
    async fn ready(&mut self) -> Result<Open, ExchangeError> {
        if let Some((mut sender, driver)) = self.open.take()
            && sender.ready().await.is_ok()
        {
            return Ok((sender, driver));
        }
        let stream = TcpStream::connect(self.target.address()).await;
        let stream = stream.map_err(ExchangeError::Connect)?;
        stream.set_nodelay(true).map_err(ExchangeError::Connect)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move {
            // The exchange returns the same error.
            let _ = driver.await;
        });
        Ok((sender, AbortOnDropHandle::new(driver)))
    }
}
