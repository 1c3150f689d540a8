//! One order: asked for until it is settled, always under the same idempotency key.
//!
//! Which answers settle an order, and which ask for a repeat, is decided in [`judge`] alone.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::RETRY_AFTER;
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use super::connection::{Answer, Connection, ExchangeError, Message};
use super::tally::Tally;

/// The most exchanges of one order.
const MAX_ATTEMPTS: u32 = 50;

/// The longest that one exchange may take: well beyond the service's own deadline.
const MAX_EXCHANGE: Duration = Duration::from_secs(30);

/// Pauses of our own choice: from zero to this at first, doubling …
const BASE_PAUSE: Duration = Duration::from_millis(4);
/// … to this.
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// The most of a `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(2);

/// How an order ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// 200. `replayed`: an earlier exchange had sold it, and its answer had been lost.
    Sold { replayed: bool },
    /// 409 `insufficient-stock`.
    Refused,
    /// Anything else. `unknown`: it may have been sold all the same.
    Failed { why: String, unknown: bool },
}

/// What one exchange means for its order.
#[derive(Debug, PartialEq, Eq)]
enum Judgement {
    Settled(Settled),
    Again {
        why: String,
        /// What it is counted as: the answer's code where it has one.
        code: String,
        /// It may have been sold.
        unknown: bool,
        /// What the service asked to wait, where that is to be honoured.
        retry_after: Option<Duration>,
    },
}

/// An RFC 9457 body, as far as a race reads it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    pub(super) code: String,
    #[serde(default)]
    pub(super) detail: String,
}

impl Problem {
    /// The problem that an answer describes; empty where it is none of the service's (a proxy's).
    pub(super) fn of(answer: &Answer) -> Self {
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }
}

/// Places one order and pursues it until it is settled, or until `deadline`.
pub(super) async fn place(
    connection: &mut Connection,
    message: Message,
    deadline: Instant,
    tally: &mut Tally,
) -> Settled {
    let mut may_be_sold = false;
    let mut attempt = 1;
    loop {
        let until = deadline.min(Instant::now() + MAX_EXCHANGE);
        let outcome = connection.exchange(message.clone(), until).await;
        let (why, code, retry_after) = match judge(&outcome) {
            Judgement::Settled(settled) => {
                tally.answered(&outcome, &settled);
                return with_doubt(settled, may_be_sold);
            }
            Judgement::Again {
                why,
                code,
                unknown,
                retry_after,
            } => {
                may_be_sold |= unknown;
                (why, code, retry_after)
            }
        };
        let resume = Instant::now() + pause(attempt, retry_after);
        if attempt == MAX_ATTEMPTS || resume >= deadline {
            return Settled::Failed {
                why: format!("{why}, given up after {attempt} attempts"),
                unknown: may_be_sold,
            };
        }
        sleep_until(resume).await;
        attempt += 1;
        tally.retried.add(&code, 1);
    }
}

/// A failure leaves the order in doubt when any exchange before it did.
fn with_doubt(settled: Settled, may_be_sold: bool) -> Settled {
    match settled {
        Settled::Failed { why, unknown } => Settled::Failed {
            why,
            unknown: unknown || may_be_sold,
        },
        Settled::Sold { .. } | Settled::Refused => settled,
    }
}

fn judge(outcome: &Result<Answer, ExchangeError>) -> Judgement {
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            return Judgement::Again {
                why: error.to_string(),
                code: error.code().to_owned(),
                unknown: error.may_have_arrived(),
                retry_after: None,
            };
        }
    };
    if answer.status == StatusCode::OK {
        let replayed = answer.headers.get("idempotent-replayed");
        return Judgement::Settled(Settled::Sold {
            replayed: replayed.is_some_and(|value| value == "true"),
        });
    }
    let problem = Problem::of(answer);
    let asked = retry_after(answer);
    match (answer.status, problem.code.as_str()) {
        (StatusCode::CONFLICT, "insufficient-stock") => Judgement::Settled(Settled::Refused),
        (StatusCode::CONFLICT, "request-in-flight")
        | (StatusCode::SERVICE_UNAVAILABLE, "contended") => again(answer, problem, false, None),
        // Not configured at that replica, and so not there a moment later either.
        (StatusCode::SERVICE_UNAVAILABLE, "strategy-unavailable") if asked.is_none() => {
            failed(answer, problem)
        }
        (StatusCode::SERVICE_UNAVAILABLE, _) => again(answer, problem, false, asked),
        // 502: a proxy lost the replica after it had passed the request on.
        (StatusCode::GATEWAY_TIMEOUT | StatusCode::BAD_GATEWAY, _) => {
            again(answer, problem, true, None)
        }
        _ => failed(answer, problem),
    }
}

fn again(
    answer: &Answer,
    problem: Problem,
    unknown: bool,
    retry_after: Option<Duration>,
) -> Judgement {
    let status = answer.status.as_str();
    Judgement::Again {
        why: format!("{status} {}", problem.code),
        // A proxy's answer has none.
        code: if problem.code.is_empty() {
            status.to_owned()
        } else {
            problem.code
        },
        unknown,
        retry_after,
    }
}

