//! Commits that a failover would lose.
//!
//! On PostgreSQL, a commit waits for the synchronous standby. If an operator ends that wait (`pg_cancel_backend`), the
//! server answers that all is done, with a warning, and every session sees what only the primary has. So a commit
//! with a warning has an unknown outcome, and no connection is handed out until a later commit has come back
//! without one: the standby has the earlier ones by then, too.
//!
//! sqlx gives warnings to `tracing` only, while it reads them. [`CommitWarnings`] notes them for the task that waits
//! for the commit. Their text does not matter, because its language is the server's.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task_local;
use tokio::time::sleep;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use deadpool::managed::{Object, Pool, PoolError};

use super::opener::{Opener, Server};

/// The target of what sqlx reads besides answers of PostgreSQL.
const TARGET: &str = "sqlx::postgres::notice";

/// The pause before a commit that failed is made again.
const PAUSE: Duration = Duration::from_secs(1);

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

/// Whether the standby has all commits of this process.
#[derive(Debug, Default)]
pub(super) struct Standby(watch::Sender<Commits>);

#[derive(Debug, Default)]
struct Commits {
    /// How many came back with a warning.
    warned: u64,
    /// How many of those the standby has.
    confirmed: u64,
    /// A task makes a commit to find out.
    is_asking: bool,
}

impl Commits {
    fn are_safe(&self) -> bool {
        self.confirmed == self.warned
    }
}

impl Standby {
    pub(super) fn has_all(&self) -> bool {
        self.0.borrow().are_safe()
    }

    /// A commit came back with a warning.
    pub(super) fn may_lack_one(&self) {
        self.0.send_modify(|commits| commits.warned += 1);
    }

    /// Returns when the standby has all commits.
    pub(super) async fn wait(&self) {
        let mut commits = self.0.subscribe();
        let safe = commits.wait_for(Commits::are_safe).await;
        safe.expect("the sender is borrowed");
    }

    /// Whether the caller must run [`ask`](Self::ask): no other task does.
    pub(super) fn is_to_ask(&self) -> bool {
        let begin = |commits: &mut Commits| !std::mem::replace(&mut commits.is_asking, true);
        self.0.send_if_modified(begin)
    }

    /// Commits until a commit comes back without a warning. One at a time, because the server does not notice that
    /// the client of a commit that waits has gone.
    pub(super) async fn ask<S: Server>(&self, connections: &Pool<Opener<S>>) {
        loop {
            let warned = self.0.borrow().warned;
            match connections.get().await {
                Ok(mut connection) => {
                    let commit = S::run(&mut connection.connection, S::COMMIT);
                    if let (Ok(()), false) = with_warning(commit).await {
                        self.0.send_modify(|commits| commits.confirmed = warned);
                    } else {
                        drop(Object::take(connection));
                    }
                }
                Err(PoolError::Closed) => return,
                Err(error) => tracing::debug!(%error, "no commit can be made for the standby"),
            }
            let end = |commits: &mut Commits| {
                commits.is_asking = !commits.are_safe();
                !commits.is_asking
            };
            if self.0.send_if_modified(end) {
                return;
            }
            sleep(PAUSE).await;
        }
    }
}
