//! Clients that leave before they are answered.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use stocklock::strategy::{Strategy, Tier};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::lock_servers::{LockPlace, flags, no_lock_is_left, strategies};
use super::session::{self, Session};
use super::{Ledger, SOON, send, until};
use crate::support::app::TestApp;
use crate::support::services::{Backend, fresh_database};

/// How many clients leave, for each strategy.
const TRIES: u32 = 64;
/// How much longer each client stays than the one before.
const STEP: Duration = Duration::from_micros(150);
const STOCK: i64 = 1_000;
/// Far less than the lease, which is ten seconds by default, and far more than a deduction takes.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A deduction of one unit, as it goes over the wire.
fn order(strategy: Strategy, sku: &str) -> String {
    let body = format!(r#"{{"sku":"{sku}"}}"#);
    format!(
        "POST /stock/deduct?strategy={strategy} HTTP/1.1\r\nHost: test\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn connect(app: &TestApp) -> TcpStream {
    let base = app.base(0);
    let address: SocketAddr = base
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .parse()
        .expect("the address of a replica");
    TcpStream::connect(address).await.expect("it listens")
}

/// Goal: a client that leaves at any moment leaves no open transaction, no lock, and no half of a
/// deduction.
///
/// Method: each client stays a little longer than the one before, and every eighth does not even
/// finish its request. Deductions of clients who have left may overlap, so each try of an unsafe
/// strategy has a SKU of its own: what it then loses is not lost by the race. Level and ledger are
/// read in one snapshot while the replica runs, for its end would close what it had left open.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_in_the_middle_leave_nothing_half_done(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let places = LockPlace::both().await;
    let flags = flags(&places);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let app = TestApp::on(&database.url, 1, &flags).await;
    let ledger = Ledger::at(&database.url);
    let mut session = Session::open(backend, &database.url).await;
    for strategy in strategies() {
        let mut skus = Vec::new();
        for number in 0..TRIES {
            let sku = match strategy.tier() {
                Tier::Unsafe => format!("{strategy}-{number}"),
                Tier::Safe | Tier::Guarded | Tier::Volatile => strategy.to_string(),
            };
            if skus.last() != Some(&sku) {
                app.set_level(&sku, STOCK).await;
                skus.push(sku.clone());
            }
            let order = order(strategy, &sku);
            let sent = order.len() - if number % 8 == 7 { 5 } else { 0 };
            let mut client = connect(&app).await;
            client.write_all(&order.as_bytes()[..sent]).await.unwrap();
            sleep(STEP * number).await;
        }
        nothing_stays_open(&mut session).await;
        no_lock_is_left(&places).await;
        let mut sold = 0;
        for sku in &skus {
            let audit = ledger.audit(sku).await;
            assert!(audit.consistent(), "{sku}: {audit:?}");
            assert_eq!(audit.on_hand, STOCK - audit.sold, "{sku}");
            sold += audit.sold;
        }
        // Else nobody left in the middle of anything.
        assert!(sold > 0, "{strategy}");
        assert!(sold <= i64::from(TRIES - TRIES / 8), "{strategy}: {sold}");
        let next = app.deduct(0, strategy.name(), &json!({ "sku": skus[0] }));
        let next = timeout(AT_ONCE, send(next)).await;
        let next = next.expect("nobody is waited for").expect("it answers");
        assert_eq!(next.status, 200, "{strategy}: {next:?}");
    }
    app.stop().await;
}

/// Every transaction ends by itself, and then every row can be locked at once.
async fn nothing_stays_open(session: &mut Session) {
    let deadline = Instant::now() + SOON;
    loop {
        let open = session.open_transactions().await;
        let free = session.try_lock().await;
        session.unlock().await;
        if open == 0 && free {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{open} transactions stay open, and the rows are {}",
            if free { "free" } else { "locked" }
        );
        sleep(Duration::from_millis(20)).await;
    }
}

/// Goal: a deduction that has begun goes on when its client leaves, whatever the strategy.
///
/// Method: the row is locked by the test until the deduction waits for it and the service has
/// closed the client's connection, which it does when it has noticed that the client is gone.
#[rstest::rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_goes_through_although_its_buyer_has_left(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let database = fresh_database(backend).await;
    let places = LockPlace::both().await;
    let flags = flags(&places);
    let flags = flags.iter().map(String::as_str);
    let limits = ["--wait-limit-ms=15000", "--request-deadline-ms=20000"];
    let flags: Vec<_> = flags.chain(limits).collect();
    let app = TestApp::on(&database.url, 1, &flags).await;
    let ledger = Ledger::at(&database.url);
    let mut holder = Session::open(backend, &database.url).await;
    app.set_level("hot", STOCK).await;
    for (number, strategy) in strategies().enumerate() {
        assert!(holder.try_lock_hot().await, "{strategy}: the row is free");
        let mut client = connect(&app).await;
        let order = order(strategy, "hot");
        client.write_all(order.as_bytes()).await.unwrap();
        session::somebody_waits(backend, &database.url).await;
        client.shutdown().await.unwrap();
        let unanswered = timeout(SOON, client.read(&mut [0; 1])).await;
        assert!(
            matches!(unanswered, Ok(Ok(0) | Err(_))),
            "{strategy}: {unanswered:?}"
        );

        assert_eq!(ledger.sales("hot").await.len(), number, "{strategy}");
        holder.unlock().await;
        until("the sale is recorded", SOON, || async {
            ledger.sales("hot").await.len() == number + 1
        })
        .await;
        no_lock_is_left(&places).await;
    }
    let audit = ledger.audit("hot").await;
    assert!(audit.consistent(), "{audit:?}");
    app.stop().await;
}
