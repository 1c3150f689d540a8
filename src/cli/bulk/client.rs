//! Requests of commands to the service. Each may take hours.

use std::io;
use std::time::Duration;

use axum::body::Body;
use clap::Args;
use futures_util::TryStreamExt as _;
use http_body_util::BodyDataStream;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use hyper::{Method, Request};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret as _, SecretString};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWrite, Lines};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::io::StreamReader;
use url::Url;

use crate::cli::Failure;
use crate::client::{Answer, TLS, exchange};

/// After so long without a byte, the kernel asks whether the other machine is still there, because an import may be
/// silent for an hour.
const ALIVE: Duration = Duration::from_secs(15);

/// How long the service may take to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The service, and who calls it.
#[derive(Debug, Args)]
pub(super) struct Server {
    /// The URL of the service, or of the proxy in front of it
    #[arg(long, default_value = "http://127.0.0.1:8080", value_parser = url)]
    url: Url,

    /// The API key. Set the variable: other users see the arguments of a command
    #[arg(long, env, hide_env_values = true)]
    api_key: Option<SecretString>,
}

fn url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|_| "not a URL")?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    let is_valid = ["http", "https"].contains(&url.scheme()) && url.query().is_none() && !has_user;
    is_valid.then_some(url).ok_or_else(|| {
        "expected http://… or https://…, without user, password and query".to_owned()
    })
}

/// Why there is no answer, or which one.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) text: String,
    /// Whether another attempt may succeed.
    pub(super) is_temporary: bool,
    /// After so many seconds.
    pub(super) retry_after: u64,
}

impl Problem {
    pub(super) fn cut(error: impl std::fmt::Display) -> Self {
        Self {
            text: format!("the connection to the service broke: {error}"),
            is_temporary: true,
            retry_after: 0,
        }
    }
}

/// Whether a request that is answered with this status may succeed later.
pub(super) fn is_temporary(status: u16) -> bool {
    matches!(status, 429 | 502..=504)
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Other(problem.text)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Server {
    /// Sends a request, and waits for the head of the answer, whose status is 200. `key`: its Idempotency-Key. Not cancel safe: the
    /// service may have executed it.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Body,
    ) -> Result<Answer, Problem> {
        let base = self.url.path().trim_end_matches('/');
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"))
            .header(HOST, self.url.authority())
            .header(CONTENT_TYPE, "application/x-ndjson");
        if let Some(api_key) = &self.api_key {
            let bearer = format!("Bearer {}", api_key.expose_secret());
            request = request.header(AUTHORIZATION, bearer);
        }
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        let wrong = |error: hyper::http::Error| Problem {
            text: format!("the API key or the key of the import cannot be sent: {error}"),
            is_temporary: false,
            retry_after: 0,
        };
        let request = request.body(body).map_err(wrong)?;
        let stream = timeout(CONNECT_LIMIT, self.connect()).await;
        let stream = stream.map_err(Problem::cut)?.map_err(Problem::cut)?;
        let answer = exchange(stream, request).await.map_err(Problem::cut)?;
        checked(answer).await
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let host = self.url.host_str().unwrap_or_default();
        let host = host.trim_matches(['[', ']']);
        let port = self.url.port_or_known_default().unwrap_or(80);
        let stream = TcpStream::connect((host, port)).await?;
        let alive = TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE);
        SockRef::from(&stream).set_tcp_keepalive(&alive)?;
        if self.url.scheme() == "http" {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(TLS.connect(name, stream).await?))
    }
}

/// The answer, or what the service says is wrong.
async fn checked(mut answer: Answer) -> Result<Answer, Problem> {
    let status = answer.response.status();
    if status == 200 {
        return Ok(answer);
    }
    let retry_after = answer.response.headers().get(RETRY_AFTER);
    let retry_after = retry_after.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    let mut text = format!("the service answers {status}");
    // The body of an error is one line, and may have no line break.
    let line = lines(&mut answer).next_line().await.map_err(Problem::cut)?;
    if let Some(line) = line
        && let Ok(problem) = serde_json::from_str::<serde_json::Value>(&line)
        && let Some(detail) = problem["detail"].as_str()
    {
        text = format!("{text}: {detail}");
    }
    Err(Problem {
        text,
        is_temporary: is_temporary(status.as_u16()),
        retry_after: retry_after.unwrap_or_default(),
    })
}

/// The lines of an answer.
pub(super) fn lines(answer: &mut Answer) -> Lines<impl AsyncBufRead + Unpin> {
    let body = BodyDataStream::new(answer.response.body_mut());
    StreamReader::new(body.map_err(io::Error::other)).lines()
}
