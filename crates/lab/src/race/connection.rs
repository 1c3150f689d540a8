//! One keep-alive HTTP/1.1 connection to one replica, opened again after it breaks.
//!
//! It is not a pool, because a race measures a known number of connections. It never repeats a
//! request: only the caller knows whether a repetition is safe.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::target::Target;

/// The largest answer that is read. A page of a thousand movements takes less than half of it.
const MAX_BODY: usize = 2 << 20;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// JSON, or empty.
    pub(super) body: Bytes,
    pub(super) key: Option<HeaderValue>,
}

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
pub(super) struct Problem {
    #[serde(default)]
    pub(super) code: String,
    #[serde(default)]
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

impl ExchangeError {
    /// The code under which it is counted.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Connect(_) => "not-connected",
            Self::Http(_) | Self::Body(_) => "cut",
            Self::TimedOut => "no-answer",
        }
    }

    /// Whether the service may have executed the request.
    pub(super) fn may_have_arrived(&self) -> bool {
        match self {
            Self::Connect(_) => false,
            // Canceled: the connection was closed before hyper sent the request.
            Self::Http(error) => !error.is_canceled(),
            Self::Body(_) | Self::TimedOut => true,
        }
    }
}

/// A connection to one replica.
#[derive(Debug)]
pub(super) struct Connection {
    target: Target,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    sender: SendRequest<Full<Bytes>>,
    /// Reads and writes the socket. Dropping it closes the connection.
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    /// Creates a connection that is not open yet.
    pub(super) fn new(target: Target) -> Self {
        Self { target, open: None }
    }

    /// The replica.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Opens the connection, so that the first exchange is not slower than the others.
    pub(super) async fn open(&mut self, until: Instant) -> Result<(), ExchangeError> {
        let opened = timeout_at(until, self.ready()).await;
        self.open = Some(opened.map_err(|_| ExchangeError::TimedOut)??);
        Ok(())
    }

    /// Sends `message` once and reads the answer, until `until` at the latest.
    ///
    /// Not cancel safe: after a timeout or a drop the service may have executed the request. The
    /// connection is then closed, because a late answer may still arrive.
    pub(super) async fn exchange(
        &mut self,
        message: Message,
        until: Instant,
    ) -> Result<Answer, ExchangeError> {
        timeout_at(until, self.exchange_once(message))
            .await
            .map_err(|_| ExchangeError::TimedOut)?
    }

    async fn exchange_once(&mut self, message: Message) -> Result<Answer, ExchangeError> {
        let mut open = self.ready().await?;
        let request = self.request(message);
        let sent = Instant::now();
        let (head, body) = open.sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await;
        let answer = Answer {
            status: head.status,
            headers: head.headers,
            body: body.map_err(ExchangeError::Body)?.to_bytes(),
            elapsed: sent.elapsed(),
        };
        self.open = Some(open);
        Ok(answer)
    }

    /// Takes the open connection, or opens one.
    async fn ready(&mut self) -> Result<Open, ExchangeError> {
        if let Some(mut open) = self.open.take()
            && open.sender.ready().await.is_ok()
        {
            return Ok(open);
        }
        let stream = TcpStream::connect(self.target.address())
            .await
            .map_err(ExchangeError::Connect)?;
        stream.set_nodelay(true).map_err(ExchangeError::Connect)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move {
            // The exchange returns the same error.
            let _ = driver.await;
        });
        Ok(Open {
            sender,
            _driver: AbortOnDropHandle::new(driver),
        })
    }

    fn request(&self, message: Message) -> Request<Full<Bytes>> {
        let has_body = !message.body.is_empty();
        let mut request = Request::new(Full::new(message.body));
        *request.method_mut() = message.method;
        *request.uri_mut() = message.uri;
        let headers = request.headers_mut();
        headers.insert(HOST, self.target.authority());
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = message.key {
            headers.insert(IDEMPOTENCY_KEY, key);
        }
        request
    }
}
