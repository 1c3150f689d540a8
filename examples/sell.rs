//! Sells units, and repeats what a shop must repeat: 500, 502, 503, 504, a request in flight, and
//! broken connections, with the same `Idempotency-Key`. So an order is sold once, although an answer was lost.
//!
//! ```sh
//! STOCKLOCK_KEY=slk_… cargo run --example sell http://localhost:8080 tea 2 order-7
//! ```

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// How long an order is tried. A longer one is better than to give up with an unknown outcome.
const LIMIT: Duration = Duration::from_mins(1);

/// How long one request may take: longer than the service's `REQUEST_DEADLINE_MS`.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// An order that is repeated until its outcome is known.
struct Order {
    url: String,
    sku: String,
    quantity: u32,
    /// The `Idempotency-Key`.
    key: String,
    api_key: String,
}

impl Order {
    /// Sells the units. Returns status and body; every status but 200 means that nothing was or will be
    /// sold.
    async fn sell(&self, client: &Client) -> Result<(u16, Value), String> {
        let end = Instant::now() + LIMIT;
        // Until then, an earlier request that had no answer may still be made.
        let mut last = Instant::now();
        for attempt in 0.. {
            // With full jitter, so that clients do not return together.
            let longest = Duration::from_millis(100) * 2_u32.pow(attempt.min(6));
            let mut pause = longest.mul_f64(fraction());
            let problem = match self.try_once(client).await {
                Ok((status @ (429 | 500 | 502 | 503 | 504), retry_after, body)) => {
                    pause += retry_after;
                    if matches!(status, 500 | 502 | 504) {
                        last = Instant::now() + REQUEST_LIMIT;
                    }
                    body.to_string()
                }
                Ok((_, _, body)) if body["code"] == "request-in-flight" => body.to_string(),
                Ok((status, _, body)) if status == 200 || Instant::now() >= last => {
                    return Ok((status, body));
                }
                Ok((_, _, body)) => {
                    pause = last - Instant::now();
                    body.to_string()
                }
                // No complete answer: the units may be sold.
                Err(error) => {
                    last = Instant::now() + REQUEST_LIMIT;
                    error.to_string()
                }
            };
            if Instant::now() + pause > end {
                return Err(format!("order {}: unknown outcome: {problem}", self.key));
            }
            sleep(pause).await;
        }
        unreachable!("the loop ends at its limit")
    }

    /// One request: its status, the pause that the service asks for, and its body.
    async fn try_once(&self, client: &Client) -> reqwest::Result<(u16, Duration, Value)> {
        let body = json!({"sku": self.sku, "quantity": self.quantity, "reference": self.key});
        let request = client.post(format!("{}/stock/deduct", self.url));
        let request = request
            .bearer_auth(&self.api_key)
            .header("Idempotency-Key", &self.key);
        let response: Response = request.json(&body).send().await?;
        let status = response.status().as_u16();
        let seconds = response.headers().get(RETRY_AFTER);
        let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok((status, Duration::from_secs(seconds.unwrap_or(0)), body))
    }
}

/// A random number from 0 to 1.
fn fraction() -> f64 {
    f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, String> {
    let words: Vec<_> = env::args().skip(1).collect();
    let [url, sku, quantity, key] = &words[..] else {
        return Err("usage: sell URL SKU QUANTITY ORDER".to_owned());
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a program of its own, without the module `config`"
    )]
    let api_key = env::var("STOCKLOCK_KEY");
    let order = Order {
        url: url.clone(),
        sku: sku.clone(),
        quantity: quantity.parse().map_err(|_| "QUANTITY is no number")?,
        key: key.clone(),
        api_key: api_key.unwrap_or_default(),
    };
    // The client must not repeat by itself what this program repeats.
    let client = Client::builder()
        .timeout(REQUEST_LIMIT)
        .retry(reqwest::retry::never());
    let client = client.build().map_err(|error| error.to_string())?;
    let (status, body) = order.sell(&client).await?;
    println!("{body}");
    Ok(if status == 200 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
