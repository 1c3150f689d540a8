//! The race: sells a fresh SKU with each strategy over HTTP and judges who oversold.
//!
//! It uses only the HTTP interface of the replicas, so the verdict does not depend on their code:
//! it compares the answers to the buyers with the ledger. The targets must be replicas of one
//! service in lab mode, each one reached directly.

mod buyers;
mod connection;
mod counts;
mod distance;
mod evidence;
mod lineup;
mod lock_counts;
mod order;
mod plan;
mod progress;
mod reconcile;
mod replica_client;
mod report;
mod row;
mod tally;
mod target;
mod verdict;

pub use counts::Counts;
pub use distance::Distance;
pub use evidence::{Evidence, Sale};
pub use lineup::Skipped;
pub use lock_counts::LockCounts;
pub use plan::{Entrants, RacePlan};
pub use progress::Progress;
pub use report::Report;
pub use row::Row;
pub use target::{InvalidTarget, Target};
pub use verdict::{Mismatch, Verdict};

use stocklock_core::strategy::Strategy;

use self::lineup::Lineup;
use self::lock_counts::Reading;
use self::replica_client::{Audit, Movement, ReplicaClient};
use self::row::Run;

/// The race could not be run. A broken promise is not an error, but a [`Verdict`].
#[derive(Debug, thiserror::Error)]
pub enum RaceError {
    /// The plan is impossible, with the reason.
    #[error("the race cannot be run: {0}")]
    Plan(&'static str),
    /// There are no targets.
    #[error("the race needs at least one target")]
    NoTarget,
    /// A named strategy cannot run, with the reason.
    #[error("strategy {0} cannot run: {1}")]
    Unavailable(Strategy, String),
    /// All strategies were skipped.
    #[error("no strategy can run on these targets")]
    NoStrategy,
    /// This target does not accept `?strategy=`, with its answer.
    #[error("{0} is not in lab mode; start it with `stocklock lab`: {1}")]
    NotLab(Box<Target>, String),
    /// The first target does not know the SKU that was created at the second one.
    #[error("{0} does not know the stock created at {1}; do they share a database?")]
    NotShared(Box<Target>, Box<Target>),
    /// This target does not answer, with the last error.
    #[error("{0} does not answer: {1}")]
    Unreachable(Box<Target>, String),
    /// This call was answered with an unexpected status, with code and detail of the answer.
    #[error("{0} was answered with {1} {2}")]
    Refused(String, u16, String),
    /// The answer to this call has an unexpected form, with the error.
    #[error("the answer to {0} is invalid: {1}")]
    Answer(String, String),
    /// The counters of this target decreased during a run.
    #[error("the counters of {0} decreased during the run; was it restarted?")]
    Restarted(Box<Target>),
}

/// Runs the race on `targets`, one strategy after the other. Each run takes at most the plan's
/// deadline and about a minute. If a run cannot be finished, the report has the runs before it.
///
/// # Errors
/// If the plan is impossible, if a target does not answer or is not in lab mode, or if a named
/// strategy cannot run.
///
/// # Cancel safety
/// Dropping the future stops all buyers. The SKU of the current run stays as it is.
pub async fn run(
    plan: &RacePlan,
    targets: &[Target],
    progress: Progress,
) -> Result<Report, RaceError> {
    plan.check()?;
    if targets.is_empty() {
        return Err(RaceError::NoTarget);
    }
    let lineup = Lineup::new(plan, targets).await?;
    let mut report = Report {
        plan: plan.clone(),
        targets: targets.to_vec(),
        rows: Vec::with_capacity(lineup.running.len()),
        skipped: lineup.skipped,
        stopped: None,
        distance: None,
    };
    for strategy in lineup.running {
        match run_one(plan, targets, strategy, progress).await {
            Ok(row) => report.rows.push(row),
            Err(error) if report.rows.is_empty() => return Err(error),
            Err(error) => {
                report.stopped = Some(format!("{strategy}: {error}"));
                break;
            }
        }
    }
    Ok(report)
}

async fn run_one(
    plan: &RacePlan,
    targets: &[Target],
    strategy: Strategy,
    progress: Progress,
) -> Result<Row, RaceError> {
    let sku = format!("race-{:08x}-{strategy}", fastrand::u32(..));
    let first = &targets[0];
    ReplicaClient::new(first)
        .create_stock(&sku, plan.home, plan.stock)
        .await?;
    for target in &targets[1..] {
        let audit = ReplicaClient::new(target).audit(&sku).await?;
        audit.ok_or_else(|| not_shared(target, first))?;
    }
    let before = Reading::take(targets, strategy).await?;
    let track = progress.begin(strategy, plan.total_orders());
    let (tally, wall) = buyers::sell_out(plan, targets, strategy, &sku, &track).await;
    let (audit, ledger) = read_books(plan, targets, &sku).await?;
    let (locks, silent) = before.until_now().await?;
    let run = Run {
        strategy,
        sku,
        tally,
        wall,
        audit,
        ledger,
        locks,
        silent: silent.iter().map(ToString::to_string).collect(),
    };
    let row = Row::new(plan, run);
    track.finish(&row);
    Ok(row)
}

/// Audit and ledger of the SKU, from the first target that answers.
async fn read_books(
    plan: &RacePlan,
    targets: &[Target],
    sku: &str,
) -> Result<(Audit, Vec<Movement>), RaceError> {
    let mut unreachable = RaceError::NoTarget;
    for target in targets {
        let mut client = ReplicaClient::new(target);
        match client.final_audit(sku, plan.ledger_limit).await {
            Ok(audit) => {
                let audit = audit.ok_or_else(|| not_shared(target, &targets[0]))?;
                // A defect that writes more rows than that must not fill the memory.
                let max = plan.total_orders().saturating_mul(2);
                let ledger = client.movements(sku, max).await?;
                return Ok((audit, ledger));
            }
            Err(error @ RaceError::Unreachable(..)) => unreachable = error,
            Err(error) => return Err(error),
        }
    }
    Err(unreachable)
}

fn not_shared(target: &Target, first: &Target) -> RaceError {
    RaceError::NotShared(Box::new(target.clone()), Box::new(first.clone()))
}
