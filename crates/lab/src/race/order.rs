//! One order, or a hold and its confirmation: each is sent until it is settled, always with the same idempotency key.
//!
//! Only [`judge`] decides which answers settle an order and which ones require a retry.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Method, Request};
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::connection::{Answer, Connection, ExchangeError, Problem};
use super::pause::pause;
use super::sale::Sale;

/// The largest number of exchanges of one order.
const MAX_ATTEMPTS: u32 = 50;

/// The longest time of one exchange: well beyond the service's own deadline.
const MAX_EXCHANGE: Duration = Duration::from_secs(30);

/// What one answer means for its order.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    /// 200, or 201 for a hold, with the operation in the ledger. `replayed`: an earlier exchange had sold it.
    Sold { id: Uuid, replayed: bool },
    /// 409 `insufficient-stock`.
    Refused,
    /// Another final answer. `unknown`: the ledger may contain the order.
    Failed { reason: String, unknown: bool },
    /// The order must be sent again.
    Retry(Retry),
}

#[derive(Debug, PartialEq, Eq)]
struct Retry {
    reason: String,
    /// The code under which the retry is counted.
    code: String,
    /// This exchange may have sold the order.
    unknown: bool,
    /// The pause that the answer asks for.
    pause: Option<Duration>,
}

/// What became of an order, or of one of the two requests of a hold.
enum Settled {
    /// An operation. `after_refusal`: only its retry showed that it was made.
    Made {
        id: Uuid,
        replayed: bool,
        after_refusal: bool,
    },
    Refused,
    Failed {
        reason: String,
        unknown: bool,
        /// The replica accepts connections.
        reachable: bool,
    },
}

/// Places one order: holds its units first, if the plan says so. Counts the result. `target` is the position of the
/// replica in the list of targets. Returns false if it accepts no connection.
pub(super) async fn place(
    connection: &mut Connection,
    order: &Request<Full<Bytes>>,
    sale: &Sale,
    target: usize,
) -> bool {
    let mut settled = settle(connection, order, sale).await;
    if let (Settled::Made { id, .. }, true) = (&settled, sale.plan.holds) {
        let path = format!("/operations/{id}/confirm");
        let mut confirm =
            (connection.target).request(Method::POST, &path, Bytes::from_static(b"{}"));
        let key = HeaderValue::try_from(id.to_string()).expect("an id is ASCII");
        confirm.headers_mut().insert("idempotency-key", key);
        settled = settle(connection, &confirm, sale).await;
    }
    match settled {
        Settled::Made {
            id,
            replayed,
            after_refusal,
        } => sale.tally().add_sale(id, target, replayed, after_refusal),
        Settled::Refused => sale.tally().answers.refused += 1,
        Settled::Failed {
            reason,
            unknown,
            reachable,
        } => {
            sale.tally().add_failure(reason, unknown);
            return reachable;
        }
    }
    true
}

/// Sends one request until it is settled or until the sale's deadline.
async fn settle(
    connection: &mut Connection,
    request: &Request<Full<Bytes>>,
    sale: &Sale,
) -> Settled {
    let mut earlier_unknown = false;
    let mut attempt = 1;
    loop {
        let until = sale.deadline.min(Instant::now() + MAX_EXCHANGE);
        let outcome = connection.exchange(request, until).await;
        let settled = match judge(&outcome) {
            Judgement::Sold { id, replayed } => Settled::Made {
                id,
                replayed,
                after_refusal: replayed && !earlier_unknown,
            },
            Judgement::Refused => Settled::Refused,
            Judgement::Failed { reason, unknown } => {
                return Settled::Failed {
                    reason,
                    unknown: unknown || earlier_unknown,
                    reachable: true,
                };
            }
            Judgement::Retry(retry) => {
                earlier_unknown |= retry.unknown;
                let resume = Instant::now() + pause(attempt, retry.pause);
                if attempt < MAX_ATTEMPTS && resume < sale.deadline {
                    sleep_until(resume).await;
                    attempt += 1;
                    sale.tally().answers.retried.add(&retry.code, 1);
                    continue;
                }
                return Settled::Failed {
                    reason: format!("{}, given up after {attempt} attempts", retry.reason),
                    unknown: earlier_unknown,
                    reachable: !matches!(outcome, Err(ExchangeError::Connect(_))),
                };
            }
        };
        if let Ok(answer) = outcome {
            sale.tally().add_latency(answer.elapsed);
        }
        return settled;
    }
}

