//! The calls of a race other than orders: strategies, levels, audit, ledger, counters.
//!
//! All of them can be repeated safely, so each call is retried for a while: after a run a replica
//! may still be overloaded.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::RaceError;
use super::connection::{Answer, Connection, ExchangeError, Message};
use super::lock_counts::LockCounts;
use super::order::pause;
use super::target::Target;
use stocklock_core::stock::Home;
use stocklock_core::strategy::Strategy;

/// The warehouse of a race.
pub(super) const WAREHOUSE: &str = "main";

/// The longest time of one call with all its retries.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// The same if the replica accepts no connections.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two audits while the journal is applied.
const AUDIT_PAUSE: Duration = Duration::from_millis(20);

/// Rows of a page of the ledger.
const PAGE: usize = 1_000;

/// A strategy in the list of a replica.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) available: bool,
    pub(super) reason: Option<String>,
}

/// The audit of the race's warehouse.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Audit {
    pub(super) warehouse: String,
    pub(super) received: i64,
    pub(super) sold: i64,
    pub(super) on_hand: i64,
    pub(super) drift: i64,
    pub(super) oversold: i64,
    pub(super) pending: i64,
}

/// A row of the ledger.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Movement {
    pub(super) id: Uuid,
    pub(super) kind: String,
    pub(super) delta: i64,
    pub(super) available_after: i64,
    pub(super) read_version: Option<i64>,
}

impl Movement {
    /// Whether it is a deduction.
    pub(super) fn is_sale(&self) -> bool {
        self.kind == "deducted"
    }
}

#[derive(Deserialize)]
struct Strategies {
    strategies: Vec<Listed>,
}

#[derive(Deserialize)]
struct Audits {
    warehouses: Vec<Audit>,
}

#[derive(Deserialize)]
struct Page {
    movements: Vec<Movement>,
    next_cursor: Option<String>,
}

/// A client of one replica.
#[derive(Debug)]
pub(super) struct ReplicaClient {
    connection: Connection,
}

impl ReplicaClient {
    pub(super) fn new(target: &Target) -> Self {
        Self {
            connection: Connection::new(target.clone()),
        }
    }

    /// The strategies of the replica.
    pub(super) async fn strategies(&mut self) -> Result<Vec<Listed>, RaceError> {
        let list: Strategies = self.get("/strategies").await?;
        Ok(list.strategies)
    }