fn failed(answer: &Answer, Problem { code, detail }: Problem) -> Judgement {
    let why = format!("{} {code}", answer.status.as_str());
    Judgement::Settled(Settled::Failed {
        why: if detail.is_empty() {
            why
        } else {
            format!("{why}: {detail}")
        },
        unknown: answer.status.is_server_error() && code != "strategy-unavailable",
    })
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    let seconds = answer.headers.get(RETRY_AFTER)?.to_str().ok()?;
    Some(Duration::from_secs(seconds.parse().ok()?))
}

/// How long to wait after the given attempt. Our own pauses have full jitter; what the service
/// asked for is honoured at least by half, so that not all come back in the same instant.
pub(super) fn pause(attempt: u32, retry_after: Option<Duration>) -> Duration {
    if let Some(asked) = retry_after {
        return asked
            .min(MAX_RETRY_AFTER)
            .mul_f64(f64::midpoint(1.0, fastrand::f64()));
    }
    let doublings = (attempt - 1).min(16);
    let bound = (BASE_PAUSE * (1 << doublings)).min(MAX_PAUSE);
    bound.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderMap, HeaderValue};

    use super::*;

    fn judged(status: u16, code: &str, header: Option<(&'static str, &'static str)>) -> Judgement {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        judge(&Ok(Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers,
            body: format!(r#"{{"code":"{code}","status":{status}}}"#).into(),
            elapsed: Duration::ZERO,
        }))
    }

    #[test]
    fn a_sale_and_a_refusal_settle_an_order() {
        let sold = |replayed| Judgement::Settled(Settled::Sold { replayed });
        assert_eq!(judged(200, "", None), sold(false));
        let replayed = Some(("idempotent-replayed", "true"));
        assert_eq!(judged(200, "", replayed), sold(true));
        assert_eq!(
            judged(409, "insufficient-stock", None),
            Judgement::Settled(Settled::Refused)
        );
    }

    #[test]
    fn what_may_pass_is_asked_again_and_doubt_is_remembered() {
        for (status, code, doubt) in [
            (503, "contended", false),
            (503, "overloaded", false),
            (503, "unavailable", false),
            (409, "request-in-flight", false),
            (504, "outcome-unknown", true),
            (502, "", true),
        ] {
            match judged(status, code, None) {
                Judgement::Again {
                    unknown,
                    code: counted_as,
                    ..
                } => {
                    assert_eq!(unknown, doubt, "{status} {code}");
                    assert_eq!(counted_as, if code.is_empty() { "502" } else { code });
                }
                settled @ Judgement::Settled(_) => panic!("{status} {code}: {settled:?}"),
            }
        }
        match judge(&Err(ExchangeError::TimedOut)) {
            Judgement::Again { unknown, .. } => assert!(unknown),
            settled @ Judgement::Settled(_) => panic!("{settled:?}"),
        }
    }

    #[test]
    fn a_lock_server_that_is_away_is_waited_for_and_one_that_is_not_configured_is_not() {
        let away = judged(503, "strategy-unavailable", Some(("retry-after", "1")));
        let again = Judgement::Again {
            why: "503 strategy-unavailable".to_owned(),
            code: "strategy-unavailable".to_owned(),
            unknown: false,
            retry_after: Some(Duration::from_secs(1)),
        };
        assert_eq!(away, again);
        let failed = Judgement::Settled(Settled::Failed {
            why: "503 strategy-unavailable".to_owned(),
            unknown: false,
        });
        assert_eq!(judged(503, "strategy-unavailable", None), failed);
    }

    #[test]
    fn everything_else_is_a_failure_with_status_and_code() {
        for (status, code, doubt) in [(422, "invalid", false), (409, "wrong-home", false)] {
            let why = format!("{status} {code}");
            let failed = Settled::Failed {
                why,
                unknown: doubt,
            };
            assert_eq!(judged(status, code, None), Judgement::Settled(failed));
        }
        match judged(500, "internal", None) {
            Judgement::Settled(Settled::Failed { unknown, .. }) => assert!(unknown),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn retry_after_is_for_what_is_not_mere_contention() {
        let asked = |code| match judged(503, code, Some(("retry-after", "1"))) {
            Judgement::Again { retry_after, .. } => retry_after,
            settled @ Judgement::Settled(_) => panic!("{settled:?}"),
        };
        assert_eq!(asked("contended"), None);
        assert_eq!(asked("overloaded"), Some(Duration::from_secs(1)));
    }

    #[test]
    fn pauses_are_bounded() {
        for attempt in 1..=MAX_ATTEMPTS {
            assert!(pause(attempt, None) <= MAX_PAUSE);
        }
        assert!(pause(1, None) <= BASE_PAUSE);
        let asked = pause(1, Some(Duration::from_mins(1)));
        assert!(asked >= MAX_RETRY_AFTER / 2 && asked <= MAX_RETRY_AFTER);
    }
}
