//! Transactions of several messages, one of which reaches the database late: the last write, or the COMMIT.

use reqwest::RequestBuilder;
use reqwest::header::IF_MATCH;
use rstest::rstest;
use serde_json::json;

use super::session::Session;
use super::{Proxied, add_key_if, send, send_until_final, until};
use crate::support::app::TestApp;
use crate::support::rival::{Raw, lock_is_waited_for};
use crate::support::services::Backend::{self, Mysql, Postgres};

/// A write that is a transaction of several messages, to `hot`, which has five units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    ForUpdate,
    KeyedForUpdate,
    Adjustment,
    KeyedAdjustment,
    /// It takes no key.
    Put,
}

use Write::{Adjustment, ForUpdate, KeyedAdjustment, KeyedForUpdate, Put};

impl Write {
    fn request(self, app: &TestApp) -> RequestBuilder {
        let request = match self {
            ForUpdate | KeyedForUpdate => app.deduct(0, "for-update", &json!({ "sku": "hot" })),
            Adjustment | KeyedAdjustment => {
                app.adjust(0, "hot", &json!({"delta": 5, "reason": "late-count"}))
            }
            Put => {
                let level = json!({"on_hand": 9, "reason": "late-count"});
                app.put(0, "hot", &level).header(IF_MATCH, "*")
            }
        };
        add_key_if(matches!(self, KeyedForUpdate | KeyedAdjustment), request)
    }

    /// A parameter of the last write, which is a prepared statement.
    fn parameter(self) -> &'static [u8] {
        match self {
            ForUpdate | KeyedForUpdate => b"for-update",
            Adjustment | KeyedAdjustment | Put => b"late-count",
        }
    }

    fn level_after(self) -> i64 {
        match self {
            ForUpdate | KeyedForUpdate => 4,
            Adjustment | KeyedAdjustment => 10,
            Put => 9,
        }
    }
}

/// Replicas that have created the level.
async fn started(backend: Backend, flags: &[&str]) -> Proxied {
    let subject = Proxied::start(backend, 1, flags).await;
    subject.app.set_level("hot", 5).await;
    subject
}

/// Asserts that the level is `on_hand` after this many movements, when no write is running any more.
async fn assert_after_all_writes(subject: Proxied, on_hand: i64, movements: usize) {
    subject.app.stop().await;
    let audit = subject.ledger.assert_consistent("hot").await;
    assert_eq!(audit.on_hand, on_hand, "{audit:?}");
    assert_eq!(subject.ledger.movements("hot").await.len(), movements);
}

/// The connection is lost with the last write, so no COMMIT follows it.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_write_without_its_commit_changes_nothing(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(ForUpdate, KeyedAdjustment, Put)] write: Write,
) {
    let subject = started(backend, &["--wait-limit-ms=1000"]).await;
    let hold = subject.proxy.hold_and_cut(write.parameter());
    let answer = send(write.request(&subject.app)).await;
    // The open transaction holds the row.
    answer.assert_is(503, "contended");
    hold.deliver().await;

    let next = subject
        .app
        .deduct(0, "single-sql", &json!({ "sku": "hot" }));
    assert_eq!(send_until_final(next).await.status, 200);
    assert_after_all_writes(subject, 4, 2).await;
}

/// Goal: a last write that arrives after the request was answered changes nothing; before, it does.
///
/// Method: its connection stays, and the service still waits for its result, so that a COMMIT would follow
/// it.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_write_after_the_deadline_changes_nothing(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(ForUpdate, KeyedAdjustment, Put)] write: Write,
    #[values(1_000, 6_000)] limit_ms: u32,
) {
    let wait = format!("--wait-limit-ms={limit_ms}");
    let deadline = format!("--request-deadline-ms={}", 3 * limit_ms);
    let subject = started(backend, &[&wait, &deadline]).await;
    let hold = subject.proxy.hold_request(write.parameter());
    let answer = tokio::spawn(send(write.request(&subject.app)));
    hold.held().await;
    if limit_ms == 1_000 {
        let late = answer.await.unwrap();
        assert_eq!(late.status_and_code(), (504, "outcome-unknown"), "{late:?}");
        hold.let_go();
        return assert_after_all_writes(subject, 5, 1).await;
    }
    hold.let_go();
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
    assert_after_all_writes(subject, write.level_after(), 2).await;
}

/// The transaction waits for the row past the deadline. Its holder then rolls back.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_that_waits_past_the_deadline_changes_nothing(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(ForUpdate, KeyedAdjustment, Put)] write: Write,
) {
    let flags = ["--wait-limit-ms=5000", "--request-deadline-ms=6000"];
    let subject = started(backend, &flags).await;
    let mut holder = Session::open(backend, &subject.database.url).await;
    assert!(holder.try_lock_hot().await, "the row is free");
    let mut raw = Raw::connect(backend, &subject.database.url).await;
    let hold = subject.proxy.hold_request(b"\x03hot");
    let answer = tokio::spawn(send(write.request(&subject.app)));
    hold.held().await;
    let expires_at = clock(&mut raw).await + 6_000;
    // The server ends the wait for the row after the wait limit, so the wait begins late.
    let is_late = async || clock(&mut raw).await > expires_at - 3_500;
    until("the wait can outlast the deadline", is_late).await;
    hold.let_go();
    lock_is_waited_for(backend, &subject.database.url).await;
    let answer = answer.await.unwrap();
    answer.assert_is(504, "outcome-unknown");
    let is_expired = async || clock(&mut raw).await > expires_at;
    until("the write expires", is_expired).await;
    holder.unlock().await;
    assert_after_all_writes(subject, 5, 1).await;
}

/// The connection is lost in the COMMIT, which arrives while the next attempt waits for the row.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_commit_is_not_refused_and_counts_once(
    #[values(Mysql, Postgres)] backend: Backend,
    #[values(ForUpdate, KeyedAdjustment, Put)] write: Write,
) {
    let flags = ["--wait-limit-ms=6000", "--request-deadline-ms=20000"];
    let subject = started(backend, &flags).await;
    let hold = subject.proxy.hold_and_cut(backend.commit_message());
    let answer = tokio::spawn(send(write.request(&subject.app)));
    hold.held().await;
    lock_is_waited_for(backend, &subject.database.url).await;
    assert!(
        !answer.is_finished(),
        "answered before the outcome is known"
    );
    hold.deliver().await;
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.replayed), (200, false), "{answer:?}");
    assert_after_all_writes(subject, write.level_after(), 2).await;
}

full! {
    late_write_without_its_commit_changes_nothing(backend: Backend [Mysql, Postgres], write: Write [KeyedForUpdate, Adjustment]);
    last_write_after_the_deadline_changes_nothing(backend: Backend [Mysql, Postgres], write: Write [KeyedForUpdate, Adjustment], limit_ms: u32 [1_000, 6_000]);
    write_that_waits_past_the_deadline_changes_nothing(backend: Backend [Mysql, Postgres], write: Write [KeyedForUpdate, Adjustment]);
    late_commit_is_not_refused_and_counts_once(backend: Backend [Mysql, Postgres], write: Write [KeyedForUpdate, Adjustment]);
}

async fn clock(raw: &mut Raw) -> i64 {
    let now = match raw {
        Raw::Postgres(_) => "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::text",
        _ => "SELECT cast(floor(unix_timestamp(sysdate(6)) * 1000) AS char(20))",
    };
    let text = raw.text(now).await.expect("a clock");
    text.trim().parse().expect("a number")
}
