//! What a race asks of the service besides deductions: strategies, levels, audit, ledger, counters.
//!
//! These calls are few and may be repeated freely, so each is tried again for a while: right after
//! a run a replica may still be overloaded.

use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::RaceError;
use super::connection::{Answer, Connection, Message};
use super::lock_counts::LockCounts;
use super::order::{Problem, pause};
use super::target::Target;
use stocklock_core::stock::Home;
use stocklock_core::strategy::Strategy;

/// Where a race sells from.
pub(super) const WAREHOUSE: &str = "main";

/// How often a call is tried, and how long each try may take.
const MAX_ATTEMPTS: u32 = 20;
const MAX_EXCHANGE: Duration = Duration::from_secs(10);

/// Rows of a page of the ledger.
const PAGE: usize = 1_000;

/// A strategy, as a replica lists it.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) available: bool,
    pub(super) reason: Option<String>,
}

/// The audit of the warehouse that a race sold from.
#[derive(Debug, Clone, Deserialize)]
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
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) delta: i64,
    pub(super) available_after: i64,
    pub(super) read_version: Option<i64>,
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

/// One replica, asked for what a race needs to know.
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

    /// The strategies that the replica knows.
    pub(super) async fn strategies(&mut self) -> Result<Vec<Listed>, RaceError> {
        let listed: Strategies = self.get("/strategies").await?;
        Ok(listed.strategies)
    }

    /// Checks that the replica takes the strategy and what `path` says besides from the request,
    /// which only the lab mode does: it is asked for a unit of an SKU that does not exist.
    pub(super) async fn check_lab_mode(&mut self, path: &str) -> Result<(), RaceError> {
        let sku = format!("race-{:08x}-probe", fastrand::u32(..));
        let body = json!({"sku": sku, "warehouse": WAREHOUSE, "quantity": 1});
        let answer = self
            .call(Method::POST, path, body.to_string().into())
            .await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(()),
            StatusCode::UNPROCESSABLE_ENTITY => Err(RaceError::NotLab {
                target: self.connection.target().to_string(),
                detail: Problem::of(&answer).detail,
            }),
            _ => Err(self.unexpected(&Method::POST, path, &answer)),
        }
    }

    /// Puts `on_hand` units of a fresh SKU in stock that lives there.
    pub(super) async fn stock_up(
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

    /// Counter and ledger of the SKU; `None` when the replica does not know it.
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

    /// The ledger of the SKU, newest first, up to `most` rows and the rest of their page.
    pub(super) async fn movements(
        &mut self,
        sku: &str,
        most: usize,
    ) -> Result<Vec<Movement>, RaceError> {
        let first = format!("/stock/{sku}/movements?limit={PAGE}");
        let mut movements = Vec::new();
        let mut cursor = None;
        loop {
            let path = match &cursor {
                None => first.clone(),
                Some(cursor) => {
                    let query = serde_urlencoded::to_string([("cursor", cursor)]);
                    format!("{first}&{}", query.expect("a pair of texts has a query"))
                }
            };
            let page: Page = self.get(&path).await?;
            let ended = page.movements.is_empty() || page.next_cursor.is_none();
            movements.extend(page.movements);
            cursor = page.next_cursor;
            if ended || movements.len() >= most {
                return Ok(movements);
            }
        }
    }

    /// What the replica has counted of the strategy's locks since it was started.
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
        counts.map_err(|reason| self.not_understood(path, reason))
    }

    async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, RaceError> {
        let answer = self.call(Method::GET, path, Bytes::new()).await?;
        self.parse(path, &answer)
    }

    fn parse<T: DeserializeOwned>(&self, path: &str, answer: &Answer) -> Result<T, RaceError> {
        if answer.status != StatusCode::OK {
            return Err(self.unexpected(&Method::GET, path, answer));
        }
        serde_json::from_slice(&answer.body)
            .map_err(|error| self.not_understood(path, error.to_string()))
    }

    async fn call(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answer, RaceError> {
        let message = Message {
            method,
            uri: self.connection.target().uri(path),
            body,
            key: None,
        };
        let mut attempt = 1;
        loop {
            let until = Instant::now() + MAX_EXCHANGE;
            let outcome = self.connection.exchange(message.clone(), until).await;
            let passing = match &outcome {
                Ok(answer) => matches!(answer.status.as_u16(), 502..=504),
                Err(_) => true,
            };
            if !passing || attempt == MAX_ATTEMPTS {
                return outcome.map_err(|error| RaceError::Unreachable {
                    target: self.connection.target().to_string(),
                    reason: error.to_string(),
                });
            }
            sleep(pause(attempt, None)).await;
            attempt += 1;
        }
    }

    fn not_understood(&self, path: &str, reason: String) -> RaceError {
        RaceError::Answer {
            call: format!("GET {}{path}", self.connection.target()),
            reason,
        }
    }

    fn unexpected(&self, method: &Method, path: &str, answer: &Answer) -> RaceError {
        let problem = Problem::of(answer);
        RaceError::Refused {
            call: format!("{method} {}{path}", self.connection.target()),
            status: answer.status.as_u16(),
            problem: format!("{} {}", problem.code, problem.detail)
                .trim()
                .to_owned(),
        }
    }
}
