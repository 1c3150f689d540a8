//! TLS to the servers: connections are encrypted, and a certificate that is not trusted or is for
//! another name is refused with one clear sentence.

use reqwest::Method;
use rstest::rstest;
use stocklock::store::migrate;
use stocklock_testkit::assert_matches;
use tokio::time::timeout;

use crate::faults::{SOON, send, until};
use crate::store_contract::fixture::{Fixture, Raw, committed, deduction};
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{Certificates, PrivateServer, Program, Settings, fresh_database};

async fn start(program: Program, certificates: &Certificates, tls_port: u16) -> PrivateServer {
    let arguments = certificates.arguments(program, tls_port);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let started = PrivateServer::launch(program, &Settings::Test, &arguments).await;
    started.expect("the server starts")
}

/// A URL that verifies the server's certificate and host name by this authority.
fn verified(backend: Backend, server: &PrivateServer, authority: &Certificates) -> String {
    let ca = authority.file("ca.pem");
    let parameters = match backend {
        Mysql => format!("?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
        _ => format!("?sslmode=verify-full&sslrootcert={ca}"),
    };
    server.url().replace("127.0.0.1", "localhost") + &parameters
}

#[rstest]
#[tokio::test]
async fn database_with_tls_is_verified(#[values(Mysql, Postgres)] backend: Backend) {
    let certificates = Certificates::create();
    let (program, cipher) = match backend {
        Mysql => (
            Program::MariaDb,
            "SELECT variable_value FROM information_schema.session_status
                WHERE variable_name = 'Ssl_cipher' AND variable_value <> ''",
        ),
        _ => (
            Program::Postgres,
            "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl",
        ),
    };
    let server = start(program, &certificates, 0).await;
    let url = verified(backend, &server, &certificates);
    let fixture = Fixture::at(backend, url.clone()).await;
    fixture.put("a", 10).await;
    let sold = fixture.store.deduct(&deduction("a", 1)).await;
    assert_eq!(sold.unwrap(), committed(9));
    let mut raw = Raw::connect(backend, &url).await;
    assert_matches!(raw.text(cipher).await, Some(_));

    let stranger = Certificates::create();
    let other_authority = verified(backend, &server, &stranger);
    let other_name = url.replace("localhost", "127.0.0.1");
    for refused in [other_authority, other_name] {
        let migrated = timeout(SOON / 2, migrate(&refused)).await;
        let error = migrated.expect("it does not try again").unwrap_err();
        assert!(error.starts_with("TLS to "), "{error}");
        assert!(error.contains("certificate"), "{error}");
        assert!(error.contains("sslrootcert"), "{error}");
    }
}

/// Scripts, `WATCH`, and locks each have connections of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_with_tls_is_verified() {
    let certificates = Certificates::create();
    let port = free_port();
    let _redis = start(Program::Redis, &certificates, port).await;
    let database = fresh_database(Backend::Sqlite).await;
    let url = |host: &str| format!("rediss://{host}:{port}");
    let ca = certificates.file("ca.pem");
    let trusted = url("localhost");
    let variables = [("REDIS_URL", &*trusted), ("SSL_CERT_FILE", &*ca)];
    let trusting = Process::lab(&database.url, &variables).await;
    trusting.set_level("a", 10).await;
    for strategy in ["redis-lua", "redis-watch", "redis-lock"] {
        let path = format!("/stock/deduct?sku=a&strategy={strategy}");
        send(trusting.request(Method::POST, &path)).await.ok();
    }
    let log = trusting.log().await;
    assert!(!log.contains("does not answer"), "{log}");

    let stranger = Certificates::create();
    for (host, authority) in [("localhost", &stranger), ("127.0.0.1", &certificates)] {
        let (url, authority) = (url(host), authority.file("ca.pem"));
        let variables = [
            ("DATABASE_URL", &*database.url),
            ("REDIS_URL", &*url),
            ("SSL_CERT_FILE", &*authority),
            ("STRATEGY", "redis-lua"),
        ];
        let mut refusing = Process::start(&["serve"], &variables);
        let cause = "does not answer: redis: ping: invalid peer certificate: ";
        let explained = async || refusing.stderr().contains(cause);
        until("the cause is logged", explained).await;
        refusing.answers("/healthz").await;
        for (method, path) in [
            (Method::GET, "/readyz"),
            (Method::POST, "/stock/deduct?sku=a"),
        ] {
            let refused = send(refusing.request(method, path)).await;
            assert_eq!(refused.status, 503, "{refused:?}");
        }
    }
}
