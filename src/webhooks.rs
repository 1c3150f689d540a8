//! Messages to webhooks, as Standard Webhooks says: their ids, their signatures, and who may get them.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde::Serialize;
use sha2::Sha256;

use stocklock_store::Webhook;

mod address;
mod client;

pub(crate) use address::Allowed;
pub use address::Network;
pub(crate) use client::{Client, Message};

/// What begins a secret.
const SECRET: &str = "whsec_";

/// A new secret of 256 random bits.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn new_secret() -> Result<String, getrandom::Error> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits)?;
    Ok(SECRET.to_owned() + &STANDARD.encode(bits))
}

/// The body of a message.
#[derive(Debug, Serialize)]
pub(crate) struct Body<'a, T> {
    pub(crate) r#type: &'a str,
    /// RFC 3339, UTC.
    pub(crate) timestamp: &'a str,
    pub(crate) data: T,
}

impl Message {
    /// A message with this id, signed now with each secret that is used.
    pub(crate) fn signed<T: Serialize>(webhook: &Webhook, id: String, body: &Body<'_, T>) -> Self {
        let body = serde_json::to_string(body).expect("texts and numbers are JSON");
        let since = now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let timestamp = since.as_secs().to_string();
        let text = format!("{id}.{timestamp}.{body}");
        let secrets = [Some(&webhook.secret), webhook.old_secret.as_ref()];
        let signatures = secrets.into_iter().flatten();
        let signatures: Vec<_> = signatures.map(|secret| signature(secret, &text)).collect();
        Self {
            headers: [
                ("webhook-id", id),
                ("webhook-timestamp", timestamp),
                ("webhook-signature", signatures.join(" ")),
            ],
            body: body.into(),
        }
    }
}

/// The time of a message, which its receiver compares with its own clock, or of a change.
#[expect(clippy::disallowed_methods, reason = "no decision depends on it")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// The same in milliseconds since 1970.
pub(crate) fn now_millis() -> i64 {
    let since = now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(i64::MAX)
}

/// The signature of a text.
fn signature(secret: &str, text: &str) -> String {
    let key = STANDARD.decode(secret.trim_start_matches(SECRET));
    let mac = Hmac::<Sha256>::new_from_slice(&key.unwrap_or_default());
    let mut mac = mac.expect("a key of any length");
    mac.update(text.as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    #[test]
    fn signature_is_that_of_standard_webhooks() {
        let text = "msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{\"test\": 2432232314}";
        let signed = signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", text);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
