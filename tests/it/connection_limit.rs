//! A server that allows fewer connections than a replica may open.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;
use stocklock::store::migrate;
use tokio::sync::Mutex;

use crate::faults::until;
use crate::store_contract::fixture::open;
use crate::support::app::{TestApp, send};
use crate::support::rival::{Raw, as_user};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::PrivateServer;

/// How many connections the server allows to the user: as many as the pool for writes has.
const LIMIT: u32 = 8;
const SKUS: usize = 8;
/// More than there are connections.
const BUYERS: usize = 32;

const CREATE_IN_MARIADB: &str = "CREATE USER shop IDENTIFIED BY 'shop' WITH MAX_USER_CONNECTIONS 8;
    GRANT ALL ON stocklock.* TO shop";

const CREATE_IN_POSTGRES: &str = "CREATE ROLE shop LOGIN PASSWORD 'shop' CONNECTION LIMIT 8;
    GRANT ALL ON SCHEMA public TO shop; GRANT ALL ON ALL TABLES IN SCHEMA public TO shop";

/// A migrated database, and its URL for a user with the limit.
struct Limited {
    server: PrivateServer,
    backend: Backend,
    url: String,
}

impl Limited {
    async fn start(backend: Backend) -> Self {
        let server = PrivateServer::start(backend).await;
        migrate(server.url()).await.expect("it can be migrated");
        let mut admin = Raw::connect(backend, server.url()).await;
        let create = match backend {
            Mysql => CREATE_IN_MARIADB,
            _ => CREATE_IN_POSTGRES,
        };
        admin.run(create).await.expect("a user can be created");
        Self {
            url: as_user(server.url(), "shop"),
            server,
            backend,
        }
    }

    /// Lets the URL name its server so many times.
    fn repeat_server(&mut self, times: usize) {
        let mut url = reqwest::Url::parse(&self.url).expect("a URL");
        let port = url.port().expect("it has a port");
        let server = format!("127.0.0.1:{port}");
        url.set_host(Some("HOST")).expect("it has a host");
        url.set_port(None).expect("it has a host");
        self.url = url.as_str().replace("HOST", &vec![server; times].join(","));
    }

    async fn connections(&self, admin: &Mutex<Raw>) -> u32 {
        let count = match self.backend {
            Mysql => {
                "SELECT cast(count(*) AS char(20)) FROM information_schema.processlist
                 WHERE user = 'shop'"
            }
            _ => "SELECT cast(count(*) AS text) FROM pg_stat_activity WHERE usename = 'shop'",
        };
        let count = admin.lock().await.text(count).await;
        count.expect("a count").parse().expect("a number")
    }
}

async fn buy_everywhere(app: &TestApp) {
    let buy = |buyer: usize| {
        let sku = format!("sku-{}", buyer % SKUS);
        send(app.deduct(0, "for-update", &json!({ "sku": sku })))
    };
    for sale in join_all((0..BUYERS).map(buy)).await {
        let expected = [(200, ""), (503, "overloaded"), (503, "contended")];
        assert!(expected.contains(&sale.status_and_code()), "{sale:?}");
    }
}

/// Goal: the replica is ready, and answers reads and audits, although sales could use every connection.
///
/// Method: sales open as many connections as the server allows, before anything else has one.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_leave_connections_for_readiness_and_reads(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(false, true)] under_load: bool,
    #[values(1, 2)] servers: usize,
) {
    let mut limited = Limited::start(backend).await;
    limited.repeat_server(servers);
    let admin = Mutex::new(Raw::connect(backend, limited.server.url()).await);
    let flags = ["--database-pool-size=8"];
    let app = TestApp::on_migrated(&limited.url, 1, &flags).await;
    for number in 0..SKUS {
        app.set_level(&format!("sku-{number}"), 1_000_000).await;
    }
    until("sales have every connection", async || {
        buy_everywhere(&app).await;
        limited.connections(&admin).await == LIMIT
    })
    .await;

    let load = async {
        if under_load {
            loop {
                buy_everywhere(&app).await;
            }
        }
        std::future::pending::<()>().await;
    };
    let others = async {
        for path in [
            "/readyz",
            "/stock/sku-0",
            "/stock/sku-0/movements",
            "/stock/sku-0/audit",
        ] {
            until(path, async || app.get(path).await.status == 200).await;
        }
    };
    tokio::select! {
        () = load => {}
        () = others => {}
    }
    buy_everywhere(&app).await;
}

#[rstest]
#[tokio::test]
async fn limit_below_the_pools_is_reported(#[values(Mysql, Postgres)] backend: Backend) {
    let limited = Limited::start(backend).await;
    // With seven for reads.
    let unsafe_settings = open(&limited.url, 1).unsafe_settings().await.unwrap();
    assert_eq!(unsafe_settings, [""; 0]);
    let found = open(&limited.url, 2).unsafe_settings().await.unwrap();
    let [found] = &found[..] else {
        panic!("{found:?}");
    };
    let setting = match backend {
        Mysql => "max_user_connections allows 8 connections",
        _ => "the CONNECTION LIMIT of the user allows 8 connections",
    };
    assert!(found.starts_with(setting), "{found}");
    assert!(found.contains("may open 9"), "{found}");
}
