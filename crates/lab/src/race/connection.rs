//! One keep-alive HTTP/1.1 connection to one replica, opened again when it breaks.
//!
//! Deliberately not a pool: a race measures what happens on a known number of connections. And it
//! never sends anything twice by itself, since only the caller knows whether that is safe.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::target::Target;

/// The largest answer that is read: a page of a thousand movements takes less than half of it.
const MAX_BODY: usize = 2 << 20;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What is sent.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// JSON; empty for none.
    pub(super) body: Bytes,
    pub(super) key: Option<HeaderValue>,
}

/// What came back, whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// From sending to the last byte of the answer; connecting is not part of it.
    pub(super) elapsed: Duration,
}

/// No whole answer came.
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
    /// What it is counted as.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Connect(_) => "not-connected",
            Self::Http(_) | Self::Body(_) => "cut",
            Self::TimedOut => "no-answer",
        }
    }

    /// Whether the service may have acted on the request all the same.
    pub(super) fn may_have_arrived(&self) -> bool {
        match self {
            Self::Connect(_) => false,
            // Cancelled: the connection closed before anything was sent on it.
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
    /// What reads and writes the socket; ends with this value.
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    /// Not yet open.
    pub(super) fn new(target: Target) -> Self {
        Self { target, open: None }
    }

    /// Whom it talks to.
    pub(super) fn target(&self) -> &Target {
        &self.target
    }

    /// Opens it now, so that the first exchange need not.
    pub(super) async fn open(&mut self, until: Instant) -> Result<(), ExchangeError> {
        let opened = timeout_at(until, self.ready()).await;
        self.open = Some(opened.map_err(|_| ExchangeError::TimedOut)??);
        Ok(())
    }

    /// Sends `message` once and reads the answer, until `until` at the latest.
    ///
    /// Not cancel safe: after a time-out or a drop the service may have acted, and the connection
    /// is closed.
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
        // Taken out for the exchange: if that ends early, a stale answer may be under way.
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
            // What breaks the connection is also the exchange's error.
            let _ = driver.await;
        });
        Ok(Open {
            sender,
            _driver: AbortOnDropHandle::new(driver),
        })
    }

    fn request(&self, message: Message) -> Request<Full<Bytes>> {
        let Message {
            method,
            uri,
            body,
            key,
        } = message;
        let has_body = !body.is_empty();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(HOST, self.target.authority());
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(key) = key {
            headers.insert(IDEMPOTENCY_KEY, key);
        }
        request
    }
}
