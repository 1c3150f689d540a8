//! Clients that ask for audits of a large ledger, and hang up: what they leave behind, and how long a sale
//! takes beside them.

use std::time::Duration;

use rstest::rstest;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::faults::until;
use crate::store_contract::fixture::Fixture;
use crate::support::process::Process;
use crate::support::rival::Raw;
use crate::support::seeded_ledger::Seeded;
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::timing::{p99, sales_during};

/// How many clients hang up, and after how long.
const READS: usize = 200;
const PATIENCE: Duration = Duration::from_millis(20);
/// The bound on queries: the connections for audits.
const BOUND: u64 = 2;
/// The promise: how many times as long a sale may take.
const RATIO: f64 = 2.0;
/// How long sales are measured without the clients.
const QUIET: Duration = Duration::from_secs(8);
/// Of each large SKU: more than an audit sums within that time.
const MOVEMENTS: u64 = 300_000;
/// What is sold, and how.
const COLD: (&str, &str) = ("cold", "single-sql");
const LARGE: [&str; 2] = ["large-1", "large-2"];

/// How many audits the database works on; SQLite: how many threads the replica has.
async fn busy(replica: &Process, raw: &mut Raw) -> u64 {
    let count = match raw {
        Raw::Sqlite(_) => return replica.threads(),
        Raw::Mysql(_) => {
            "SELECT cast(count(*) AS char(20)) FROM information_schema.processlist
             WHERE db = database() AND id <> connection_id() AND info LIKE '%level_version >%'"
        }
        Raw::Postgres(_) => {
            "SELECT cast(count(*) AS text) FROM pg_stat_activity WHERE state = 'active'
             AND datname = current_database() AND pid <> pg_backend_pid()
             AND query LIKE '%level_version >%'"
        }
    };
    let count = raw.text(count).await.expect("a count");
    count.parse().expect("a number")
}

/// Goal: the bounds on reads also hold for clients that hang up.
///
/// Method: each audit sums all movements, because no checkpoint is due.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_reads_stay_within_their_bound(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
) {
    let (fixture, mut raw) = Fixture::with_raw(backend).await;
    fixture.put("cold", 1_000_000).await;
    for (operations, sku) in (1..).zip(LARGE) {
        fixture.put(sku, 1_000_000).await;
        let seeded = Seeded {
            operations,
            ..Seeded::of(sku, MOVEMENTS)
        };
        seeded.insert(&mut raw).await;
    }
    let no_checkpoints = raw.run("UPDATE stock SET version = 1 WHERE sku LIKE 'large-%'");
    no_checkpoints.await.expect("levels can be changed");
    let replica = Process::lab(&fixture.url, &[]).await;
    for sku in LARGE {
        replica.get(&format!("/stock/{sku}/audit")).await.ok();
    }

    let (usual, ()) = sales_during(&replica, COLD, sleep(QUIET)).await;
    let before = busy(&replica, &mut raw).await;
    let mut most = 0;
    let hang_up = async {
        for number in 0..READS {
            let client = TcpStream::connect(replica.address()).await;
            let mut client = client.expect("the replica listens");
            let sku = LARGE[number % 2];
            let request = format!("GET /stock/{sku}/audit HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let sent = client.write_all(request.as_bytes()).await;
            sent.expect("the replica reads");
            sleep(PATIENCE).await;
            most = most.max(busy(&replica, &mut raw).await);
        }
    };
    let (beside, ()) = sales_during(&replica, COLD, hang_up).await;
    let [usual, beside] = [usual, beside].map(p99);
    let ratio = beside.as_secs_f64() / usual.as_secs_f64();
    println!(
        "figure: {backend:?}, {READS} abandoned audits: at most {most} at once ({before} before), p99 of a \
         sale {beside:.1?}, usually {usual:.1?}, ratio {ratio:.2}"
    );
    // A thread of SQLite ends a moment after its connection is closed, when a new one may exist already.
    let bound = before + if backend == Sqlite { 2 * BOUND } else { BOUND };
    assert!(most <= bound, "{most}");
    assert!(ratio <= RATIO, "{ratio}");
    until("all of them have ended", async || {
        busy(&replica, &mut raw).await <= before
    })
    .await;
}
