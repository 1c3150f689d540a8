//! Errors of a server that answers: statements that are out of date, a limit, an unknown error.

use std::error::Error as _;

use reqwest::header::IF_MATCH;
use rstest::rstest;
use serde_json::json;
use stocklock::ports::StoreError;
use stocklock::stock::StockError;
use stocklock_testkit::assert_matches;
use tokio::time::timeout;

use super::fixture::{Fixture, Operations as _, Raw, SOON, adjustment, committed, deduction, open};
use crate::support::app::{Answer, TestApp, send};
use crate::support::services::Backend::{self, Mysql, Postgres, Sqlite};
use crate::support::services::PrivateServer;

/// One answer of each kind of request, with statements that a connection keeps.
async fn answers(app: &TestApp) -> Vec<Answer> {
    let (sale, order) = (
        json!({"sku": "tea"}),
        json!({"sku": "tea", "quantity": 1_000}),
    );
    let (level, more) = (
        json!({"on_hand": 50}),
        json!({"delta": 1, "reason": "count"}),
    );
    let get = |path: &str| app.request(0, reqwest::Method::GET, path);
    let mut answers = Vec::new();
    for request in [
        get("/stock/tea"),
        get("/stock?limit=10"),
        get("/stock/tea/movements"),
        get("/stock/tea/audit"),
        get("/operations?key=K"),
        app.put(0, "tea", &level).header(IF_MATCH, "*"),
        app.adjust(0, "tea", &more),
        app.deduct(0, "single-sql", &sale),
        app.deduct(0, "for-update", &sale),
        app.deduct(0, "optimistic", &sale),
        app.deduct(0, "single-sql", &sale)
            .header("Idempotency-Key", "K"),
        app.deduct(0, "group-commit", &order)
            .header("Idempotency-Key", "L"),
    ] {
        answers.push(send(request).await);
    }
    answers
}

async fn statuses(app: &TestApp) -> Vec<u16> {
    let answers = answers(app).await;
    answers.iter().map(|answer| answer.status).collect()
}

/// An operator takes away what the statements need. Afterwards the schema is as before.
#[rstest]
#[case::table(
    "ALTER TABLE movement RENAME TO gone",
    "ALTER TABLE gone RENAME TO movement"
)]
#[case::column(
    "ALTER TABLE movement RENAME COLUMN reason TO gone",
    "ALTER TABLE movement RENAME COLUMN gone TO reason"
)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_the_schema_is_503_until_it_is_undone(
    #[values(Sqlite, Mysql, Postgres)] backend: Backend,
    #[case] change: &'static str,
    #[case] back: &'static str,
) {
    let app = TestApp::with_stock(backend, 1, "tea", 50).await;
    let mut raw = Raw::connect(backend, &app.database_url).await;
    let first = app.deduct(0, "single-sql", &json!({"sku": "tea"}));
    send(first.header("Idempotency-Key", "K")).await.ok();
    let before = statuses(&app).await;

    raw.run(change).await.unwrap();
    let mut refused = 0;
    for (answer, status) in answers(&app).await.iter().zip(&before) {
        if answer.status != *status {
            answer.assert_refused_for_now("unavailable");
            refused += 1;
        }
    }
    // All writes, and some reads.
    assert!(refused > 7, "only {refused} were refused");

    raw.run(back).await.unwrap();
    assert_eq!(statuses(&app).await, before);
    assert_eq!(app.audit("tea").await["drift"], 0);
}

/// As after a dump without its routines.
#[tokio::test]
async fn missing_procedure_is_503() {
    let app = TestApp::with_stock(Mysql, 1, "tea", 50).await;
    let mut raw = Raw::connect(Mysql, &app.database_url).await;
    for statement in [
        "DROP PROCEDURE stocklock_deduct_1",
        "DROP PROCEDURE stocklock_write_1",
    ] {
        raw.run(statement).await.unwrap();
    }
    let sale = |strategy| app.deduct(0, strategy, &json!({"sku": "tea"}));
    for strategy in ["single-sql", "group-commit"] {
        let refused = send(sale(strategy)).await;
        refused.assert_refused_for_now("unavailable");
    }
    // It needs no procedure.
    send(sale("for-update")).await.ok();
    assert_eq!(app.audit("tea").await["drift"], 0);
}

