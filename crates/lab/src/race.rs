//! The race: sells a fresh SKU out with every strategy in turn over real HTTP, and tells who
//! oversold.
//!
//! It knows the service by its HTTP contract alone, so that its verdict is an outsider's: what
//! buyers were told is held against what the ledger says. Whether a lock kept others out by itself
//! is read from what the targets count. Starting replicas and reading flags is the caller's. The
//! targets must be replicas of one service, in lab mode, each reached by itself.

mod audit;
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
mod replica_client;
mod report;
mod row;
mod tally;
mod target;

pub use counts::Counts;
pub use distance::Distance;
pub use evidence::{Evidence, Sale};
pub use lineup::Skipped;
pub use lock_counts::LockCounts;
pub use plan::{Entrants, RacePlan};
pub use progress::Progress;
pub use report::Report;
pub use row::{Row, Verdict};
pub use target::{InvalidTarget, Target};

use stocklock_core::strategy::Strategy;

use self::lock_counts::Reading;
use self::replica_client::ReplicaClient;
use self::row::Run;

/// Why a race was not run to its end. What a strategy does wrong is no error but a [`Verdict`].
#[derive(Debug, thiserror::Error)]
pub enum RaceError {
    /// The plan cannot be run.
    #[error("the race cannot be run: {0}")]
    Plan(&'static str),
    /// There is nowhere to run it.
    #[error("the race needs at least one target")]
    NoTarget,
    /// A strategy was named that a target does not have.
    #[error("strategy {strategy} cannot run: {reason}")]
    Unavailable {
        /// Which one.
        strategy: Strategy,
        /// What the target says.
        reason: String,
    },
    /// No strategy is left.
    #[error("no strategy can run on these targets")]
    NobodyRuns,
    /// The target does not let a request choose its strategy.
    #[error("{target} is not in lab mode, start it with `stocklock lab`: {detail}")]
    NotLab {
        /// Which target.
        target: String,
        /// What it says.
        detail: String,
    },
    /// The targets do not share their stock.
    #[error("{target} does not know what was put in stock at {first}: do they share a database?")]
    NotShared {
        /// The target that does not know.
        target: String,
        /// Where it was put in stock.
        first: String,
    },
    /// A target does not answer.
    #[error("{target} does not answer: {reason}")]
    Unreachable {
        /// Which one.
        target: String,
        /// What happened instead.
        reason: String,
    },
    /// A target answers something else than a race can go on with.
    #[error("{call} was answered with {status} {problem}")]
    Refused {
        /// Method and URL.
        call: String,
        /// The status.
        status: u16,
        /// Code and detail, where the answer has them.
        problem: String,
    },
    /// A target's answer does not have the form that it should have.
    #[error("{call} was answered in a form that is not understood: {reason}")]
    Answer {
        /// Method and URL.
        call: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A target's counters became less, so that the run's share of them is not known.
    #[error("{target} has counted less after the run than before: was it started again meanwhile?")]
    Restarted {
        /// Which one.
        target: String,
    },
}

/// Runs the race on `targets`, one strategy after the other.
///
/// Takes at most the plan's deadline for each strategy, and some seconds around it.
///
/// # Errors
/// When the plan is no plan, a target does not answer, or is not in lab mode, or has not the
/// strategies that were named.
///
/// # Cancel safety
/// Dropping the future stops all buyers; the SKU of the run that was under way stays half sold.
pub async fn run(
    plan: &RacePlan,
    targets: &[Target],
    progress: Progress,
) -> Result<Report, RaceError> {
    plan.check()?;
    if targets.is_empty() {
        return Err(RaceError::NoTarget);
    }
    let lineup = lineup::draw_up(plan, targets).await?;
    let mut rows = Vec::with_capacity(lineup.running.len());
    for strategy in lineup.running {
        rows.push(run_one(plan, targets, strategy, progress).await?);
    }
    Ok(Report {
        plan: plan.clone(),
        targets: targets.to_vec(),
        rows,
        skipped: lineup.skipped,
        distance: None,
    })
}

async fn run_one(
    plan: &RacePlan,
    targets: &[Target],
    strategy: Strategy,
    progress: Progress,
) -> Result<Row, RaceError> {
    let sku = format!("race-{:08x}-{strategy}", fastrand::u32(..));
    let first = &targets[0];
    let mut service = ReplicaClient::new(first);
    service.stock_up(&sku, plan.home, plan.stock).await?;
    for target in &targets[1..] {
        let known = ReplicaClient::new(target).audit(&sku).await?;
        known.ok_or_else(|| not_shared(target, first))?;
    }
    let before = Reading::take(targets, strategy).await?;
    let track = progress.begin(strategy, plan.total_orders());
    let (tally, wall) = buyers::sell_out(plan, targets, strategy, &sku, &track).await;
    let run = Run {
        strategy,
        tally,
        wall,
        audit: audit::read(&mut service, &sku, first, plan.ledger_limit).await?,
        locks: before.until_now().await?,
    };
    let mut row = Row::new(plan, sku, run);
    if row.lost_units() {
        // More rows than orders there cannot be, but for a defect that must not hang the race.
        let most = plan.total_orders().saturating_mul(2);
        let ledger = service.movements(&row.sku, most).await?;
        row.evidence = Some(evidence::find(&ledger));
    }
    track.finish(&row);
    Ok(row)
}

fn not_shared(target: &Target, first: &Target) -> RaceError {
    RaceError::NotShared {
        target: target.to_string(),
        first: first.to_string(),
    }
}
