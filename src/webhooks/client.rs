//! Sends one message to a receiver: HTTP/1.1 on a connection of its own, to an address that was checked.
//!
//! No redirect is followed, and no proxy is used. Only the status of the answer is read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use url::{Host, Url};

use super::address::Allowed;
use crate::client::{TLS, exchange};

/// The time of one message, from the look-up of the name to the status.
const LIMIT: Duration = Duration::from_secs(15);

/// Finds the addresses of a name.
type Resolve = Arc<dyn Fn(String, u16) -> BoxFuture<'static, Vec<SocketAddr>> + Send + Sync>;

/// Sends messages to receivers.
#[derive(Clone)]
pub(crate) struct Client {
    allowed: Allowed,
    resolve: Resolve,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// A signed message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) headers: [(&'static str, String); 3],
    pub(crate) body: Bytes,
}

impl Client {
    /// A client that trusts the certificates of this machine, and sends also to the networks that are allowed.
    pub(crate) fn new(allowed: Allowed) -> Self {
        let resolve = |host: String, port| -> BoxFuture<'static, Vec<SocketAddr>> {
            Box::pin(async move {
                let found = lookup_host((host, port)).await;
                found.map_or_else(|_| Vec::new(), Iterator::collect)
            })
        };
        Self {
            allowed,
            resolve: Arc::new(resolve),
        }
    }

    /// Checks what is known of a URL without a look-up of its name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self, text: &str) -> Result<Url, &'static str> {
        let url = Url::parse(text).map_err(|_| "not a URL")?;
        let named = match url.host().ok_or("it has no host")? {
            Host::Domain(_) => None,
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
        };
        if named.is_some_and(|address| !self.allowed.permits(address)) {
            return Err("its address is not public, and WEBHOOK_ALLOW does not name it");
        }
        let is_named = named.is_none_or(|address| self.allowed.names(address));
        if url.scheme() != "https" && !(url.scheme() == "http" && is_named) {
            return Err("must begin with https://");
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err("must have neither a user nor a fragment");
        }
        Ok(url)
    }

    /// Sends a message, and returns the status of the answer.
    ///
    /// # Errors
    /// Why there is no answer, without the URL.
    pub(crate) async fn post(&self, url: &str, message: &Message) -> Result<StatusCode, String> {
        let url = self.check(url)?;
        let sent = timeout(LIMIT, self.send(&url, message)).await;
        sent.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
    }

    async fn send(&self, url: &Url, message: &Message) -> Result<StatusCode, String> {
        let stream = self.connect(url).await?;
        if url.scheme() == "http" {
            return send(stream, url, message).await;
        }
        let host = url.host_str().unwrap_or_default();
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let stream = TLS.connect(name, stream).await;
        send(stream.map_err(|error| error.to_string())?, url, message).await
    }

    /// Connects to an address that is permitted. Without TLS, it must be one that the operator has named.
    async fn connect(&self, url: &Url) -> Result<TcpStream, String> {
        let port = url.port_or_known_default().unwrap_or(443);
        let found = match url.host() {
            Some(Host::Ipv4(address)) => vec![(address, port).into()],
            Some(Host::Ipv6(address)) => vec![(address, port).into()],
            Some(Host::Domain(name)) => (self.resolve)(name.to_owned(), port).await,
            None => Vec::new(),
        };
        let mut problem = "the name of the host has no address".to_owned();
        for address in found {
            let ip = address.ip();
            let is_permitted = self.allowed.permits(ip);
            if !is_permitted || url.scheme() == "http" && !self.allowed.names(ip) {
                "the address of the host is not allowed".clone_into(&mut problem);
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => problem = error.to_string(),
            }
        }
        Err(problem)
    }
}

/// Sends the message on a connection, and waits for the status.
async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &Url,
    message: &Message,
) -> Result<StatusCode, String> {
    let host = &url[url::Position::BeforeHost..url::Position::AfterPort];
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&url[url::Position::BeforePath..url::Position::AfterQuery])
        .header(HOST, host)
        .header(USER_AGENT, concat!("stocklock/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/json");
    for (name, value) in &message.headers {
        request = request.header(*name, value);
    }
    let request = request.body(Full::new(message.body.clone()));
    let request = request.map_err(|error| error.to_string())?;
    let answer = exchange(stream, request).await;
    Ok(answer.map_err(|error| error.to_string())?.response.status())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::TcpListener;

    use super::*;

    fn client(allow: &[&str]) -> Client {
        let networks = allow.iter().map(|text| text.parse().expect("a network"));
        Client::new(Allowed(networks.collect()))
    }

    #[tokio::test]
    async fn urls_are_checked_in_every_notation() {
        let strict = client(&[]);
        for refused in [
            "https://127.0.0.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://127.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:7f00:1]/",
            "https://169.254.169.254/latest/",
            "https://10.0.0.1:8443/",
            "https://０.０.０.０/",
            "http://example.com:x/",
            "http://1.1.1.1/",
            "ftp://1.1.1.1/",
            "https://user@example.com/",
            "https://example.com/#part",
            "https:///",
            "example.com",
        ] {
            assert!(strict.check(refused).is_err(), "{refused}");
        }
        for accepted in [
            "https://example.com/hook?x=1",
            "https://1.1.1.1/",
            "https://[2606:4700::1]:8443/",
        ] {
            assert!(strict.check(accepted).is_ok(), "{accepted}");
        }
        let lenient = client(&["127.0.0.1"]);
        assert!(lenient.check("http://127.0.0.1:80/").is_ok());
        assert!(lenient.check("http://127.0.0.2/").is_err());
    }

    /// A name that is public when it is checked, and private when it is connected to.
    #[tokio::test]
    async fn name_that_changes_reaches_no_private_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let asked = Arc::new(AtomicUsize::new(0));
        let mut client = client(&[]);
        let count = Arc::clone(&asked);
        client.resolve = Arc::new(move |_, port| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(
                async move { vec![([127, 0, 0, 1], port).into(), ([10, 0, 0, 1], port).into()] },
            )
        });
        let message = Message {
            headers: [
                ("a", String::new()),
                ("b", String::new()),
                ("c", String::new()),
            ],
            body: Bytes::new(),
        };
        let sent = client
            .post(&format!("https://shop.example:{port}/"), &message)
            .await;
        assert_eq!(
            sent,
            Err("the address of the host is not allowed".to_owned())
        );
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let accepted = timeout(Duration::from_millis(100), listener.accept()).await;
        assert!(accepted.is_err(), "a connection was made");
    }
}
