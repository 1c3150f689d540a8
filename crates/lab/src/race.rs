//! The race: sells a fresh SKU with each strategy over HTTP and judges who oversold.
//!
//! It uses only the HTTP interface of the replicas, so the verdict does not depend on their code:
//! it compares the answers to the buyers with the ledger. The targets must be replicas of one
//! service in lab mode, each one reached directly.

mod buyers;
mod connection;
mod counts;
mod event;
mod evidence;
mod lineup;
mod live;
mod mismatch;
mod order;
mod pause;
mod plan;
mod replica_client;
mod report;
mod row;
mod sale;
mod tally;
mod target;
mod text;
mod verdict;
mod words;

pub use counts::{Counts, LockCounts};
pub use event::{Event, Observer, Start, Tick};
pub use evidence::Evidence;
pub use lineup::{Lineup, Skipped};
pub use mismatch::Mismatch;
pub(crate) use plan::ONLY_GROUP_COMMIT;
pub use plan::{Entrants, Names, RacePlan};
pub use replica_client::{Audit, Movement};
pub use report::{Distance, Report, TableStyle};
pub use row::{Row, SkuRow};
pub use tally::Answers;
pub use target::Target;
pub use verdict::Verdict;
pub use words::Words;

use stocklock_core::strategy::Strategy;

use self::replica_client::{Book, ReplicaClient};
use self::row::Run;

/// The race could not be run. A broken promise is not an error, but a [`Verdict`].
#[derive(Debug, thiserror::Error)]
pub enum RaceError {
    /// A target does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// A target answered with this status.
    #[error("{1}")]
    Refused(u16, String),
    /// Everything else.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for RaceError {
    fn from(problem: String) -> Self {
        Self::Failed(problem)
    }
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
    observer: Observer<'_>,
) -> Result<Report, RaceError> {
    plan.check()?;
    if targets.is_empty() {
        return Err("the race needs at least one target".to_owned().into());
    }
    let mut lists = Vec::with_capacity(targets.len());
    for target in targets {
        let mut client = ReplicaClient::new(target);
        client.check_lab_mode(&plan.probe_path()).await?;
        lists.push(client.strategies().await?);
    }
    let lineup = lineup::of_targets(plan, &lists)?;
    observer(Event::Lineup(lineup.clone()));
    let Lineup {
        strategies,
        skipped,
    } = lineup;
    let mut report = Report {
        plan: plan.clone(),
        rows: Vec::with_capacity(strategies.len()),
        skipped,
        stopped: None,
        distance: None,
    };
    for strategy in strategies {
        match run_one(plan, targets, strategy, observer).await {
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
    observer: Observer<'_>,
) -> Result<Row, RaceError> {
    let first = format!("race-{:08x}-{strategy}", fastrand::u32(..));
    let mut skus = vec![first.clone()];
    skus.extend((2..=plan.lines).map(|line| format!("{first}-{line}")));
    let mut client = ReplicaClient::new(&targets[0]);
    for sku in &skus {
        client.create_stock(sku, plan).await?;
    }
    for target in &targets[1..] {
        let mut other = ReplicaClient::new(target);
        other.audit(&first).await?;
    }
    let before = replica_client::lock_counts(targets, strategy).await?;
    observer(Event::Start(Start {
        strategy,
        tier: strategy.tier(),
        sku: first,
        orders: plan.total_orders(),
        stock: plan.units_in_stock(),
        quantity: plan.units_of_order(),
    }));
    let (tally, wall) = buyers::sell_out(plan, targets, strategy, &skus, observer).await;
    let mut books = Vec::new();
    for sku in skus {
        books.push(read_book(plan, targets, sku).await?);
    }
    let (locks, silent) = replica_client::lock_counts_since(before, strategy).await?;
    let run = Run {
        strategy,
        tally,
        wall,
        books,
        locks,
        silent,
    };
    let row = Row::new(plan, run);
    observer(Event::Row(Box::new(row.clone())));
    Ok(row)
}

/// Audit and ledger of a SKU, from the first target that answers.
async fn read_book(plan: &RacePlan, targets: &[Target], sku: String) -> Result<Book, RaceError> {
    // A defect that writes more rows than that must not fill the memory.
    let of_an_order = if plan.holds { 4 } else { 2 };
    let max_rows = plan.buyers * plan.orders * of_an_order;
    let mut book = Err(RaceError::Unreachable("no target answers".to_owned()));
    for target in targets {
        let mut client = ReplicaClient::new(target);
        let read = async {
            Ok(Book {
                audit: client.audit(&sku).await?,
                ledger: client.movements(&sku, max_rows).await?,
                sku: sku.clone(),
            })
        };
        book = read.await;
        if !matches!(book, Err(RaceError::Unreachable(_))) {
            break;
        }
    }
    book
}
