//! The calls of a race other than orders: strategies, levels, audit, ledger, counters.
//!
//! All of them can be repeated safely, so each call is retried for a while: after a run a replica
//! may still be overloaded.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, sleep};
use url::form_urlencoded::byte_serialize;
use uuid::Uuid;

use super::RaceError;
use super::connection::{Answer, Connection, ExchangeError};
use super::counts::LockCounts;
use super::pause::pause;
use super::plan::RacePlan;
use super::target::Target;
use stocklock_core::strategy::Strategy;

type Result<T, E = RaceError> = std::result::Result<T, E>;

/// The warehouse of a race.
pub(super) const WAREHOUSE: &str = "main";

/// The longest time of one call with all its retries.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// The same if the replica accepts no connections.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Rows of a page of the ledger.
const PAGE: usize = 1_000;

/// A strategy in the list of a replica.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) available: bool,
    pub(super) reason: Option<String>,
}

/// The audit of a SKU's only warehouse, or the sums of several. The report renames two of its fields.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Audit {
    /// Units received, according to the ledger.
    pub received: i64,
    /// Units sold, according to the ledger.
    #[serde(rename(serialize = "ledger_sold"))]
    pub sold: i64,
    /// The level after the run.
    #[serde(rename(serialize = "left"))]
    pub on_hand: i64,
    /// Level minus the sum of the ledger.
    pub drift: i64,
    /// Units sold that never existed.
    pub oversold: i64,
}

impl Audit {
    /// Adds that of another SKU.
    pub(super) fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.sold += other.sold;
        self.on_hand += other.on_hand;
        self.drift += other.drift;
        self.oversold += other.oversold;
    }

    /// Whether units were sold twice, or the level misses some sales.
    pub(super) fn lost_units(&self) -> bool {
        self.oversold != 0 || self.drift != 0
    }
}

/// A row of the ledger. The report shows the operation, the level that it wrote, and when and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Movement {
    #[serde(rename(serialize = "operation"))]
    pub(super) id: Uuid,
    #[serde(skip_serializing)]
    pub(super) kind: String,
    #[serde(skip_serializing)]
    pub(super) delta: i64,
    #[serde(rename(serialize = "wrote"))]
    pub(super) available_after: i64,
    /// The version of the level after it: its place in the order of the commits.
    #[serde(skip_serializing)]
    pub(super) level_version: i64,
    /// The version of the level that it was computed from; `None` if no level was read in SQL.
    #[serde(skip_serializing)]
    pub(super) read_version: Option<i64>,
    #[serde(rename(serialize = "at"))]
    pub(super) created_at: String,
    /// The replica that answered it, if the buyer had an answer.
    #[serde(skip_deserializing)]
    pub(super) replica: Option<String>,
}

impl Movement {
    /// Whether it is a deduction.
    pub(super) fn is_sale(&self) -> bool {
        self.kind == "deducted"
    }
}

/// What the service says about a SKU after the run.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) sku: String,
    pub(super) audit: Audit,
    pub(super) ledger: Vec<Movement>,
}

/// A client of one replica.
#[derive(Debug)]
pub(super) struct ReplicaClient(Connection);

impl ReplicaClient {
    pub(super) fn new(target: &Target) -> Self {
        Self(Connection::new(target.clone()))
    }

    /// The strategies of the replica.
    pub(super) async fn strategies(&mut self) -> Result<Vec<Listed>> {
        #[derive(Deserialize)]
        struct Strategies {
            strategies: Vec<Listed>,
        }
        let list: Strategies = self.get("/strategies").await?;
        Ok(list.strategies)
    }

    /// Checks that the replica accepts the parameters in `order_path`, which only the lab mode
    /// does. The order is for a SKU that does not exist.
    pub(super) async fn check_lab_mode(&mut self, order_path: &str) -> Result<()> {
        let sku = format!("race-{:08x}-probe", fastrand::u32(..));
        let body = json!({"sku": sku, "quantity": 1}).to_string();
        match self.call(Method::POST, order_path, body).await {
            Err(RaceError::Refused(404, _)) => Ok(()),
            Err(RaceError::Refused(422, error)) => {
                let problem = "is not in lab mode; start it with `stocklock lab`";
                Err(format!("{} {problem}: {error}", self.0.target).into())
            }
            Err(error) => Err(error),
            Ok(_) => Err(self.invalid(order_path, "a SKU that does not exist was sold")),
        }
    }

    /// Creates a SKU with the stock of the plan.
    pub(super) async fn create_stock(&mut self, sku: &str, plan: &RacePlan) -> Result<()> {
        let path = format!("/stock/{sku}");
        let body = json!({"on_hand": plan.stock, "warehouse": WAREHOUSE, "reason": "race"});
        let created = self.call(Method::PUT, &path, body.to_string()).await;
        created.map(drop)
    }

    /// The audit of the SKU.
    pub(super) async fn audit(&mut self, sku: &str) -> Result<Audit> {
        #[derive(Deserialize)]
        struct Audits {
            warehouses: [Audit; 1],
        }
        let audits: Result<Audits> = self.get(&format!("/stock/{sku}/audit")).await;
        if let Err(RaceError::Refused(404, _)) = audits {
            let problem = "the stock created at the first target; do they share a database?";
            return Err(format!("{} does not know {problem}", self.0.target).into());
        }
        let [audit] = audits?.warehouses;
        Ok(audit)
    }

