//! A receiver of webhooks.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::{fmt, io};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::post;
use axum::serve::Listener;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::support::services::Certificates;

/// A message as it came.
#[derive(Debug, Clone)]
pub(super) struct Got {
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    pub(super) answered: u16,
}

impl Got {
    pub(super) fn id(&self) -> &str {
        self.headers["webhook-id"].to_str().expect("text")
    }

    pub(super) fn events(&self) -> Vec<Value> {
        let body: Value = serde_json::from_str(&self.body).expect("JSON");
        body["data"]["events"].as_array().expect("a list").clone()
    }
}

/// What a receiver does with its next messages; the last one is done again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Does {
    Answers(u16),
    Redirects,
    /// Never answers.
    Hangs,
    /// Answers, and never sends all of the body.
    Dribbles,
}

pub(super) struct Receiver {
    pub(super) url: String,
    got: Arc<Mutex<Vec<Got>>>,
    _server: AbortOnDropHandle<()>,
}

type Shared = (Arc<Mutex<Vec<Got>>>, Arc<Mutex<Vec<Does>>>);

async fn receive(
    State((got, plan)): State<Shared>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let does = {
        let mut plan = plan.lock().expect("the plan");
        if plan.len() > 1 {
            plan.remove(0)
        } else {
            plan[0]
        }
    };
    let status = match does {
        Does::Answers(status) => status,
        Does::Redirects => 307,
        Does::Hangs => 0,
        Does::Dribbles => 200,
    };
    got.lock().expect("the list").push(Got {
        headers,
        body: String::from_utf8(body.into()).expect("text"),
        answered: status,
    });
    if does == Does::Hangs {
        std::future::pending::<()>().await;
    }
    let body = if does == Does::Dribbles {
        let first = stream::once(async { Ok::<_, std::io::Error>("a") });
        Body::from_stream(first.chain(stream::pending()))
    } else {
        Body::empty()
    };
    Response::builder()
        .status(StatusCode::from_u16(status).expect("a status"))
        .header("location", "/other")
        .body(body)
        .expect("an answer")
}

impl Receiver {
    pub(super) async fn start(plan: &[Does]) -> Self {
        let listener = bound().await;
        let port = port(&listener);
        Self::serve(listener, plan, format!("http://127.0.0.1:{port}/"))
    }

    /// At `localhost`, with these certificates.
    pub(super) async fn start_https(plan: &[Does], certificates: &Certificates) -> Self {
        let file = |name| certificates.file(name);
        let chain = CertificateDer::pem_file_iter(file("server.pem")).expect("a file");
        let chain = chain.collect::<Result<_, _>>().expect("certificates");
        let key = PrivateKeyDer::from_pem_file(file("server.key")).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config
            .with_safe_default_protocol_versions()
            .expect("versions");
        let config = config.with_no_client_auth().with_single_cert(chain, key);
        let acceptor = TlsAcceptor::from(Arc::new(config.expect("a pair")));
        let listener = bound().await;
        let url = format!("https://localhost:{}/", port(&listener));
        Self::serve(Https { listener, acceptor }, plan, url)
    }

    fn serve(listener: impl Listener<Addr: fmt::Debug>, plan: &[Does], url: String) -> Self {
        let shared: Shared = (Arc::default(), Arc::new(Mutex::new(plan.to_vec())));
        let got = Arc::clone(&shared.0);
        let routes = Router::new()
            .route("/", post(receive))
            .route("/other", post(receive));
        let serving = axum::serve(listener, routes.with_state(shared));
        let server = tokio::spawn(async move { serving.await.expect("it serves") });
        Self {
            url,
            got,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub(super) fn got(&self) -> Vec<Got> {
        self.got.lock().expect("the list").clone()
    }

    /// The SKUs and versions that were answered 2xx, each id once.
    pub(super) fn accepted(&self) -> Vec<(String, i64)> {
        let mut ids = Vec::new();
        let mut events = Vec::new();
        for got in self.got() {
            if got.answered == 200 && !ids.contains(&got.id().to_owned()) {
                ids.push(got.id().to_owned());
                events.extend(got.events().iter().map(name));
            }
        }
        events
    }
}

pub(super) fn name(event: &Value) -> (String, i64) {
    let sku = event["sku"].as_str().expect("a SKU").to_owned();
    (sku, event["version"].as_i64().expect("a version"))
}

async fn bound() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port")
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("a bound port").port()
}

struct Https {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Https {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.expect("a connection");
            // Some callers do not trust the certificate.
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