/// PostgreSQL refuses a prepared statement whose columns have other types now, as after an upgrade. The key
/// `K` is that of a sale, so its retry reads the ledger, and so does the refusal of `L`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_a_columns_type_fails_no_request() {
    let app = TestApp::with_stock(Postgres, 1, "tea", 50).await;
    let mut raw = Raw::connect(Postgres, &app.database_url).await;
    let first = app.deduct(0, "single-sql", &json!({"sku": "tea"}));
    send(first.header("Idempotency-Key", "K")).await.ok();
    let before = statuses(&app).await;
    assert_eq!(before[..11], [200; 11]);
    assert_eq!(before[11], 409);
    for change in [
        r#"ALTER TABLE stock ALTER COLUMN sku TYPE varchar(128) COLLATE "C""#,
        r#"ALTER TABLE movement ALTER COLUMN reason TYPE varchar(300) COLLATE "C""#,
    ] {
        raw.run(change).await.unwrap();
        for _ in 0..2 {
            assert_eq!(statuses(&app).await, before, "{change}");
        }
    }
    assert_eq!(app.audit("tea").await["drift"], 0);
}

/// The limit is one for all clients of a server. A connection goes on with what it has prepared.
#[tokio::test]
async fn limit_of_prepared_statements_is_not_a_defect() {
    let server = PrivateServer::start(Mysql).await;
    let fixture = Fixture::at(Mysql, server.url().to_owned()).await;
    fixture.put("a", 10).await;
    let store = open(server.url(), 1);
    let sale = store.deduct(&deduction("a", 1)).await;
    assert_eq!(sale.unwrap(), committed(9));
    let mut raw = Raw::connect(Mysql, server.url()).await;
    let limit = "SET GLOBAL max_prepared_stmt_count = 0";
    raw.run(limit).await.unwrap();

    let adjusted = timeout(SOON, store.write(&adjustment("a", 1))).await;
    assert_matches!(adjusted, Ok(Err(StoreError::Unavailable(_))));
    let sale = store.deduct(&deduction("a", 1)).await;
    assert_eq!(sale.unwrap(), committed(8));
}

/// A trigger of the operator raises an error that is not in the table, for a sale of three units. PostgreSQL
/// has the code `0A000` also for a prepared statement that is out of date.
#[rstest]
#[case(Mysql, "31000")]
#[case(Postgres, "ZZ001")]
#[case(Postgres, "0A000")]
#[tokio::test]
async fn unknown_error_fails_only_its_own_deduction(#[case] backend: Backend, #[case] code: &str) {
    let fixture = Fixture::with(backend, "a", 10).await;
    let mut raw = Raw::connect(backend, &fixture.url).await;
    let trigger = match backend {
        Postgres => format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                RAISE EXCEPTION 'not three' USING ERRCODE = '{code}'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON movement FOR EACH ROW
                WHEN (NEW.delta = -3) EXECUTE FUNCTION refuse()"
        ),
        _ => format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON movement FOR EACH ROW
                IF NEW.delta = -3 THEN
                    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not three';
                END IF"
        ),
    };
    raw.run(trigger.leak()).await.unwrap();

    let batch = [1, 3, 2].map(|units| deduction("a", units));
    let answers = timeout(SOON, fixture.store.write_batch(&batch, false)).await;
    let [first, refused, last] = <[_; 3]>::try_from(answers.expect("bounded")).unwrap();

    let sold = (first.unwrap(), last.unwrap());
    assert_eq!(sold, (committed(9), committed(7)));
    let refused = refused.unwrap_err();
    assert_matches!(refused, StoreError::Unexpected(_));
    let cause = refused
        .source()
        .map(ToString::to_string)
        .unwrap_or_default();
    assert!(cause.contains(code), "{cause}");
    assert_matches!(StockError::from(refused), StockError::Unavailable { .. });
    fixture.assert_in_order("a").await;
}

