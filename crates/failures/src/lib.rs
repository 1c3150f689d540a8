//! The gallery of failures: each classic way to get stock wrong, step by step, beside the right way.
//!
//! A [`Story`] is data: who sends which raw command to which server, what the server answers, and one
//! sentence for each step. [`Teller`] runs the steps in their order on real servers and compares each
//! answer. Whether the anomaly happened is computed from values that the servers give at the end.
//!
//! 1. [`story`]: the format of the files in `stories/`. `stories` has the list.
//! 2. `session`: one raw connection. `actor`: the task or process that owns connections.
//! 3. `places`: the servers, and an empty database or prefix for each variant.
//! 4. `variant`: the step runner. [`telling`]: its result, as JSON and as text.
//! 5. [`document()`] writes `docs/failures.md`.
//! 6. [`FailuresArgs`]: the command `stocklock failures`. [`router`]: the route that the page reads.

mod actor;
mod command;
mod document;
mod evidence;
mod expect;
mod http;
mod mutexes;
mod networks;
mod places;
mod process;
mod redis_words;
mod session;
mod stories;
pub mod story;
mod teller;
pub mod telling;
mod upstreams;
mod variant;

pub use command::FailuresArgs;
pub use document::document;
pub use http::router;
pub use places::Places;
pub use stories::all;
pub use story::{Story, Variant};
pub use teller::{Order, Teller};
pub use variant::Falsified;

/// Why a story could not be told as it is written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self(format!("{error:#}"))
    }
}
