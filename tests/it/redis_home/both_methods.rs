//! `redis-lua` decides in Lua, and `redis-watch` in Rust. Random histories give the same answers with both,
//! each on a ledger and a Redis database of its own: after each step, Redis has the same levels, journal
//! entries, dedup entries and counters, and at the end of each history SQL has the same.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use stocklock::ports::{
    AttemptOutcome, ChangeOutcome, DeductionStore as _, LedgerReader as _, LevelStore as _,
    RedisMethod, StoreError,
};
use stocklock::stock::{Audit, Deduction, LevelChange, Movement};
use stocklock::store::RedisOptions;
use stocklock_testkit::run::rng;

use crate::store_contract::fixture::{Fixture, all_of, name, place};
use crate::support::services::Backend::Sqlite;
use history::{Generator, Step, WAREHOUSES};
use state::InRedis;

mod history;
mod state;

const HISTORIES: usize = 200;
const STEPS: usize = 14;
/// How many movements may wait.
const JOURNAL_LIMIT: u32 = 5;

#[derive(Debug, PartialEq)]
enum Answer {
    Attempt(AttemptOutcome),
    /// Without the version of the level, which is compared with what Redis has.
    Change(ChangeOutcome),
    JournalFull,
    /// Of a step that is no request.
    None,
}

impl Answer {
    fn of<T>(result: Result<T, StoreError>, outcome: impl FnOnce(T) -> Self) -> Self {
        match result {
            Ok(found) => outcome(found),
            Err(StoreError::JournalFull) => Self::JournalFull,
            Err(error) => panic!("{error:?}"),
        }
    }

    fn of_change(result: Result<ChangeOutcome, StoreError>) -> Self {
        Self::of(result, |mut outcome| {
            if let ChangeOutcome::Done { level, .. } = &mut outcome {
                level.version = 0;
            }
            Self::Change(outcome)
        })
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Attempt(AttemptOutcome::Deducted { .. }) => "sold",
            Self::Attempt(AttemptOutcome::Unrecorded { .. }) => "insufficient",
            Self::Attempt(AttemptOutcome::Duplicate) => "duplicate",
            Self::Attempt(AttemptOutcome::Conflict) => "expired",
            Self::JournalFull => "full",
            Self::Attempt(_) | Self::Change(_) | Self::None => "other",
        }
    }
}

/// One way to deduct, with a ledger of its own.
struct Side {
    fixture: Fixture,
    method: RedisMethod,
}

impl Side {
    async fn new(method: RedisMethod) -> Self {
        let options = |options| RedisOptions {
            journal_limit: JOURNAL_LIMIT,
            ..options
        };
        Self {
            fixture: Fixture::in_redis(Sqlite, options).await,
            method,
        }
    }

    /// Creates the SKU of a history.
    async fn begin(&self, created: &[LevelChange], held: i64) -> InRedis {
        for change in created {
            self.fixture.set(change.clone()).await;
            self.load(change.sku.as_str(), change.warehouse.as_str())
                .await;
        }
        let redis = InRedis::of(&self.fixture, created[0].sku.as_str()).await;
        redis.hold(held).await;
        redis
    }

    /// Loads a level that Redis does not have.
    async fn load(&self, sku: &str, warehouse: &str) {
        let (sku, warehouse) = (name(sku), place(warehouse));
        let loaded = self.fixture.store.level(&sku, &warehouse).await;
        loaded.expect("no error").expect("the level exists");
    }

    async fn take(&self, step: &Step, redis: &InRedis) -> Vec<Answer> {
        let (fixture, store) = (&self.fixture, &self.fixture.store);
        match step {
            Step::Deduct(sales) => return self.deduct(sales).await,
            Step::Adjust(change) => return vec![Answer::of_change(store.adjust(change).await)],
            Step::Set(change) => return vec![Answer::of_change(store.set_level(change).await)],
            Step::Apply => fixture.settle().await,
            Step::LoseLevel(warehouse) => redis.lose_level(warehouse).await,
            Step::LoseKeys(warehouse) => {
                fixture.settle().await;
                redis.lose_level(warehouse).await;
                redis.lose_keys().await;
            }
            Step::Age(seconds) => {
                for warehouse in WAREHOUSES {
                    self.load(&redis.sku, warehouse).await;
                }
                redis.age(*seconds).await;
            }
        }
        vec![Answer::None]
    }

    async fn deduct(&self, sales: &[Deduction]) -> Vec<Answer> {
        let deduct = async |sale| {
            let sold = self.fixture.store.deduct_in_redis(sale, self.method).await;
            Answer::of(sold, Answer::Attempt)
        };
        if self.method == RedisMethod::Script {
            // The test has one thread, so all wait before the call is sent.
            return join_all(sales.iter().map(deduct)).await;
        }
        let mut answers = Vec::new();
        for sale in sales {
            answers.push(deduct(sale).await);
        }
        answers
    }

    /// What SQL has of the SKU, and its audits. The journal is applied first.
    async fn ledger(&self, sku: &str) -> (Vec<Movement>, Vec<Audit>) {
        self.fixture.settle().await;
        let page = self.fixture.store.movements(&all_of(sku)).await;
        let mut movements = page.expect("no error").movements;
        movements.sort_by_key(|movement| movement.operation);
        for movement in &mut movements {
            // The version that was read was compared in the journal.
            (movement.created_at, movement.read_version) = (String::new(), None);
        }
        let audits = self.fixture.store.audit(&name(sku)).await;
        (movements, audits.expect("no error"))
    }
}

#[tokio::test]
async fn script_and_watch_agree_on_generated_histories() {
    let scripted = Side::new(RedisMethod::Script).await;
    let watched = Side::new(RedisMethod::Watch).await;
    let mut random = rng().fork();
    let mut generator = Generator::new(move |options: usize| random.usize(..options));
    let mut seen = BTreeMap::new();
    for number in 0..HISTORIES {
        let sku = format!("sku-{number}");
        let (created, held) = (generator.begin(&sku), generator.one_of(&[0, 2]));
        let mut in_scripted = scripted.begin(&created, held).await;
        let mut in_watched = watched.begin(&created, held).await;
        let mut steps = Vec::new();
        for _ in 0..STEPS {
            let step = generator.next_step();
            let answers = scripted.take(&step, &in_scripted).await;
            let expected = watched.take(&step, &in_watched).await;
            steps.push(step);
            let on_hand = created[0].on_hand;
            let case = format!("history {number} of {on_hand:?} units, {held} held: {steps:#?}");
            assert_eq!(answers, expected, "{case}");
            let state = in_scripted.state().await;
            let expected = in_watched.state().await;
            assert_eq!(state, expected, "{case}");
            for answer in answers {
                *seen.entry(answer.kind()).or_insert(0) += 1;
            }
        }
        let ledger = scripted.ledger(&sku).await;
        let expected = watched.ledger(&sku).await;
        assert_eq!(ledger, expected, "history {number}: {steps:#?}");
    }
    for kind in ["sold", "insufficient", "duplicate", "expired", "full"] {
        let count = seen.get(kind).copied().unwrap_or_default();
        assert!(count >= HISTORIES / 10, "{kind}: {seen:?}");
    }
}
