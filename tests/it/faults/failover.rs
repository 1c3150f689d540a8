//! A database that refuses writes: an old primary that became read-only, or a standby.
//!
//! Goal: the replica is not ready while writes are refused, and still answers reads. It sells again
//! without a restart as soon as writes are accepted.

use std::collections::BTreeSet;
use std::fs::File;
use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use stocklock_testkit::eventually;
use tokio::sync::Mutex;

use super::{Answer, Ledger, in_time, send, until};
use crate::support::app::TestApp;
use crate::support::rival::{Raw, as_user};
use crate::support::services::Backend::{self, Mysql, Postgres};
use crate::support::services::{PrivateServer, fresh_database};

/// How long `/readyz` may take to notice that writes are refused.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);
/// How long the first sale may take once writes are accepted.
const SELLS_WITHIN: Duration = Duration::from_secs(2);

/// `root` may write to a read-only server, so the service needs a user of its own.
const CREATE_USER: &str = "CREATE USER shop IDENTIFIED BY 'shop'; GRANT ALL ON stocklock.* TO shop";

const MYSQL_SESSIONS: &str = "SELECT coalesce(group_concat(id), '')
    FROM information_schema.processlist WHERE user = 'shop'";

const POSTGRES_SESSIONS: &str = "SELECT coalesce(string_agg(pid::text, ','), '')
    FROM pg_stat_activity WHERE backend_type = 'client backend'
        AND datname = current_database() AND pid <> pg_backend_pid()";

const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// A session of the administrator, which may make a server read-only.
struct Admin {
    backend: Backend,
    session: Mutex<Raw>,
}

impl Admin {
    async fn of(backend: Backend, url: &str) -> Self {
        let session = Mutex::new(Raw::connect(backend, url).await);
        Self { backend, session }
    }