    /// The ledger of the SKU, newest first. Stops after the page that exceeds `max` rows.
    pub(super) async fn movements(&mut self, sku: &str, max: usize) -> Result<Vec<Movement>> {
        #[derive(Deserialize)]
        struct Page {
            movements: Vec<Movement>,
            next_cursor: Option<String>,
        }
        let first = format!("/stock/{sku}/movements?limit={PAGE}");
        let mut path = first.clone();
        let mut movements = Vec::new();
        loop {
            let page: Page = self.get(&path).await?;
            movements.extend(page.movements);
            match page.next_cursor {
                Some(cursor) if movements.len() <= max => {
                    let cursor: String = byte_serialize(cursor.as_bytes()).collect();
                    path = format!("{first}&cursor={cursor}");
                }
                _ => return Ok(movements),
            }
        }
    }

    /// The counters of the strategy's locks since the replica's start.
    pub(super) async fn lock_counts(&mut self, strategy: Strategy) -> Result<LockCounts> {
        self.metrics(strategy, LockCounts::parse).await
    }

    /// What `read` finds in the replica's metrics.
    pub(super) async fn metrics<T>(
        &mut self,
        strategy: Strategy,
        read: fn(&str, Strategy) -> Result<T, String>,
    ) -> Result<T> {
        let answer = self.call(Method::GET, "/metrics", String::new()).await?;
        let found = read(&String::from_utf8_lossy(&answer.body), strategy);
        found.map_err(|reason| self.invalid("/metrics", &reason))
    }

    /// The sum of the levels of the SKUs.
    pub(super) async fn on_hand(&mut self, skus: &[String]) -> Result<i64> {
        #[derive(Deserialize)]
        struct Level {
            on_hand: i64,
        }
        #[derive(Deserialize)]
        struct Levels {
            warehouses: [Level; 1],
        }
        let mut sum = 0;
        for sku in skus {
            let levels: Levels = self.get(&format!("/stock/{sku}")).await?;
            let [level] = levels.warehouses;
            sum += level.on_hand;
        }
        Ok(sum)
    }

    async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T> {
        let answer = self.call(Method::GET, path, String::new()).await?;
        serde_json::from_slice(&answer.body).map_err(|error| self.invalid(path, &error.to_string()))
    }

    fn invalid(&self, path: &str, reason: &str) -> RaceError {
        format!("the answer to {}{path} is invalid: {reason}", self.0.target).into()
    }

    /// Sends a request until the answer is not temporary, and requires that it is a success.
    async fn call(&mut self, method: Method, path: &str, body: String) -> Result<Answer> {
        let target = self.0.target.clone();
        let request = target.request(method.clone(), path, Bytes::from(body));
        let begin = Instant::now();
        let mut attempt = 1;
        loop {
            let outcome = self.0.exchange(&request, begin + CALL_LIMIT).await;
            let (error, limit) = match outcome {
                Ok(answer) if answer.status.is_success() => return Ok(answer),
                Ok(answer) => {
                    let (status, problem) = (answer.status.as_u16(), answer.problem());
                    let problem = format!("{status} {} {}", problem.code, problem.detail);
                    let call = format!("{method} {target}{path}");
                    let error = format!("{call} was answered with {}", problem.trim());
                    let temporary = matches!(status, 502..=504);
                    let limit = if temporary {
                        CALL_LIMIT
                    } else {
                        Duration::ZERO
                    };
                    (RaceError::Refused(status, error), limit)
                }
                Err(error) => {
                    let connected = !matches!(error, ExchangeError::Connect(_));
                    let limit = if connected { CALL_LIMIT } else { CONNECT_LIMIT };
                    let error = format!("{target} does not answer: {error}");
                    (RaceError::Unreachable(error), limit)
                }
            };
            let pause = pause(attempt, None);
            if begin.elapsed() + pause >= limit {
                return Err(error);
            }
            sleep(pause).await;
            attempt += 1;
        }
    }
}

/// Reads the counts of each target once, even if it is listed twice.
pub(super) async fn lock_counts(
    targets: &[Target],
    strategy: Strategy,
) -> Result<Vec<(&Target, LockCounts)>> {
    let mut read = Vec::with_capacity(targets.len());
    for (position, target) in targets.iter().enumerate() {
        if !targets[..position].contains(target) {
            let counts = ReplicaClient::new(target).lock_counts(strategy).await?;
            read.push((target, counts));
        }
    }
    Ok(read)
}

/// The sum of all targets' counts since `before`, and the targets that no longer answer. Fails if a
/// counter has decreased, because then the target was restarted.
pub(super) async fn lock_counts_since(
    before: Vec<(&Target, LockCounts)>,
    strategy: Strategy,
) -> Result<(LockCounts, Vec<String>)> {
    let mut sum = LockCounts::default();
    let mut silent = Vec::new();
    for (target, before) in before {
        let now = match ReplicaClient::new(target).lock_counts(strategy).await {
            Err(RaceError::Unreachable(_)) => {
                silent.push(target.to_string());
                continue;
            }
            now => now?,
        };
        let (lost, refused) = (&mut sum.lost_locks, &mut sum.refused_writes);
        let lost = lost.add_increase(&before.lost_locks, &now.lost_locks);
        let refused = refused.add_increase(&before.refused_writes, &now.refused_writes);
        let problem = "decreased during the run; was it restarted?";
        lost.and(refused)
            .ok_or_else(|| format!("the counters of {target} {problem}"))?;
    }
    Ok((sum, silent))
}
