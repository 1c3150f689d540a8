//! Warnings of PostgreSQL while it commits.
//!
//! A commit waits for the synchronous standby. If an operator ends that wait (`pg_cancel_backend`), the server answers
//! that all is done, with a warning, and every session sees what only the primary has. So a commit with a warning has
//! an unknown outcome.
//!
//! sqlx gives warnings to `tracing` only, while it reads them. [`CommitWarnings`] notes them for the task that waits
//! for the commit. Their text does not matter, because its language is the server's.

use std::cell::Cell;

use tokio::task_local;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The target of what sqlx reads besides answers of PostgreSQL.
const TARGET: &str = "sqlx::postgres::notice";

task_local! {
    static WARNED: Cell<bool>;
}

/// The answer to a commit, and whether the server warned.
pub(crate) async fn with_warning<T>(commit: impl Future<Output = T>) -> (T, bool) {
    let commit = async {
        let answer = commit.await;
        (answer, WARNED.with(Cell::get))
    };
    WARNED.scope(Cell::new(false), commit).await
}

/// The answer to a commit. With a warning, a failover may lose it, so its outcome is unknown.
pub(crate) fn committed<T>((answer, is_warned): (sqlx::Result<T>, bool)) -> sqlx::Result<T> {
    if is_warned && answer.is_ok() {
        let text = "PostgreSQL has warned about a commit: perhaps its standby does not have it";
        tracing::warn!("{text}");
        return Err(sqlx::Error::Protocol(text.to_owned()));
    }
    answer
}

/// The layer of the subscriber that notes the warnings. Without it, a commit that a failover would lose counts as
/// complete.
#[derive(Debug)]
struct CommitWarnings;

/// What a process that serves adds to its subscriber, to notice commits that a failover would lose.
#[must_use]
pub fn commit_warnings<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    CommitWarnings.with_filter(Targets::new().with_target(TARGET, Level::WARN))
}

impl<S: Subscriber> Layer<S> for CommitWarnings {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        // This fails outside of a commit.
        let _is_commit = WARNED.try_with(|warned| warned.set(true));
    }
}
