//! Brings a schema up to date while replicas sell.
//!
//! Guarantees: one process at a time changes the schema. A statement that waits for a lock gives up
//! soon and is tried again after a pause, because sales queue behind it. A migration may take any
//! time. The schema of a newer release is accepted: new columns are nullable, and old ones stay.

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType};
use sqlx::{Connection as _, SqlSafeStr as _};
use tokio::select;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::errors::{Verdict, classify};
use super::pool::Server;

mod explain;

pub(super) use explain::{explain_file, explain_server, is_missing_table, waited_for_lock};
use explain::{is_transient_on_file, is_transient_on_server};

/// How long a server may be away, or a file may be in another process's migration.
const LIMIT: Duration = Duration::from_secs(30);

/// How long one attempt to connect may take.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The longest pause between two attempts; the first one is a hundredth of it.
const PAUSE: Duration = Duration::from_millis(500);

/// How long a statement of a migration waits for a lock. Shorter than a sale may wait. MariaDB counts
/// in whole seconds.
pub(super) const LOCK_LIMIT: Duration = Duration::from_millis(250);

/// How long sales run undisturbed before a migration asks for its lock again.
const LOCK_PAUSE: Duration = Duration::from_secs(2);

/// The pause before a process asks again whether another one has finished its migration.
const TURN_PAUSE: Duration = Duration::from_millis(100);

/// After how long a step is logged as long, and how often after that.
const LONG_STEP: Duration = Duration::from_secs(1);
const PROGRESS: Duration = Duration::from_secs(10);

/// sqlx's record of the migrations that the database has.
pub(super) const TABLE: &str = "_sqlx_migrations";

/// The migrations of a database: version, description, file in `migrations/`. Add one here. A version is never
/// changed after its release, and is left out by a database that does not need it.
macro_rules! migrations {
    ($($version:literal $description:literal $file:literal,)+) => {
        $crate::sql::migration::list(&[$((
            $version,
            $description,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/", $file)),
        ),)+])
    };
}
pub(super) use migrations;

/// Migrations that are one transaction each, except those whose first line is `-- no-transaction`.
pub(super) fn list(files: &[(i64, &'static str, &'static str)]) -> Vec<Migration> {
    let migration = |&(version, description, sql): &(i64, &'static str, &'static str)| {
        let no_tx = sql.starts_with("-- no-transaction");
        let kind = MigrationType::Simple;
        Migration::new(version, description.into(), kind, sql.into_sql_str(), no_tx)
    };
    files.iter().map(migration).collect()
}

/// Ends only if other processes are no longer excluded, with what happened. Dropping it may let them in.
pub(super) type Exclusion = Pin<Box<dyn Future<Output = sqlx::Error> + Send>>;

/// The exclusion that a connection keeps by itself until it is closed.
pub(super) fn until_closed() -> Exclusion {
    Box::pin(pending())
}

/// A database whose schema can be migrated. [`Server::open`] sets the session's time limits: none for
/// a statement, and [`LOCK_LIMIT`] for a lock.
pub(super) trait MigrationServer: Server<Connection: Migrate> {
    /// All migrations of this build.
    fn migrations() -> Vec<Migration>;

