//! Whole races against the fake: what is exact is called so, what is not is caught.

use std::time::Duration;

use super::fake::{Behaviour, start};
use super::*;
use stocklock_core::stock::Home;
use stocklock_core::strategy::Tier;

fn plan(strategy: Strategy) -> RacePlan {
    RacePlan {
        strategies: Entrants::Only(vec![strategy]),
        connections: 8,
        deadline: Duration::from_secs(30),
        ..RacePlan::new(50, 16, 5)
    }
}

async fn race(strategy: Strategy, behaviour: Behaviour) -> Report {
    let targets = start(behaviour, 2).await;
    run(&plan(strategy), &targets, Progress::Silent)
        .await
        .unwrap()
}

#[tokio::test]
async fn an_exact_strategy_is_called_exact() {
    let report = race(Strategy::SingleSql, Behaviour::Sound).await;
    let row = &report.rows[0];
    assert_eq!(row.verdict, Verdict::Exact, "{row:?}");
    assert_eq!((row.sold, row.refused, row.retried.total()), (50, 30, 0));
    assert_eq!((row.ledger_sold, row.left, row.failed), (50, 0, 0));
    assert!(row.requests_per_second > 0.0 && row.p50_ms <= row.p99_ms);
    assert!(!report.broken() && row.evidence.is_none());
}

#[tokio::test]
async fn a_lossy_strategy_is_caught_with_evidence() {
    let report = race(Strategy::NoLock, Behaviour::Sound).await;
    let row = &report.rows[0];
    assert_eq!(row.verdict, Verdict::Caught, "{row:?}");
    assert!(row.drift > 0 && row.oversold > 0);
    match row.evidence.as_ref().unwrap() {
        Evidence::LostUpdate { read, first, .. } => assert_eq!(first.wrote, read - 1),
        nothing @ Evidence::Nothing { .. } => panic!("{nothing}"),
    }
    assert!(report.table().contains(" both read version "));
    assert!(!report.broken(), "an unsafe strategy never fails the race");
}

#[tokio::test]
async fn faults_are_retried_with_the_same_key() {
    let report = race(Strategy::SingleSql, Behaviour::Faulty).await;
    let row = &report.rows[0];
    assert_eq!(row.verdict, Verdict::Exact, "{row:?}");
    assert_eq!((row.sold, row.refused, row.failed), (50, 30, 0));
    assert!(row.replayed > 0, "{row:?}");
    for code in [
        "contended",
        "overloaded",
        "strategy-unavailable",
        "outcome-unknown",
        "cut",
    ] {
        assert!(row.retried.of(code) > 0, "{code}: {}", row.retried);
    }
    let table = report.table();
    assert!(table.contains("single-sql: exchanges retried: "), "{table}");
}

#[tokio::test]
async fn a_strategy_that_is_not_configured_is_not_asked_for_again() {
    let report = race(Strategy::SingleSql, Behaviour::Unconfigured).await;
    let row = &report.rows[0];
    assert_eq!((row.verdict, row.failed), (Verdict::NotProven, 80));
    assert_eq!((row.retried.total(), row.unknown), (0, 0), "{row:?}");
}

#[tokio::test]
async fn a_lock_that_excludes_has_nothing_to_tell() {
    let report = race(Strategy::ZookeeperLock, Behaviour::Sound).await;
    let row = &report.rows[0];
    assert_eq!(row.verdict, Verdict::Exact, "{row:?}");
    assert!(row.locks.none() && row.remarks.is_empty(), "{row:?}");
    let json = report.json();
    assert_eq!(json["rows"][0]["lost_locks"], serde_json::json!({}));
    let on = serde_json::json!({"guard": true, "check": true});
    assert_eq!(json["plan"]["safeguards"], on);
}

