//! The identity of a holder: a random number per acquisition, not a thread or process id.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use uuid::Uuid;

/// How long a server remembers at least that a nonce was released or revoked, and the answer to a change. No
/// request stays on its way longer: Linux sends the data of a closed socket again for up to about 100 s.
pub(crate) const REMEMBERED: Duration = Duration::from_mins(2);

/// A random UUID that identifies one acquisition. It is never used again.
///
/// The server stores it with the lock, and compares it at each renewal and release. A request that
/// is repeated after a lost answer carries the same nonce, so the server recognises it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(Uuid);

impl Nonce {
    /// Creates a random nonce.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Reads the 32 hexadecimal digits that [`Display`] writes. Returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let nonce = Uuid::try_parse(text).ok().map(Self)?;
        (nonce.to_string() == text).then_some(nonce)
    }
}

impl Display for Nonce {
    /// Writes 32 hexadecimal digits.
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(formatter)
    }
}
