//! One order: sent until it is settled, always with the same idempotency key.
//!
//! Only [`judge`] decides which answers settle an order and which ones require a retry.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::connection::{Answer, Connection, ExchangeError, Message};
use super::tally::Tally;

/// The largest number of exchanges of one order.
const MAX_ATTEMPTS: u32 = 50;

/// The longest time of one exchange: well beyond the service's own deadline.
const MAX_EXCHANGE: Duration = Duration::from_secs(30);

/// Bound of the first random pause. It doubles with each attempt, up to [`MAX_PAUSE`].
const BASE_PAUSE: Duration = Duration::from_millis(4);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// A longer `Retry-After` is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The end of an order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// 200.
    Sold(Sold),
    /// 409 `insufficient-stock`.
    Refused,
    /// Everything else.
    Failed(Failed),
}

/// An order that was answered 200.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sold {
    /// The operation in the ledger.
    pub(super) id: Uuid,
    /// An earlier exchange of this order had sold it.
    pub(super) replayed: bool,
    /// `replayed`, although every earlier exchange was answered with a refusal.
    pub(super) after_refusal: bool,
}

/// An order that ended neither with 200 nor with 409 `insufficient-stock`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) reason: String,
    /// The outcome is unknown: the ledger may contain the order.
    pub(super) unknown: bool,
    /// The replica accepted no connection.
    pub(super) unreachable: bool,
}

/// The meaning of one answer for its order.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Settled(Settled),
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

/// Sends one order until it is settled, or until `deadline`.
pub(super) async fn place(
    connection: &mut Connection,
    message: Message,
    deadline: Instant,
    tally: &mut Tally,
) -> Settled {
    let mut unknown = false;
    let mut attempt = 1;
    loop {
        let until = deadline.min(Instant::now() + MAX_EXCHANGE);
        let outcome = connection.exchange(message.clone(), until).await;
        let retry = match judge(&outcome) {
            Judgement::Settled(settled) => {
                if let (Ok(answer), Settled::Sold(_) | Settled::Refused) = (&outcome, &settled) {
                    tally.add_latency(answer.elapsed);
                }
                return with_earlier_attempts(settled, unknown);
            }
            Judgement::Retry(retry) => retry,
        };
        unknown |= retry.unknown;
        let resume = Instant::now() + pause(attempt, retry.pause);
        if attempt == MAX_ATTEMPTS || resume >= deadline {
            return Settled::Failed(Failed {
                reason: format!("{}, given up after {attempt} attempts", retry.reason),
                unknown,
                unreachable: matches!(outcome, Err(ExchangeError::Connect(_))),
            });
        }
        sleep_until(resume).await;
        attempt += 1;
        tally.retried.add(&retry.code, 1);
    }
}

/// Adds to the last answer whether an earlier exchange had an unknown outcome.
fn with_earlier_attempts(settled: Settled, unknown: bool) -> Settled {
    match settled {
        Settled::Sold(sold) => Settled::Sold(Sold {
            after_refusal: sold.replayed && !unknown,
            ..sold
        }),
        Settled::Refused => Settled::Refused,
        Settled::Failed(failed) => Settled::Failed(Failed {
            unknown: failed.unknown || unknown,
            ..failed
        }),
    }
}

fn judge(outcome: &Result<Answer, ExchangeError>) -> Judgement {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            return Judgement::Retry(Retry {
                reason: error.to_string(),
                code: error.code().to_owned(),
                unknown: error.may_have_arrived(),
                pause: None,
            });
        }
    };
    if answer.status == StatusCode::OK {
        return Judgement::Settled(sold(answer));
    }
    let code = answer.problem().code;
    let asked = retry_after(answer);
    let retry = |unknown, retry_after| {
        let status = answer.status.as_str();
        Judgement::Retry(Retry {
            reason: format!("{status} {code}"),
            // A proxy's answer has no code.
            code: if code.is_empty() { status } else { &code }.to_owned(),
            unknown,
            pause: retry_after,
        })
    };
    match (answer.status, code.as_str()) {
        (StatusCode::CONFLICT, "insufficient-stock") => Judgement::Settled(Settled::Refused),
        (StatusCode::CONFLICT, "request-in-flight")
        | (StatusCode::SERVICE_UNAVAILABLE, "contended") => retry(false, None),
        // Without Retry-After, the replica is not configured for the strategy.
        (StatusCode::SERVICE_UNAVAILABLE, "strategy-unavailable") if asked.is_none() => {
            Judgement::Settled(failed(answer, false))
        }
        (StatusCode::SERVICE_UNAVAILABLE, _) => retry(false, asked),
        // 502: a proxy lost the replica after it had forwarded the request.
        (StatusCode::GATEWAY_TIMEOUT | StatusCode::BAD_GATEWAY, _) => retry(true, None),
        _ => Judgement::Settled(failed(answer, answer.status.is_server_error())),
    }
}