#[tokio::test]
async fn a_lock_that_does_not_exclude_is_told_of_from_all_targets() {
    let targets = start(Behaviour::Leaky, 2).await;
    let mut plan = plan(Strategy::ZookeeperLock);
    // One of them is named twice, and counted once: of 80 orders every seventh, from the first on.
    let twice = [&targets[..], &targets[..1]].concat();
    let report = run(&plan, &twice, Progress::Silent).await.unwrap();
    let row = &report.rows[0];
    assert_eq!(row.verdict, Verdict::Exact, "{row:?}");
    let (lost, refused) = (&row.locks.lost_locks, &row.locks.refused_writes);
    assert!((12..=13).contains(&lost.total()), "{row:?}");
    assert_eq!(lost.of("session-expired"), refused.of("fence"), "{row:?}");
    let told = format!("zookeeper-lock: the lock did not exclude by itself: locks lost: {lost}");
    assert!(report.table().contains(&told), "{}", report.table());
    let json = &report.json()["rows"][0];
    assert_eq!(json["refused_writes"]["fence"], refused.total());

    plan.safeguards.guard = false;
    let report = run(&plan, &targets, Progress::Silent).await.unwrap();
    let locks = &report.rows[0].locks;
    assert!(locks.lost_locks.total() > 0, "{locks:?}");
    assert_eq!(locks.refused_writes.total(), 0, "{locks:?}");
    assert!(
        report.table().contains("\nguard off: "),
        "{}",
        report.table()
    );
    assert!(
        !report.table().contains("\ncheck off: "),
        "{}",
        report.table()
    );
}

