//! Idle connections whose sessions the server has ended.

use std::collections::BTreeSet;

use serde_json::json;
use tokio::task::JoinSet;

use super::{send, until};
use crate::support::app::TestApp;
use crate::support::rival::{Raw, Rival};
use crate::support::services::{Backend, fresh_database};

const BUYERS: usize = 8;

const SESSIONS: &str = "SELECT cast(count(*) AS text) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// Goal: the first request that meets an ended session spares the others. Reads are not repeated,
/// so each ended session that is used costs a 503.
///
/// Method: as many buyers as connections wait for one row, so all connections are opened. Then all
/// sessions are ended while the connections are idle, and reads follow one after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_at_most_meets_an_ended_session() {
    let database = fresh_database(Backend::Postgres).await;
    let app = TestApp::on(&database.url, 1, &["--database-pool-size", "8"]).await;
    app.set_level("1001", 100).await;
    let rival = Rival::holding_stock(Backend::Postgres, &database.url).await;
    let order = app.deduct(0, "single-sql", &json!({"sku": "1001"}));
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        buyers.spawn(send(super::copy(&order)));
    }
    let sessions = async || {
        let mut raw = Raw::connect(Backend::Postgres, &database.url).await;
        let count = raw.text(SESSIONS).await.expect("there is a count");
        count.parse::<usize>().expect("it is a number")
    };
    // One session is the rival's.
    let all_wait = || async { sessions().await > BUYERS };
    until("every connection is open", all_wait).await;
    rival.let_go().await;
    while let Some(answer) = buyers.join_next().await {
        answer.expect("the buyer ends").ok();
    }

    let mut raw = Raw::connect(Backend::Postgres, &database.url).await;
    raw.run(END_SESSIONS).await.expect("sessions can be ended");
    let only_this = || async { sessions().await == 1 };
    until("the sessions have ended", only_this).await;
    let mut failed = BTreeSet::new();
    for read in 0..2 * BUYERS {
        if app.get("/stock/1001").await.status() != 200 {
            failed.insert(read);
        }
    }
    assert!(failed.len() <= 1, "{failed:?}");
    app.stop().await;
}