/// A statement that undoes itself has this error, too, and is repeated.
#[tokio::test]
async fn division_by_zero_in_a_trigger_is_an_error() {
    let fixture = Fixture::with(Postgres, "a", 10).await;
    let mut raw = Raw::connect(Postgres, &fixture.url).await;
    let trigger = "CREATE FUNCTION divide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM 1 / (NEW.delta + 3); RETURN NEW; END $$;
        CREATE TRIGGER divide BEFORE INSERT ON movement FOR EACH ROW EXECUTE FUNCTION divide()";
    raw.run(trigger).await.unwrap();
    let sale = fixture.store.deduct(&deduction("a", 3)).await;
    assert_matches!(sale, Err(StoreError::Bug(_)));
    let batch = [deduction("a", 2), deduction("a", 3)];
    let answers = timeout(SOON, fixture.store.write_batch(&batch, false)).await;
    let [sold, failed] = <[_; 2]>::try_from(answers.expect("bounded")).unwrap();
    assert_eq!(sold.unwrap(), committed(8));
    assert_matches!(failed, Err(StoreError::Bug(_)));
}

/// Triggers of the operator leave out sales of three units, and levels with 17, without an error.
#[tokio::test]
async fn levels_and_movements_are_written_together_or_fail() {
    let fixture = Fixture::with(Postgres, "a", 10).await;
    fixture.put("b", 10).await;
    let mut raw = Raw::connect(Postgres, &fixture.url).await;
    let trigger = "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RETURN NULL; END $$;
        CREATE TRIGGER leave_out BEFORE INSERT ON movement FOR EACH ROW
            WHEN (NEW.delta = -3) EXECUTE FUNCTION leave_out();
        CREATE TRIGGER leave_out BEFORE UPDATE ON stock FOR EACH ROW
            WHEN (NEW.on_hand = 17) EXECUTE FUNCTION leave_out()";
    raw.run(trigger).await.unwrap();

    // A transaction of several levels, a batch, and a deduction alone.
    let batches = [vec![deduction("a", 1)], vec![deduction("b", 3)]];
    let answers = fixture.store.deduct_levels(&batches).await;
    assert!(answers.iter().all(Option::is_none), "{answers:?}");
    let batch = [deduction("a", 3), deduction("a", 3)];
    for answer in fixture.store.write_batch(&batch, false).await {
        let error = answer.expect_err("a movement is missing");
        assert_matches!(error, StoreError::Bug(_));
        let cause = error.source().expect("a cause").to_string();
        assert!(cause.contains("movements are missing"), "{cause}");
    }
    let adjusted = fixture.store.write(&adjustment("a", 7)).await;
    assert_matches!(adjusted, Err(StoreError::Bug(_)));
    for sku in ["a", "b"] {
        assert_eq!(fixture.level(sku).await.on_hand, 10);
        fixture.assert_in_order(sku).await;
    }
}

/// The level has two movements, and the call brings one of them.
#[tokio::test]
async fn procedure_writes_no_level_without_each_of_its_movements() {
    let fixture = Fixture::with(Mysql, "a", 10).await;
    let mut raw = Raw::connect(Mysql, &fixture.url).await;
    let write = |begins: u8, movements: u8| {
        format!(
            r#"CALL stocklock_write_1({begins}, 1, 0, 'for-update', 9e15, '[[0, "a", "main", -1, {movements}]]',
                '[[[0, 0, "00112233445566778899aabbccddeeff", -1, ""], null]]')"#
        )
    };
    // The second call is to end a transaction, and there is none.
    for (call, cause) in [
        (write(1, 2), "movements are missing"),
        (write(0, 1), "the rows are not locked"),
    ] {
        let refused = raw.run(call.leak()).await.unwrap_err().to_string();
        assert!(refused.contains(cause), "{refused}");
        assert_eq!(fixture.level("a").await.on_hand, 10);
        fixture.assert_in_order("a").await;
    }

    raw.run(write(1, 1).leak()).await.unwrap();
    assert_eq!(fixture.level("a").await.on_hand, 9);
    fixture.assert_in_order("a").await;
}
