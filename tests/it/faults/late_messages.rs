//! Messages that reach the database late. The service has lost the connection on which it sent the
//! message, and makes another attempt while the first one is still on its way.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::session::Session;
use super::{Answer, Proxied, add_key_if, send};
use crate::support::app::TestApp;
use crate::support::proxy::Hold;
use crate::support::rival::lock_is_waited_for;
use crate::support::services::Backend;

/// A deduction of `hot` through the proxy, whose first message is held; its SKU has no units.
struct Late {
    subject: Proxied,
    /// Reaches the database without the proxy.
    others: TestApp,
    hold: Hold,
    answer: JoinHandle<Answer>,
}

impl Late {
    /// Returns when the service has lost the connection, and its second attempt is refused.
    async fn start(backend: Backend, with_key: bool, wait_limit: Duration) -> Self {
        let wait_limit_ms = format!("--wait-limit-ms={}", wait_limit.as_millis());
        let flags = [&*wait_limit_ms, "--request-deadline-ms=20000"];
        let subject = Proxied::start(backend, 1, &flags).await;
        let others = TestApp::on_migrated(&subject.database.url, 1, &[]).await;
        subject.app.set_level("hot", 0).await;
        // A parameter of the statement.
        let hold = subject.proxy.hold_and_cut(b"\x0asingle-sql");
        let order = json!({"sku": "hot"});
        let order = subject.app.deduct(0, "single-sql", &order);
        let look_up = subject.proxy.hold_request(b"ORDER BY operation_id = ");
        let answer = tokio::spawn(send(add_key_if(with_key, order)));
        hold.held().await;
        // A refused attempt looks the operation up in the ledger.
        look_up.held().await;
        look_up.let_go();
        Self {
            subject,
            others,
            hold,
            answer,
        }
    }

    async fn restock(&self) {
        let delivery = json!({"delta": 5, "reason": "delivery"});
        send(self.others.adjust(0, "hot", &delivery)).await.ok();
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_after_its_expiry_sells_nothing(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(false, true)] with_key: bool,
) {
    let mut late = Late::start(backend, with_key, Duration::from_secs(1)).await;
    let answer = (&mut late.answer).await.unwrap();
    answer.assert_is(409, "insufficient-stock");
    assert!(answer.after >= Duration::from_secs(1), "{answer:?}");
    late.restock().await;
    late.hold.deliver().await;
    assert_eq!(late.subject.ledger.sold("hot").await, [""; 0]);
    let audit = late.subject.ledger.assert_consistent("hot").await;
    assert_eq!(audit.on_hand, 5);
}

/// The service refuses only after the message has expired, so it sees the sale.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_before_its_expiry_may_sell(
    #[values(Backend::Mysql, Backend::Postgres)] backend: Backend,
    #[values(false, true)] with_key: bool,
) {
    let mut late = Late::start(backend, with_key, Duration::from_secs(6)).await;
    late.restock().await;
    late.hold.deliver().await;
    assert!(!late.answer.is_finished(), "refused before the expiry");
    let answer = (&mut late.answer).await.unwrap();
    assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
    assert_eq!(late.subject.ledger.sold("hot").await, [answer.id]);
    late.subject.ledger.assert_consistent("hot").await;
}

/// The message arrives in time, but waits for the row until it has expired. Until the row is unlocked, the
/// service does not know whether the message has sold a unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_is_not_refused_while_its_message_waits() {
    let wait_limit = Duration::from_secs(4);
    let mut late = Late::start(Backend::Postgres, false, wait_limit).await;
    let started = Instant::now();
    late.restock().await;
    let url = late.subject.database.url.clone();
    let mut holder = Session::open(Backend::Postgres, &url).await;
    assert!(holder.try_lock_hot().await, "the row is free");
    // The server ends the wait for the row after the wait limit, so the wait begins late.
    sleep_until(started + wait_limit / 2).await;
    let unlock_after_expiry = async {
        lock_is_waited_for(Backend::Postgres, &url).await;
        sleep_until(started + wait_limit + Duration::from_millis(100)).await;
        assert!(
            !late.answer.is_finished(),
            "refused while the row is locked"
        );
        holder.unlock().await;
    };
    tokio::join!(late.hold.deliver(), unlock_after_expiry);
    let answer = (&mut late.answer).await.unwrap();
    answer.assert_is(409, "insufficient-stock");
    assert_eq!(late.subject.ledger.sold("hot").await, [""; 0]);
}