    /// Settings of the server under which the service would fail: one sentence each.
    fn refusals(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;

    /// Excludes other processes while the connection and the answer live. May wait for a second. Returns
    /// `None` if another process migrates.
    fn try_lock(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Option<Exclusion>, MigrateError>> + Send;

    /// Removes what an interrupted attempt of this migration has left.
    fn prepare(
        connection: &mut Self::Connection,
        migration: &Migration,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Fails if the session may not use what the migrations have created, or it is missing.
    fn check_schema(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// One sentence on what failed, without a password.
    fn explain(&self, error: &MigrateError) -> String;
}

/// Brings the schema up to date, with the migrations of this build and these `later` ones. Several
/// processes may do so at once.
///
/// # Errors
/// A sentence that says what failed, or which settings of the server must be changed.
pub(super) async fn run<S: MigrationServer>(server: &S, later: &[Migration]) -> Result<(), String> {
    let migrations = S::migrations();
    let migrations: Vec<_> = migrations.iter().chain(later).collect();
    let mut failing_since = None;
    let mut pause = PAUSE / 100;
    loop {
        let started = Instant::now();
        let error = match attempt(server, &migrations).await {
            Ok(refusals) if refusals.is_empty() => return Ok(()),
            Ok(refusals) => return Err(refusals.join("; ")),
            Err(error) => error,
        };
        if started.elapsed() > LIMIT {
            failing_since = None; // It worked for that long.
        }
        let is_first = failing_since.is_none();
        let since = *failing_since.get_or_insert(started);
        let is_transient = if S::EMBEDDED {
            is_transient_on_file(&error)
        } else {
            is_transient_on_server(&error)
        };
        if !is_transient || since.elapsed() + pause > LIMIT {
            return Err(server.explain(&error));
        }
        if is_first {
            info!(%error, "the schema cannot be updated yet");
        }
        sleep(pause).await;
        pause = PAUSE.min(2 * pause);
    }
}

/// Returns the settings that must be changed first.
async fn attempt<S: MigrationServer>(
    server: &S,
    migrations: &[&Migration],
) -> Result<Vec<String>, MigrateError> {
    let opened = timeout(CONNECT_LIMIT, server.open()).await;
    let mut connection = opened.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
    let refusals = server.refusals(&mut connection).await?;
    if refusals.is_empty() {
        update(server, &mut connection, migrations).await?;
        S::check_schema(&mut connection).await?;
    }
    connection.close().await?;
    Ok(refusals)
}

async fn update<S: MigrationServer>(
    server: &S,
    connection: &mut S::Connection,
    migrations: &[&Migration],
) -> Result<(), MigrateError> {
    // Without the lock: a replica that restarts does not wait for the migrations of a newer release.
    if next(connection, migrations).await?.is_none() {
        return Ok(());
    }
    let locked = lock(server, connection);
    let exclusion = with_progress("another process is updating the schema", locked).await?;
    select! {
        biased;
        lost = exclusion => Err(lost.into()),
        applied = apply_all::<S>(connection, migrations) => applied,
    }
}

async fn apply_all<S: MigrationServer>(
    connection: &mut S::Connection,
    migrations: &[&Migration],
) -> Result<(), MigrateError> {
    connection.ensure_migrations_table(TABLE).await?;
    while let Some(migration) = next(connection, migrations).await? {
        let Migration {
            version,
            description,
            ..
        } = migration;
        let name = format!("migration {version} ({description})");
        let step = format!("{name} is running or waiting for a lock");
        let elapsed = with_progress(&step, apply::<S>(connection, migration)).await?;
        info!(?elapsed, "{name} is applied");
    }
    Ok(())
}

/// The first migration of this build that the database does not have, or only in part.
async fn next<'m, C: Migrate>(
    connection: &mut C,
    migrations: &[&'m Migration],
) -> Result<Option<&'m Migration>, MigrateError> {
    let applied = match connection.list_applied_migrations(TABLE).await {
        Err(error) if is_missing_table(&error) => return Ok(migrations.first().copied()),
        applied => applied?,
    };
    // Read after the list: what is in the list and not marked as unfinished then is complete.
    let unfinished = connection.dirty_version(TABLE).await?;
    for &migration in migrations {
        let version = migration.version;
        match applied.iter().find(|applied| applied.version == version) {
            Some(applied) if applied.checksum != migration.checksum => {
                return Err(MigrateError::VersionMismatch(version));
            }
            Some(_) if unfinished != Some(version) => {}
            _ => return Ok(Some(migration)),
        }
    }
    let newest = migrations.iter().map(|migration| migration.version).max();
    for version in applied.iter().map(|applied| applied.version) {
        if Some(version) > newest {
            warn!(
                "the database has migration {version}, which this build does not know: a newer \
                 release has updated the schema"
            );
        } else if !migrations
            .iter()
            .any(|migration| migration.version == version)
        {
            return Err(MigrateError::VersionMissing(version));
        }
    }
    Ok(None)
}

async fn lock<S: MigrationServer>(
    server: &S,
    connection: &mut S::Connection,
) -> Result<Exclusion, MigrateError> {
    // No session waits inside a statement, because an index that is built concurrently waits for all
    // statements that are running.
    loop {
        if let Some(exclusion) = server.try_lock(connection).await? {
            return Ok(exclusion);
        }
        sleep(TURN_PAUSE).await;
    }
}

/// Applies a migration, as soon as no other session holds a lock that it needs.
async fn apply<S: MigrationServer>(
    connection: &mut S::Connection,
    migration: &Migration,
) -> Result<Duration, MigrateError> {
    loop {
        match try_to_apply::<S>(connection, migration).await {
            Err(error) if waited_for_lock(&error) => sleep(LOCK_PAUSE).await,
            applied => return applied,
        }
    }
}

async fn try_to_apply<S: MigrationServer>(
    connection: &mut S::Connection,
    migration: &Migration,
) -> Result<Duration, MigrateError> {
    S::prepare(connection, migration).await?;
    connection.apply(TABLE, migration).await
}

/// Logs a step that takes long.
async fn with_progress<T>(step: &str, work: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let mut work = pin!(work);
    let mut pause = LONG_STEP;
    loop {
        match timeout(pause, &mut work).await {
            Ok(done) => return done,
            Err(_elapsed) => info!("{step}, for {} s so far", started.elapsed().as_secs()),
        }
        pause = PROGRESS;
    }
}
