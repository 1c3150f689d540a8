//! A shop whose database server counts the deadlocks of its transactions.

use std::sync::Arc;

use stocklock_testkit::assert_matches;

use super::app::TestApp;
use super::rival::Raw;
use super::services::Backend::{self, Postgres};
use super::services::{PrivateServer, Program, Settings};

/// More units than a test sells.
pub(crate) const PLENTY: i64 = 1_000_000;

const OF_MARIADB: &str = "SELECT variable_value FROM information_schema.global_status
    WHERE variable_name = 'Innodb_deadlocks'";
const OF_POSTGRES: &str =
    "SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()";

pub(crate) fn sku(number: usize) -> String {
    format!("sku-{number:03}")
}

/// The server has no other clients, because it counts for all together.
pub(crate) struct DeadlockCounter {
    pub(crate) app: Arc<TestApp>,
    pub(crate) raw: Raw,
    backend: Backend,
    _server: PrivateServer,
}

impl DeadlockCounter {
    /// Two replicas on MariaDB or PostgreSQL, and plenty of so many SKUs.
    pub(crate) async fn start(backend: Backend, skus: usize) -> Self {
        let program = match backend {
            Postgres => Program::Postgres,
            _ => Program::MariaDb,
        };
        let server = PrivateServer::launch(program, &Settings::Test, &[]).await;
        let server = server.expect("the server starts");
        let app = TestApp::on(server.url(), 2, &[]).await.patient();
        for sku in (0..skus).map(sku) {
            app.set_level(&sku, PLENTY).await;
        }
        Self {
            app: Arc::new(app),
            raw: Raw::connect(backend, server.url()).await,
            backend,
            _server: server,
        }
    }

    /// Asserts that the server has counted no deadlock.
    pub(crate) async fn is_zero(&mut self) {
        let count = match self.backend {
            Postgres => OF_POSTGRES,
            _ => OF_MARIADB,
        };
        let deadlocks = self.raw.text(count).await;
        println!("figure: {:?}: {deadlocks:?} deadlocks", self.backend);
        assert_matches!(deadlocks.as_deref(), Some("0"));
    }
}