fn judge(outcome: &Result<Answer, ExchangeError>) -> Judgement {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            let (code, unknown) = match error {
                ExchangeError::Connect(_) => ("not-connected", false),
                // Canceled: the connection was closed before hyper sent the request.
                ExchangeError::Http(error) => ("cut", !error.is_canceled()),
                ExchangeError::Body(_) => ("cut", true),
                ExchangeError::TimedOut => ("no-answer", true),
            };
            return Judgement::Retry(Retry {
                reason: error.to_string(),
                code: code.to_owned(),
                unknown,
                pause: None,
            });
        }
    };
    let Problem { code, detail } = answer.problem();
    let status = answer.status.as_str();
    let retry = |unknown, pause| {
        Judgement::Retry(Retry {
            reason: format!("{status} {code}"),
            // A proxy's answer has no code.
            code: if code.is_empty() { status } else { &code }.to_owned(),
            unknown,
            pause,
        })
    };
    let failed = |unknown| {
        let reason = format!("{status} {code}: {detail}");
        let reason = reason.trim_end_matches([':', ' ']).to_owned();
        Judgement::Failed { reason, unknown }
    };
    let asked = retry_after(answer);
    match (answer.status.as_u16(), &*code) {
        (200 | 201, _) => sold(answer),
        (409, "insufficient-stock") => Judgement::Refused,
        (409, "request-in-flight") | (503, "contended") => retry(false, None),
        // Without Retry-After, the replica is not configured for the strategy.
        (503, "strategy-unavailable") if asked.is_none() => failed(false),
        (503, _) => retry(false, asked),
        // 502: a proxy lost the replica after it had forwarded the request.
        (502 | 504, _) => retry(true, None),
        (status, _) => failed(status >= 500),
    }
}

fn sold(answer: &Answer) -> Judgement {
    #[derive(Deserialize)]
    struct Body {
        id: Uuid,
    }
    let replayed = answer.headers.get("idempotent-replayed");
    match serde_json::from_slice(&answer.body) {
        Ok(Body { id }) => Judgement::Sold {
            id,
            replayed: replayed.is_some_and(|value| value == "true"),
        },
        Err(error) => Judgement::Failed {
            reason: format!("200 without an operation id: {error}"),
            unknown: true,
        },
    }
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    let seconds = answer.headers.get(RETRY_AFTER)?.to_str().ok()?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;
    use hyper::header::{HeaderMap, HeaderValue};

    use super::*;

    const ID: Uuid = Uuid::from_u128(7);

    fn judged(status: u16, code: &str, header: Option<(&'static str, &'static str)>) -> Judgement {
        let header = header.map(|(name, value)| (name, HeaderValue::from_static(value)));
        let headers = header.map(|(name, value)| (name.parse().unwrap(), value));
        judge(&Ok(Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::from_iter(headers),
            body: format!(r#"{{"id":"{ID}","code":"{code}"}}"#).into(),
            elapsed: Duration::ZERO,
        }))
    }

    #[test]
    fn temporary_answers_are_retried() {
        let after = Some(Duration::from_secs(1));
        for (status, code, unknown, pause) in [
            (503, "contended", false, None),
            (503, "overloaded", false, after),
            (503, "strategy-unavailable", false, after),
            (409, "request-in-flight", false, None),
            (504, "outcome-unknown", true, None),
            (502, "", true, None),
        ] {
            let retry = Judgement::Retry(Retry {
                reason: format!("{status} {code}"),
                code: if code.is_empty() { "502" } else { code }.to_owned(),
                unknown,
                pause,
            });
            assert_eq!(judged(status, code, Some(("retry-after", "1"))), retry);
        }
        let timeout = judge(&Err(ExchangeError::TimedOut));
        assert!(matches!(timeout, Judgement::Retry(retry) if retry.unknown));
    }

    #[test]
    fn other_answers_settle_the_order() {
        let sold = |replayed| Judgement::Sold { id: ID, replayed };
        let replayed = Some(("idempotent-replayed", "true"));
        assert_eq!(judged(200, "", None), sold(false));
        assert_eq!(judged(200, "", replayed), sold(true));
        assert_eq!(judged(201, "", None), sold(false));
        assert_eq!(judged(409, "insufficient-stock", None), Judgement::Refused);
        for (status, code, unknown) in [
            (422, "invalid", false),
            (404, "unknown-sku", false),
            (503, "strategy-unavailable", false),
            (500, "internal", true),
        ] {
            let reason = format!("{status} {code}");
            let failed = Judgement::Failed { reason, unknown };
            assert_eq!(judged(status, code, None), failed);
        }
    }
}