#[tokio::test]
async fn counters_that_cannot_be_read_end_the_race_with_the_targets_name() {
    for behaviour in [Behaviour::Garbled, Behaviour::Restarting] {
        let targets = start(behaviour, 1).await;
        let plan = plan(Strategy::ZookeeperLock);
        let error = run(&plan, &targets, Progress::Silent).await.unwrap_err();
        let told = error.to_string();
        assert!(told.contains(&targets[0].to_string()), "{told}");
        match error {
            RaceError::Answer { call, .. } => assert!(call.ends_with("/metrics"), "{call}"),
            RaceError::Restarted { .. } => assert_eq!(behaviour, Behaviour::Restarting),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_service_that_forgets_keys_sells_twice_and_is_found_out() {
    let report = race(Strategy::SingleSql, Behaviour::Forgetful).await;
    let row = &report.rows[0];
    assert_eq!(row.verdict, Verdict::Broken, "{row:?}");
    assert!(row.duplicated > 0 && report.broken());
    assert!(report.table().contains("PROMISE BROKEN by single-sql"));
}

#[tokio::test]
async fn orders_that_fail_leave_the_promise_unproven() {
    let report = race(Strategy::SingleSql, Behaviour::Defective).await;
    let row = &report.rows[0];
    assert_eq!((row.verdict, row.failed), (Verdict::NotProven, 80));
    assert_eq!(row.failures, ["500 internal: the fake says internal"]);
    assert!(report.broken());
}

#[tokio::test]
async fn the_deadline_ends_a_run_and_what_was_not_placed_has_failed() {
    let targets = start(Behaviour::Sound, 1).await;
    let plan = RacePlan {
        deadline: Duration::ZERO,
        ..plan(Strategy::SingleSql)
    };
    let report = run(&plan, &targets, Progress::Silent).await.unwrap();
    let row = &report.rows[0];
    assert_eq!((row.verdict, row.failed), (Verdict::NotProven, 80));
    assert_eq!(row.failures, ["80 orders not placed within 0 s"]);
}

#[tokio::test]
async fn all_skips_what_a_target_cannot_run_and_says_so() {
    let targets = start(Behaviour::Sound, 1).await;
    let everyone = RacePlan {
        strategies: Entrants::Everyone,
        ..plan(Strategy::NoLock)
    };
    let report = run(&everyone, &targets, Progress::Silent).await.unwrap();
    let ran: Vec<Strategy> = report.rows.iter().map(|row| row.strategy).collect();
    let able = [
        Strategy::NoLock,
        Strategy::SingleSql,
        Strategy::ZookeeperLock,
    ];
    assert_eq!(ran, able);
    let table = report.table();
    assert!(
        table.contains("\nskipped redis-lock: it needs Redis: set REDIS_URL\n"),
        "{table}"
    );
    let json = report.json();
    assert_eq!(json["plan"]["strategies"], "all");
    assert_eq!(json["rows"][1]["strategy"], "single-sql");
    assert_eq!(json["rows"][0]["evidence"]["found"], "lost-update");
}

/// A race of stock in Redis, whose ledger may take as long as given.
async fn race_in_redis(entrants: Entrants, behaviour: Behaviour, limit: Duration) -> Report {
    let targets = start(behaviour, 2).await;
    let plan = RacePlan {
        strategies: entrants,
        home: Home::Redis,
        ledger_limit: limit,
        ..plan(Strategy::RedisLua)
    };
    run(&plan, &targets, Progress::Silent).await.unwrap()
}

#[tokio::test]
async fn in_redis_everyone_who_works_there_runs_and_nobody_is_better_than_volatile() {
    let limit = Duration::from_secs(30);
    let report = race_in_redis(Entrants::Everyone, Behaviour::Sound, limit).await;
    let ran = report.rows.iter();
    let ran: Vec<_> = ran
        .map(|row| (row.strategy, row.tier, row.verdict))
        .collect();
    let expected = [
        (Strategy::NoLock, Tier::Unsafe, Verdict::Caught),
        (Strategy::ZookeeperLock, Tier::Volatile, Verdict::Exact),
        (Strategy::RedisLua, Tier::Volatile, Verdict::Exact),
    ];
    assert_eq!(ran, expected);
    let (table, json) = (report.table(), report.json());
    assert!(table.contains("\nhome redis: "), "{table}");
    let elsewhere = "its stock lives in SQL, and the race's in Redis";
    assert!(table.contains(elsewhere), "{table}");
    assert_eq!(json["plan"]["home"], "redis");
    assert_eq!(json["rows"][1]["tier"], "volatile");
}

#[tokio::test]
async fn the_ledger_in_sql_is_waited_for() {
    let lua = Entrants::Only(vec![Strategy::RedisLua]);
    let limit = Duration::from_secs(30);
    let report = race_in_redis(lua, Behaviour::Behind, limit).await;
    let row = &report.rows[0];
    assert_eq!((row.verdict, row.pending), (Verdict::Exact, 0), "{row:?}");
}

#[tokio::test]
async fn what_never_reaches_the_ledger_breaks_the_promise_and_is_told() {
    let everyone = Entrants::Only(vec![Strategy::NoLock, Strategy::RedisLua]);
    let limit = Duration::from_millis(50);
    let report = race_in_redis(everyone, Behaviour::Jammed, limit).await;
    let verdicts: Vec<_> = report.rows.iter().map(|row| row.verdict).collect();
    assert_eq!(verdicts, [Verdict::Caught, Verdict::Broken]);
    let table = report.table();
    let told = "2 movements journaled, but not in SQL in time";
    assert!(table.contains(&format!("\nredis-lua: {told}\n")), "{table}");
    assert_eq!(table.matches(told).count(), 2, "{table}");
    assert_eq!(report.json()["rows"][0]["pending"], 2);
    assert!(report.broken());
}

#[tokio::test]
async fn what_cannot_be_raced_is_refused_with_the_reason() {
    let refusal = |strategy, behaviour, replicas| async move {
        let targets = start(behaviour, replicas).await;
        let report = run(&plan(strategy), &targets, Progress::Silent).await;
        report.unwrap_err()
    };
    let lab = Behaviour::Sound;
    let named = refusal(Strategy::RedisLock, lab, 1).await;
    assert_eq!(
        named.to_string(),
        "strategy redis-lock cannot run: it needs Redis: set REDIS_URL"
    );
    let error = refusal(Strategy::SingleSql, Behaviour::Production, 1).await;
    assert!(matches!(error, RaceError::NotLab { .. }), "{error}");
    let error = refusal(Strategy::SingleSql, lab, 0).await;
    assert!(matches!(error, RaceError::NoTarget), "{error}");
}

#[tokio::test]
async fn targets_that_do_not_share_their_stock_are_told_apart() {
    let mut targets = start(Behaviour::Sound, 1).await;
    targets.extend(start(Behaviour::Sound, 1).await);
    let error = run(&plan(Strategy::SingleSql), &targets, Progress::Silent)
        .await
        .unwrap_err();
    assert!(matches!(error, RaceError::NotShared { .. }), "{error}");
}