    /// Checks that the replica accepts the parameters in `order_path`, which only the lab mode
    /// does. The order is for a SKU that does not exist.
    pub(super) async fn check_lab_mode(&mut self, order_path: &str) -> Result<(), RaceError> {
        let sku = format!("race-{:08x}-probe", fastrand::u32(..));
        let body = json!({"sku": sku, "quantity": 1}).to_string();
        let answer = self.call(Method::POST, order_path, body.into()).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(()),
            StatusCode::UNPROCESSABLE_ENTITY => Err(RaceError::NotLab(
                Box::new(self.target()),
                answer.problem().detail,
            )),
            _ => Err(self.unexpected(&Method::POST, order_path, &answer)),
        }
    }

    /// Creates a SKU with `on_hand` units.
    pub(super) async fn create_stock(
        &mut self,
        sku: &str,
        home: Home,
        on_hand: i64,
    ) -> Result<(), RaceError> {
        let path = format!("/stock/{sku}");
        let body = json!({
            "on_hand": on_hand, "warehouse": WAREHOUSE, "home": home, "reason": "race",
        });
        let answer = self
            .call(Method::PUT, &path, body.to_string().into())
            .await?;
        match answer.status {
            StatusCode::OK | StatusCode::CREATED => Ok(()),
            _ => Err(self.unexpected(&Method::PUT, &path, &answer)),
        }
    }

    /// The audit of the SKU; `None` if the replica does not know the SKU.
    pub(super) async fn audit(&mut self, sku: &str) -> Result<Option<Audit>, RaceError> {
        let path = format!("/stock/{sku}/audit");
        let answer = self.call(Method::GET, &path, Bytes::new()).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let audits: Audits = self.parse(&path, &answer)?;
        let mut warehouses = audits.warehouses.into_iter();
        Ok(warehouses.find(|audit| audit.warehouse == WAREHOUSE))
    }

    /// Audits the SKU until the journal is applied to SQL, or until `limit` has passed. SKUs whose
    /// home is SQL have no journal.
    pub(super) async fn final_audit(
        &mut self,
        sku: &str,
        limit: Duration,
    ) -> Result<Option<Audit>, RaceError> {
        let until = Instant::now() + limit;
        loop {
            let audit = self.audit(sku).await?;
            let pending = audit.as_ref().is_some_and(|audit| audit.pending != 0);
            if !pending || Instant::now() >= until {
                return Ok(audit);
            }
            sleep(AUDIT_PAUSE).await;
        }
    }

    /// The ledger of the SKU, newest first. Stops after the page that exceeds `max` rows.
    pub(super) async fn movements(
        &mut self,
        sku: &str,
        max: usize,
    ) -> Result<Vec<Movement>, RaceError> {
        let first = format!("/stock/{sku}/movements?limit={PAGE}");
        let mut path = first.clone();
        let mut movements = Vec::new();
        loop {
            let page: Page = self.get(&path).await?;
            movements.extend(page.movements);
            match page.next_cursor {
                Some(cursor) if movements.len() <= max => {
                    let query = serde_urlencoded::to_string([("cursor", cursor)]);
                    path = format!("{first}&{}", query.expect("a list of pairs"));
                }
                _ => return Ok(movements),
            }
        }
    }

    /// The replica's counters of the strategy's locks since its start.
    pub(super) async fn lock_counts(
        &mut self,
        strategy: Strategy,
    ) -> Result<LockCounts, RaceError> {
        let path = "/metrics";
        let answer = self.call(Method::GET, path, Bytes::new()).await?;
        if answer.status != StatusCode::OK {
            return Err(self.unexpected(&Method::GET, path, &answer));
        }
        let text = str::from_utf8(&answer.body).map_err(|error| error.to_string());
        let counts = text.and_then(|text| LockCounts::parse(text, strategy));
        counts.map_err(|reason| self.invalid(path, reason))
    }

    async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, RaceError> {
        let answer = self.call(Method::GET, path, Bytes::new()).await?;
        self.parse(path, &answer)
    }

    fn parse<T: DeserializeOwned>(&self, path: &str, answer: &Answer) -> Result<T, RaceError> {
        if answer.status != StatusCode::OK {
            return Err(self.unexpected(&Method::GET, path, answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| self.invalid(path, error.to_string()))
    }

    async fn call(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answer, RaceError> {
        let message = Message {
            method,
            uri: self.connection.target().uri(path),
            body,
            key: None,
        };
        let begin = Instant::now();
        let until = begin + CALL_LIMIT;
        let mut attempt = 1;
        loop {
            let outcome = self.connection.exchange(message.clone(), until).await;
            let (temporary, limit) = match &outcome {
                Ok(answer) => (matches!(answer.status.as_u16(), 502..=504), CALL_LIMIT),
                Err(ExchangeError::Connect(_)) => (true, CONNECT_LIMIT),
                Err(_) => (true, CALL_LIMIT),
            };
            let pause = pause(attempt, None);
            if !temporary || begin.elapsed() + pause >= limit {
                return outcome.map_err(|error| {
                    RaceError::Unreachable(Box::new(self.target()), error.to_string())
                });
            }
            sleep(pause).await;
            attempt += 1;
        }
    }

    fn target(&self) -> Target {
        self.connection.target().clone()
    }

    fn invalid(&self, path: &str, reason: String) -> RaceError {
        RaceError::Answer(format!("GET {}{path}", self.target()), reason)
    }

    fn unexpected(&self, method: &Method, path: &str, answer: &Answer) -> RaceError {
        let problem = answer.problem();
        let problem = format!("{} {}", problem.code, problem.detail);
        RaceError::Refused(
            format!("{method} {}{path}", self.target()),
            answer.status.as_u16(),
            problem.trim().to_owned(),
        )
    }
}