fn sold(answer: &Answer) -> Settled {
    #[derive(Deserialize)]
    struct Body {
        id: Uuid,
    }
    let replayed = answer.headers.get("idempotent-replayed");
    match serde_json::from_slice(&answer.body) {
        Ok(Body { id }) => Settled::Sold(Sold {
            id,
            replayed: replayed.is_some_and(|value| value == "true"),
            after_refusal: false,
        }),
        Err(error) => Settled::Failed(Failed {
            reason: format!("200 without an operation id: {error}"),
            unknown: true,
            unreachable: false,
        }),
    }
}

fn failed(answer: &Answer, unknown: bool) -> Settled {
    let problem = answer.problem();
    let reason = format!(
        "{} {}: {}",
        answer.status.as_str(),
        problem.code,
        problem.detail
    );
    Settled::Failed(Failed {
        reason: reason.trim_end_matches([':', ' ']).to_owned(),
        unknown,
        unreachable: false,
    })
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    let seconds = answer.headers.get(RETRY_AFTER)?.to_str().ok()?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

/// The pause after the given attempt. Without `Retry-After` it has full jitter. With it, the pause
/// is between half of it and all of it, so that not all buyers return at once.
pub(super) fn pause(attempt: u32, retry_after: Option<Duration>) -> Duration {
    if let Some(asked) = retry_after {
        let asked = asked.min(MAX_RETRY_AFTER);
        return asked.mul_f64(f64::midpoint(1.0, fastrand::f64()));
    }
    let doublings = (attempt - 1).min(16);
    let bound = (BASE_PAUSE * (1 << doublings)).min(MAX_PAUSE);
    bound.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
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

    fn sold(replayed: bool, after_refusal: bool) -> Settled {
        Settled::Sold(Sold {
            id: ID,
            replayed,
            after_refusal,
        })
    }

    #[test]
    fn sale_and_refusal_settle_an_order() {
        let replayed = Some(("idempotent-replayed", "true"));
        for (judgement, settled) in [
            (judged(200, "", None), sold(false, false)),
            (judged(200, "", replayed), sold(true, false)),
            (judged(409, "insufficient-stock", None), Settled::Refused),
        ] {
            assert_eq!(judgement, Judgement::Settled(settled));
        }
    }

    #[test]
    fn replay_contradicts_earlier_answers_that_were_all_refusals() {
        let replay = || sold(true, false);
        assert_eq!(with_earlier_attempts(replay(), false), sold(true, true));
        assert_eq!(with_earlier_attempts(replay(), true), replay());
    }

    #[test]
    fn temporary_answers_are_retried() {
        let after = Duration::from_secs(1);
        for (status, code, counted_as, unknown, retry_after) in [
            (503, "contended", "contended", false, None),
            (503, "overloaded", "overloaded", false, Some(after)),
            (503, "unavailable", "unavailable", false, Some(after)),
            (
                503,
                "strategy-unavailable",
                "strategy-unavailable",
                false,
                Some(after),
            ),
            (409, "request-in-flight", "request-in-flight", false, None),
            (504, "outcome-unknown", "outcome-unknown", true, None),
            (502, "", "502", true, None),
        ] {
            let retry = Judgement::Retry(Retry {
                reason: format!("{status} {code}"),
                code: counted_as.to_owned(),
                unknown,
                pause: retry_after,
            });
            let judgement = judged(status, code, Some(("retry-after", "1")));
            assert_eq!(judgement, retry);
        }
        let timeout = judge(&Err(ExchangeError::TimedOut));
        assert!(matches!(
            timeout,
            Judgement::Retry(Retry { unknown: true, .. })
        ));
    }

    #[test]
    fn other_answers_fail_the_order() {
        for (status, code, unknown) in [
            (422, "invalid", false),
            (409, "wrong-home", false),
            (503, "strategy-unavailable", false),
            (500, "internal", true),
        ] {
            let failed = Settled::Failed(Failed {
                reason: format!("{status} {code}"),
                unknown,
                unreachable: false,
            });
            assert_eq!(judged(status, code, None), Judgement::Settled(failed));
        }
    }

    #[test]
    fn pauses_are_bounded() {
        assert!(pause(1, None) <= BASE_PAUSE && pause(MAX_ATTEMPTS, None) <= MAX_PAUSE);
        let asked = pause(1, Some(Duration::from_mins(1)));
        assert!(asked >= MAX_RETRY_AFTER / 2 && asked <= MAX_RETRY_AFTER);
    }
}