    async fn run(&self, statements: &[&'static str]) {
        for &statement in statements {
            let done = self.session.lock().await.run(statement).await;
            done.expect("an administrator may do this");
        }
    }

    async fn set_read_only(&self, read_only: bool) {
        let statements: &[&str] = match (self.backend, read_only) {
            (Mysql, true) => &["SET GLOBAL read_only = 1"],
            (Mysql, false) => &["SET GLOBAL read_only = 0"],
            (_, true) => &[
                "ALTER SYSTEM SET default_transaction_read_only = on",
                "SELECT pg_reload_conf()",
            ],
            (_, false) => &[
                "ALTER SYSTEM RESET default_transaction_read_only",
                "SELECT pg_reload_conf()",
            ],
        };
        self.run(statements).await;
    }

    /// The server's ids of the service's connections.
    async fn sessions(&self) -> BTreeSet<String> {
        let sessions = match self.backend {
            Mysql => MYSQL_SESSIONS,
            _ => POSTGRES_SESSIONS,
        };
        let ids = self.session.lock().await.text(sessions).await;
        let ids = ids.expect("an aggregate has a row");
        ids.split(',').map(str::to_owned).collect()
    }
}

async fn sell(app: &TestApp) -> Answer {
    send(app.deduct(0, "single-sql", &json!({"sku": "hot"}))).await
}

/// A sale is refused, a read is answered, and the replica is not ready.
async fn assert_refuses_writes(app: &TestApp) {
    sell(app).await.assert_refused_for_now("unavailable");
    app.get("/stock/hot").await.ok();
    let not_ready = app.get("/readyz").await;
    assert_eq!(not_ready.status_and_code(), (503, "not-ready"));
    assert_eq!(not_ready.detail, "the database does not accept writes");
}

async fn assert_not_ready_soon(app: &TestApp) {
    let holds = async || app.get("/readyz").await.status == 503;
    eventually("the replica is not ready", in_time(NOTICED_WITHIN), holds).await;
}

async fn assert_sells_soon(app: &TestApp) {
    let holds = async || sell(app).await.status == 200 && app.get("/readyz").await.status == 200;
    eventually("it sells again and is ready", in_time(SELLS_WITHIN), holds).await;
}

#[rstest]
#[tokio::test]
async fn read_only_server_is_not_ready_until_writable(#[values(Mysql, Postgres)] backend: Backend) {
    let server = PrivateServer::start(backend).await;
    let admin = Admin::of(backend, server.url()).await;
    let mut url = server.url().to_owned();
    if backend == Mysql {
        admin.run(&[CREATE_USER]).await;
        url = as_user(&url, "shop");
    }
    let app = TestApp::on(&url, 1, &[]).await;
    app.set_level("hot", 1_000).await;
    sell(&app).await.ok();
    app.get("/stock/hot").await.ok();
    app.get("/readyz").await.ok();
    let before = admin.sessions().await;

    admin.set_read_only(true).await;
    assert_not_ready_soon(&app).await;
    until("new connections replace those of before", || async {
        assert_refuses_writes(&app).await;
        admin.sessions().await.is_disjoint(&before)
    })
    .await;
    admin.set_read_only(false).await;
    assert_sells_soon(&app).await;
    Ledger::at(server.url()).assert_consistent("hot").await;
}

/// The setting of a database takes effect in new sessions only.
#[tokio::test]
async fn session_that_stays_read_only_is_replaced() {
    let database = fresh_database(Postgres).await;
    let admin = Admin::of(Postgres, &database.url).await;
    let app = TestApp::on(&database.url, 1, &[]).await;
    app.set_level("hot", 1_000).await;
    app.stop().await;
    let set = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET
        default_transaction_read_only = on', current_database()); END $$";
    admin.run(&[set]).await;

    let app = TestApp::on_migrated(&database.url, 1, &[]).await;
    assert_refuses_writes(&app).await;
    let reset = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET
        default_transaction_read_only', current_database()); END $$";
    admin.run(&[reset]).await;
    assert_sells_soon(&app).await;
}

#[tokio::test]
async fn standby_is_not_ready_until_it_is_promoted() {
    let server = PrivateServer::start(Postgres).await;
    let app = TestApp::on(server.url(), 1, &[]).await;
    app.set_level("hot", 1_000).await;
    sell(&app).await.ok();

    server.kill9();
    let demoted = File::create(server.directory().join("data/standby.signal"));
    demoted.expect("a file can be created");
    server.restart().await;
    until("the standby answers reads", async || {
        app.get("/stock/hot").await.status == 200
    })
    .await;
    assert_refuses_writes(&app).await;
    let admin = Admin::of(Postgres, server.url()).await;
    admin.run(&["SELECT pg_promote()"]).await;
    assert_sells_soon(&app).await;
    Ledger::at(server.url()).assert_consistent("hot").await;
}

/// Two servers, each with a database of its own, so that its level shows which one was used.
#[rstest]
#[tokio::test]
async fn server_that_accepts_writes_is_found(#[values(Mysql, Postgres)] backend: Backend) {
    let (one, two) = (PrivateServer::start(backend), PrivateServer::start(backend));
    let (one, two) = tokio::join!(one, two);
    let mut admins = Vec::new();
    let mut url = one.url().to_owned();
    for (server, on_hand) in [(&one, 1_000), (&two, 2_000)] {
        let admin = Admin::of(backend, server.url()).await;
        let mut url = server.url().to_owned();
        if backend == Mysql {
            admin.run(&[CREATE_USER]).await;
            url = as_user(&url, "shop");
        }
        let app = TestApp::on(&url, 1, &[]).await;
        app.set_level("hot", on_hand).await;
        app.stop().await;
        admins.push(admin);
    }
    if backend == Mysql {
        url = as_user(&url, "shop");
    }
    let both = format!("{},{}", one.address(), two.address());
    let url = url.replace(&one.address(), &both);
    admins[0].set_read_only(true).await;
    let app = TestApp::on(&url, 1, &[]).await;
    // With the strategy that asks the lock crate, and one that does not.
    let sells_at = async |levels: std::ops::Range<i64>| {
        for strategy in ["sql-lock", "group-commit"] {
            let deduct = || app.deduct(0, strategy, &json!({"sku": "hot"}));
            until("the server that accepts writes sells", async || {
                let sale = send(deduct()).await;
                let remaining = sale.body["remaining"].as_i64().unwrap_or(-1);
                sale.status == 200 && levels.contains(&remaining)
            })
            .await;
        }
    };
    let (at_one, at_two) = (0..1_000, 1_000..2_000);
    sells_at(at_two.clone()).await;

    admins[0].set_read_only(false).await;
    admins[1].set_read_only(true).await;
    sells_at(at_one.clone()).await;

    // A server that is silent. PostgreSQL's sessions are processes that go on.
    admins[1].set_read_only(false).await;
    one.stop().await;
    if backend == Postgres {
        admins[0].run(&[END_SESSIONS]).await;
    }
    sells_at(at_two).await;
    one.resume();
    two.kill9();
    sells_at(at_one).await;
    two.restart().await;
    for server in [&one, &two] {
        Ledger::at(server.url()).assert_consistent("hot").await;
    }
}
