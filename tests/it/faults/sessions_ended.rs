//! Idle connections whose sessions the server has ended.

use futures_util::future::join_all;

use super::until;
use crate::support::app::TestApp;
use crate::support::rival::Raw;
use crate::support::services::{Backend, fresh_database};

const SESSIONS: &str = "SELECT cast(count(*) AS text) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// Connections for writes (one was used) and for reads.
const OPEN: usize = 4;

/// Goal: the first request that meets an ended session spares the others. Reads are not repeated,
/// so each ended session that is used costs a 503.
///
/// Method: many reads at once open several connections. Then all sessions are ended while the
/// connections are idle, and reads follow one after another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_request_at_most_meets_an_ended_session() {
    let database = fresh_database(Backend::Postgres).await;
    let app = TestApp::on(&database.url, 1, &[]).await;
    app.set_level("1001", 100).await;
    let sessions = async || {
        let mut raw = Raw::connect(Backend::Postgres, &database.url).await;
        let count = raw.text(SESSIONS).await.expect("there is a count");
        count.parse::<usize>().expect("it is a number")
    };
    let burst = || async {
        let paths: Vec<_> = (0..64)
            .map(|number| format!("/stock/{}", number % 8))
            .collect();
        join_all(paths.iter().map(|path| app.get(path))).await;
        sessions().await >= OPEN
    };
    until("several connections are open", burst).await;

    let mut raw = Raw::connect(Backend::Postgres, &database.url).await;
    raw.run(END_SESSIONS).await.expect("sessions can be ended");
    let only_this = || async { sessions().await == 1 };
    until("the sessions have ended", only_this).await;
    let mut failed = 0;
    for _ in 0..4 * OPEN {
        failed += u32::from(app.get("/stock/1001").await.status != 200);
    }
    assert!(failed <= 1, "{failed} reads failed");
}
