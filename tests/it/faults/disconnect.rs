//! Clients that disconnect before they are answered.

use std::net::SocketAddr;
use std::thread;

use rstest::rstest;
use serde_json::json;
use stocklock::strategy::{Strategy, Tier};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::lock_servers::assert_locks_released;
use super::session::Session;
use super::{Ledger, SOON, send_within, until};
use crate::support::app::TestApp;
use crate::support::lock_services::LockServices;
use crate::support::rival::lock_is_waited_for;
use crate::support::services::{Backend, TestDatabase, fresh_database};

/// How many clients disconnect in a round. Every eighth leaves its request incomplete.
const CLIENTS: u32 = 32;
const INCOMPLETE: u32 = CLIENTS / 8;
/// The maximum number of rounds for each strategy. It needs more than one if the machine is busy.
const ROUNDS: u32 = 10;
const STOCK: i64 = 1_000;

struct Scene {
    app: TestApp,
    ledger: Ledger,
    services: LockServices,
    session: Session,
    database: TestDatabase,
}

impl Scene {
    async fn open(backend: Backend, more_flags: &[&str]) -> Self {
        let database = fresh_database(backend).await;
        let services = LockServices::fresh().await;
        let flags = [&services.flags()[..], more_flags].concat();
        Self {
            app: TestApp::on(&database.url, 1, &flags).await,
            ledger: Ledger::at(&database.url),
            session: Session::open(backend, &database.url).await,
            services,
            database,
        }
    }

    /// Sends a deduction of one unit, without its last `cut_off` bytes.
    async fn send_order(&self, strategy: Strategy, sku: &str, cut_off: usize) -> TcpStream {
        let base = self.app.base(0);
        let address = base.trim_start_matches("http://").trim_end_matches('/');
        let address: SocketAddr = address.parse().expect("the address of a replica");
        let body = format!(r#"{{"sku":"{sku}"}}"#);
        let order = format!(
            "POST /stock/deduct?strategy={strategy} HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let client = TcpStream::connect(address).await;
        let mut client = client.expect("the replica listens");
        let sent = &order.as_bytes()[..order.len() - cut_off];
        client.write_all(sent).await.expect("the replica reads");
        client
    }

    /// Returns when no transaction is open and every row can be locked.
    async fn assert_nothing_stays_open(&mut self) {
        let session = tokio::sync::Mutex::new(&mut self.session);
        until("no transaction is open, no row is locked", || async {
            let mut session = session.lock().await;
            let open = session.open_transaction().await;
            let free = session.try_lock().await;
            session.unlock().await;
            open.is_none() && free
        })
        .await;
    }
}

/// Goal: a client that disconnects at any moment leaves no open transaction, no lock, and no half
/// of a deduction.
///
/// Method: each client stays a little longer than the one before, until a sale has lost its client.
/// Deductions of clients that have left may overlap, so each client of an unsafe strategy has a SKU
/// of its own: a loss is then not caused by the race. The ledger is read while the replica runs,
/// because its shutdown would close what it had left open.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnecting_client_leaves_nothing_open_or_half_done(
    #[values(Backend::Sqlite, Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let mut scene = Scene::open(backend, &[]).await;
    for strategy in Strategy::ALL {
        let mut skus = Vec::new();
        let (mut answered, mut rounds) = (0, 0);
        loop {
            answered += disconnect(&scene, strategy, rounds, &mut skus).await;
            rounds += 1;
            scene.assert_nothing_stays_open().await;
            assert_locks_released(&scene.services, &scene.database.url).await;
            let mut sold = 0;
            for sku in &skus {
                let audit = scene.ledger.assert_consistent(sku).await;
                assert_eq!(audit.on_hand, STOCK - audit.sold, "{sku}");
                sold += audit.sold;
            }
            println!("{backend:?} {strategy}: {sold} sold, {answered} answered");
            let most = i64::from((CLIENTS - INCOMPLETE) * rounds);
            assert!(sold <= most, "{strategy}: {sold}");
            if sold > answered {
                break;
            }
            assert!(rounds < ROUNDS, "{strategy}: no sale lost its client");
        }
        let next = json!({"sku": skus[0]});
        let next = scene.app.deduct(0, strategy.name(), &next);
        let next = send_within(SOON, next).await;
        assert_eq!(next.status, 200, "{strategy}: {next:?}");
    }
}

/// One round of clients that disconnect. Adds the SKUs that they buy. Returns how many were answered.
async fn disconnect(scene: &Scene, strategy: Strategy, round: u32, skus: &mut Vec<String>) -> i64 {
    let stays = format!("{strategy}-stays");
    scene.app.set_level(&stays, STOCK).await;
    let sent = Instant::now();
    let mut client = scene.send_order(strategy, &stays, 0).await;
    client.read_exact(&mut [0; 1]).await.expect("an answer");
    let takes = sent.elapsed();
    let mut answered = 0;
    for number in 0..CLIENTS {
        let sku = match strategy.tier() {
            Tier::Unsafe => format!("{strategy}-{round}-{number}"),
            Tier::Safe | Tier::Guarded => strategy.to_string(),
        };
        if !skus.contains(&sku) {
            scene.app.set_level(&sku, STOCK).await;
            skus.push(sku.clone());
        }
        let cut_off = if number % 8 == 7 { 5 } else { 0 };
        let client = scene.send_order(strategy, &sku, cut_off).await;
        // At first less than a deduction takes, at last twice as long.
        let stay = 2 * takes * number * number / (CLIENTS * CLIENTS);
        #[expect(
            clippy::disallowed_methods,
            reason = "Tokio's timer counts whole milliseconds"
        )]
        let stayed = spawn_blocking(move || thread::sleep(stay)).await;
        stayed.expect("it does not panic");
        answered += i64::from(client.try_read(&mut [0; 1]).is_ok());
    }
    answered
}

/// Goal: a deduction that has started completes under each strategy, even if its client
/// disconnects.
///
/// Method: the test locks the row until the deduction waits for it and the service has closed the
/// connection, which it does when it notices that the client has disconnected.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sale_completes_although_its_client_disconnects(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
) {
    let limits = ["--wait-limit-ms=15000", "--request-deadline-ms=20000"];
    let mut scene = Scene::open(backend, &limits).await;
    scene.app.set_level("hot", STOCK).await;
    for (number, strategy) in Strategy::ALL.into_iter().enumerate() {
        let locked = scene.session.try_lock_hot().await;
        assert!(locked, "{strategy}: the row is free");
        let mut client = scene.send_order(strategy, "hot", 0).await;
        lock_is_waited_for(backend, &scene.database.url).await;
        client.shutdown().await.unwrap();
        let read = timeout(SOON, client.read(&mut [0; 1])).await;
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "{strategy}: {read:?}");

        assert_eq!(scene.ledger.sold("hot").await.len(), number, "{strategy}");
        scene.session.unlock().await;
        let holds = async || scene.ledger.sold("hot").await.len() == number + 1;
        until("the sale is recorded", holds).await;
        assert_locks_released(&scene.services, &scene.database.url).await;
    }
    scene.ledger.assert_consistent("hot").await;
}
